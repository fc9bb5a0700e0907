#pragma once
// The GEMM shapes that every backend is tested on: the tiny model's, edges of tiles, and (few rows)
// Qwen3-8B's. `big` ones are compared against fp64 on a GPU host only.

#include <string>
#include <vector>

#include "rlk/device/ops.h"

namespace rlk::test {

// One layer as rank `0` of a tp-sized group sees it. Column: w [N, K], the rank owns N rows of 8/tp
// slices. Row: w slice-major, the rank owns 8/tp input slices of ks.
struct GemmCase {
  const char* name;
  int64_t T, N, K;  // of the whole layer
  bool row_parallel;
  bool big = false;
  std::string text() const {
    return std::string(name) + " T=" + std::to_string(T) + " N=" + std::to_string(N) +
           " K=" + std::to_string(K);
  }
};

inline std::vector<GemmCase> gemm_cases(bool with_big) {
  std::vector<GemmCase> all = {
      {"qkv", 37, 2048, 128, false},     {"o", 37, 128, 1024, true},
      {"gate_up", 130, 768, 128, false}, {"down", 64, 128, 384, true},
      {"logits", 5, 1024, 128, false},   {"one row", 1, 2048, 128, false},
      {"odd tile", 7, 136, 256, false},  {"odd tile", 13, 136, 256, true},
      {"smallest", 1, 64, 128, false},   {"decode batch", 16, 256, 512, true},
      {"long chain", 3, 64, 8192, true}, {"many rows", 800, 64, 128, true},
  };
  if (with_big) {
    const std::vector<GemmCase> qwen3 = {
        {"Qwen3-8B qkv", 4, 6144, 4096, false, true},
        {"Qwen3-8B o", 4, 4096, 4096, true, true},
        {"Qwen3-8B gate_up", 2, 24576, 4096, false, true},
        {"Qwen3-8B down", 3, 4096, 12288, true, true},
        {"Qwen3-8B o", 300, 4096, 4096, true, true},
    };
    all.insert(all.end(), qwen3.begin(), qwen3.end());
  }
  return all;
}

// Token leaves for weight gradients: lengths in units of 64 rows, empty ones included.
struct WgradCase {
  const char* name;
  int64_t N, K;
  int groups;
  int leaves;
  int64_t units[kSlices];
  std::string text() const {
    return std::string(name) + " N=" + std::to_string(N) + " K=" + std::to_string(K) +
           " groups=" + std::to_string(groups) + " leaves=" + std::to_string(leaves);
  }
};

inline std::vector<WgradCase> wgrad_cases() {
  return {
      {"qkv", 256, 128, 1, 8, {1, 2, 1, 1, 3, 1, 1, 1}},
      {"o", 128, 256, 2, 8, {1, 1, 1, 1, 1, 1, 1, 1}},
      {"empty leaves", 64, 48, 1, 8, {0, 2, 0, 0, 1, 0, 0, 1}},
      {"all empty", 64, 48, 1, 8, {}},
      {"last empty", 72, 40, 1, 4, {1, 1, 1, 0}},
      {"one leaf", 128, 128, 1, 1, {4}},
      {"long leaves", 24, 16, 1, 2, {40, 7}},
      {"down", 128, 384, 8, 8, {1, 0, 1, 2, 1, 1, 0, 1}},
  };
}

}  // namespace rlk::test
