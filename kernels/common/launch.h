#pragma once
// Launches with clusters, dynamic shared memory past 48 KB and programmatic dependent launch,
// checked. Host, any thread.

#include <cuda_runtime.h>

#include <atomic>
#include <type_traits>

#include "kernels/common/check.h"
#include "rlk/device/ops.h"

namespace rlk::cuda {

struct Launch {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  int cluster = 1;  // CTAs along x
  bool dependent =
      false;  // may start before the kernel ahead ends: the kernel calls grid_dependency_wait
  cudaStream_t stream = nullptr;
};

inline constexpr size_t kMaxSharedBytes = 232448;  // of one CTA on sm_90

// One attribute of the current device, read once a device.
inline int sm_count() {
  static std::atomic<int> known[64];
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  int count = device < 64 ? known[device].load(std::memory_order_relaxed) : 0;
  if (count == 0) {
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
          "cudaDeviceGetAttribute");
    if (device < 64) known[device].store(count, std::memory_order_relaxed);
  }
  return count;
}

template <class... Parameters, class... Arguments>
void launch(const char* op, const Launch& l, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  if (l.shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(l.shared_bytes)),
          op);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = l.grid;
  config.blockDim = l.block;
  config.dynamicSmemBytes = l.shared_bytes;
  config.stream = l.stream;
  config.attrs = attributes;
  if (l.cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = static_cast<unsigned>(l.cluster);
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
  }
  if (l.dependent) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), op);
}

// Shared memory that nobody uses, so that an SM takes two blocks at most where there are few.
// Behind a GEMM that leaves few SMs free, all would start on those: 64 norms of 4096 columns on
// eight SMs take twice as long.
inline size_t spread_bytes(dim3 grid) {
  return grid.x * grid.y <= static_cast<unsigned>(sm_count()) ? 110 * 1024 : 0;
}

// A small kernel that begins with grid_launch_dependents(); grid_dependency_wait(): its launch, and
// what the kernel behind it may do early, hide behind the kernel ahead. Nothing is written before
// the wait, and nothing read but what the op's `ready` promises, so the stream's order holds as
// without it.
template <class... Parameters, class... Arguments>
void launch_dependent(const char* op, Stream stream, dim3 grid, unsigned block,
                      void (*kernel)(Parameters...), const Arguments&... arguments) {
  launch(op,
         {.grid = grid,
          .block = block,
          .shared_bytes = spread_bytes(grid),
          .dependent = true,
          .stream = stream_of(stream)},
         kernel, arguments...);
}

}  // namespace rlk::cuda
