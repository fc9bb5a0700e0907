#pragma once
// The operation table: what a backend must be able to do, once for both engines. CPU:
// src/device/cpu; CUDA: kernels/<op> bound by src/device/cuda. Plain structs of pointers and sizes,
// usable from CUDA sources.
//
// Every op is asynchronous on its stream (CPU: done on return). Pointers are device-accessible and
// owned by the caller; ops allocate nothing. Strides (ld*, *_stride) are in elements. Row t of any
// output depends on row t of the inputs alone unless the contract says otherwise; accumulation
// orders depend on (op, dtype, N, K) only (docs/numerics.md). An unsupported shape throws
// rlk::Error.
//
// One alphabet: T tokens (rows), D hidden, H query heads and KH KV heads of this rank, Dh head dim,
// F FFN columns, V' padded vocabulary.
//
// Aligned tree over 8 slices, fp32: ((0+1)+(2+3))+((4+5)+(6+7)). An op that owns 8/R adjacent
// slices computes the subtree over them; communicators finish the tree.

#include <cstddef>
#include <cstdint>

#include "rlk/base/bf16.h"
#include "rlk/base/philox.h"

namespace rlk {

inline constexpr int kSlices = 8;  // virtual TP slices, and virtual CP slices

using Stream = void*;  // cudaStream_t; null on the CPU
using Graph = void*;   // cudaGraphExec_t

// ---- GEMM
// -----------------------------------------------------------------------------------------------------

// gemm: y[t, n] = tree over s of chain over k of x[t, s*ks + k] * w_s[n, k]
// x [T, slices*ks] bf16; w_s [N, ks] bf16 at w + s*w_slice with row stride ldw; y [T, N] bf16 or
// f32.
//   column-parallel layer: w [N, K] row-major, ks = K/8, w_slice = ks, ldw = K, slices = 8
//   row-parallel layer:    w slice-major,      ks = K/8, w_slice = N*ks, ldw = ks, slices = 8/TP
// slices in {1,2,4,8}; ks % 16 == 0; N % 8 == 0; ldx, ldw, ldy % 8 == 0; pointers 16-byte aligned.
// A chain is fp32 from +0, k ascending. Rounding: once, at the store (none for f32).
// w_ready (speed alone): w was complete before anything still running on the stream began, as a
// rollout's weights are between two updates; a device may then read it before the op ahead has
// ended.
struct GemmArgs {
  const bf16* x;
  const bf16* w;
  void* y;
  int64_t T, N, ks;
  int slices;
  int64_t ldx, w_slice, ldw, ldy;
  bool out_f32;
  bool w_ready = false;
};

// gemm_dgrad: dx[t, g*gk + k] = tree over s of chain over n of dy[t, s*ns + n] * w_sg[n, k]
// dy [T, slices*ns] bf16; w_sg [ns, gk] bf16 at w + s*w_slice + g*w_group with row stride ldw; dx
// [T, groups*gk].
//   column-parallel layer: ns = rows of one virtual slice, slices = 8/TP, w_slice = ns*D, groups =
//   1, gk = ldw = D row-parallel layer:    ns = N/8, slices = 8, groups = 8/TP, gk = ldw = ks,
//   w_slice = (N/8)*ks, w_group = N*ks
// Same limits (ns % 16, gk % 8), order and rounding as gemm.
struct GemmDgradArgs {
  const bf16* dy;
  const bf16* w;
  void* dx;
  int64_t T, ns, gk;
  int slices, groups;
  int64_t lddy, w_slice, w_group, ldw, lddx;
  bool out_f32;
};

// The token order of weight gradients (R7): leaf l is rows [begin[l], begin[l+1]), a multiple of 64
// of them, the rows past a leaf's last token zero. leaves in {1,2,4,8}; an empty leaf contributes
// +0. Host values.
struct Leaves {
  int count;
  int64_t begin[kSlices + 1];
};

// gemm_wgrad: dw_g[n, k] = tree over leaves of chain over t in the leaf of dy[t, n] * x[t, g*gk +
// k] dy [T, N] bf16; x [T, groups*gk] bf16; dw_g [N, gk] f32 at dw + g*dw_group, row stride lddw.
// Overwrites dw. N % 8 == 0, gk % 8 == 0. A chain is fp32 from +0, t ascending.
struct GemmWgradArgs {
  const bf16* dy;
  const bf16* x;
  float* dw;
  int64_t N, gk;
  int groups;
  Leaves leaves;
  int64_t lddy, ldx, dw_group, lddw;
};

// ---- Row ops
// --------------------------------------------------------------------------------------------------

// embedding: y[t] = table[ids[t]]. slice v of the padded vocabulary (rows v*slice_rows...) is at
// slice[v], which may be another rank's memory: ownership selects, nothing is added. y [T, D] bf16.
// ids in [0, 8*slice_rows).
struct EmbeddingArgs {
  const bf16* slice[kSlices];
  int64_t slice_rows;
  const int32_t* ids;
  bf16* y;
  int64_t T, D;
};

// embedding_bwd: dw[row[i] - first_row] = tree over leaves of the sum over the leaf's tokens of
// dx[token], in token order, for the `rows` distinct ids given in CSR form:
// tokens[row_begin[i]..row_begin[i+1]) ascending. Rows of dw not named are left alone (the caller
// zeroes dw). dx [T, D] f32, dw [*, D] f32.
struct EmbeddingBwdArgs {
  const float* dx;
  float* dw;
  int64_t D, first_row, rows;
  const int32_t* row;        // [rows]
  const int32_t* row_begin;  // [rows + 1]
  const int32_t* tokens;     // [row_begin[rows]]
  Leaves leaves;
};

// rms_norm: if delta: x_out = round(x + delta), else x_out = x; y = round(x_out *
// rsqrt(mean(x_out^2) + eps) * w) x, delta, x_out, y [T, D] bf16 contiguous; x_out may alias x
// (required null when delta is null); w [D] bf16; rstd [T] f32 optional. D % 8 == 0. Sum of
// squares: f32, fixed lane layout and tree, depends on D only. The residual sum is rounded to bf16
// before it is used. w_ready: as in GemmArgs.
struct RmsNormArgs {
  const bf16* x;
  const bf16* delta;
  bf16* x_out;
  const bf16* w;
  bf16* y;
  float* rstd;
  int64_t T, D;
  float eps;
  bool w_ready = false;
};

// rms_norm_bwd: dres[t] (+)= dx, with dx = rstd * (dy*w - xhat * mean(dy*w*xhat)), xhat = x*rstd.
// dy, dres [T, D] f32; x [T, D] bf16; w [D] bf16; rstd [T] f32. `accumulate`: add to dres (the
// residual stream's gradient), else overwrite. dres may alias dy.
struct RmsNormBwdArgs {
  const float* dy;
  const bf16* x;
  const bf16* w;
  const float* rstd;
  float* dres;
  int64_t T, D;
  bool accumulate;
};

// rms_norm_wgrad: dw[d] = tree over leaves of the ordered sum over t in the leaf of dy[t,d] *
// x[t,d] * rstd[t]. Rows of dy past a leaf's tokens are zero. dw [D] f32, overwritten. The order
// inside a leaf is anchored at the leaf's start and depends on nothing else. workspace: at least
// rms_norm_wgrad_workspace bytes.
struct RmsNormWgradArgs {
  const float* dy;
  const bf16* x;
  const float* rstd;
  float* dw;
  int64_t D;
  Leaves leaves;
  void* workspace;
};

// Paged K/V of one layer. Key row of (sequence s, position p, head h): entry e =
// page_table[s*max_pages + p/page_size], shard = e >> 24, page = e & 0xffffff, element offset
// page*page_stride + (p % page_size)*token_stride
// + h*head_stride from k[shard] / v[shard]. Shards are memories of other ranks (rollout CP).
//
// Layouts. Strides are generic: any with a page_size that divides a key tile of R4 (CUDA: 16, 32,
// 64 or 128), strides % 8 == 0 and 16-byte aligned pointers; anything else is an Error. rlk's own
// is kv_page_layout: pages of kKvPageSize keys, [page][KH][kKvPageSize][Dh], so that the keys of
// one (page, head) are one contiguous piece. Plain rows [S, KH, Dh] are a cache too: page_stride ==
// token_stride, and an entry is the row of its first key. Every page a context touches must be
// readable in full (plain rows: page_size - 1 rows past the last key), its contents past the
// context may be anything.
struct KvCache {
  bf16* k[kSlices];
  bf16* v[kSlices];
  const int32_t* page_table;  // [sequences, max_pages]
  int32_t max_pages;
  int32_t page_size;
  int64_t page_stride, token_stride, head_stride;
};

inline constexpr int kKvPageSize = 128;  // one key tile: a tile then is one bulk copy a head

inline void kv_page_layout(KvCache& cache, int KH, int Dh, int page_size = kKvPageSize) {
  cache.page_size = page_size;
  cache.token_stride = Dh;
  cache.head_stride = static_cast<int64_t>(page_size) * Dh;
  cache.page_stride = KH * cache.head_stride;
}

// qk_norm_rope: from the packed projection of a rank's slices to rotated q and k, and v.
// qkv [T, slices*(hq+2*hkv)*Dh] bf16, slice by slice q heads | k heads | v heads (hq = H/slices,
// hkv = KH/slices). q, k: per head y = round(rope(round(x*rsqrt(mean(x^2)+eps)*w))), rope in fp32
// from the bf16 value with the halves (i, i + Dh/2) rotated by position * base^(-2i/Dh): cos and
// sin from the f32 table rope [max_position, Dh/2, 2]. Outputs q [T, H, Dh]; k, v either [T, KH,
// Dh] (k, v non-null) or straight into cache pages of (seq[t], position[t]). ready (speed alone):
// the promise of AttentionArgs::past_ready, of position, seq, page_table, both weights and rope.
struct QkNormRopeArgs {
  const bf16* qkv;
  const bf16* q_weight;     // [Dh]
  const bf16* k_weight;     // [Dh]
  const int32_t* position;  // [T]
  const float* rope;
  bf16* q;
  bf16* k;
  bf16* v;
  const KvCache* cache;  // host pointer to the struct; null when k and v are given
  const int32_t* seq;  // [T], row of the page table; null when k and v are given; a negative entry
                       // writes nothing
  int64_t T;
  int slices, hq, hkv, Dh;
  float eps;
  bool ready = false;
};

// qk_norm_rope_bwd: gradients of the packed projection from dq [T, H, Dh], dk, dv [T, KH, Dh] bf16;
// the forward's qkv is the input, statistics are computed again. dqkv bf16 packed as qkv, rounded
// once from fp32. q_dw, k_dw [Dh] f32 per virtual TP slice of this rank and leaf, summed over
// (token, head) in an order that is anchored at the leaf's start and depends on nothing else;
// leaves cover the T rows: dw [leaves.count, slices, Dh]; callers join the 64 leaves (TP tree
// inside each CP slice, then the CP tree).
struct QkNormRopeBwdArgs {
  const bf16* qkv;
  const bf16* q_weight;
  const bf16* k_weight;
  const int32_t* position;
  const float* rope;
  const bf16* dq;
  const bf16* dk;
  const bf16* dv;
  bf16* dqkv;
  float* q_dw;
  float* k_dw;
  int64_t T;
  int slices, hq, hkv, Dh;
  float eps;
  Leaves leaves;
  void* workspace;  // qk_norm_rope_bwd_workspace bytes
};

// kv_write: k, v [T, KH, Dh] rows into the pages of (seq[t], position[t]); a negative seq writes
// nothing.
struct KvWriteArgs {
  const bf16* k;
  const bf16* v;
  const KvCache* cache;
  const int32_t* seq;
  const int32_t* position;
  int64_t T;
  int KH, Dh;
};

// swiglu: act[t, v*fs + f] = round(silu(gate) * up); gate_up [T, slices*2*fs] slice by slice gate |
// up, act [T, slices*fs].
struct SwigluArgs {
  const bf16* gate_up;
  bf16* act;
  int64_t T, fs;
  int slices;
};

// gemm_swiglu: gemm, then swiglu of what it makes (gate_up), with the bits of the two ops. gemm.y
// is room for gate_up, its contents undefined afterwards. gemm.N = gemm.ldy = slices*2*fs, fs % 8
// == 0, gemm.out_f32 = false.
struct GemmSwigluArgs {
  GemmArgs gemm;
  bf16* act;
  int64_t fs;
  int slices;  // of the FFN
  SwigluArgs swiglu() const { return {static_cast<const bf16*>(gemm.y), act, gemm.T, fs, slices}; }
};

// swiglu_bwd: d_gate_up bf16 (packed as gate_up) from dact bf16 [T, slices*fs]; fp32 inside,
// rounded once. May alias gate_up.
struct SwigluBwdArgs {
  const bf16* gate_up;
  const bf16* dact;
  bf16* d_gate_up;
  int64_t T, fs;
  int slices;
};

// ---- Attention (R4)
// -------------------------------------------------------------------------------------------

// Queries [row, row+len) are positions [position, position+len) of sequence `seq` (row of the page
// table); query p sees keys 0..p.
struct AttentionSegment {
  int32_t seq, position, len, row;
};

// attention: o = softmax(scale * q k^T) v over paged K/V, causal, grouped queries (H % KH == 0,
// H/KH <= 8). q, o [T, H, Dh] bf16; head h reads KV head h / (H/KH). lse [T, H] f32 optional: M +
// log2(L) in exp2 units (R4). segments is device-accessible; the max_* bounds are host values and
// choose kernels, never orders. What lies in the cache beyond a sequence's last key may be
// anything. Segments of one call name different rows; a segment of len 0 is skipped (idle slots of
// a captured graph). past_ready: the caller promises that segments, page_table and every key before
// a segment's `position` were written before some kernel earlier in the stream started that was not
// itself a dependent launch (embedding, at the head of a step). Then decode (max_len
// 1) may load them while the kernel ahead of it still runs.
struct AttentionArgs {
  const bf16* q;
  KvCache cache;
  const AttentionSegment* segments;
  int32_t n_segments;
  int32_t max_len;      // >= every segment's len
  int32_t max_context;  // >= every position + len
  bf16* o;
  float* lse;
  int64_t T;
  int H, KH, Dh;
  float scale;
  void* workspace;          // attention_workspace bytes
  bool past_ready = false;  // see above; false is always right
};

// attention_bwd_dq / attention_bwd_dkv: the two canonical passes of the backward. Whole sequences
// are contiguous: sequence s has rows [seq_begin[s], seq_begin[s+1]) of q, k, v, o, d_o, lse, delta
// (position = row - seq_begin[s]). delta[row, h] = sum over Dh of o*d_o (attention_delta, fixed
// order). Each pass produces only the rows named by its segments (dq: query rows; dkv: key rows),
// written at segment.row of the compact output: dq [T, H, Dh], dk, dv [T, KH, Dh] bf16. dQ: key
// tiles from position 0 ascending; dK, dV: query tiles anchored at absolute positions, and the
// group's heads, in order.
struct AttentionBwdArgs {
  const bf16* q;                     // [S, H, Dh]
  const bf16* k;                     // [S, KH, Dh]
  const bf16* v;                     // [S, KH, Dh]
  const bf16* d_o;                   // [S, H, Dh]
  const float* lse;                  // [S, H]
  const float* delta;                // [S, H]
  const int32_t* seq_begin;          // [sequences + 1], device-accessible
  const AttentionSegment* segments;  // device-accessible
  int32_t n_segments, max_len, max_context;
  bf16* dq;  // attention_bwd_dq
  bf16* dk;  // attention_bwd_dkv
  bf16* dv;
  int64_t S;
  int H, KH, Dh;
  float scale;
  void* workspace;  // attention_bwd_workspace bytes
};

struct AttentionDeltaArgs {
  const bf16* o;    // [T, H, Dh]
  const bf16* d_o;  // [T, H, Dh]
  float* delta;     // [T, H]
  int64_t T;
  int H, Dh;
};

// ---- Logits, log-probs, sampling (R5, R6)
// ---------------------------------------------------------------------

// Logits rows of a rank: bf16 [T, slices*slice_rows], virtual vocabulary slices first_slice.. in
// order. Ids >= vocab are padding.
struct LogitsView {
  const bf16* x;
  int64_t T, ld;
  int64_t slice_rows;  // V'/8
  int first_slice, slices;
  int64_t vocab;  // real vocabulary
};

// logits_support: threshold[t] = bf16_key of the smallest value in row t's support. Needs whole
// rows (slices == 8). top_k[t] (-1 or 0: off) first, ties at the k-th value kept; then top_p[t]
// over what is left: values in descending order until their mass reaches top_p of the total, ties
// kept. Mass of a value = count * exp((value - max) * inv_temp), sums in an order fixed by the
// values alone. 0 (keep everything) where both are off. error[0] |= 1 on a NaN.
struct SupportArgs {
  LogitsView logits;
  const float* inv_temp;  // [T]
  const float* top_p;     // [T]
  const int32_t* top_k;   // [T]
  uint32_t* threshold;    // [T]
  int32_t* error;
  void* workspace;  // support_workspace bytes
};

// One virtual vocabulary slice of one row: the softmax statistics over its part of the support.
struct SliceStats {
  float max;  // of x*inv_temp; -inf when nothing of the support is here
  float sum;  // of exp(x*inv_temp - max)
  float
      target;  // x[target]*inv_temp when the target is in this slice and in the support, else -inf
  float pad;
};

// logprob_stats: stats[t, j] for j = 0..slices-1 of the view. threshold null: full vocabulary.
struct LogprobStatsArgs {
  LogitsView logits;
  const float* inv_temp;
  const uint32_t* threshold;
  const int32_t* target;  // [T]
  SliceStats* stats;      // [T, slices]
  int32_t* error;         // error[0] |= 1 on a NaN
};

// logprob_merge: joins the 8 slices' statistics in ascending order. stats [ranks][T][8/ranks] as an
// all-gather leaves them. logp[t] = target - (M + log S), -inf when the target lies outside the
// support; lse[t] = M + log S.
struct LogprobMergeArgs {
  const SliceStats* stats;
  int ranks;
  int64_t T;
  float* logp;
  float* lse;
};

// logprob_bwd: dlogits[t, j] = round(g[t] * inv_temp[t] * (exp(x*inv_temp - lse[t]) - [j ==
// target])) inside the support, 0 outside it and for padding. dlogits has the view's shape and
// stride and may alias it.
struct LogprobBwdArgs {
  LogitsView logits;
  const float* inv_temp;
  const uint32_t* threshold;
  const int32_t* target;
  const float* lse;
  const float* g;  // [T] dLoss/dNLL with NLL = -logp
  bf16* dlogits;
};

// One rank's candidate for the next token of a row.
struct Candidate {
  float score;
  int32_t token;
};

// sample: best[t] = the token of the view's support with the largest x*inv_temp + gumbel(u), ties
// to the lower id; u = (bits + 0.5) * 2^-32 from sample_block (philox.h), never rounded to 1.
// inv_temp[t] == 0: greedy, score = x.
struct SampleArgs {
  LogitsView logits;
  const float* inv_temp;
  const uint32_t* threshold;
  const SampleKey* keys;  // [T]
  Candidate* best;        // [T]
  void* workspace;        // sample_workspace bytes
};

// sample_merge: token[t] = best of [ranks][T] candidates, ties to the lower id.
struct SampleMergeArgs {
  const Candidate* best;
  int ranks;
  int64_t T;
  int32_t* token;
};

// What one row drew.
struct Drawn {
  int32_t token;
  float logp;
};

// decode_advance: the end of a decode step, on the device, so that steps follow each other without
// the host. A row r is live while seq[r] >= 0. Of a live row, its n-th token since the host set
// count[r] = 0: drawn[r * drawn_stride + n] = {token[r], logp[r]} and count[r] = n + 1. Then the
// row goes idle (seq[r] = -1, segments[r].len = 0) when token[r] is in `stop`, when count[r] is
// limit[r], or when token[r] is none of the vocabulary (a NaN among its logits); else ids[r] =
// token[r], and position[r], segments[r].position and keys[r].position grow by one. Nothing of an
// idle row is written. Never a dependent launch.
struct DecodeAdvanceArgs {
  const int32_t* token;  // [T]
  const float* logp;     // [T]
  const int32_t* stop;   // [n_stop]
  int32_t n_stop;
  int64_t vocab;
  const int32_t* limit;  // [T]
  int32_t* count;        // [T]
  Drawn* drawn;          // [T, drawn_stride]
  int64_t drawn_stride;
  int32_t* ids;                // [T]
  int32_t* position;           // [T]
  int32_t* seq;                // [T]
  AttentionSegment* segments;  // [T]
  SampleKey* keys;             // [T]
  int64_t T;
};

// ---- Optimizer and helpers
// ------------------------------------------------------------------------------------

// Where element i of a flat array lies in one that holds it in pieces of 2^log2_size elements (at
// least 8), `stride` apart: a CP rank's units among all units. By default the array is whole.
struct Pieces {
  int log2_size = 62;
  int64_t stride = 0;
  RLK_HOST_DEVICE int64_t at(int64_t i) const {
    return (i >> log2_size) * stride + (i & ((int64_t{1} << log2_size) - 1));
  }
};

// adamw: g = grad*grad_scale; m = beta1*m + (1-beta1)*g; v = beta2*v + (1-beta2)*g^2;
// master -= lr * (m*bias1 / (sqrt(v*bias2) + eps) + weight_decay*master); weight = round(master).
// bias1 = 1/(1-beta1^t), bias2 = 1/(1-beta2^t), computed by the caller in fp64. Weight i is at
// weight[pieces.at(i)].
struct AdamWArgs {
  float* master;
  float* m;
  float* v;
  const float* grad;
  bf16* weight;
  int64_t n;
  float lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale;
  Pieces pieces = {};
};

inline constexpr int64_t kNormTile = 65536;  // elements of one gradient-norm tile

// sum_squares: out[i] = fp64 sum of x^2 over tile i of kNormTile elements (last one shorter), fixed
// order inside a tile.
struct SumSquaresArgs {
  const float* x;
  int64_t n;
  double* out;  // [ceil(n / kNormTile)]
};

// tree_add: out[i] = aligned tree over `count` (1,2,4,8) parts, fp32; bf16 output rounds once.
// accumulate (f32 only): out += tree. Element i of a part is at part[pieces.at(i)].
struct TreeAddArgs {
  const float* part[kSlices];
  int count;
  void* out;
  int64_t n;
  bool out_f32;
  bool accumulate;
  Pieces pieces = {};
};

// Bytes to hash in pieces. first_piece: the sum of ceil(bytes / piece) over the ranges before it;
// bytes > 0.
struct Sha256Range {
  const void* data;  // 16-byte aligned
  int64_t bytes, first_piece;
};

// sha256_pieces: digest[i] = SHA-256 of piece i; the ranges' pieces in order, `piece` bytes each, a
// range's last one shorter. Many ranges a call: a piece is a serial chain, so the device is full
// from about 16,000 pieces on. piece % 16 == 0.
struct Sha256Args {
  const Sha256Range* ranges;  // [n_ranges], device-accessible
  int32_t n_ranges;
  int64_t pieces, piece;  // of all ranges together; bytes of one
  uint8_t* digest;        // [pieces][32]
};

// init_normal: w[i] = round(std * z(first + i)). Elements 4q..4q+3 come from the philox block with
// counter {q low, q high, 0, 0} and key mix64(seed ^ mix64(tensor)): words (0, 1) are radius and
// angle of a Box-Muller pair (cosine first), words (2, 3) of the next.
struct InitNormalArgs {
  bf16* w;
  int64_t n, first;
  uint64_t seed, tensor;
  float std;
};

// init_uniform: w[r, c] = round(centre + (word(i) - 32767.5) * step), i = first + r*ld + c: a
// rectangle of a tensor whose rows are ld long. word(i): 16-bit word i of the key's sequence
// (base/philox.h). Each float operation rounds by itself, so that every backend gives the same
// bits.
struct InitUniformArgs {
  bf16* w;  // [rows, cols]
  int64_t rows, cols, first, ld;
  uint64_t key;
  float centre, step;
};

// cast: bf16 y = round(f32 x), n elements.
struct CastArgs {
  const float* x;
  bf16* y;
  int64_t n;
};

// widen: f32 y[i] = bf16 x[pieces.at(i)], n elements.
struct WidenArgs {
  const bf16* x;
  float* y;
  int64_t n;
  Pieces pieces = {};
};

// gather_rows: y[i] = x[index[i]]; scatter_rows: y[index[i]] = x[i]; a negative index gives a zero
// row (gather) or is skipped (scatter). Rows of row_bytes (% 4 == 0).
struct RowMapArgs {
  const void* x;
  void* y;
  const int32_t* index;
  int64_t rows, row_bytes;
};

// ---- The table
// ------------------------------------------------------------------------------------------------

struct Ops {
  const char* backend;  // "cpu", "cuda"
  // What serves the entries of a native table that are not the strict table's own.
  const char *native = "", *native_gemm = "";

