#include "rlk/run/compare.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>

#include "rlk/run/run_reader.h"

namespace rlk {
namespace {

std::string show(int64_t value) {
  return std::to_string(value);
}
std::string show(int32_t value) {
  return std::to_string(value);
}
std::string show(const std::string& text) {
  return text;
}
std::string show(bool value) {
  return value ? "true" : "false";
}
// Shortest decimal that reads back, then the bits.
template <class Bits, class Float>
std::string show_float(Float value) {
  char decimal[32], bits[24];
  *std::to_chars(decimal, decimal + sizeof decimal - 1, value).ptr = '\0';
  std::snprintf(bits, sizeof bits, " (0x%0*llx)", static_cast<int>(2 * sizeof(Bits)),
                static_cast<unsigned long long>(std::bit_cast<Bits>(value)));
  return std::string(decimal) + bits;
}
std::string show(double value) {
  return show_float<uint64_t>(value);
}
std::string show(float value) {
  return show_float<uint32_t>(value);
}
std::string show(const std::optional<Digest>& digest) {
  return digest ? hex(*digest) : "none";
}
std::string show(const Json& value) {
  return value.is_number_float() ? show(value.get<double>()) : value.dump();
}

// Bits decide: +0 and -0 differ, equal NaNs do not.
template <class T>
bool same(const T& a, const T& b) {
  return a == b;
}
bool same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}
bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Walks two runs side by side and stops at the first difference.
class Comparison {
 public:
  Comparison(const std::filesystem::path& a, const std::filesystem::path& b) : a_(a), b_(b) {}

  RunComparison run() {
    const std::vector<Json> metrics_a = a_.metrics(), metrics_b = b_.metrics();
    const size_t steps = std::min(metrics_a.size(), metrics_b.size());
    bool going = compare_version(0, 0);
    for (size_t i = 0; going && i < steps; ++i) {
      const auto step = static_cast<int64_t>(i);
      going = compare_samples(step) && compare_metrics(step, metrics_a[i], metrics_b[i]) &&
              compare_version(step, i + 1);
      result_.steps += going;
    }
    if (going) {
      at_ = {};
      at_.step = static_cast<int64_t>(steps);
      equal("steps", static_cast<int64_t>(metrics_a.size()),
            static_cast<int64_t>(metrics_b.size()));
    }
    return result_;
  }

 private:
  template <class T>
  bool equal(const std::string& field, const T& a, const T& b) {
    if (same(a, b)) return true;
    result_.first = at_;
    result_.first->field = field;
    result_.first->a = show(a);
    result_.first->b = show(b);
    return false;
  }

  // Elements first, so that the position of the first difference is known; then the lengths.
  template <class T>
  bool equal_vectors(const std::string& field, const std::vector<T>& a, const std::vector<T>& b,
                     int64_t first_position) {
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      at_.position = first_position + static_cast<int64_t>(i);
      if (!equal(field, a[i], b[i])) return false;
    }
    at_.position.reset();
    return equal("length of " + field, static_cast<int64_t>(a.size()),
                 static_cast<int64_t>(b.size()));
  }

  bool compare_samples(int64_t step) {
    const Trajectory a = a_.sidecar(step), b = b_.sidecar(step);
    at_ = {};
    at_.step = step;
    for (size_t i = 0; i < std::min(a.samples.size(), b.samples.size()); ++i) {
      if (!compare_sample(a.samples[i], b.samples[i])) return false;
      ++result_.samples;
      result_.tokens += static_cast<int64_t>(a.samples[i].tokens.size());
    }
    at_ = {};
    at_.step = step;
    return equal("samples", static_cast<int64_t>(a.samples.size()),
                 static_cast<int64_t>(b.samples.size())) &&
           equal("weight_version", static_cast<int64_t>(a.weight_version),
                 static_cast<int64_t>(b.weight_version));
  }

