#pragma once
// wgmma: D[64, N] += A[64, 16] B[16, N], bf16 operands, fp32 accumulators in registers. One
// warpgroup (4 warps from a multiple of 4).
// warpgroup (4 warps from a multiple of 4).
//
// Accumulator layout: thread t of the warpgroup, warp w = t / 32, lane l = t % 32, holds in d[4j +
// 2h + c] row 16w + 8h + l/4, column 8j + 2(l % 4) + c. For one chain of k16 steps the bits depend
// neither on N, nor on which operand is A, nor on its source (docs/numerics.md).

#include <cstdint>

namespace rlk::cuda {

// Shared-memory operands are tiles of 128-byte rows (64 bf16) with the 128-byte swizzle, as TMA's
// SWIZZLE_128B writes them: eight rows are one atom of 1024 bytes, and a tile starts on a multiple
// of 1024.
//   K-major: row = one row of A (or column of B), 64 contraction steps wide. The next k16 step is
//   kKStep bytes on. MN-major: row = one contraction step, 64 A rows (or B columns) wide; 64 steps
//   make a panel of 8192 bytes, and a tile wider than 64 is several panels in a row. The next k16
//   step is kMnStep bytes on.
inline constexpr int kKStep = 32;
inline constexpr int kMnStep = 2048;

// A descriptor is a constant high word over a low word that holds the address: stepping is a 32-bit
// add to the low word, in units of 16 bytes.
__device__ inline uint32_t k_major_low(uint32_t address) {
  return (1u << 16) | ((address & 0x3ffff) >> 4);
}
__device__ inline uint32_t mn_major_low(uint32_t address, int panel_bytes = 8192) {
  return (static_cast<uint32_t>(panel_bytes >> 4) << 16) | ((address & 0x3ffff) >> 4);
}
__device__ inline uint64_t descriptor(uint32_t low) {
  constexpr uint64_t kHigh =
      (1ull << 62) | (64ull << 32);  // 128-byte swizzle, atoms 1024 bytes apart
  return kHigh | low;
}
__device__ inline uint64_t k_major_descriptor(uint32_t address) {
  return descriptor(k_major_low(address));
}
__device__ inline uint64_t mn_major_descriptor(uint32_t address, int panel_bytes = 8192) {
  return descriptor(mn_major_low(address, panel_bytes));
}

// Before the first wgmma, and whenever registers it reads or writes were touched since the last
// one.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// After a wait: the compiler must not move reads of finished accumulators above it.
template <int N>
__device__ inline void wgmma_keep(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Operand lists, eight registers at a time.
#define RLK_R8(a, b, c, d, e, f, g, h) \
  "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define RLK_REGS_4 "%0,%1,%2,%3"
#define RLK_REGS_8 RLK_R8(0, 1, 2, 3, 4, 5, 6, 7)
#define RLK_REGS_12 RLK_REGS_8 ",%8,%9,%10,%11"
#define RLK_REGS_16 RLK_REGS_8 "," RLK_R8(8, 9, 10, 11, 12, 13, 14, 15)
#define RLK_REGS_20 RLK_REGS_16 ",%16,%17,%18,%19"
#define RLK_REGS_24 RLK_REGS_16 "," RLK_R8(16, 17, 18, 19, 20, 21, 22, 23)
#define RLK_REGS_32 RLK_REGS_24 "," RLK_R8(24, 25, 26, 27, 28, 29, 30, 31)
#define RLK_REGS_40 RLK_REGS_32 "," RLK_R8(32, 33, 34, 35, 36, 37, 38, 39)
#define RLK_REGS_48 RLK_REGS_40 "," RLK_R8(40, 41, 42, 43, 44, 45, 46, 47)
#define RLK_REGS_56 RLK_REGS_48 "," RLK_R8(48, 49, 50, 51, 52, 53, 54, 55)
#define RLK_REGS_64 RLK_REGS_56 "," RLK_R8(56, 57, 58, 59, 60, 61, 62, 63)
#define RLK_REGS_72 RLK_REGS_64 "," RLK_R8(64, 65, 66, 67, 68, 69, 70, 71)
#define RLK_REGS_80 RLK_REGS_72 "," RLK_R8(72, 73, 74, 75, 76, 77, 78, 79)
#define RLK_REGS_88 RLK_REGS_80 "," RLK_R8(80, 81, 82, 83, 84, 85, 86, 87)
#define RLK_REGS_96 RLK_REGS_88 "," RLK_R8(88, 89, 90, 91, 92, 93, 94, 95)
#define RLK_REGS_104 RLK_REGS_96 "," RLK_R8(96, 97, 98, 99, 100, 101, 102, 103)
#define RLK_REGS_112 RLK_REGS_104 "," RLK_R8(104, 105, 106, 107, 108, 109, 110, 111)
#define RLK_REGS_120 RLK_REGS_112 "," RLK_R8(112, 113, 114, 115, 116, 117, 118, 119)
#define RLK_REGS_128 RLK_REGS_120 "," RLK_R8(120, 121, 122, 123, 124, 125, 126, 127)
#define RLK_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RLK_D8(i) RLK_D4(i), RLK_D4(i + 4)
#define RLK_D16(i) RLK_D8(i), RLK_D8(i + 8)
#define RLK_D32(i) RLK_D16(i), RLK_D16(i + 16)
#define RLK_D64(i) RLK_D32(i), RLK_D32(i + 32)
#define RLK_D12(i) RLK_D8(i), RLK_D4(i + 8)
#define RLK_D20(i) RLK_D16(i), RLK_D4(i + 16)
#define RLK_D24(i) RLK_D16(i), RLK_D8(i + 16)
#define RLK_D48(i) RLK_D32(i), RLK_D16(i + 32)
#define RLK_D96(i) RLK_D64(i), RLK_D32(i + 64)
#define RLK_D128(i) RLK_D64(i), RLK_D64(i + 64)

// RLK_SS / RLK_RS(columns, registers, their constraints, numbers of the operands that follow): A
// and B by descriptor / A in registers.
#define RLK_SS(n, r, outs, a, b, p, ta, tb)                                              \
  if constexpr (N == n)                                                                  \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p                                   \
               ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" RLK_REGS_##r \
               "}, %" #a ", %" #b ", p, 1, 1, %" #ta ", %" #tb ";\n}\n"                  \
               : outs                                                                    \
               : "l"(a_desc), "l"(b_desc), "r"(static_cast<int>(accumulate)),            \
                 "n"(static_cast<int>(kMnA)), "n"(static_cast<int>(kMnB)))
