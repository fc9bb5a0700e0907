#pragma once
// A rank's rollout forward passes: device buffers, the upload of a plan's rows, and the ops from
// embedding to drawn tokens. Decode rows then live on the device: decode_advance at the end of a
// step feeds the next one, so the host launches a plan's steps back to back and reads their tokens
// once. A pass runs any rows, or is captured once as a graph for decode steps of one shape and then
// replayed: the same ops with the same kernels, so the bits are the same.
//
// Owns its upload; borrows context, weights, pages and PassMemory. One thread.

#include <functional>
#include <vector>

#include "rlk/model/head.h"
#include "rlk/model/memory.h"
#include "step_rows.h"

namespace rlk {

// Pages of a layer, seen through a page table.
using LayerCache = std::function<KvCache(int layer, const int32_t* page_table)>;

// What the memory of a pass follows from.
struct PassShape {
  int64_t T = 0, R = 0;  // rows, rows with logits
  int32_t n_segments = 0, max_len = 0, max_context = 0;
  bool limited = false;
};

// Activations of the largest pass: passes of one engine take turns in it, and graphs keep its
// addresses.
class PassMemory {
 public:
  PassMemory(const Context&, Topology::Range slices, const KvCache& layout);

  struct Buffers {
    LayerActs layer;
    ForwardScratch scratch;
    HeadActs head;
    int32_t* token;  // [R]
  };
  // Grows to the shape. REQUIRES: no graph was captured over a smaller one.
  Buffers at(const PassShape&);

 private:
  size_t attention_workspace(const PassShape&) const;

  Context ctx_;
  Topology::Range slices_;
  KvCache layout_;
  DeviceBuffer layer_, scratch_, head_, token_;
};

class ForwardPass {
 public:
  ForwardPass(const Context&, Topology::Range slices, LayerCache, PassMemory&,
              std::vector<int32_t> stop);
  ~ForwardPass();
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  // Runs the rows, `steps` times where they are decode rows, and returns what the head rows drew:
  // [R][steps], a token of -1 where a row drew no more.
  std::vector<Drawn> run(const WeightsView&, const StepRows&,
                         const std::vector<int32_t>& page_table, int32_t steps);

  // Records a step for decode rows of exactly this shape (idle rows pad smaller plans); `rows`
  // gives shape and bounds, its values do not matter. Afterwards run() replays it for such rows.
  void capture(const WeightsView&, const StepRows& rows, const std::vector<int32_t>& page_table,
               int32_t most_steps);

 private:
  void prepare(const StepRows&, const std::vector<int32_t>& page_table, int32_t most_steps);
  void forward(const WeightsView&, const StepRows&);
  void advance();
  std::vector<Drawn> read_decode(int64_t R, int32_t steps);
  std::vector<Drawn> read_once(int64_t R);

  Context ctx_;
  Topology::Range slices_;
  LayerCache cache_;
  PassMemory& memory_;
  std::vector<int32_t> stop_;
  Upload upload_;
  Graph graph_ = nullptr;
  // Set by prepare().
  Batch batch_;
  const int32_t* page_table_ = nullptr;
  const int32_t* head_index_ = nullptr;
  RowSampling sampling_{};
  PassMemory::Buffers buffers_{};
  DecodeAdvanceArgs decode_{};
};

}  // namespace rlk
