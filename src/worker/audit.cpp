#include "audit.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "rlk/model/memory.h"
#include "rlk/run/fingerprint.h"

namespace rlk {
namespace {

// One 1 MiB piece of the fingerprint: elements [begin, begin + count) of a tensor's virtual slice.
struct Piece {
  int tensor, slice;
  int64_t begin, count;
};
using PieceKey = std::tuple<int, int, int64_t>;  // tensor, slice, begin

constexpr int64_t kWeightPiece = kFingerprintPiece / static_cast<int64_t>(sizeof(bf16));
static_assert(kUnit * sizeof(float) == kFingerprintPiece);  // a unit of state is one piece

// Pieces of the range's slices; dealt over `share` ranks, this one takes every share-th starting
// with `first`.
std::vector<Piece> weight_pieces(const std::vector<TensorSpec>& tensors, Topology::Range range,
                                 int first, int share) {
  std::vector<Piece> pieces;
  int next = 0;
  for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
    const bool sliced = tensors[t].cut != Cut::none;
    for (int s = sliced ? range.first : 0; s < (sliced ? range.first + range.count : 1); ++s) {
      const int64_t n = tensors[t].slice_elements(s);
      for (int64_t begin = 0; begin < n; begin += kWeightPiece)
        if (next++ % share == first)
          pieces.push_back({t, s, begin, std::min(kWeightPiece, n - begin)});
    }
  }
  return pieces;
}

std::vector<Piece> state_pieces(const Rank& rank, int r) {
  std::vector<Piece> pieces;
  const Topology& t = rank.topology();
  for (const Unit& u : shard_units(rank.weights.tensors(), t.train_slices(r), t.cp))
    if (u.owner == t.cp_index(r)) pieces.push_back({u.tensor, u.slice, u.begin, u.count});
  return pieces;
}

// Digest of every piece, hashed by the rank that `pieces_of` gives it to; [rank][piece].
std::vector<std::vector<Digest>> gather_digests(
    Rank& rank, const std::function<std::vector<Piece>(int)>& pieces_of,
    const std::function<const void*(const Piece&, int64_t index)>& data, int64_t element) {
  const Ops& ops = *rank.ops.strict;
  const int size = rank.everyone->size();
  std::vector<int64_t> counts;
  for (int r = 0; r < size; ++r) counts.push_back(static_cast<int64_t>(pieces_of(r).size()));
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  DeviceBuffer memory(ops);
  auto* mine =
      static_cast<uint8_t*>(memory.ensure(std::max<int64_t>(1, counts[rank.index()]) * 32));
  const std::vector<Piece> pieces = pieces_of(rank.index());
  std::vector<Sha256Range> ranges;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    ranges.push_back({data(pieces[i], index), pieces[i].count * element, index});
  }
  Upload upload(ops);
  const int64_t at = upload.add(ranges);
  upload.commit(nullptr);
  ops.sha256_pieces(nullptr, {.ranges = upload.at<Sha256Range>(at),
                              .n_ranges = static_cast<int32_t>(ranges.size()),
                              .pieces = static_cast<int64_t>(ranges.size()),
                              .piece = kFingerprintPiece,
                              .digest = mine});
  std::vector<Digest> own(longest), gathered(size * longest);
  ops.copy(nullptr, own.data(), mine, pieces.size() * sizeof(Digest));
  ops.synchronize(nullptr);
  rank.everyone->all_gather(nullptr, own.data(), gathered.data(), own.size() * sizeof(Digest));
  std::vector<std::vector<Digest>> all;
  for (int r = 0; r < size; ++r)
    all.emplace_back(gathered.begin() + r * longest, gathered.begin() + r * longest + counts[r]);
  return all;
}

// Joins the pieces of chosen ranks into one digest a tensor.
std::map<std::string, Digest> join(const Rank& rank, const std::vector<int>& ranks,
                                   const std::function<std::vector<Piece>(int)>& pieces_of,
                                   const std::vector<std::vector<Digest>>& digests) {
  std::map<PieceKey, Digest> all;
  for (int r : ranks) {
    const std::vector<Piece> pieces = pieces_of(r);
    for (size_t i = 0; i < pieces.size(); ++i)
      all[{pieces[i].tensor, pieces[i].slice, pieces[i].begin}] = digests[r][i];
  }
  std::map<std::string, Digest> joined;
  std::vector<Digest> tensor;
  for (auto it = all.begin(); it != all.end();) {
    const int t = std::get<0>(it->first);
    tensor.clear();
    for (; it != all.end() && std::get<0>(it->first) == t; ++it) tensor.push_back(it->second);
    joined[rank.weights.tensors()[t].name] = combine_pieces(tensor);
  }
  return joined;
}

std::map<std::string, Digest> fingerprint_state(Rank& rank, const float* values) {
  const auto pieces_of = [&](int r) { return state_pieces(rank, r); };
  const auto& owned = rank.trainer->optimizer().owned();
  const auto digests = gather_digests(
      rank, pieces_of, [&](const Piece&, int64_t i) { return values + owned[i].at; },
      sizeof(float));
  return join(rank, rank.everyone->members(), pieces_of, digests);
}

const void* weight_data(const Rank& rank, const Piece& p) {
  return rank.weights.at(rank.weights.tensors()[p.tensor], p.slice) + p.begin;
}

}  // namespace

VersionFingerprints fingerprint_version(Rank& rank, uint64_t version, bool with_state) {
  const Topology& t = rank.topology();
  const auto pieces_of = [&](int r) {
    return weight_pieces(rank.weights.tensors(), t.train_slices(r), t.cp_index(r), t.cp);
  };
  const auto digests = gather_digests(
      rank, pieces_of, [&](const Piece& p, int64_t) { return weight_data(rank, p); }, sizeof(bf16));
  VersionFingerprints result;
  result.version = version;
  for (const auto& [name, digest] : join(rank, rank.everyone->members(), pieces_of, digests))
    result.tensors[name].weight = digest;
  if (!with_state) return result;
  const Optimizer& o = rank.trainer->optimizer();
  const std::pair<const float*, std::optional<Digest> TensorFingerprints::*> states[] = {
      {o.gradient(), &TensorFingerprints::gradient},
      {o.master(), &TensorFingerprints::master},
      {o.exp_avg(), &TensorFingerprints::exp_avg},
      {o.exp_avg_sq(), &TensorFingerprints::exp_avg_sq}};
  for (const auto& [values, member] : states)
    for (const auto& [name, digest] : fingerprint_state(rank, values))
      result.tensors[name].*member = digest;
  return result;
}

RolloutFingerprints fingerprint_rollout(Rank& rank, int64_t step, uint64_t version) {
  const Topology& t = rank.topology();
  const auto pieces_of = [&](int r) {
    return weight_pieces(rank.weights.tensors(), t.rollout_slices(r), 0, 1);
  };
  const auto digests = gather_digests(
      rank, pieces_of, [&](const Piece& p, int64_t) { return weight_data(rank, p); }, sizeof(bf16));
  RolloutFingerprints result;
  result.step = step;
  result.version = version;
  // An engine's CP ranks hold copies: the first stands for all, unless one differs from it.
  for (int place = 0; place < t.ranks / t.rollout_tp; ++place) {
    std::vector<int> copy;
    for (int r = 0; r < t.ranks; ++r)
      if (t.rollout_place(r) == place) copy.push_back(r);
    auto held = join(rank, copy, pieces_of, digests);
    if (place % t.rollout_cp == 0)
      result.engines.push_back(std::move(held));
    else if (held != result.engines.back())
      result.engines.back() = std::move(held);
  }
  return result;
}

}  // namespace rlk
