#include "fuzz_input.h"
#include "rlk/base/safetensors.h"

// Every byte of every tensor of a file that is taken can be read.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto path = rlk::fuzz::as_file("model.safetensors", data, size);
  return rlk::fuzz::refuse_or_take([&] {
    const rlk::SafetensorsFile file(path);
    unsigned sum = 0;
    for (const rlk::TensorInfo& tensor : file.tensors())
      for (uint64_t i = 0; i < tensor.end - tensor.begin; ++i)
        sum += static_cast<unsigned>(file.data(tensor)[i]);
    volatile unsigned used = sum;
    (void)used;
  });
}
