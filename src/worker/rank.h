#pragma once
// Everything one rank holds while it works on a plan. Made once; owned by worker_main; one thread.

#include <memory>
#include <string>
#include <vector>

#include "rlk/comm/world.h"
#include "rlk/data/checkpoint.h"
#include "rlk/data/prompts.h"
#include "rlk/data/tokenizer.h"
#include "rlk/model/weights.h"
#include "rlk/plan/plan.h"
#include "rlk/rollout/engine.h"
#include "rlk/run/trace.h"
#include "rlk/train/trainer.h"

namespace rlk {

class OpTrace;

// The tables a plan computes with: strict ops, or native ones in the modules that ask for them.
struct OpTables {
  const Ops* strict;
  const Ops* attention;
  const Ops* ffn;
  const Ops* logp;
};
OpTables make_op_tables(const Plan&, int rank);

class Rank {
 public:
  Rank(const Plan&, std::unique_ptr<World> world);
  ~Rank();

  int index() const { return world_->rank(); }
  bool leader() const { return index() == 0; }

  const Plan plan;
  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> everyone;  // host data of all ranks
  OpTables ops;
  Tokenizer tokenizer;
  PromptSet prompts;
  std::vector<float> rope;
  std::unique_ptr<Communicator> train_tp, rollout_tp;
  Weights weights;
  std::unique_ptr<Weights> reference;  // null without KL
  std::unique_ptr<OpTrace> trace;      // null unless --trace-ops
  Context train_context, rollout_context;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<RolloutEngine> engine;

  const Topology& topology() const { return plan.options.topology; }
};

}  // namespace rlk
