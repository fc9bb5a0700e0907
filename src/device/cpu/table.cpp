// The CPU backend's table and memory.

#include <cstdlib>
#include <cstring>

#include "entries.h"
#include "parallel.h"

namespace rlk {
namespace {

void* alloc(size_t bytes) {
  const size_t size = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
  void* memory = std::aligned_alloc(256, size);
  if (memory == nullptr)
    throw Error("aligned_alloc of " + std::to_string(size) + " bytes: out of memory");
  return std::memset(memory, 0, size);
}

void copy(Stream, void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

void copy_rows(Stream, void* to, const void* from, size_t bytes, size_t stride, size_t rows) {
  for (size_t r = 0; r < rows; ++r)
    copy(nullptr, static_cast<char*>(to) + r * stride, static_cast<const char*>(from) + r * stride,
         bytes);
}

void zero(Stream, void* memory, size_t bytes) {
  if (bytes > 0) std::memset(memory, 0, bytes);
}

template <class Args>
size_t no_workspace(const Args&) {
  return 0;
}

Ops make_table() {
  Ops t{};
  t.backend = "cpu";
  t.gemm = cpu::gemm;
  t.gemm_dgrad = cpu::gemm_dgrad;
  t.gemm_wgrad = cpu::gemm_wgrad;
  t.embedding = cpu::embedding;
  t.embedding_bwd = cpu::embedding_bwd;
  t.rms_norm = cpu::rms_norm;
  t.rms_norm_bwd = cpu::rms_norm_bwd;
  t.rms_norm_wgrad = cpu::rms_norm_wgrad;
  t.qk_norm_rope = cpu::qk_norm_rope;
  t.qk_norm_rope_bwd = cpu::qk_norm_rope_bwd;
  t.kv_write = cpu::kv_write;
  t.swiglu = cpu::swiglu;
  t.swiglu_bwd = cpu::swiglu_bwd;
  t.gemm_swiglu = cpu::gemm_swiglu;
  t.attention = cpu::attention;
  t.attention_delta = cpu::attention_delta;
  t.attention_bwd_dq = cpu::attention_bwd_dq;
  t.attention_bwd_dkv = cpu::attention_bwd_dkv;
  t.logits_support = cpu::logits_support;
  t.logprob_stats = cpu::logprob_stats;
  t.logprob_merge = cpu::logprob_merge;
  t.logprob_bwd = cpu::logprob_bwd;
  t.sample = cpu::sample;
  t.sample_merge = cpu::sample_merge;
  t.decode_advance = cpu::decode_advance;
  t.adamw = cpu::adamw;
  t.sum_squares = cpu::sum_squares;
  t.tree_add = cpu::tree_add;
  t.sha256_pieces = cpu::sha256_pieces;
  t.init_normal = cpu::init_normal;
  t.init_uniform = cpu::init_uniform;
  t.cast = cpu::cast;
  t.widen = cpu::widen;
  t.gather_rows = cpu::gather_rows;
  t.scatter_rows = cpu::scatter_rows;
  t.rms_norm_wgrad_workspace = no_workspace<RmsNormWgradArgs>;
  t.qk_norm_rope_bwd_workspace = no_workspace<QkNormRopeBwdArgs>;
  t.attention_workspace = no_workspace<AttentionArgs>;
  t.attention_bwd_workspace = no_workspace<AttentionBwdArgs>;
  t.support_workspace = no_workspace<SupportArgs>;
  t.sample_workspace = no_workspace<SampleArgs>;
  t.alloc = alloc;
  t.free = std::free;
  t.copy = copy;
  t.copy_rows = copy_rows;
  t.zero = zero;
  t.synchronize = [](Stream) {};
  return t;
}

}  // namespace

const Ops& cpu_ops(int threads) {
  static const Ops table = make_table();
  cpu::set_threads(threads);
  return table;
}

void cpu::require_leaves(const Leaves& leaves, const char* op) {
  require(is_tree_size(leaves.count), op, "leaves.count", leaves.count, "1, 2, 4 or 8");
  for (int l = 0; l < leaves.count; ++l) {
    require(leaves.begin[l + 1] >= leaves.begin[l], op, "a leaf's length",
            leaves.begin[l + 1] - leaves.begin[l], "at least 0");
    require_multiple(leaves.begin[l + 1] - leaves.begin[l], 64, op, "a leaf's length");
  }
}

}  // namespace rlk
