#include <cuda_runtime_api.h>

#include <string>

#include "kernels/common/check.h"
#include "kernels/common/tensor_map.h"

namespace rlk::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that nothing links against libcuda and the binary starts on a machine
// without a driver.
Encode encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion");
  require(result == cudaDriverEntryPointSuccess, "tensor_map",
          "the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode>(function);
}

std::string describe(std::initializer_list<TmaDim> dims) {
  std::string text;
  for (const TmaDim& d : dims)
    text += (text.empty() ? "" : ", ") + std::to_string(d.size) + " by " +
            std::to_string(d.stride) + " box " + std::to_string(d.box);
  return text;
}

}  // namespace

CUtensorMap tensor_map(const char* op, const void* base, TmaType type,
                       std::initializer_list<TmaDim> dims) {
  static const Encode encode = encode_function();
  const cuuint64_t element = type == TmaType::bf16 ? 2 : 4;
  constexpr int kMaxDims = 5;
  cuuint64_t size[kMaxDims], stride[kMaxDims];
  cuuint32_t box[kMaxDims], step[kMaxDims];
  cuuint32_t n = 0;
  for (const TmaDim& d : dims) {
    require(n < kMaxDims, op, "a tensor map has at most 5 dimensions");
    size[n] = static_cast<cuuint64_t>(d.size);
    if (n > 0) stride[n - 1] = d.size == 1 ? 16 : static_cast<cuuint64_t>(d.stride) * element;
    box[n] = static_cast<cuuint32_t>(d.box);
    step[n++] = 1;
  }
  CUtensorMap map;
  const CUresult status = encode(
      &map,
      type == TmaType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, n,
      const_cast<void*>(base), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, op,
          "cuTensorMapEncodeTiled refused (" + std::to_string(status) + ") " + describe(dims));
  return map;
}

}  // namespace rlk::cuda
