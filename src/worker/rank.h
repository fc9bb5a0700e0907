#pragma once
// Everything one rank holds while it works on a plan. Made once; owned by worker_main; one thread.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rlk/comm/native_sum.h"
#include "rlk/comm/world.h"
#include "rlk/data/checkpoint.h"
#include "rlk/data/prompts.h"
#include "rlk/data/reward.h"
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
// The same with every module's calls counted (rlk/device/counted.h).
OpTables counted_tables(const Ops& strict, const Ops& attention, const Ops& ffn, const Ops& logp);

class Rank {
 public:
  // `host` is the launcher's shared memory and outlives the rank; CUDA ranks open a world of device
  // memory beside it. `tables` are make_op_tables' (tests: with an op that breaks the rules).
  Rank(const Plan&, World& host, const OpTables& tables, std::chrono::milliseconds timeout);
  ~Rank();

  int index() const { return host_.rank(); }
  bool leader() const { return index() == 0; }

  const Plan plan;
  World& host_;
  std::unique_ptr<Communicator> everyone;  // all ranks, for data in host memory
  OpTables ops;
  std::unique_ptr<World> device_;  // null on the CPU, where the host's world is the engines' too
  World& world;
  std::optional<Tokenizer> tokenizer;  // nothing: a synthetic model
  PromptSet prompts;
  DeviceBuffer rope;
  std::unique_ptr<Communicator> train_tp, rollout_tp;
  std::unique_ptr<NativeSum> train_sum, rollout_sum;  // null without native modules on several GPUs
  Weights weights;
  std::unique_ptr<Weights> reference;  // null without KL
  std::unique_ptr<OpTrace> trace;      // null unless --trace-ops
  Context train_context, rollout_context;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<RolloutEngine> engine;
  std::unique_ptr<Reward> reward;  // rank 0 alone

  const Topology& topology() const { return plan.options.topology; }
};

}  // namespace rlk