  void (*gemm)(Stream, const GemmArgs&);
  void (*gemm_dgrad)(Stream, const GemmDgradArgs&);
  void (*gemm_wgrad)(Stream, const GemmWgradArgs&);
  void (*embedding)(Stream, const EmbeddingArgs&);
  void (*embedding_bwd)(Stream, const EmbeddingBwdArgs&);
  void (*rms_norm)(Stream, const RmsNormArgs&);
  void (*rms_norm_bwd)(Stream, const RmsNormBwdArgs&);
  void (*rms_norm_wgrad)(Stream, const RmsNormWgradArgs&);
  void (*qk_norm_rope)(Stream, const QkNormRopeArgs&);
  void (*qk_norm_rope_bwd)(Stream, const QkNormRopeBwdArgs&);
  void (*kv_write)(Stream, const KvWriteArgs&);
  void (*swiglu)(Stream, const SwigluArgs&);
  void (*swiglu_bwd)(Stream, const SwigluBwdArgs&);
  void (*gemm_swiglu)(Stream, const GemmSwigluArgs&);
  void (*attention)(Stream, const AttentionArgs&);
  void (*attention_delta)(Stream, const AttentionDeltaArgs&);
  void (*attention_bwd_dq)(Stream, const AttentionBwdArgs&);
  void (*attention_bwd_dkv)(Stream, const AttentionBwdArgs&);
  void (*logits_support)(Stream, const SupportArgs&);
  void (*logprob_stats)(Stream, const LogprobStatsArgs&);
  void (*logprob_merge)(Stream, const LogprobMergeArgs&);
  void (*logprob_bwd)(Stream, const LogprobBwdArgs&);
  void (*sample)(Stream, const SampleArgs&);
  void (*sample_merge)(Stream, const SampleMergeArgs&);
  void (*decode_advance)(Stream, const DecodeAdvanceArgs&);
  void (*adamw)(Stream, const AdamWArgs&);
  void (*sum_squares)(Stream, const SumSquaresArgs&);
  void (*tree_add)(Stream, const TreeAddArgs&);
  void (*sha256_pieces)(Stream, const Sha256Args&);
  void (*init_normal)(Stream, const InitNormalArgs&);
  void (*init_uniform)(Stream, const InitUniformArgs&);
  void (*cast)(Stream, const CastArgs&);
  void (*widen)(Stream, const WidenArgs&);
  void (*gather_rows)(Stream, const RowMapArgs&);
  void (*scatter_rows)(Stream, const RowMapArgs&);

