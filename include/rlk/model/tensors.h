#pragma once
// The table of a model's tensors: what Hugging Face calls each, where its virtual slices lie in
// rlk's storage, and which rank of a CP group owns which piece of the optimizer. Pure arithmetic
// over ModelConfig; everything else (weights, gradients, optimizer, fingerprints, import, export)
// walks this table.

#include <cstdint>
#include <string>
#include <vector>

#include "rlk/base/topology.h"
#include "rlk/profile/model_config.h"

namespace rlk {

// One stored matrix. q, k and v of a slice are stored one after the other, and so are gate and up
// (R0).
enum class Storage {
  embed,
  input_norm,
  qkv,
  q_norm,
  k_norm,
  o,
  post_norm,
  gate_up,
  down,
  final_norm,
  head
};

// How the Hugging Face tensor is cut into virtual slices.
enum class Cut { none, rows, columns };

// One exported tensor.
struct TensorSpec {
  std::string name;  // "model.layers.3.self_attn.q_proj.weight"
  Storage storage;
  int layer;  // -1 outside the layers
  Cut cut;
  int64_t rows, cols;              // Hugging Face shape; rows == 1 for a vector
  int64_t slice_rows, slice_cols;  // of one virtual slice as stored (vocabulary: padded)
  int64_t offset;                  // elements, of this tensor inside its storage's slice
  bool vector;                     // norm weights: exported with shape [cols], no weight decay

  int slices() const { return cut == Cut::none ? 1 : 8; }
  // Elements of slice s that exist in the model (vocabulary slices end at the real vocabulary).
  int64_t slice_elements(int s) const;
  std::vector<int64_t> shape() const {
    return vector ? std::vector{cols} : std::vector{rows, cols};
  }
};

// Elements of one slice of a storage, over all tensors in it.
int64_t storage_slice_elements(const ModelConfig&, Storage);
bool storage_sliced(Storage);

// Every tensor, in the order embed, layers ascending (input_norm, q, k, v, q_norm, k_norm, o,
// post_norm, gate, up, down), final norm, lm_head (absent when tied).
std::vector<TensorSpec> model_tensors(const ModelConfig&);

// Where each storage of each layer lies in an arena that holds `slices` adjacent virtual slices.
// Elements; each storage starts on a 128-element boundary.
class ArenaLayout {
 public:
  ArenaLayout(const ModelConfig&, int slices);

  int64_t offset(Storage, int layer) const;
  // Of `tensor`'s slice number `local` of the arena (ignored for replicated tensors).
  int64_t offset(const TensorSpec& tensor, int local) const;
  int64_t elements() const { return elements_; }
  int64_t layer_begin(int layer) const { return first_layer_ + layer * layer_elements_; }
  int64_t layer_elements() const { return layer_elements_; }
  // The same for a block that holds only what lies outside the layers (gradients).
  int64_t outer_offset(Storage) const;
  int64_t outer_elements() const { return elements_ - config_.L * layer_elements_; }
  int slices() const { return slices_; }

 private:
  ModelConfig config_;
  int slices_;
  std::vector<int64_t> global_, layer_;  // by Storage: offset in the arena; offset inside a layer
  int64_t first_layer_ = 0, layer_elements_ = 0, elements_ = 0;
};

// The piece of optimizer state that one CP rank owns as a whole: at most kUnit elements of one
// tensor slice. A unit of fp32 is one 1 MiB piece of the fingerprint and four gradient-norm tiles.
inline constexpr int kUnitLog2 = 18;
inline constexpr int64_t kUnit = int64_t{1} << kUnitLog2;

struct Unit {
  int tensor;     // index in model_tensors
  int slice;      // virtual slice, 0 for replicated tensors
  int64_t begin;  // elements, inside the tensor's slice
  int64_t count;
  int owner;  // CP index
};

// The units of one TP shard (the range's virtual slices, and replicated tensors) in (tensor, slice,
// piece) order, dealt round-robin to `cp` owners.
std::vector<Unit> shard_units(const std::vector<TensorSpec>&, Topology::Range range, int cp);

// One owner's units of one tensor slice: `count` elements in pieces of kUnit that lie cp * kUnit
// apart from `begin` on, the last one maybe shorter. What ops take at once.
std::vector<Unit> unit_runs(const std::vector<Unit>& units, int cp);

}  // namespace rlk
