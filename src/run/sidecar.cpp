#include "sidecar.h"

#include <charconv>
#include <span>

#include "rlk/base/error.h"
#include "rlk/base/safetensors.h"

namespace rlk {
namespace {

constexpr const char* kSchema = "rlk.sidecar.v1";

// A trajectory as the columns of the file.
struct Columns {
  std::vector<int64_t> prompt, token_offset{0}, response_offset{0};
  std::vector<int32_t> sample, prompt_len, tokens;
  std::vector<uint8_t> truncated, loss_mask;
  std::vector<double> reward, advantage;
  std::vector<float> rollout_logp, train_logp, ref_logp;
};

template <class T>
void append(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

void add(const Sample& s, Columns* c) {
  const size_t response = s.response_len();
  RLK_CHECK(s.rollout_logp.size() == response, s.prompt, s.sample, s.rollout_logp.size(), response);
  RLK_CHECK(s.train_logp.size() == response, s.prompt, s.sample, s.train_logp.size(), response);
  c->prompt.push_back(s.prompt);
  c->sample.push_back(s.sample);
  c->prompt_len.push_back(s.prompt_len);
  c->truncated.push_back(s.truncated);
  c->reward.push_back(s.reward);
  c->advantage.push_back(s.advantage);
  append(&c->tokens, s.tokens);
  c->loss_mask.insert(c->loss_mask.end(), s.prompt_len, 0);
  c->loss_mask.insert(c->loss_mask.end(), response, 1);
  append(&c->rollout_logp, s.rollout_logp);
  append(&c->train_logp, s.train_logp);
  append(&c->ref_logp, s.ref_logp);
  c->token_offset.push_back(static_cast<int64_t>(c->tokens.size()));
  c->response_offset.push_back(static_cast<int64_t>(c->rollout_logp.size()));
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::u8;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, float>) return DType::f32;
}

template <class T>
TensorSource source(const char* name, const std::vector<T>& column) {
  return {name, dtype_of<T>(), {static_cast<int64_t>(column.size())}, column.data()};
}

// ---- Reading ----------------------------------------------------------------------------------

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(path) {}

  bool has(const char* name) const { return file_.find(name) != nullptr; }

  // Column `name` with `size` elements (any number of them when negative).
  template <class T>
  std::span<const T> column(const char* name, int64_t size = -1) const {
    const TensorInfo* info = file_.find(name);
    if (info == nullptr) fail(std::string("tensor ") + name + " is missing");
    if (info->dtype != dtype_of<T>() || info->shape.size() != 1 ||
        (size >= 0 && info->shape[0] != size)) {
      fail(std::string("tensor ") + name + " is not " + dtype_name(dtype_of<T>()) + " [" +
           (size >= 0 ? std::to_string(size) : "n") + "]");
    }
    return {reinterpret_cast<const T*>(file_.data(*info)), static_cast<size_t>(info->shape[0])};
  }

  // Offsets of `count` samples: from 0 to `total`, never backwards.
  std::span<const int64_t> offsets(const char* name, int64_t count, int64_t total) const {
    const auto values = column<int64_t>(name, count + 1);
    if (values.front() != 0 || values.back() != total)
      fail(std::string(name) + " does not run from 0 to " + std::to_string(total));
    for (int64_t i = 0; i < count; ++i)
      if (values[i] > values[i + 1])
        fail(std::string(name) + "[" + std::to_string(i) + "] runs backwards");
    return values;
  }

  int64_t number(const std::string& key) const {
    for (const auto& [name, value] : file_.metadata()) {
      if (name != key) continue;
      int64_t number = -1;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error == std::errc() && end == value.data() + value.size() && number >= 0) return number;
      fail("metadata " + key + " is \"" + value.substr(0, 40) + "\"");
    }
    fail("metadata " + key + " is missing");
  }

  void expect_schema() const {
    for (const auto& [name, value] : file_.metadata())
      if (name == "schema" && value == kSchema) return;
    fail(std::string("metadata schema is not ") + kSchema);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(file_.path().string(), what);
  }

 private:
  SafetensorsFile file_;
};

template <class T>
std::vector<T> part(std::span<const T> column, int64_t begin, int64_t end) {
  return {column.begin() + begin, column.begin() + end};
}

