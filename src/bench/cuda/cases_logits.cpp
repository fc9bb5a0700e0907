// Log-probs, supports and sampling over Qwen3's padded vocabulary, 152,576 columns.

#include <cmath>

#include "../harness.h"

namespace rlk::bench {
namespace {

constexpr int64_t kPadded = 152576, kVocab = 151936, kRows = kPadded / kSlices;
constexpr int64_t kCheckedRows = 3;
constexpr float kStd = 3.0f;  // of the logits: the scale of a trained model's

// One set of logits and what every op here reads beside it.
struct Inputs {
  int64_t T;
  LogitsView view;
  const float* inv_temp;
  const float* top_p;
  const int32_t* top_k;
  const int32_t* target;
  uint32_t* threshold;
  int32_t* error;

  Inputs(Buffers& b, int64_t rows, float p, int32_t k) : T(rows) {
    view = {b.normal(T * kPadded, kStd), T, kPadded, kRows, 0, kSlices, kVocab};
    const size_t n = static_cast<size_t>(T);
    std::vector<int32_t> targets(n);
    for (size_t t = 0; t < n; ++t) targets[t] = static_cast<int32_t>(t * 9973 % kVocab);
    inv_temp = b.copy_of(std::vector<float>(n, 1.0f));
    top_p = b.copy_of(std::vector<float>(n, p));
    top_k = b.copy_of(std::vector<int32_t>(n, k));
    target = b.copy_of(targets);
    threshold = b.array<uint32_t>(T);
    error = b.array<int32_t>(1);
  }
  SupportArgs support() const { return {view, inv_temp, top_p, top_k, threshold, error, nullptr}; }
};

// The first rows on the host, for the CPU backend.
struct HostInputs {
  std::vector<bf16> x;
  std::vector<float> inv_temp, top_p;
  std::vector<int32_t> top_k, target;
  std::vector<uint32_t> threshold;
  LogitsView view;
  int32_t error = 0;

