#pragma once
// Hopper's PTX, each instruction once: shared-memory addresses, named barriers, mbarriers, TMA,
// clusters, programmatic dependent launch. Matrix instructions are in wgmma.cuh. sm_90a only; a
// `uint32_t` address is one in the shared window.

#include <cuda.h>

#include <cstdint>

namespace rlk::cuda {

// ---- Threads ------------------------------------------------------------------------------

__device__ inline int lane_id() {
  return static_cast<int>(threadIdx.x & 31);
}

// The warp's index as a value the compiler knows to be warp-uniform: role branches stay branches.
__device__ inline int warp_id() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
}

// Named barrier `id` (1..15; 0 is __syncthreads) among `threads` threads.
__device__ inline void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers move between warpgroups. Needs __launch_bounds__(threads, 1), and each role in one
// branch of one if/else.
template <int N>
__device__ inline void set_max_registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ inline void set_max_registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// A value the compiler cannot see through: keeps it from hoisting one address register per unrolled
// access.
__device__ inline uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// ---- Shared memory ------------------------------------------------------------------------

__device__ inline uint32_t smem_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void st_shared(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ inline void st_shared(uint32_t address, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
__device__ inline void st_shared(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ inline void st_shared(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ inline void st_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ inline float4 ld_shared_float4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ inline float2 ld_shared_float2(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ inline float ld_shared_float(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
__device__ inline uint32_t ld_shared_u32(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ inline uint2 ld_shared_u32x2(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

// Four 8x8 b16 matrices; lane l names row l % 8 of matrix l / 8.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                   uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
__device__ inline void stmatrix_x4_trans(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                         uint32_t r3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r0), "r"(r1), "r"(r2), "r"(r3)
      : "memory");
}

// Ordinary shared-memory writes before it become visible to TMA and wgmma after it (each writing
// thread, then a barrier).
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// 16-byte asynchronous copy global -> shared; zero-fills when `bytes` is 0.
__device__ inline void cp_async_16(uint32_t to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- mbarriers ----------------------------------------------------------------------------

__device__ inline void mbar_init(uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// After the inits, before the __syncthreads or cluster barrier that publishes them.
__device__ inline void mbar_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  fence_async_proxy();
}
__device__ inline void mbar_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ inline void mbar_arrive_expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
// Arrival at another CTA's barrier (address from cluster_map). No .release.cluster: it guards
// operands that wgmma has finished reading, no data travels with it, and the release costs half the
// speed of a GEMM.
__device__ inline void mbar_arrive_cluster(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
// The phase that waits: 0 for a barrier's first completion, then alternating.
__device__ inline void mbar_wait(uint32_t bar, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(bar),
      "r"(phase)
      : "memory");
}
// The same, acquiring what other CTAs of the cluster wrote here.
__device__ inline void mbar_wait_cluster(uint32_t bar, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(bar),
      "r"(phase)
      : "memory");
}
__device__ inline bool mbar_test(uint32_t bar, uint32_t phase) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(bar), "r"(phase)
      : "memory");
  return done != 0;
}

// ---- TMA ----------------------------------------------------------------------------------
// Coordinates run innermost first. Elements outside the tensor load as zeros (their bytes count)
// and are not stored.

struct TmaCoord {
  int x, y, z, w;
};

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// L2 policy for data read once (weights in decode): evicted before anything else.
__device__ inline uint64_t l2_evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ inline void tma_load_2d(uint32_t to, const CUtensorMap* map, uint32_t bar, int x,
                                   int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(bar), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void tma_load_3d(uint32_t to, const CUtensorMap* map, uint32_t bar, int x, int y,
                                   int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ inline void tma_load_3d(uint32_t to, const CUtensorMap* map, uint32_t bar, int x, int y,
                                   int z, uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(l2_policy)
      : "memory");
}
__device__ inline void tma_load_5d(uint32_t to, const CUtensorMap* map, uint32_t bar, TmaCoord c,
                                   int v, uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(map), "r"(bar), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w), "r"(v), "l"(l2_policy)
      : "memory");
}
__device__ inline void tma_load_4d(uint32_t to, const CUtensorMap* map, uint32_t bar, TmaCoord c) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(bar), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w)
      : "memory");
}
__device__ inline void tma_load_4d(uint32_t to, const CUtensorMap* map, uint32_t bar, TmaCoord c,
                                   uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(bar), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w), "l"(l2_policy)
      : "memory");
}
// Into the same offset of every CTA in `ctas` (bit per cluster rank); each one's barrier at `bar`'s
// offset counts the bytes.
__device__ inline void tma_load_4d_multicast(uint32_t to, const CUtensorMap* map, uint32_t bar,
                                             TmaCoord c, uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(bar), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w), "h"(ctas)
      : "memory");
}
__device__ inline void tma_load_4d_multicast(uint32_t to, const CUtensorMap* map, uint32_t bar,
                                             TmaCoord c, uint16_t ctas, uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
      "l"(map), "r"(bar), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w), "h"(ctas), "l"(l2_policy)
      : "memory");
}
__device__ inline void tma_store_2d(const CUtensorMap* map, uint32_t from, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void tma_store_3d(const CUtensorMap* map, uint32_t from, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// Contiguous bytes (% 16 == 0, 16-byte aligned on both sides), no tensor map.
__device__ inline void bulk_load(uint32_t to, const void* from, int bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}
__device__ inline void bulk_store(void* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// Stores of one thread in groups: at most kPending groups still read shared memory (read) / are
// still in flight (all).
__device__ inline void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ inline void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Clusters -----------------------------------------------------------------------------

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all CTAs. Arrive releases, wait acquires shared-memory writes of the cluster.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The address of CTA `rank`'s counterpart of a shared-memory address.
__device__ inline uint32_t cluster_map(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// 16 bytes into another CTA's shared memory; its barrier counts them.
__device__ inline void st_async(uint32_t address, float4 v, uint32_t bar) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar)
      : "memory");
}

// ---- Programmatic dependent launch --------------------------------------------------------

// Before the first read of anything an earlier kernel wrote, and the first write of anything it
// reads. A kernel launched with Launch::dependent must execute it.
__device__ inline void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// Lets the next kernel's blocks start once every block of this one has said so (they still wait
// above).
__device__ inline void grid_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace rlk::cuda
