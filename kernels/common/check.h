#pragma once
// Every CUDA call and every launch is followed by one of these. Throws rlk::Error "call: CUDA's
// message (name)".

#include <cuda_runtime_api.h>

#include <string>

#include "rlk/base/error.h"

namespace rlk::cuda {

// What a failed collective left to say; empty while none failed. Set once by the world of CUDA
// ranks (src/comm/cuda), read whenever the host meets the device: a failed wait lets its stream run
// on, so that the host can report it.
inline std::string (*collective_failure)() = nullptr;

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  const std::string note = collective_failure != nullptr ? collective_failure() : "";
  throw Error(std::string(call) + ": " + cudaGetErrorString(status) + " (" +
              cudaGetErrorName(status) + ")" + (note.empty() ? "" : "; " + note));
}

inline void check_launch(const char* op) {
  check(cudaGetLastError(), op);
}

// What an op refuses: "rms_norm: D = 12, must be a multiple of 8".
inline void require(bool ok, const char* op, const std::string& what) {
  if (!ok) [[unlikely]]
    throw Error(std::string(op) + ": " + what);
}

inline cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace rlk::cuda
