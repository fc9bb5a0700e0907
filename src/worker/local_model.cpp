#include "local_model.h"

#include "rlk/base/error.h"
#include "rlk/data/checkpoint.h"
#include "rlk/worker/fill_weights.h"

namespace rlk {

void check_sampling(const SamplingParams& sampling, const ModelConfig& m) {
  if (sampling.top_k > m.vocab)
    throw InputError("--top-k " + std::to_string(sampling.top_k),
                     "must be -1 or from 1 to the vocabulary's " + std::to_string(m.vocab));
}

LocalRank open_model(const LocalModel& model, const ModelConfig& config, uint64_t shared_bytes) {
  return LocalRank(model.backend, model.threads, config, shared_bytes,
                   [&](Weights& weights, const Ops& ops) {
                     Checkpoint(model.dir, config).verify();
                     load_weights(weights, ops, model.dir, config);
                   });
}

}  // namespace rlk
