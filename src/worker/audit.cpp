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

// A kind of tensors: the pieces that each rank hashes of them, and where this rank has its own.
struct Source {
  std::function<std::vector<Piece>(int rank)> pieces_of;
  std::function<const void*(const Piece&, int64_t index)> data;
  int64_t element;  // bytes
};
using Digests = std::vector<std::vector<Digest>>;  // [rank][piece]

// Digests of every source's pieces, in one call of the device: a piece's hash is a serial chain, so
// only thousands of pieces at a time keep a GPU busy.
std::vector<Digests> gather_digests(Rank& rank, const std::vector<Source>& sources) {
  const Ops& ops = *rank.ops.strict;
  const int size = rank.everyone->size();
  std::vector<std::vector<int64_t>> counts(size);  // [rank][source]
  std::vector<int64_t> totals(size);
  for (int r = 0; r < size; ++r)
    for (const Source& s : sources) {
      counts[r].push_back(static_cast<int64_t>(s.pieces_of(r).size()));
      totals[r] += counts[r].back();
    }
  const int64_t longest = *std::max_element(totals.begin(), totals.end());
  std::vector<Sha256Range> ranges;
  for (const Source& s : sources) {
    int64_t index = 0;
    for (const Piece& piece : s.pieces_of(rank.index()))
      ranges.push_back(
          {s.data(piece, index++), piece.count * s.element, static_cast<int64_t>(ranges.size())});
  }
  DeviceBuffer memory(ops);
  auto* mine =
      static_cast<uint8_t*>(memory.ensure(std::max<int64_t>(1, totals[rank.index()]) * 32));
  Upload upload(ops);
  const int64_t at = upload.add(ranges);
  upload.commit(nullptr);
  ops.sha256_pieces(nullptr, {.ranges = upload.at<Sha256Range>(at),
                              .n_ranges = static_cast<int32_t>(ranges.size()),
                              .pieces = static_cast<int64_t>(ranges.size()),
                              .piece = kFingerprintPiece,
                              .digest = mine});
  std::vector<Digest> own(longest), gathered(size * longest);
  ops.copy(nullptr, own.data(), mine, ranges.size() * sizeof(Digest));
  ops.synchronize(nullptr);
  rank.everyone->all_gather(nullptr, own.data(), gathered.data(), own.size() * sizeof(Digest));
  std::vector<Digests> all(sources.size(), Digests(size));
  for (int r = 0; r < size; ++r) {
    auto from = gathered.begin() + r * longest;
    for (size_t s = 0; s < sources.size(); ++s, from += counts[r][s - 1])
      all[s][r].assign(from, from + counts[r][s]);
  }
  return all;
}

// Joins the pieces of chosen ranks into one digest a tensor.
std::map<std::string, Digest> join(const Rank& rank, const std::vector<int>& ranks,
                                   const std::function<std::vector<Piece>(int)>& pieces_of,
                                   const Digests& digests) {
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

const void* weight_data(const Rank& rank, const Piece& p) {
  return rank.weights.at(rank.weights.tensors()[p.tensor], p.slice) + p.begin;
}

}  // namespace

VersionFingerprints fingerprint_version(Rank& rank, uint64_t version, bool with_state) {
  const Topology& t = rank.topology();
  const Optimizer& o = rank.trainer->optimizer();
  std::vector<Source> sources{
      {[&](int r) {
         return weight_pieces(rank.weights.tensors(), t.train_slices(r), t.cp_index(r), t.cp);
       },
       [&](const Piece& p, int64_t) { return weight_data(rank, p); }, sizeof(bf16)}};
  std::vector<std::optional<Digest> TensorFingerprints::*> states;
  const auto add = [&](const float* values, std::optional<Digest> TensorFingerprints::*member) {
    states.push_back(member);
    sources.push_back({[&](int r) { return state_pieces(rank, r); },
                       [&, values](const Piece&, int64_t i) { return values + o.owned()[i].at; },
                       sizeof(float)});
  };
  if (with_state) {
    add(o.gradient(), &TensorFingerprints::gradient);
    add(o.master(), &TensorFingerprints::master);
    add(o.exp_avg(), &TensorFingerprints::exp_avg);
    add(o.exp_avg_sq(), &TensorFingerprints::exp_avg_sq);
  }
  const std::vector<Digests> digests = gather_digests(rank, sources);
  const auto joined = [&](size_t s) {
    return join(rank, rank.everyone->members(), sources[s].pieces_of, digests[s]);
  };
  VersionFingerprints result;
  result.version = version;
  for (const auto& [name, digest] : joined(0)) result.tensors[name].weight = digest;
  for (size_t s = 0; s < states.size(); ++s)
    for (const auto& [name, digest] : joined(s + 1)) result.tensors[name].*states[s] = digest;
  return result;
}

RolloutFingerprints fingerprint_rollout(Rank& rank, int64_t step, uint64_t version) {
  const Topology& t = rank.topology();
  const auto pieces_of = [&](int r) {
    return weight_pieces(rank.weights.tensors(), t.rollout_slices(r), 0, 1);
  };
  const Source source{pieces_of, [&](const Piece& p, int64_t) { return weight_data(rank, p); },
                      sizeof(bf16)};
  const Digests digests = gather_digests(rank, {source})[0];
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
