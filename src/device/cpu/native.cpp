// Native mode on the CPU: what engines do whose sums follow their layout. It is the negative
// control of consistency mode: a run with different layouts on both sides measures a mismatch that
// is not zero.
//
// - gemm: one chain over the whole local contraction where it is contiguous; partials cross ranks
//   as bf16
// - attention: decode walks the keys once in fp32; longer segments use the strict rule
// - logprob_stats: one sum over the rank's whole vocabulary shard

#include <cmath>
#include <limits>
#include <vector>

#include "rlk/device/ops.h"

namespace rlk {
namespace {

const Ops* strict = nullptr;

void native_gemm(Stream stream, const GemmArgs& args) {
  GemmArgs a = args;
  if (a.w_slice == a.ks) {
    a.ks *= a.slices;
    a.w_slice = a.ks;
    a.slices = 1;
  }
  strict->gemm(stream, a);
  if (!a.out_f32) return;
  auto* y = static_cast<float*>(a.y);
  for (int64_t t = 0; t < a.T; ++t)
    for (int64_t n = 0; n < a.N; ++n) y[t * a.ldy + n] = to_float(to_bf16(y[t * a.ldy + n]));
}

void native_gemm_swiglu(Stream stream, const GemmSwigluArgs& a) {
  native_gemm(stream, a.gemm);
  strict->swiglu(stream, a.swiglu());
}

void decode_row(const AttentionArgs& a, const AttentionSegment& segment, int head) {
  const KvCache& c = a.cache;
  const int kv_head = head / (a.H / a.KH);
  auto row = [&](bf16* const* memory, int32_t p) {
    const int32_t e = c.page_table[segment.seq * c.max_pages + p / c.page_size];
    return memory[e >> 24] + (e & 0xffffff) * c.page_stride + (p % c.page_size) * c.token_stride +
           kv_head * c.head_stride;
  };
  const bf16* q = a.q + (static_cast<int64_t>(segment.row) * a.H + head) * a.Dh;
  std::vector<float> score(segment.position + 1), out(a.Dh, 0.0f);
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int32_t p = 0; p <= segment.position; ++p) {
    const bf16* k = row(c.k, p);
    float s = 0;
    for (int d = 0; d < a.Dh; ++d) s = std::fma(to_float(q[d]), to_float(k[d]), s);
    score[p] = s * a.scale;
    max = std::max(max, score[p]);
  }
  for (int32_t p = 0; p <= segment.position; ++p) {
    const float weight = std::exp(score[p] - max);
    const bf16* v = row(c.v, p);
    sum += weight;
    for (int d = 0; d < a.Dh; ++d) out[d] = std::fma(weight, to_float(v[d]), out[d]);
  }
  bf16* o = a.o + (static_cast<int64_t>(segment.row) * a.H + head) * a.Dh;
  for (int d = 0; d < a.Dh; ++d) o[d] = to_bf16(out[d] / sum);
}

void native_attention(Stream stream, const AttentionArgs& args) {
  std::vector<AttentionSegment> longer;
  for (int i = 0; i < args.n_segments; ++i) {
    const AttentionSegment& segment = args.segments[i];
    if (segment.len > 1 || args.lse) {  // the backward pass needs the strict statistics
      longer.push_back(segment);
      continue;
    }
    for (int h = 0; h < args.H; ++h) decode_row(args, segment, h);
  }
  AttentionArgs rest = args;
  rest.segments = longer.data();
  rest.n_segments = static_cast<int32_t>(longer.size());
  if (rest.n_segments > 0) strict->attention(stream, rest);
}

void native_logprob_stats(Stream stream, const LogprobStatsArgs& a) {
  strict->logprob_stats(stream, a);
  for (int64_t t = 0; t < a.logits.T; ++t) {
    SliceStats* stats = a.stats + t * a.logits.slices;
    SliceStats all = stats[0];
    for (int s = 1; s < a.logits.slices; ++s) {
      const float max = std::max(all.max, stats[s].max);
      if (max == -std::numeric_limits<float>::infinity()) continue;
      all.sum = all.sum * std::exp(all.max - max) + stats[s].sum * std::exp(stats[s].max - max);
      all.max = max;
      all.target = std::max(all.target, stats[s].target);
      stats[s] = {-std::numeric_limits<float>::infinity(), 0,
                  -std::numeric_limits<float>::infinity(), 0};
    }
    stats[0] = all;
  }
}

}  // namespace

const Ops& cpu_native_ops(int threads) {
  static Ops table;
  strict = &cpu_ops(threads);
  table = *strict;
  table.native = table.native_gemm = "cpu.native";
  table.gemm = native_gemm;
  table.gemm_swiglu = native_gemm_swiglu;
  table.attention = native_attention;
  table.logprob_stats = native_logprob_stats;
  return table;
}

}  // namespace rlk