  HostInputs(Buffers& b, const Inputs& in)
      : x(b.host(in.view.x, std::min(in.T, kCheckedRows) * kPadded)), view(in.view) {
    view.T = std::min(in.T, kCheckedRows);
    view.x = x.data();
    inv_temp = b.host(in.inv_temp, view.T);
    top_p = b.host(in.top_p, view.T);
    top_k = b.host(in.top_k, view.T);
    target = b.host(in.target, view.T);
    threshold.resize(static_cast<size_t>(view.T));
  }
  void support(const Ops& cpu) {
    SupportArgs a{view,   inv_temp.data(), top_p.data(), top_k.data(), threshold.data(),
                  &error, nullptr};
    std::vector<char> work(cpu.support_workspace(a) + 1);
    a.workspace = work.data();
    cpu.logits_support(nullptr, a);
  }
};

Case support(Buffers& b, int64_t T, float p, int32_t k) {
  Case c;
  const Inputs in(b, T, p, k);
  c.bytes = static_cast<double>(T) * kVocab * 2;
  c.run = [&b, in](Stream s, int) { b.ops().logits_support(s, in.support()); };
  c.verify = [&b, in] {
    HostInputs h(b, in);
    h.support(cpu_ops(4));
    const auto got = b.host(in.threshold, h.view.T);
    for (size_t t = 0; t < got.size(); ++t) {
      if (got[t] != h.threshold[t])
        return "row " + std::to_string(t) + ": threshold " + std::to_string(got[t]) +
               ", expected " + std::to_string(h.threshold[t]);
    }
    return std::string();
  };
  return c;
}

// Statistics and merge, with the support first when p cuts: what scoring runs.
Case logprob(Buffers& b, int64_t T, float p) {
  Case c;
  const Inputs in(b, T, p, -1);
  const bool cut = p < 1.0f;
  SliceStats* stats = b.array<SliceStats>(T * kSlices);
  float* logp = b.array<float>(T);
  float* lse = b.array<float>(T);
  c.bytes = static_cast<double>(T) * kVocab * 2 * (cut ? 2 : 1);
  c.run = [=, &b](Stream s, int) {
    if (cut) b.ops().logits_support(s, in.support());
    b.ops().logprob_stats(
        s, {in.view, in.inv_temp, cut ? in.threshold : nullptr, in.target, stats, in.error});
    b.ops().logprob_merge(s, {stats, 1, T, logp, lse});
  };
  c.verify = [=, &b]() -> std::string {
    HostInputs h(b, in);
    if (cut) h.support(cpu_ops(4));
    const size_t n = static_cast<size_t>(h.view.T);
    std::vector<SliceStats> host_stats(n * kSlices);
    std::vector<float> want(n), want_lse(n);
    cpu_ops(4).logprob_stats(
        nullptr, {h.view, h.inv_temp.data(), cut ? h.threshold.data() : nullptr, h.target.data(),
                  host_stats.data(), &h.error});
    cpu_ops(4).logprob_merge(nullptr,
                             {host_stats.data(), 1, h.view.T, want.data(), want_lse.data()});
    const std::string miss = compare("lse", b.host(lse, h.view.T), want_lse, 1e-6f, 1.0f);
    return miss.empty() ? compare("logp", b.host(logp, h.view.T), want, 2e-6f, 10.0f) : miss;
  };
  return c;
}

Case logprob_bwd(Buffers& b, int64_t T) {
  Case c;
  const Inputs in(b, T, 1.0f, -1);
  const float* lse = b.copy_of(std::vector<float>(static_cast<size_t>(T), 16.5f));
  const float* g = b.copy_of(std::vector<float>(static_cast<size_t>(T), 0.5f));
  bf16* d = b.array<bf16>(T * kPadded);
  c.bytes = static_cast<double>(T) * kPadded * 4;
  c.run = [=, &b](Stream s, int) {
    b.ops().logprob_bwd(s, {in.view, in.inv_temp, nullptr, in.target, lse, g, d});
  };
  c.verify = [=, &b] {
    HostInputs h(b, in);
    const std::vector<float> hl(static_cast<size_t>(h.view.T), 16.5f), hg(hl.size(), 0.5f);
    std::vector<bf16> want(h.x.size());
    cpu_ops(4).logprob_bwd(nullptr, {h.view, h.inv_temp.data(), nullptr, h.target.data(), hl.data(),
                                     hg.data(), want.data()});
    return compare("dlogits", floats(b.host(d, h.view.T * kPadded)), floats(want), 0x1p-7f, 1e-9f);
  };
  return c;
}

Case sample(Buffers& b, int64_t T, float p) {
  Case c;
  c.sets = p < 1.0f ? 1 : sets_of(static_cast<double>(T) * kPadded * 2);
  const Inputs in(b, T, p, -1);
  const bf16* more = b.normal(T * kPadded * c.sets, kStd);
  const bool cut = p < 1.0f;
  std::vector<SampleKey> keys(static_cast<size_t>(T));
  for (size_t t = 0; t < keys.size(); ++t)
    keys[t] = {sample_key(1234, 1), static_cast<uint32_t>(t), 0, 100 + static_cast<uint32_t>(t)};
  const SampleKey* dkeys = b.copy_of(keys);
  Candidate* best = b.array<Candidate>(T);
  int32_t* token = b.array<int32_t>(T);
  c.bytes = static_cast<double>(T) * kVocab * 2;
  c.run = [=, &b](Stream s, int set) {
    LogitsView view = in.view;
    if (set > 0) view.x = more + set * T * kPadded;
    if (cut) b.ops().logits_support(s, in.support());
    b.ops().sample(s, {view, in.inv_temp, cut ? in.threshold : nullptr, dkeys, best, nullptr});
    b.ops().sample_merge(s, {best, 1, T, token});
  };
  c.verify = [=, &b] {
    HostInputs h(b, in);
    if (cut) h.support(cpu_ops(4));
    std::vector<Candidate> want(static_cast<size_t>(h.view.T));
    SampleArgs a{h.view,      h.inv_temp.data(), cut ? h.threshold.data() : nullptr,
                 keys.data(), want.data(),       nullptr};
    std::vector<char> work(cpu_ops(4).sample_workspace(a) + 1);
    a.workspace = work.data();
    cpu_ops(4).sample(nullptr, a);
    const auto got = b.host(best, h.view.T);
    const auto tokens = b.host(token, h.view.T);
    for (size_t t = 0; t < want.size(); ++t) {
      if (got[t].token != want[t].token || tokens[t] != want[t].token)
        return "row " + std::to_string(t) + ": token " + std::to_string(got[t].token) +
               ", expected " + std::to_string(want[t].token);
    }
    return std::string();
  };
  return c;
}

}  // namespace

void add_logits_cases(std::vector<NamedCase>& cases) {
  const auto add = [&](const char* op, std::string shape, std::function<Case(Buffers&)> make) {
    cases.push_back({op, shape + " V=152576", std::move(make)});
  };
  add("logprob", "T=1024", [](Buffers& b) { return logprob(b, 1024, 1.0f); });
  add("logprob", "T=1024 top_p=0.95", [](Buffers& b) { return logprob(b, 1024, 0.95f); });
  for (int64_t T : {8, 64, 1024}) {
    add("logits_support", "T=" + std::to_string(T) + " top_p=0.95",
        [T](Buffers& b) { return support(b, T, 0.95f, -1); });
  }
  add("logits_support", "T=64 top_k=50", [](Buffers& b) { return support(b, 64, 1.0f, 50); });
  add("logprob_bwd", "T=1024", [](Buffers& b) { return logprob_bwd(b, 1024); });
  for (int64_t T : {1, 8, 64})
    add("sample", "T=" + std::to_string(T), [T](Buffers& b) { return sample(b, T, 1.0f); });
  add("support+sample", "T=8 top_p=0.95", [](Buffers& b) { return sample(b, 8, 0.95f); });
}

}  // namespace rlk::bench
