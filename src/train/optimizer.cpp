#include "rlk/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "rlk/base/carve.h"
#include "rlk/base/math.h"

namespace rlk {
namespace {

std::vector<Unit> units_of(const std::vector<TensorSpec>& tensors, const Topology& topology,
                           int rank) {
  return shard_units(tensors, topology.train_slices(rank), topology.cp);
}

// A rank's units among `units`, or its runs, and where they lie in the state arrays: one after the
// other, or where everything is this rank's, as the weights' arena has them.
std::vector<Optimizer::OwnedUnit> placed(const std::vector<Unit>& units,
                                         const std::vector<TensorSpec>& tensors,
                                         const Topology& topology, const ArenaLayout& layout,
                                         int rank) {
  std::vector<Optimizer::OwnedUnit> owned;
  int64_t next = 0;
  for (const Unit& u : units) {
    if (u.owner != topology.cp_index(rank)) continue;
    const int local = u.slice - topology.train_slices(rank).first;
    owned.push_back(
        {u, topology.cp == 1 ? layout.offset(tensors[u.tensor], local) + u.begin : next});
    next += (u.count + 63) / 64 * 64;
  }
  return owned;
}

int64_t state_elements(const std::vector<Optimizer::OwnedUnit>& owned, const ArenaLayout& layout,
                       int cp) {
  if (cp == 1) return layout.elements();
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
  const auto tensors = model_tensors(config);
  const ArenaLayout layout(config, topology.train_slices(rank).count);
  const auto owned = placed(units_of(tensors, topology, rank), tensors, topology, layout, rank);
  return 4 * state_elements(owned, layout, topology.cp) * static_cast<int64_t>(sizeof(float));
}

Optimizer::Optimizer(const Context& ctx, Weights& weights, World& world, const Topology& topology,
                     Communicator& cp, bool adamw)
    : ctx_(ctx),
      weights_(weights),
      topology_(topology),
      cp_(cp),
      range_(topology.train_slices(world.rank())),
      layout_(ctx.config, range_.count),
      owned_(placed(units_of(weights.tensors(), topology, world.rank()), weights.tensors(),
                    topology, layout_, world.rank())),
      runs_(placed(unit_runs(units_of(weights.tensors(), topology, world.rank()), topology.cp),
                   weights.tensors(), topology, layout_, world.rank())),
      pieces_{kUnitLog2, topology.cp * kUnit},
      state_(*ctx.ffn),
      tiles_(*ctx.ffn) {
  std::vector<int> everyone(world.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  world_ = world.group(everyone, "gradient norm");
  const int64_t n = state_elements(owned_, layout_, topology.cp);
  Carve carve(state_.ensure(std::max<int64_t>((adamw ? 4 : 1) * n * 4, 1024)));
  gradient_ = carve.take<float>(n);
  if (!adamw) return;
  master_ = carve.take<float>(n);
  exp_avg_ = carve.take<float>(n);
  exp_avg_sq_ = carve.take<float>(n);
  for (const OwnedUnit& o : runs_)
    ctx_.ffn->widen(
        ctx_.stream,
        {.x = weights_.at(weights_.tensors()[o.unit.tensor], o.unit.slice) + o.unit.begin,
         .y = master_ + o.at,
         .n = o.unit.count,
         .pieces = pieces_});
  ctx_.ffn->synchronize(ctx_.stream);
}

void Optimizer::reduce(Storage storage, int layer, const float* partial, bool accumulate) {
  const int64_t block = layer < 0 ? layout_.offset(storage, -1) - layout_.outer_offset(storage)
                                  : layout_.layer_begin(layer);
  for (const OwnedUnit& o : runs_) {
    const TensorSpec& tensor = weights_.tensors()[o.unit.tensor];
    if (tensor.storage != storage || tensor.layer != layer) continue;
    const int64_t at = layout_.offset(tensor, o.unit.slice - range_.first) - block + o.unit.begin;
    TreeAddArgs args{.part = {},
                     .count = cp_.size(),
                     .out = gradient_ + o.at,
                     .n = o.unit.count,
                     .out_f32 = true,
                     .accumulate = accumulate,
                     .pieces = pieces_};
    for (int r = 0; r < cp_.size(); ++r)
      args.part[r] = static_cast<const float*>(cp_.peer(r, partial)) + at;
    ctx_.ffn->tree_add(ctx_.stream, args);
  }
}

double Optimizer::gradient_norm() {
  // Every rank's tile sums, in the order of its units; all ranks know all orders.
  const auto& tensors = weights_.tensors();
  std::vector<std::vector<Unit>> all(topology_.ranks);
  int64_t longest = 0;
  for (int r = 0; r < topology_.ranks; ++r) {
    int64_t tiles = 0;
    for (const Unit& u : unit_runs(units_of(tensors, topology_, r), topology_.cp)) {
      if (u.owner != topology_.cp_index(r)) continue;
      all[r].push_back(u);
      tiles += tiles_of(u);
    }
    longest = std::max(longest, tiles);
  }
  auto* sums = static_cast<double*>(
      tiles_.ensure((topology_.ranks + 1) * longest * static_cast<int64_t>(sizeof(double))));
  double* gathered = sums + longest;
  int64_t at = 0;
  for (const OwnedUnit& o : runs_) {
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
    for (const Unit& u : all[r])
      for (int64_t t = 0; t < tiles_of(u); ++t, ++next) {
        const bool counted = tensors[u.tensor].cut != Cut::none || topology_.tp_index(r) == 0;
        if (counted)
          order.push_back({u.tensor, u.slice, u.begin + pieces_.at(t * kNormTile), host[next]});
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
  for (const OwnedUnit& o : runs_) {
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
                     .grad_scale = static_cast<float>(scale),
                     .pieces = pieces_});
  }
  ctx_.ffn->synchronize(ctx_.stream);
}

}  // namespace rlk