#define RLK_RS(n, r, outs, a0, a1, a2, a3, b, p, tb)                                           \
  if constexpr (N == n)                                                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p                                         \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" RLK_REGS_##r       \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, %" #tb ";\n}\n" \
               : outs                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc),                      \
                 "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kMnB)))

template <int N>
inline constexpr bool kWgmmaColumns =
    N == 8 || N == 16 || N == 24 || N == 32 || N == 40 || N == 48 || N == 64 || N == 96 ||
    N == 128 || N == 192 || N == 256;

// One k16 step, both operands in shared memory; kMnA / kMnB: that operand is MN-major. !accumulate
// starts a chain from +0.
template <int N, bool kMnA = false, bool kMnB = false>
__device__ inline void wgmma_ss(float (&d)[N / 2], uint64_t a_desc, uint64_t b_desc,
                                bool accumulate) {
  static_assert(kWgmmaColumns<N>);
  RLK_SS(8, 4, RLK_D4(0), 4, 5, 6, 7, 8);
  RLK_SS(16, 8, RLK_D8(0), 8, 9, 10, 11, 12);
  RLK_SS(24, 12, RLK_D12(0), 12, 13, 14, 15, 16);
  RLK_SS(32, 16, RLK_D16(0), 16, 17, 18, 19, 20);
  RLK_SS(40, 20, RLK_D20(0), 20, 21, 22, 23, 24);
  RLK_SS(48, 24, RLK_D24(0), 24, 25, 26, 27, 28);
  RLK_SS(64, 32, RLK_D32(0), 32, 33, 34, 35, 36);
  RLK_SS(96, 48, RLK_D48(0), 48, 49, 50, 51, 52);
  RLK_SS(128, 64, RLK_D64(0), 64, 65, 66, 67, 68);
  RLK_SS(192, 96, RLK_D96(0), 96, 97, 98, 99, 100);
  RLK_SS(256, 128, RLK_D128(0), 128, 129, 130, 131, 132);
}

// A in registers: a[0..3] hold, for row l/4 (a[0], a[2]) and row l/4 + 8 (a[1], a[3]) of the warp's
// 16, steps 2(l % 4), +1 (a[0], a[1]) and 2(l % 4) + 8, +9 (a[2], a[3]): an accumulator's columns
// 16i.. packed pairwise are the A of step i.
template <int N, bool kMnB = false>
__device__ inline void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b_desc,
                                bool accumulate) {
  static_assert(kWgmmaColumns<N>);
  RLK_RS(8, 4, RLK_D4(0), 4, 5, 6, 7, 8, 9, 10);
  RLK_RS(16, 8, RLK_D8(0), 8, 9, 10, 11, 12, 13, 14);
  RLK_RS(24, 12, RLK_D12(0), 12, 13, 14, 15, 16, 17, 18);
  RLK_RS(32, 16, RLK_D16(0), 16, 17, 18, 19, 20, 21, 22);
  RLK_RS(40, 20, RLK_D20(0), 20, 21, 22, 23, 24, 25, 26);
  RLK_RS(48, 24, RLK_D24(0), 24, 25, 26, 27, 28, 29, 30);
  RLK_RS(64, 32, RLK_D32(0), 32, 33, 34, 35, 36, 37, 38);
  RLK_RS(96, 48, RLK_D48(0), 48, 49, 50, 51, 52, 53, 54);
  RLK_RS(128, 64, RLK_D64(0), 64, 65, 66, 67, 68, 69, 70);
  RLK_RS(192, 96, RLK_D96(0), 96, 97, 98, 99, 100, 101, 102);
  RLK_RS(256, 128, RLK_D128(0), 128, 129, 130, 131, 132, 133, 134);
}

#undef RLK_SS
#undef RLK_RS

}  // namespace rlk::cuda
