#pragma once
// What NVML says of this host's GPUs, before any of them is used. Empty where the binary has no
// CUDA backend or the host no driver. Thread-safe; nothing is kept.

#include <cstdint>
#include <string>
#include <vector>

namespace rlk {

struct GpuProcess {
  int64_t pid;
  uint64_t memory_bytes;  // 0 where the driver does not say
};

struct GpuInfo {
  std::string name;  // "NVIDIA H200"
  uint64_t memory_bytes = 0, free_bytes = 0;
  int compute_major = 0, compute_minor = 0;
  std::vector<GpuProcess> processes;  // compute processes on it now
};

struct GpuHost {
  std::string driver;  // "580.159.04"; empty: no driver
  std::vector<GpuInfo> gpus;
};

// Throws Error when NVML is there but answers with an error.
GpuHost gpu_host();

}  // namespace rlk
