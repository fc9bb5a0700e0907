#include "ipc_memory.h"

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/common/check.h"

namespace rlk {
namespace {

// Small allocations share a block of the driver's, and one block can be mapped only once: whole
// blocks each.
constexpr size_t kBlock = size_t{2} << 20;

}  // namespace

IpcMemory::IpcMemory(Communicator& host, size_t bytes)
    : rank_(host.rank()), bytes_(bytes), at_(static_cast<size_t>(host.size()), nullptr) {
  using cuda::check;
  const size_t rounded = (bytes + kBlock - 1) / kBlock * kBlock;
  void* memory = nullptr;
  if (const cudaError_t status = cudaMalloc(&memory, rounded); status != cudaSuccess) {
    (void)cudaGetLastError();
    throw Error("cudaMalloc of " + std::to_string(rounded) +
                " bytes to share: " + cudaGetErrorString(status));
  }
  at_[static_cast<size_t>(rank_)] = memory;
  try {
    check(cudaMemset(memory, 0, rounded), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
    cudaIpcMemHandle_t own{};
    check(cudaIpcGetMemHandle(&own, memory), "cudaIpcGetMemHandle");
    std::vector<cudaIpcMemHandle_t> handles(at_.size());
    host.all_gather(nullptr, &own, handles.data(), sizeof own);
    for (size_t m = 0; m < at_.size(); ++m) {
      if (at_[m] != nullptr) continue;
      check(cudaIpcOpenMemHandle(&at_[m], handles[m], cudaIpcMemLazyEnablePeerAccess),
            ("cudaIpcOpenMemHandle of rank " + std::to_string(host.members()[m])).c_str());
    }
    host.barrier(nullptr);
  } catch (...) {
    release();
    throw;
  }
}

IpcMemory::~IpcMemory() {
  release();
}

void IpcMemory::release() {
  for (size_t m = 0; m < at_.size(); ++m) {
    if (at_[m] == nullptr) continue;
    static_cast<int>(m) == rank_ ? cudaFree(at_[m]) : cudaIpcCloseMemHandle(at_[m]);
    at_[m] = nullptr;
  }
}

}  // namespace rlk
