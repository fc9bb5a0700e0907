#include "rlk/device/counted.h"

#include <array>
#include <chrono>
#include <iterator>
#include <utility>

namespace rlk {
namespace {

constexpr int kKinds = 2, kMaxOps = 64;
Ops targets[kKinds];
std::array<uint64_t, kMaxOps> calls[kKinds];
std::array<double, kMaxOps> seconds[kKinds];
bool timing = false;

template <auto Member, int Index, int Kind, class Args>
void thunk(Stream stream, const Args& args) {
  ++calls[Kind][Index];
  if (!timing) return (targets[Kind].*Member)(stream, args);
  targets[Kind].synchronize(stream);
  const auto start = std::chrono::steady_clock::now();
  (targets[Kind].*Member)(stream, args);
  targets[Kind].synchronize(stream);
  seconds[Kind][Index] +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <auto Member, int Index, class Args>
void install(void (*Ops::*)(Stream, const Args&), Ops& table, int kind) {
  table.*Member = kind == 0 ? thunk<Member, Index, 0, Args> : thunk<Member, Index, 1, Args>;
}

constexpr const char* kNames[] = {"gemm",
                                  "gemm_dgrad",
                                  "gemm_wgrad",
                                  "embedding",
                                  "embedding_bwd",
                                  "rms_norm",
                                  "rms_norm_bwd",
                                  "rms_norm_wgrad",
                                  "qk_norm_rope",
                                  "qk_norm_rope_bwd",
                                  "kv_write",
                                  "swiglu",
                                  "swiglu_bwd",
                                  "attention",
                                  "attention_delta",
                                  "attention_bwd_dq",
                                  "attention_bwd_dkv",
                                  "logits_support",
                                  "logprob_stats",
                                  "logprob_merge",
                                  "logprob_bwd",
                                  "sample",
                                  "sample_merge",
                                  "adamw",
                                  "sum_squares",
                                  "tree_add",
                                  "sha256_pieces",
                                  "init_normal",
                                  "init_uniform",
                                  "cast",
                                  "widen",
                                  "gather_rows",
                                  "scatter_rows"};

template <auto... Members>
struct Table {
  static void install_all(Ops& table, int kind) {
    install_each(table, kind, std::make_integer_sequence<int, sizeof...(Members)>());
  }
  template <int... Index>
  static void install_each(Ops& table, int kind, std::integer_sequence<int, Index...>) {
    (install<Members, Index>(Members, table, kind), ...);
  }
  static constexpr size_t size = sizeof...(Members);
};

// In the order of kNames.
using AllOps =
    Table<&Ops::gemm, &Ops::gemm_dgrad, &Ops::gemm_wgrad, &Ops::embedding, &Ops::embedding_bwd,
          &Ops::rms_norm, &Ops::rms_norm_bwd, &Ops::rms_norm_wgrad, &Ops::qk_norm_rope,
          &Ops::qk_norm_rope_bwd, &Ops::kv_write, &Ops::swiglu, &Ops::swiglu_bwd, &Ops::attention,
          &Ops::attention_delta, &Ops::attention_bwd_dq, &Ops::attention_bwd_dkv,
          &Ops::logits_support, &Ops::logprob_stats, &Ops::logprob_merge, &Ops::logprob_bwd,
          &Ops::sample, &Ops::sample_merge, &Ops::adamw, &Ops::sum_squares, &Ops::tree_add,
          &Ops::sha256_pieces, &Ops::init_normal, &Ops::init_uniform, &Ops::cast, &Ops::widen,
          &Ops::gather_rows, &Ops::scatter_rows>;
static_assert(AllOps::size == std::size(kNames) && AllOps::size <= kMaxOps);

}  // namespace

const Ops& counted(const Ops& ops, OpsKind kind) {
  static Ops tables[kKinds];
  const int k = static_cast<int>(kind);
  targets[k] = tables[k] = ops;
  AllOps::install_all(tables[k], k);
  return tables[k];
}

std::map<std::string, uint64_t> op_calls(OpsKind kind) {
  std::map<std::string, uint64_t> result;
  for (size_t i = 0; i < AllOps::size; ++i)
    if (const uint64_t n = calls[static_cast<int>(kind)][i]) result[kNames[i]] = n;
  return result;
}

void time_ops() {
  timing = true;
}

std::map<std::string, double> op_seconds(OpsKind kind) {
  std::map<std::string, double> result;
  for (size_t i = 0; i < AllOps::size; ++i)
    if (const double s = seconds[static_cast<int>(kind)][i]; s > 0) result[kNames[i]] = s;
  return result;
}

}  // namespace rlk