  // Workspace an op needs, bytes (0 on the CPU unless it says otherwise).
  size_t (*rms_norm_wgrad_workspace)(const RmsNormWgradArgs&);
  size_t (*qk_norm_rope_bwd_workspace)(const QkNormRopeBwdArgs&);
  size_t (*attention_workspace)(const AttentionArgs&);
  size_t (*attention_bwd_workspace)(const AttentionBwdArgs&);
  size_t (*support_workspace)(const SupportArgs&);
  size_t (*sample_workspace)(const SampleArgs&);

  // Memory and streams.
  void* (*alloc)(size_t bytes);  // 256-byte aligned, zeroed; throws Error when there is none
  void (*free)(void*);
  void (*copy)(Stream, void* to, const void* from, size_t bytes);  // any direction
  // `rows` runs of `bytes` bytes, `stride` apart on both sides.
  void (*copy_rows)(Stream, void* to, const void* from, size_t bytes, size_t stride, size_t rows);
  void (*zero)(Stream, void*, size_t bytes);
  void (*synchronize)(Stream);        // waits; throws Error with the device's message
  size_t (*memory_used)() = nullptr;  // bytes of the device in use, by anybody; null on the CPU

  // The weights that gemm and gemm_dgrad read were written: a table that keeps copies renews them.
  // Null: none is kept.
  void (*weights_changed)(Stream) = nullptr;

  // Streams, page-locked host memory and captured graphs of a device backend; null on the CPU,
  // whose stream is null. Between capture_begin and capture_end the thread's ops on the stream are
  // recorded, not run; nothing may be allocated.
  Stream (*stream_create)() = nullptr;
  void (*stream_destroy)(Stream) = nullptr;
  void* (*alloc_host)(size_t bytes) = nullptr;  // zeroed; the device can read and write it
  void (*free_host)(void*) = nullptr;
  void (*capture_begin)(Stream) = nullptr;
  Graph (*capture_end)(Stream) = nullptr;
  void (*graph_launch)(Stream, Graph) = nullptr;
  void (*graph_destroy)(Graph) = nullptr;
};

// threads: worker threads of this process; the bits do not depend on it.
const Ops& cpu_ops(int threads);
// Native mode's entries (native.cpp of each backend), the strict ones elsewhere.
const Ops& cpu_native_ops(int threads);
// Only where the binary was built with RLK_CUDA.
const Ops& cuda_ops(int device);
const Ops& cuda_native_ops(int device);

}  // namespace rlk
