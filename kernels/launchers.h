#pragma once
// Host launchers of the CUDA ops, in the order of the Ops table (include/rlk/device/ops.h holds
// their contracts). Each enqueues on `stream`, allocates nothing, may be captured into a graph, and
// throws rlk::Error.

#include "rlk/device/ops.h"

namespace rlk::cuda {

void gemm(Stream, const GemmArgs&);
void gemm_dgrad(Stream, const GemmDgradArgs&);
void gemm_wgrad(Stream, const GemmWgradArgs&);
void embedding(Stream, const EmbeddingArgs&);
void embedding_bwd(Stream, const EmbeddingBwdArgs&);
void rms_norm(Stream, const RmsNormArgs&);
void rms_norm_bwd(Stream, const RmsNormBwdArgs&);
void rms_norm_wgrad(Stream, const RmsNormWgradArgs&);
size_t rms_norm_wgrad_workspace(const RmsNormWgradArgs&);
void qk_norm_rope(Stream, const QkNormRopeArgs&);
void qk_norm_rope_bwd(Stream, const QkNormRopeBwdArgs&);
size_t qk_norm_rope_bwd_workspace(const QkNormRopeBwdArgs&);
void kv_write(Stream, const KvWriteArgs&);
void swiglu(Stream, const SwigluArgs&);
void swiglu_bwd(Stream, const SwigluBwdArgs&);
void gemm_swiglu(Stream, const GemmSwigluArgs&);  // T <= 64 in one kernel
void attention(Stream, const AttentionArgs&);
size_t attention_workspace(const AttentionArgs&);
void attention_delta(Stream, const AttentionDeltaArgs&);
void attention_bwd_dq(Stream, const AttentionBwdArgs&);
void attention_bwd_dkv(Stream, const AttentionBwdArgs&);
size_t attention_bwd_workspace(const AttentionBwdArgs&);
void logits_support(Stream, const SupportArgs&);
size_t support_workspace(const SupportArgs&);
void logprob_stats(Stream, const LogprobStatsArgs&);
void logprob_merge(Stream, const LogprobMergeArgs&);
void logprob_bwd(Stream, const LogprobBwdArgs&);
void sample(Stream, const SampleArgs&);
size_t sample_workspace(const SampleArgs&);
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

// Native mode's: the same values by sums whose order follows the batch.
void native_attention(Stream, const AttentionArgs&);  // decode in splits that fill the device
size_t native_attention_workspace(const AttentionArgs&);
void native_logprob_stats(Stream, const LogprobStatsArgs&);  // the whole shard in as many parts

}  // namespace rlk::cuda
