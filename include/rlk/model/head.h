#pragma once
// From the last residual stream to logits, log-probs and sampled tokens, for chosen rows: one code
// for both engines (R5, R6).

#include <cstdint>

#include "rlk/model/forward.h"

namespace rlk {

// Per-row sampling values, device-accessible [R]. A greedy row has inv_temp 0, logp_inv_temp 1 and
// an unlimited support.
struct RowSampling {
  const float* inv_temp;
  const float* logp_inv_temp;
  const float* top_p;
  const int32_t* top_k;
  bool limited;  // any row's support is less than the vocabulary
};

// Buffers for R rows and n vocabulary slices.
struct HeadActs {
  bf16* x_mid;            // [R, D] gathered
  bf16* delta;            // [R, D] gathered; afterwards the final residual stream is in x
  bf16* x;                // [R, D]
  bf16* y;                // [R, D] after the final norm
  float* rstd;            // [R]
  bf16* logits;           // [R, n*V'/8]; the backward pass writes its gradient here
  bf16* parts;            // [tp, R, n*V'/8] gathered (limited supports, tp > 1)
  bf16* full;             // [R, V'] rows of all slices (limited supports; == logits when tp == 1)
  int32_t* full_row;      // [tp*R] where the gathered parts go
  uint32_t* threshold;    // [R]
  SliceStats* stats;      // [R, n]
  SliceStats* all_stats;  // [tp, R, n]
  Candidate* best;        // [R]
  Candidate* all_best;    // [tp, R]
  float* logp;            // [R]
  float* lse;             // [R]
  int32_t* error;         // [1]
  void* workspace;
};
int64_t head_acts_bytes(const Context&, int64_t R, int slices, bool limited);
// full_row is filled by the call (host copy): R fixes it.
HeadActs head_acts_at(void* base, const Context&, int64_t R, int slices, bool limited);

// Rows index[R] (negative: a zero row; null: rows 0 to R-1, which need no gathering) of the last
// layer's x_mid and delta: added, normed, then logits; where supports are limited, their
// thresholds.
void head_logits(const Context&, const WeightsView&, const bf16* x_mid, const bf16* delta,
                 const int32_t* index, int64_t R, const RowSampling&, HeadActs&);

// logp [R] and lse [R] of target [R] under logp_inv_temp and the supports.
void head_logprob(const Context&, const WeightsView&, const int32_t* target, int64_t R,
                  const RowSampling&, HeadActs&);

// token [R] drawn with keys [R].
void head_sample(const Context&, const WeightsView&, const SampleKey* keys, int64_t R,
                 const RowSampling&, HeadActs&, int32_t* token);

// Throws Error when an op met a NaN in the logits. Synchronises.
void head_check(const Context&, const HeadActs&);

}  // namespace rlk
