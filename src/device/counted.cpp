#include "rlk/device/counted.h"

#include <array>
#include <chrono>
#include <iterator>
#include <utility>

namespace rlk {
namespace {

constexpr const char* kModules[] = {"attention", "ffn", "logp", "run"};
constexpr int kTables = std::size(kModules), kMaxOps = 64;

struct Counter {
  bool strict = true;
  uint64_t calls = 0;
  double seconds = 0;
};
bool timing = false;
Ops targets[kTables], tables[kTables];
std::array<Counter, kMaxOps> counters[kTables];

template <auto Member, int Index, int Module, class Args>
void thunk(Stream stream, const Args& args) {
  Counter& counter = counters[Module][Index];
  const Ops& ops = targets[Module];
  ++counter.calls;
  if (!timing) return (ops.*Member)(stream, args);
  ops.synchronize(stream);
  const auto start = std::chrono::steady_clock::now();
  (ops.*Member)(stream, args);
  ops.synchronize(stream);
  counter.seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <auto Member, int Index, class Args>
void install(void (*Ops::*)(Stream, const Args&), const Ops& strict, int module) {
  constexpr decltype(&thunk<Member, Index, 0, Args>) kThunks[] = {
      thunk<Member, Index, 0, Args>, thunk<Member, Index, 1, Args>, thunk<Member, Index, 2, Args>,
      thunk<Member, Index, 3, Args>};
  static_assert(std::size(kThunks) == kTables);
  counters[module][Index].strict = targets[module].*Member == strict.*Member;
  tables[module].*Member = kThunks[module];
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
                                  "gemm_swiglu",
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
                                  "decode_advance",
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
  static void install_all(const Ops& strict, int module) {
    install_each(strict, module, std::make_integer_sequence<int, sizeof...(Members)>());
  }
  template <int... Index>
  static void install_each(const Ops& strict, int module, std::integer_sequence<int, Index...>) {
    (install<Members, Index>(Members, strict, module), ...);
  }
  static constexpr size_t size = sizeof...(Members);
};

// In the order of kNames.
using AllOps =
    Table<&Ops::gemm, &Ops::gemm_dgrad, &Ops::gemm_wgrad, &Ops::embedding, &Ops::embedding_bwd,
          &Ops::rms_norm, &Ops::rms_norm_bwd, &Ops::rms_norm_wgrad, &Ops::qk_norm_rope,
          &Ops::qk_norm_rope_bwd, &Ops::kv_write, &Ops::swiglu, &Ops::swiglu_bwd, &Ops::gemm_swiglu,
          &Ops::attention, &Ops::attention_delta, &Ops::attention_bwd_dq, &Ops::attention_bwd_dkv,
          &Ops::logits_support, &Ops::logprob_stats, &Ops::logprob_merge, &Ops::logprob_bwd,
          &Ops::sample, &Ops::sample_merge, &Ops::decode_advance, &Ops::adamw, &Ops::sum_squares,
          &Ops::tree_add, &Ops::sha256_pieces, &Ops::init_normal, &Ops::init_uniform, &Ops::cast,
          &Ops::widen, &Ops::gather_rows, &Ops::scatter_rows>;
static_assert(AllOps::size == std::size(kNames) && AllOps::size <= kMaxOps);

}  // namespace

const Ops& counted(const Ops& ops, const Ops& strict, OpModule module) {
  const int m = static_cast<int>(module);
  targets[m] = tables[m] = ops;
  AllOps::install_all(strict, m);
  return tables[m];
}

std::map<std::string, OpCount> op_counts() {
  std::map<std::string, OpCount> result;
  for (int m = 0; m < kTables; ++m) {
    for (size_t i = 0; i < AllOps::size; ++i) {
      const Counter& c = counters[m][i];
      if (c.calls == 0) continue;
      const std::string op = kNames[i];
      const char* native = op.starts_with("gemm") ? targets[m].native_gemm : targets[m].native;
      result[std::string(kModules[m]) + "." + op] = {c.strict ? targets[m].backend : native,
                                                     c.strict, c.calls, c.seconds};
    }
  }
  return result;
}

void time_ops() {
  timing = true;
}

}  // namespace rlk
