#include "rollout_stage.h"

#include <algorithm>
#include <cstring>

#include "rlk/base/error.h"

namespace rlk {
namespace {

// A sample as it travels: header, tokens, log-prob bits; 32-bit words.
struct Header {
  int32_t index, tokens, response, truncated;
};

void pack(std::vector<int32_t>& out, int32_t index, const GenerateResult& r) {
  const Header h{index, static_cast<int32_t>(r.tokens.size()), static_cast<int32_t>(r.logp.size()),
                 r.truncated};
  const auto* words = reinterpret_cast<const int32_t*>(&h);
  out.insert(out.end(), words, words + sizeof h / sizeof(int32_t));
  out.insert(out.end(), r.tokens.begin(), r.tokens.end());
  const auto* logp = reinterpret_cast<const int32_t*>(r.logp.data());
  out.insert(out.end(), logp, logp + r.logp.size());
}

const int32_t* unpack(const int32_t* in, std::vector<Sample>& samples) {
  Header h;
  std::memcpy(&h, in, sizeof h);
  in += sizeof h / sizeof(int32_t);
  Sample& s = samples[h.index];
  s.tokens.assign(in, in + h.tokens);
  in += h.tokens;
  s.rollout_logp.resize(h.response);
  std::memcpy(s.rollout_logp.data(), in, h.response * sizeof(float));
  s.truncated = h.truncated != 0;
  RLK_CHECK(s.response_len() == h.response, s.response_len(), h.response);
  return in + h.response;
}

// Every rank's words, in rank order.
std::vector<int32_t> share_words(Rank& rank, const std::vector<int32_t>& mine) {
  const int size = rank.everyone->size();
  auto gather = [&](const void* data, int64_t bytes, void* all) {
    rank.everyone->all_gather(nullptr, data, all, static_cast<size_t>(bytes));
  };
  const auto words = static_cast<int64_t>(mine.size());
  std::vector<int64_t> counts(size);
  gather(&words, sizeof words, counts.data());
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  std::vector<int32_t> padded(mine), all(size * longest), joined;
  padded.resize(longest);
  gather(padded.data(), longest * 4, all.data());
  for (int r = 0; r < size; ++r)
    joined.insert(joined.end(), all.begin() + r * longest, all.begin() + r * longest + counts[r]);
  return joined;
}

}  // namespace

Trajectory rollout_stage(Rank& rank, int64_t step, uint64_t version,
                         const std::vector<int64_t>& rows) {
  const Options& o = rank.plan.options;
  Trajectory trajectory;
  trajectory.step = step;
  trajectory.weight_version = version;
  std::vector<GenerateRequest> requests;
  for (int64_t row : rows) {
    const std::vector<int32_t> prompt = rank.prompts.tokens(row);
    for (int32_t s = 0; s < o.samples_per_prompt; ++s) {
      requests.push_back({.prompt_index = row,
                          .sample_index = s,
                          .prompt = prompt,
                          .max_new = o.max_response_len,
                          .sampling = {o.temperature, o.top_p, o.top_k}});
      Sample sample;
      sample.prompt = row;
      sample.sample = s;
      sample.prompt_len = static_cast<int32_t>(prompt.size());
      trajectory.samples.push_back(std::move(sample));
    }
  }
  // Adjacent samples go to the same engine, so that it can share their prompts' pages.
  const Topology& t = rank.topology();
  const auto total = static_cast<int64_t>(requests.size());
  const int engine = t.engine(rank.index());
  const int64_t begin = engine * total / t.engines(), end = (engine + 1) * total / t.engines();
  const std::vector<GenerateRequest> mine(requests.begin() + begin, requests.begin() + end);
  const auto results = rank.engine->generate(rank.weights.view(t.rollout_slices(rank.index())),
                                             mine, o.rollout_seed, static_cast<uint64_t>(step));
  std::vector<int32_t> words;
  const bool speaks = rank.index() == t.engine_group(rank.index()).front();
  for (size_t i = 0; speaks && i < results.size(); ++i)
    pack(words, static_cast<int32_t>(begin + static_cast<int64_t>(i)), results[i]);
  const std::vector<int32_t> all = share_words(rank, words);
  for (const int32_t* in = all.data(); in != all.data() + all.size();)
    in = unpack(in, trajectory.samples);
  return trajectory;
}

}  // namespace rlk