  bool compare_sample(const Sample& a, const Sample& b) {
    at_.prompt = a.prompt;
    at_.sample = a.sample;
    at_.position.reset();
    const int64_t n = a.prompt_len;
    return equal("prompt", a.prompt, b.prompt) && equal("sample", a.sample, b.sample) &&
           equal("prompt_len", a.prompt_len, b.prompt_len) &&
           equal_vectors("tokens", a.tokens, b.tokens, 0) &&
           equal_vectors("rollout_logp", a.rollout_logp, b.rollout_logp, n) &&
           equal_vectors("train_logp", a.train_logp, b.train_logp, n) &&
           equal_vectors("ref_logp", a.ref_logp, b.ref_logp, n) &&
           equal("truncated", a.truncated, b.truncated) && equal("reward", a.reward, b.reward) &&
           equal("advantage", a.advantage, b.advantage);
  }

  // Everything but timing, at any depth.
  bool compare_metrics(int64_t step, const Json& a, const Json& b) {
    at_ = {};
    at_.step = step;
    const auto timing = [](const std::string& key) {
      return key == "seconds" || key == "tokens_per_second";
    };
    for (const auto& [key, value] : a.items()) {
      if (timing(key)) continue;
      if (!equal_json(key, value, b.contains(key) ? b.at(key) : Json())) return false;
    }
    for (const auto& [key, value] : b.items())
      if (!timing(key) && !a.contains(key)) return equal_json(key, Json(), value);
    return true;
  }

  bool equal_json(const std::string& field, const Json& a, const Json& b) {
    if (a.is_structured() && a.type() == b.type() && a.size() == b.size()) {
      for (auto x = a.begin(), y = b.begin(); x != a.end(); ++x, ++y) {
        const std::string key = a.is_object() ? x.key() : std::to_string(x - a.begin());
        if (a.is_object() && x.key() != y.key()) return equal(field, a, b);
        if (!equal_json(field + "." + key, *x, *y)) return false;
      }
      return true;
    }
    if (a.is_number_float() && b.is_number_float())
      return equal(field, a.get<double>(), b.get<double>());
    return equal(field, a, b);
  }

  // The fingerprints that step `step` left (version 0: what both runs began with).
  bool compare_version(int64_t step, uint64_t version) {
    const VersionFingerprints a = a_.version(version), b = b_.version(version);
    at_ = {};
    at_.step = step;
    const std::string suffix = ", version " + std::to_string(version);
    for (const auto& [name, x] : a.tensors) {
      const auto found = b.tensors.find(name);
      if (found == b.tensors.end())
        return equal<std::string>("tensor " + name + suffix, "present", "missing");
      const TensorFingerprints& y = found->second;
      const auto check = [&](const char* what, const std::optional<Digest>& p,
                             const std::optional<Digest>& q) {
        result_.fingerprints += p.has_value();
        return equal(what + (" of " + name) + suffix, p, q);
      };
      if (!(check("gradient", x.gradient, y.gradient) && check("exp_avg", x.exp_avg, y.exp_avg) &&
            check("exp_avg_sq", x.exp_avg_sq, y.exp_avg_sq) &&
            check("master", x.master, y.master) &&
            check("weight", std::optional(x.weight), std::optional(y.weight))))
        return false;
    }
    return equal("tensors" + suffix, static_cast<int64_t>(a.tensors.size()),
                 static_cast<int64_t>(b.tensors.size()));
  }

  RunReader a_, b_;
  RunDifference at_;  // where the comparison stands
  RunComparison result_;
};

}  // namespace

std::string RunDifference::text() const {
  std::string where = "step " + std::to_string(step);
  if (prompt) where += ", prompt " + std::to_string(*prompt);
  if (sample) where += ", sample " + std::to_string(*sample);
  where += ", " + field;
  if (position) where += " at position " + std::to_string(*position);
  return where + ": a " + a + ", b " + b;
}

RunComparison compare_runs(const std::filesystem::path& run_a, const std::filesystem::path& run_b) {
  return Comparison(run_a, run_b).run();
}

}  // namespace rlk
