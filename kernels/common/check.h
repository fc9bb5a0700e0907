#pragma once
// Every CUDA call and every launch is followed by one of these. Throws rlk::Error "call: CUDA's message (name)".

#include <cuda_runtime_api.h>

#include <string>

#include "rlk/base/error.h"

namespace rlk::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  throw Error(std::string(call) + ": " + cudaGetErrorString(status) + " (" +
              cudaGetErrorName(status) + ")");
}

inline void check_launch(const char* op) { check(cudaGetLastError(), op); }

// What an op refuses: "rms_norm: D = 12, must be a multiple of 8".
inline void require(bool ok, const char* op, const std::string& what) {
  if (!ok) [[unlikely]]
    throw Error(std::string(op) + ": " + what);
}

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace rlk::cuda
