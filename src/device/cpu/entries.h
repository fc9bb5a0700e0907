#pragma once
// The CPU backend's functions, one per entry of rlk::Ops (contracts: rlk/device/ops.h), bound in
// table.cpp.

#include <string>

#include "rlk/base/error.h"
#include "rlk/device/ops.h"

namespace rlk::cpu {

// What an op refuses: "gemm: ks = 12, must be a multiple of 16".
inline void require(bool ok, const char* op, const char* what, int64_t value, const char* limit) {
  if (!ok) [[unlikely]]
    throw Error(std::string(op) + ": " + what + " = " + std::to_string(value) + ", must be " +
                limit);
}
inline void require_multiple(int64_t value, int64_t of, const char* op, const char* what) {
  if (value < 0 || value % of != 0) [[unlikely]]
    require(false, op, what, value, ("a multiple of " + std::to_string(of)).c_str());
}
inline bool is_tree_size(int n) {
  return n == 1 || n == 2 || n == 4 || n == 8;
}
void require_leaves(const Leaves& leaves, const char* op);

void gemm(Stream, const GemmArgs&);
void gemm_dgrad(Stream, const GemmDgradArgs&);
void gemm_wgrad(Stream, const GemmWgradArgs&);
void embedding(Stream, const EmbeddingArgs&);
void embedding_bwd(Stream, const EmbeddingBwdArgs&);
void rms_norm(Stream, const RmsNormArgs&);
void rms_norm_bwd(Stream, const RmsNormBwdArgs&);
void rms_norm_wgrad(Stream, const RmsNormWgradArgs&);
void qk_norm_rope(Stream, const QkNormRopeArgs&);
void qk_norm_rope_bwd(Stream, const QkNormRopeBwdArgs&);
void kv_write(Stream, const KvWriteArgs&);
void swiglu(Stream, const SwigluArgs&);
void swiglu_bwd(Stream, const SwigluBwdArgs&);
void gemm_swiglu(Stream, const GemmSwigluArgs&);
void attention(Stream, const AttentionArgs&);
void attention_delta(Stream, const AttentionDeltaArgs&);
void attention_bwd_dq(Stream, const AttentionBwdArgs&);
void attention_bwd_dkv(Stream, const AttentionBwdArgs&);
void logits_support(Stream, const SupportArgs&);
void logprob_stats(Stream, const LogprobStatsArgs&);
void logprob_merge(Stream, const LogprobMergeArgs&);
void logprob_bwd(Stream, const LogprobBwdArgs&);
void sample(Stream, const SampleArgs&);
void sample_merge(Stream, const SampleMergeArgs&);
void decode_advance(Stream, const DecodeAdvanceArgs&);
void adamw(Stream, const AdamWArgs&);
void sum_squares(Stream, const SumSquaresArgs&);
void tree_add(Stream, const TreeAddArgs&);
void sha256_pieces(Stream, const Sha256Args&);
void init_normal(Stream, const InitNormalArgs&);
void init_uniform(Stream, const InitUniformArgs&);
void cast(Stream, const CastArgs&);
void widen(Stream, const WidenArgs&);
void gather_rows(Stream, const RowMapArgs&);
void scatter_rows(Stream, const RowMapArgs&);

}  // namespace rlk::cpu
