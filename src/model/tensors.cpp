#include "rlk/model/tensors.h"

#include <algorithm>

#include "rlk/base/error.h"

namespace rlk {
namespace {

constexpr int kStorages = static_cast<int>(Storage::head) + 1;
constexpr Storage kLayerStorages[] = {Storage::input_norm, Storage::qkv, Storage::q_norm,
                                      Storage::k_norm,     Storage::o,   Storage::post_norm,
                                      Storage::gate_up,    Storage::down};

int64_t aligned(int64_t elements) {
  return (elements + 127) / 128 * 128;
}

TensorSpec norm(std::string name, Storage storage, int layer, int64_t n) {
  return {std::move(name), storage, layer, Cut::none, 1, n, 1, n, 0, true};
}

TensorSpec by_rows(std::string name, Storage storage, int layer, int64_t rows, int64_t cols,
                   int64_t slice_rows, int64_t offset) {
  return {std::move(name), storage, layer, Cut::rows, rows, cols, slice_rows, cols, offset, false};
}

TensorSpec by_columns(std::string name, Storage storage, int layer, int64_t rows, int64_t cols) {
  return {std::move(name), storage, layer, Cut::columns, rows, cols, rows, cols / 8, 0, false};
}

}  // namespace

int64_t TensorSpec::slice_elements(int s) const {
  if (cut != Cut::rows) return slice_rows * slice_cols;
  return std::clamp<int64_t>(rows - s * slice_rows, 0, slice_rows) * slice_cols;
}

bool storage_sliced(Storage storage) {
  switch (storage) {
    case Storage::input_norm:
    case Storage::q_norm:
    case Storage::k_norm:
    case Storage::post_norm:
    case Storage::final_norm:
      return false;
    default:
      return true;
  }
}

int64_t storage_slice_elements(const ModelConfig& c, Storage storage) {
  switch (storage) {
    case Storage::embed:
    case Storage::head:
      return c.vocab_slice() * c.D;
    case Storage::input_norm:
    case Storage::post_norm:
    case Storage::final_norm:
      return c.D;
    case Storage::q_norm:
    case Storage::k_norm:
      return c.Dh;
    case Storage::qkv:
      return c.qkv_slice() * c.D;
    case Storage::o:
      return c.attn_slice() * c.D;
    case Storage::gate_up:
      return 2 * c.ffn_slice() * c.D;
    case Storage::down:
      return c.ffn_slice() * c.D;
  }
  RLK_CHECK(false);
  return 0;
}

std::vector<TensorSpec> model_tensors(const ModelConfig& c) {
  const int64_t q = c.hq() * c.Dh, kv = c.hkv() * c.Dh, f = c.ffn_slice();
  std::vector<TensorSpec> all;
  all.push_back(
      by_rows("model.embed_tokens.weight", Storage::embed, -1, c.vocab, c.D, c.vocab_slice(), 0));
  for (int l = 0; l < c.L; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    const std::string attn = p + "self_attn.", mlp = p + "mlp.";
    all.push_back(norm(p + "input_layernorm.weight", Storage::input_norm, l, c.D));
    all.push_back(by_rows(attn + "q_proj.weight", Storage::qkv, l, 8 * q, c.D, q, 0));
    all.push_back(by_rows(attn + "k_proj.weight", Storage::qkv, l, 8 * kv, c.D, kv, q * c.D));
    all.push_back(
        by_rows(attn + "v_proj.weight", Storage::qkv, l, 8 * kv, c.D, kv, (q + kv) * c.D));
    all.push_back(norm(attn + "q_norm.weight", Storage::q_norm, l, c.Dh));
    all.push_back(norm(attn + "k_norm.weight", Storage::k_norm, l, c.Dh));
    all.push_back(by_columns(attn + "o_proj.weight", Storage::o, l, c.D, c.H * c.Dh));
    all.push_back(norm(p + "post_attention_layernorm.weight", Storage::post_norm, l, c.D));
    all.push_back(by_rows(mlp + "gate_proj.weight", Storage::gate_up, l, c.F, c.D, f, 0));
    all.push_back(by_rows(mlp + "up_proj.weight", Storage::gate_up, l, c.F, c.D, f, f * c.D));
    all.push_back(by_columns(mlp + "down_proj.weight", Storage::down, l, c.D, c.F));
  }
  all.push_back(norm("model.norm.weight", Storage::final_norm, -1, c.D));
  if (!c.tied)
    all.push_back(by_rows("lm_head.weight", Storage::head, -1, c.vocab, c.D, c.vocab_slice(), 0));
  return all;
}

ArenaLayout::ArenaLayout(const ModelConfig& config, int slices)
    : config_(config), slices_(slices), global_(kStorages, -1), layer_(kStorages, -1) {
  auto size = [&](Storage s) {
    return aligned(storage_slice_elements(config_, s) * (storage_sliced(s) ? slices_ : 1));
  };
  int64_t at = 0;
  auto place = [&](std::vector<int64_t>& offsets, Storage s) {
    offsets[static_cast<int>(s)] = at;
    at += size(s);
  };
  place(global_, Storage::embed);
  first_layer_ = at;
  at = 0;
  for (Storage s : kLayerStorages) place(layer_, s);
  layer_elements_ = at;
  at = first_layer_ + config_.L * layer_elements_;
  place(global_, Storage::final_norm);
  if (config_.tied)
    global_[static_cast<int>(Storage::head)] = global_[static_cast<int>(Storage::embed)];
  else
    place(global_, Storage::head);
  elements_ = at;
}

int64_t ArenaLayout::offset(Storage storage, int layer) const {
  if (layer < 0) return global_[static_cast<int>(storage)];
  return layer_begin(layer) + layer_[static_cast<int>(storage)];
}

int64_t ArenaLayout::outer_offset(Storage storage) const {
  const int64_t at = offset(storage, -1);
  return at < first_layer_ ? at : at - config_.L * layer_elements_;
}

int64_t ArenaLayout::offset(const TensorSpec& tensor, int local) const {
  const int64_t slice = tensor.cut == Cut::none ? 0 : local;
  return offset(tensor.storage, tensor.layer) +
         slice * storage_slice_elements(config_, tensor.storage) + tensor.offset;
}

std::vector<Unit> shard_units(const std::vector<TensorSpec>& tensors, Topology::Range range,
                              int cp) {
  std::vector<Unit> units;
  for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
    const bool sliced = tensors[t].cut != Cut::none;
    const int first = sliced ? range.first : 0, count = sliced ? range.count : 1;
    for (int s = first; s < first + count; ++s) {
      const int64_t n = tensors[t].slice_elements(s);
      for (int64_t begin = 0; begin < n; begin += kUnit)
        units.push_back({t, s, begin, std::min(kUnit, n - begin),
                         static_cast<int>(units.size() % static_cast<size_t>(cp))});
    }
  }
  return units;
}

std::vector<Unit> unit_runs(const std::vector<Unit>& units, int cp) {
  std::vector<Unit> runs;
  std::vector<int> open(cp, -1);  // each owner's run in the current slice
  for (const Unit& u : units) {
    int& run = open[u.owner];
    if (run >= 0 && runs[run].tensor == u.tensor && runs[run].slice == u.slice) {
      runs[run].count += u.count;
    } else {
      run = static_cast<int>(runs.size());
      runs.push_back(u);
    }
  }
  return runs;
}

}  // namespace rlk
