#include "rlk/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "rlk/base/carve.h"
#include "rlk/base/math.h"

namespace rlk {
namespace {

std::vector<Optimizer::OwnedUnit> owned_units(const std::vector<TensorSpec>& tensors,
                                              const Topology& topology, int rank) {
  std::vector<Optimizer::OwnedUnit> owned;
  int64_t at = 0;
  for (const Unit& u : shard_units(tensors, topology.train_slices(rank), topology.cp)) {
    if (u.owner != topology.cp_index(rank)) continue;
    owned.push_back({u, at});
    at += (u.count + 63) / 64 * 64;
  }
  return owned;
}

int64_t state_elements(const std::vector<Optimizer::OwnedUnit>& owned) {
  return owned.empty() ? 0 : owned.back().at + (owned.back().unit.count + 63) / 64 * 64;
}

double bias_correction(double beta, int64_t t) {
  return 1 / (1 - strict_exp(static_cast<double>(t) * strict_log(beta)));
}

int64_t tiles_of(const Unit& u) {
  return (u.count + kNormTile - 1) / kNormTile;
}

}  // namespace

int64_t Optimizer::state_bytes(const ModelConfig& config, const Topology& topology, int rank) {
  return 4 * state_elements(owned_units(model_tensors(config), topology, rank)) *
         static_cast<int64_t>(sizeof(float));
}

Optimizer::Optimizer(const Context& ctx, Weights& weights, World& world, const Topology& topology,
                     Communicator& cp)
    : ctx_(ctx),
      weights_(weights),
      topology_(topology),
      cp_(cp),
      range_(topology.train_slices(world.rank())),
      layout_(ctx.config, range_.count),
      owned_(owned_units(weights.tensors(), topology, world.rank())),
      state_(*ctx.ffn),
      tiles_(*ctx.ffn) {
  std::vector<int> everyone(world.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  world_ = world.group(everyone, "gradient norm");
  const int64_t n = state_elements(owned_);
  Carve carve(state_.ensure(std::max<int64_t>(4 * n * 4, 1024)));
  gradient_ = carve.take<float>(n);
  master_ = carve.take<float>(n);
  exp_avg_ = carve.take<float>(n);
  exp_avg_sq_ = carve.take<float>(n);
  std::vector<bf16> host(kUnit);
  std::vector<float> wide(kUnit);
  for (const OwnedUnit& o : owned_) {
    const TensorSpec& tensor = weights_.tensors()[o.unit.tensor];
    ctx_.ffn->copy(ctx_.stream, host.data(), weights_.at(tensor, o.unit.slice) + o.unit.begin,
                   o.unit.count * sizeof(bf16));
    ctx_.ffn->synchronize(ctx_.stream);
    std::transform(host.begin(), host.begin() + o.unit.count, wide.begin(), to_float);
    ctx_.ffn->copy(ctx_.stream, master_ + o.at, wide.data(), o.unit.count * sizeof(float));
    ctx_.ffn->synchronize(ctx_.stream);
  }
}

void Optimizer::reduce(Storage storage, int layer, const float* partial, bool accumulate) {
  const int64_t block = layer < 0 ? layout_.offset(storage, -1) - layout_.outer_offset(storage)
                                  : layout_.layer_begin(layer);
  for (const OwnedUnit& o : owned_) {
    const TensorSpec& tensor = weights_.tensors()[o.unit.tensor];
    if (tensor.storage != storage || tensor.layer != layer) continue;
    const int64_t at = layout_.offset(tensor, o.unit.slice - range_.first) - block + o.unit.begin;
    TreeAddArgs args{.part = {},
                     .count = cp_.size(),
                     .out = gradient_ + o.at,
                     .n = o.unit.count,
                     .out_f32 = true,
                     .accumulate = accumulate};
    for (int r = 0; r < cp_.size(); ++r)
      args.part[r] = static_cast<const float*>(cp_.peer(r, partial)) + at;
    ctx_.ffn->tree_add(ctx_.stream, args);
  }
}

double Optimizer::gradient_norm() {
  // Every rank's tile sums, in the order of its units; all ranks know all orders.
  const auto& tensors = weights_.tensors();
  std::vector<std::vector<OwnedUnit>> all;
  int64_t longest = 0;
  for (int r = 0; r < topology_.ranks; ++r) {
    all.push_back(owned_units(tensors, topology_, r));
    int64_t tiles = 0;
    for (const OwnedUnit& o : all.back()) tiles += tiles_of(o.unit);
    longest = std::max(longest, tiles);
  }
  auto* sums = static_cast<double*>(
      tiles_.ensure((topology_.ranks + 1) * longest * static_cast<int64_t>(sizeof(double))));
  double* gathered = sums + longest;
  int64_t at = 0;
  for (const OwnedUnit& o : owned_) {
    ctx_.ffn->sum_squares(ctx_.stream,
                          {.x = gradient_ + o.at, .n = o.unit.count, .out = sums + at});
    at += tiles_of(o.unit);
  }
  world_->all_gather(ctx_.stream, sums, gathered, longest * sizeof(double));
  std::vector<double> host(topology_.ranks * longest);
  ctx_.ffn->copy(ctx_.stream, host.data(), gathered, host.size() * sizeof(double));
  ctx_.ffn->synchronize(ctx_.stream);

  struct Tile {
    int tensor, slice;
    int64_t begin;
    double sum;
  };
  std::vector<Tile> order;
  for (int r = 0; r < topology_.ranks; ++r) {
    int64_t next = r * longest;
    for (const OwnedUnit& o : all[r])
      for (int64_t t = 0; t < tiles_of(o.unit); ++t, ++next) {
        const bool counted = tensors[o.unit.tensor].cut != Cut::none || topology_.tp_index(r) == 0;
        if (counted)
          order.push_back({o.unit.tensor, o.unit.slice, o.unit.begin + t * kNormTile, host[next]});
      }
  }
  std::sort(order.begin(), order.end(), [](const Tile& a, const Tile& b) {
    return std::tie(a.tensor, a.slice, a.begin) < std::tie(b.tensor, b.slice, b.begin);
  });
  double total = 0;
  for (const Tile& t : order) total += t.sum;
  return std::sqrt(total);
}

void Optimizer::step(const AdamWOptions& options, int64_t t, double norm) {
  const double scale = std::min(1.0, options.clip_grad / (norm + 1e-6));
  const double bias1 = bias_correction(options.beta1, t);
  const double bias2 = bias_correction(options.beta2, t);
  for (const OwnedUnit& o : owned_) {
    const TensorSpec& tensor = weights_.tensors()[o.unit.tensor];
    ctx_.ffn->adamw(ctx_.stream,
                    {.master = master_ + o.at,
                     .m = exp_avg_ + o.at,
                     .v = exp_avg_sq_ + o.at,
                     .grad = gradient_ + o.at,
                     .weight = weights_.at(tensor, o.unit.slice) + o.unit.begin,
                     .n = o.unit.count,
                     .lr = static_cast<float>(options.lr),
                     .beta1 = static_cast<float>(options.beta1),
                     .beta2 = static_cast<float>(options.beta2),
                     .eps = static_cast<float>(options.eps),
                     .weight_decay = static_cast<float>(tensor.vector ? 0.0 : options.weight_decay),
                     .bias1 = static_cast<float>(bias1),
                     .bias2 = static_cast<float>(bias2),
                     .grad_scale = static_cast<float>(scale)});
  }
  ctx_.ffn->synchronize(ctx_.stream);
}

}  // namespace rlk
