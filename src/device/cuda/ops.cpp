// The CUDA backend's table, memory, streams and graphs. One device a process.

#include "rlk/device/ops.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "kernels/common/check.h"
#include "kernels/launchers.h"

namespace rlk {
namespace {

using cuda::check;
using cuda::stream_of;

void* alloc(size_t bytes) {
  void* memory = nullptr;
  const size_t size = bytes == 0 ? 256 : bytes;
  const cudaError_t status = cudaMalloc(&memory, size);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();  // out of memory is not sticky: the caller may free and go on
    throw Error("cudaMalloc of " + std::to_string(size) + " bytes: " + cudaGetErrorString(status));
  }
  check(cudaMemset(memory, 0, size), "cudaMemset");
  check(cudaStreamSynchronize(nullptr), "cudaMemset");  // other streams may use it at once
  return memory;
}

void release(void* memory) {
  check(cudaFree(memory), "cudaFree");
}

void copy(Stream stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync");
}

void copy_rows(Stream stream, void* to, const void* from, size_t bytes, size_t stride,
               size_t rows) {
  if (bytes == 0 || rows == 0) return;
  check(cudaMemcpy2DAsync(to, stride, from, stride, bytes, rows, cudaMemcpyDefault,
                          stream_of(stream)),
        "cudaMemcpy2DAsync");
}

void zero(Stream stream, void* memory, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(memory, 0, bytes, stream_of(stream)), "cudaMemsetAsync");
}

void synchronize(Stream stream) {
  check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
  if (cuda::collective_failure == nullptr) return;
  if (const std::string failure = cuda::collective_failure(); !failure.empty())
    throw Error(failure);
}

size_t memory_used() {
  size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  return total - available;
}

Stream stream_create() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void stream_destroy(Stream stream) {
  check(cudaStreamDestroy(stream_of(stream)), "cudaStreamDestroy");
}

void* alloc_host(size_t bytes) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes == 0 ? 1 : bytes, cudaHostAllocMapped), "cudaHostAlloc");
  std::memset(memory, 0, bytes);
  return memory;
}

void free_host(void* memory) {
  check(cudaFreeHost(memory), "cudaFreeHost");
}

void capture_begin(Stream stream) {
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}

Graph capture_end(Stream stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return executable;
}

void graph_launch(Stream stream, Graph graph) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}

void graph_destroy(Graph graph) {
  check(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)), "cudaGraphExecDestroy");
}

Ops make_table() {
  Ops t{};
  t.backend = "cuda";
  t.memory_used = memory_used;
  t.gemm = cuda::gemm;
  t.gemm_dgrad = cuda::gemm_dgrad;
  t.gemm_wgrad = cuda::gemm_wgrad;
  t.embedding = cuda::embedding;
  t.embedding_bwd = cuda::embedding_bwd;
  t.rms_norm = cuda::rms_norm;
  t.rms_norm_bwd = cuda::rms_norm_bwd;
  t.rms_norm_wgrad = cuda::rms_norm_wgrad;
  t.rms_norm_wgrad_workspace = cuda::rms_norm_wgrad_workspace;
  t.qk_norm_rope = cuda::qk_norm_rope;
  t.qk_norm_rope_bwd = cuda::qk_norm_rope_bwd;
  t.qk_norm_rope_bwd_workspace = cuda::qk_norm_rope_bwd_workspace;
  t.kv_write = cuda::kv_write;
  t.swiglu = cuda::swiglu;
  t.swiglu_bwd = cuda::swiglu_bwd;
  t.gemm_swiglu = cuda::gemm_swiglu;
  t.attention = cuda::attention;
  t.attention_workspace = cuda::attention_workspace;
  t.attention_delta = cuda::attention_delta;
  t.attention_bwd_dq = cuda::attention_bwd_dq;
  t.attention_bwd_dkv = cuda::attention_bwd_dkv;
  t.attention_bwd_workspace = cuda::attention_bwd_workspace;
  t.logits_support = cuda::logits_support;
  t.support_workspace = cuda::support_workspace;
  t.logprob_stats = cuda::logprob_stats;
  t.logprob_merge = cuda::logprob_merge;
  t.logprob_bwd = cuda::logprob_bwd;
  t.sample = cuda::sample;
  t.sample_workspace = cuda::sample_workspace;
  t.sample_merge = cuda::sample_merge;
  t.decode_advance = cuda::decode_advance;
  t.adamw = cuda::adamw;
  t.sum_squares = cuda::sum_squares;
  t.tree_add = cuda::tree_add;
  t.gather_rows = cuda::gather_rows;
  t.scatter_rows = cuda::scatter_rows;
  t.sha256_pieces = cuda::sha256_pieces;
  t.init_normal = cuda::init_normal;
  t.init_uniform = cuda::init_uniform;
  t.cast = cuda::cast;
  t.widen = cuda::widen;
  t.alloc = alloc;
  t.free = release;
  t.copy = copy;
  t.copy_rows = copy_rows;
  t.zero = zero;
  t.synchronize = synchronize;
  t.stream_create = stream_create;
  t.stream_destroy = stream_destroy;
  t.alloc_host = alloc_host;
  t.free_host = free_host;
  t.capture_begin = capture_begin;
  t.capture_end = capture_end;
  t.graph_launch = graph_launch;
  t.graph_destroy = graph_destroy;
  return t;
}

}  // namespace

const Ops& cuda_ops(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (properties.major != 9 || properties.minor != 0)
    throw Error(std::string("device ") + std::to_string(device) + " (" + properties.name +
                "): compute capability " + std::to_string(properties.major) + "." +
                std::to_string(properties.minor) + ", this binary holds kernels for 9.0 only");
  static const Ops table = make_table();
  return table;
}

}  // namespace rlk
