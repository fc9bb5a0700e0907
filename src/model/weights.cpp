#include "rlk/model/weights.h"

#include <algorithm>
#include <numeric>

#include "rlk/base/error.h"

namespace rlk {
namespace {

std::vector<int> everyone(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Topology::Range Weights::range_of(int rank) const {
  const Topology::Range train = topology_.train_slices(rank);
  if (!with_rollout_) return train;
  const Topology::Range rollout = topology_.rollout_slices(rank);
  return rollout.count > train.count ? rollout : train;
}

Weights::Weights(const ModelConfig& config, World& world, const Topology& topology,
                 bool with_rollout_slices)
    : config_(config),
      topology_(topology),
      with_rollout_(with_rollout_slices),
      world_(world),
      all_(world.group(everyone(world.size()), "weights")),
      range_(range_of(world.rank())),
      layout_(config, range_.count),
      tensors_(model_tensors(config)),
      arena_(static_cast<bf16*>(world.arena_alloc(layout_.elements() * sizeof(bf16)))) {}

bf16* Weights::at(const TensorSpec& tensor, int slice) const {
  RLK_CHECK(
      tensor.cut == Cut::none || (slice >= range_.first && slice < range_.first + range_.count),
      tensor.name, slice, range_.first, range_.count);
  return arena_ + layout_.offset(tensor, slice - range_.first);
}

const bf16* Weights::at_rank(int rank, const TensorSpec& tensor, int slice) const {
  const auto* base = static_cast<const bf16*>(all_->peer(rank, arena_));
  return base + layout_.offset(tensor, slice - range_of(rank).first);
}

void Weights::load(const Ops& ops, const TensorReader& read) {
  std::vector<bf16> host;
  fill(ops, [&](const TensorSpec& tensor, int64_t row0, int64_t rows, int64_t col0, int64_t cols,
                bf16* to) {
    host.resize(rows * cols);
    read(tensor, row0, rows, col0, cols, host.data());
    ops.copy(nullptr, to, host.data(), host.size() * sizeof(bf16));
  });
}

void Weights::fill(const Ops& ops, const TensorFill& write) {
  for (const TensorSpec& tensor : tensors_) {
    const bool sliced = tensor.cut != Cut::none;
    const int first = sliced ? range_.first : 0, count = sliced ? range_.count : 1;
    for (int s = first; s < first + count; ++s) {
      const int64_t n = tensor.slice_elements(s);
      if (n == 0) continue;
      write(tensor, tensor.cut == Cut::rows ? s * tensor.slice_rows : 0, n / tensor.slice_cols,
            tensor.cut == Cut::columns ? s * tensor.slice_cols : 0, tensor.slice_cols,
            at(tensor, s));
    }
  }
  ops.synchronize(nullptr);
  all_->meet();  // embedding rows are read from other ranks
}

WeightsView Weights::view(Topology::Range range) const {
  RLK_CHECK(range.first >= range_.first && range.first + range.count <= range_.first + range_.count,
            range.first, range.count, range_.first, range_.count);
  auto of = [&](Storage s, int layer) -> const bf16* {
    const int64_t skip =
        storage_sliced(s) ? (range.first - range_.first) * storage_slice_elements(config_, s) : 0;
    return arena_ + layout_.offset(s, layer) + skip;
  };
  WeightsView view;
  view.range = range;
  const TensorSpec& embed = tensors_.front();
  for (int s = 0; s < kSlices; ++s) {
    const bool own = s >= range_.first && s < range_.first + range_.count;
    const int holder = topology_.tp_group(world_.rank())[s * topology_.tp / kSlices];
    view.embed[s] = own ? at(embed, s) : at_rank(holder, embed, s);
  }
  for (int l = 0; l < config_.L; ++l)
    view.layer.push_back({of(Storage::input_norm, l), of(Storage::qkv, l), of(Storage::q_norm, l),
                          of(Storage::k_norm, l), of(Storage::o, l), of(Storage::post_norm, l),
                          of(Storage::gate_up, l), of(Storage::down, l)});
  view.final_norm = of(Storage::final_norm, -1);
  view.head = of(Storage::head, -1);
  return view;
}

void Weights::sync(const Ops& ops, Stream stream) {
  ops.synchronize(stream);
  all_->barrier(stream);
  const int me = world_.rank(), per_tp = topology_.ranks / topology_.tp;
  const int slices_each = kSlices / topology_.tp;
  const int first_tp = range_.first / slices_each;
  const int shards = std::max(1, range_.count / slices_each);
  for (int shard = first_tp; shard < first_tp + shards; ++shard) {
    const auto units = shard_units(tensors_, {shard * slices_each, slices_each}, topology_.cp);
    for (const Unit& u : unit_runs(units, topology_.cp)) {
      const int owner = shard * per_tp + u.owner;
      const TensorSpec& tensor = tensors_[u.tensor];
      const bool replicated_again = tensor.cut == Cut::none && shard != topology_.tp_index(me);
      if (owner == me || replicated_again) continue;
      bf16* to = at(tensor, u.slice) + u.begin;
      const bf16* from = at_rank(owner, tensor, u.slice) + u.begin;
      const int64_t stride = topology_.cp * kUnit, whole = u.count / kUnit;
      ops.copy_rows(stream, to, from, kUnit * sizeof(bf16), stride * sizeof(bf16), whole);
      ops.copy(stream, to + whole * stride, from + whole * stride, u.count % kUnit * sizeof(bf16));
    }
  }
  all_->barrier(stream);
  ops.synchronize(stream);  // embedding rows are read from other ranks, on any stream
}

}  // namespace rlk
