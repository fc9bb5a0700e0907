#pragma once
// One rollout forward pass of a rank: device buffers, the upload of a step's rows, and the ops from
// embedding to drawn tokens. A pass is used for any rows, or captured once as a graph for decode
// steps of one size and then replayed: the same ops with the same kernels, so the bits are the
// same.
//
// Owns its buffers; borrows context, weights and pages. One thread.

#include <functional>
#include <vector>

#include "rlk/model/head.h"
#include "rlk/model/memory.h"
#include "step_rows.h"

namespace rlk {

struct Drawn {
  int32_t token;
  float logp;
};

// Pages of a layer, seen through a page table.
using LayerCache = std::function<KvCache(int layer, const int32_t* page_table)>;

class ForwardPass {
 public:
  ForwardPass(const Context&, Topology::Range slices, LayerCache);
  ~ForwardPass();
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  // Runs the rows and returns what was drawn for the head rows.
  std::vector<Drawn> run(const WeightsView&, const StepRows&,
                         const std::vector<int32_t>& page_table);

  // Records the pass for decode rows of exactly this shape (idle rows pad smaller steps); `rows`
  // gives shape and bounds, its values do not matter. Afterwards replay() runs it with other rows
  // of that shape.
  void capture(const WeightsView&, const StepRows& rows, const std::vector<int32_t>& page_table);
  std::vector<Drawn> replay(const StepRows&, const std::vector<int32_t>& page_table);

 private:
  void prepare(const StepRows&, const std::vector<int32_t>& page_table);  // buffers and upload
  void enqueue(const WeightsView&, const StepRows&);
  std::vector<Drawn> read(int64_t R);

  Context ctx_;
  Topology::Range slices_;
  LayerCache cache_;
  DeviceBuffer acts_, scratch_memory_, head_memory_, tokens_;
  Upload upload_;
  Graph graph_ = nullptr;
  // Set by prepare().
  Batch batch_;
  const int32_t* page_table_ = nullptr;
  const int32_t* head_index_ = nullptr;
  const SampleKey* keys_ = nullptr;
  RowSampling sampling_{};
  LayerActs layer_{};
  ForwardScratch scratch_{};
  HeadActs head_{};
  int32_t* token_ = nullptr;
};

}  // namespace rlk