// The mask must say exactly what prompt_len says.
void check_mask(const Reader& reader, std::span<const uint8_t> mask, int64_t begin, int64_t end,
                int64_t prompt_len) {
  for (int64_t i = begin; i < end; ++i) {
    const bool active = i - begin >= prompt_len;
    if (mask[i] != active) {
      reader.fail("loss_mask[" + std::to_string(i) + "] is " + std::to_string(mask[i]) + " for a " +
                  (active ? "response" : "prompt") + " token");
    }
  }
}

}  // namespace

void write_sidecar_file(const std::filesystem::path& path, const Trajectory& trajectory) {
  Columns c;
  for (const Sample& s : trajectory.samples) add(s, &c);
  std::vector<TensorSource> tensors = {source("prompt", c.prompt),
                                       source("sample", c.sample),
                                       source("prompt_len", c.prompt_len),
                                       source("truncated", c.truncated),
                                       source("reward", c.reward),
                                       source("advantage", c.advantage),
                                       source("token_offset", c.token_offset),
                                       source("tokens", c.tokens),
                                       source("loss_mask", c.loss_mask),
                                       source("response_offset", c.response_offset),
                                       source("rollout_logp", c.rollout_logp),
                                       source("train_logp", c.train_logp)};
  if (!c.ref_logp.empty()) {
    RLK_CHECK(c.ref_logp.size() == c.train_logp.size(), c.ref_logp.size(), c.train_logp.size());
    tensors.push_back(source("ref_logp", c.ref_logp));
  }
  write_safetensors(path, tensors,
                    {{"schema", kSchema},
                     {"step", std::to_string(trajectory.step)},
                     {"weight_version", std::to_string(trajectory.weight_version)}});
}

Trajectory read_sidecar_file(const std::filesystem::path& path, int64_t step) {
  const Reader reader(path);
  reader.expect_schema();
  Trajectory t;
  t.step = reader.number("step");
  if (t.step != step) reader.fail("is of step " + std::to_string(t.step));
  t.weight_version = static_cast<uint64_t>(reader.number("weight_version"));

  const auto prompt = reader.column<int64_t>("prompt");
  const int64_t count = static_cast<int64_t>(prompt.size());
  const auto sample = reader.column<int32_t>("sample", count);
  const auto prompt_len = reader.column<int32_t>("prompt_len", count);
  const auto truncated = reader.column<uint8_t>("truncated", count);
  const auto reward = reader.column<double>("reward", count);
  const auto advantage = reader.column<double>("advantage", count);
  const auto tokens = reader.column<int32_t>("tokens");
  const int64_t total = static_cast<int64_t>(tokens.size());
  const auto mask = reader.column<uint8_t>("loss_mask", total);
  const auto token_offset = reader.offsets("token_offset", count, total);
  const auto rollout = reader.column<float>("rollout_logp");
  const int64_t active = static_cast<int64_t>(rollout.size());
  const auto train = reader.column<float>("train_logp", active);
  const bool has_ref = reader.has("ref_logp");
  const auto ref = has_ref ? reader.column<float>("ref_logp", active) : std::span<const float>();
  const auto response_offset = reader.offsets("response_offset", count, active);

  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = token_offset[i], end = token_offset[i + 1];
    const int64_t first = response_offset[i], last = response_offset[i + 1];
    if (prompt_len[i] < 0 || last - first != end - begin - prompt_len[i]) {
      reader.fail("sample " + std::to_string(i) + " has " + std::to_string(end - begin) +
                  " tokens, prompt_len " + std::to_string(prompt_len[i]) + " and " +
                  std::to_string(last - first) + " log-probs");
    }
    if (truncated[i] > 1) reader.fail("truncated[" + std::to_string(i) + "] is neither 0 nor 1");
    check_mask(reader, mask, begin, end, prompt_len[i]);
    Sample s;
    s.prompt = prompt[i];
    s.sample = sample[i];
    s.prompt_len = prompt_len[i];
    s.tokens = part(tokens, begin, end);
    s.rollout_logp = part(rollout, first, last);
    s.train_logp = part(train, first, last);
    if (has_ref) s.ref_logp = part(ref, first, last);
    s.truncated = truncated[i] != 0;
    s.reward = reward[i];
    s.advantage = advantage[i];
    t.samples.push_back(std::move(s));
  }
  return t;
}

}  // namespace rlk
