#include "rlk/model/exchange.h"

#include <algorithm>

#include "rlk/base/carve.h"

namespace rlk {
namespace {

SequenceActs carve_sequence(Carve& c, const ModelConfig& m, int64_t S, int n) {
  SequenceActs a{};
  a.q = c.take<bf16>(S * n * m.attn_slice());
  a.k = c.take<bf16>(S * n * m.hkv() * m.Dh);
  a.v = c.take<bf16>(S * n * m.hkv() * m.Dh);
  a.d_o = c.take<bf16>(S * n * m.attn_slice());
  a.lse = c.take<float>(S * n * m.hq());
  a.delta = c.take<float>(S * n * m.hq());
  return a;
}

CpExchange::Pair carve_pair(Carve& c, const ModelConfig& m, int64_t T, int n) {
  CpExchange::Pair p{};
  p.d_o = c.take<bf16>(T * n * m.attn_slice());
  p.delta = c.take<float>(T * n * m.hq());
  return p;
}

template <class T>
const T* shifted(const T* p, const void* from, const char* to) {
  return reinterpret_cast<const T*>(
      to + (reinterpret_cast<const char*>(p) - static_cast<const char*>(from)));
}

}  // namespace

int64_t sequence_acts_bytes(const ModelConfig& m, int64_t S, int slices) {
  Carve carve(nullptr);
  carve_sequence(carve, m, S, slices);
  return carve.bytes();
}

SequenceActs sequence_acts_at(void* base, const ModelConfig& m, int64_t S, int slices) {
  Carve carve(base);
  return carve_sequence(carve, m, S, slices);
}

int64_t CpExchange::pair_bytes(const ModelConfig& m, int64_t T, int slices) {
  Carve carve(nullptr);
  carve_pair(carve, m, T, slices);
  return carve.bytes();
}

CpExchange::Pair CpExchange::pair_at(void* base, const ModelConfig& m, int64_t T, int slices) {
  Carve carve(base);
  return carve_pair(carve, m, T, slices);
}

int64_t CpExchange::gathered_bytes(const ModelConfig& m, int64_t T, int slices, int cp) {
  // The larger of what collect() gathers at once: q, k, v, lse.
  Carve carve(nullptr);
  carve.take<bf16>(T * slices * m.attn_slice());
  carve.take<bf16>(T * slices * m.hkv() * m.Dh);
  carve.take<bf16>(T * slices * m.hkv() * m.Dh);
  carve.take<float>(T * slices * m.hq());
  return cp == 1 ? 0 : cp * carve.bytes();
}

const char* CpExchange::gather(const void* begin, int64_t bytes) const {
  if (cp_.size() == 1) return static_cast<const char*>(begin);
  cp_.all_gather(ctx_.stream, begin, gathered_, static_cast<size_t>(bytes));
  return static_cast<const char*>(gathered_);
}

void CpExchange::place(const void* rows, void* to, int member, int64_t row_bytes) const {
  ctx_.attention->scatter_rows(
      ctx_.stream,
      {.x = rows, .y = to, .index = map_.row[member], .rows = map_.T, .row_bytes = row_bytes});
}

void CpExchange::publish(const LayerActs& a, const KvCache& cache) const {
  const int64_t KH = slices_ * ctx_.config.hkv(), Dh = ctx_.config.Dh;
  const int64_t bytes =
      reinterpret_cast<const char*>(a.v + map_.T * KH * Dh) - reinterpret_cast<const char*>(a.k);
  const char* all = gather(a.k, bytes);
  for (int r = 0; r < cp_.size(); ++r) {
    const char* part = all + r * bytes;
    ctx_.attention->kv_write(ctx_.stream, {.k = shifted(a.k, a.k, part),
                                           .v = shifted(a.v, a.k, part),
                                           .cache = &cache,
                                           .seq = map_.seq[r],
                                           .position = map_.position[r],
                                           .T = map_.T,
                                           .KH = static_cast<int>(KH),
                                           .Dh = static_cast<int>(Dh)});
  }
}

void CpExchange::collect(const LayerActs& a, const bf16* d_o, const float* delta,
                         const SequenceActs& to) const {
  const ModelConfig& m = ctx_.config;
  const int64_t H = slices_ * m.hq(), KH = slices_ * m.hkv();
  const int64_t q_bytes = H * m.Dh * 2, kv_bytes = KH * m.Dh * 2, stat_bytes = H * 4;
  auto span = [](const void* begin, const float* end) {
    return reinterpret_cast<const char*>(end) - static_cast<const char*>(begin);
  };
  const int64_t bytes = span(a.q, a.lse + map_.T * H);
  const char* all = gather(a.q, bytes);
  for (int r = 0; r < cp_.size(); ++r) {
    const char* part = all + r * bytes;
    place(shifted(a.q, a.q, part), to.q, r, q_bytes);
    place(shifted(a.k, a.q, part), to.k, r, kv_bytes);
    place(shifted(a.v, a.q, part), to.v, r, kv_bytes);
    place(shifted(a.lse, a.q, part), to.lse, r, stat_bytes);
  }
  const int64_t pair = span(d_o, delta + map_.T * H);
  all = gather(d_o, pair);
  for (int r = 0; r < cp_.size(); ++r) {
    const char* part = all + r * pair;
    place(shifted(d_o, d_o, part), to.d_o, r, q_bytes);
    place(shifted(delta, d_o, part), to.delta, r, stat_bytes);
  }
}

}  // namespace rlk
