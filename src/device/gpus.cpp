#include "rlk/device/gpus.h"

#ifdef RLK_CUDA
#include <dlfcn.h>
#include <signal.h>

#include "rlk/base/error.h"
#endif

namespace rlk {

#ifndef RLK_CUDA

GpuHost gpu_host() {
  return {};
}

#else

namespace {

// NVML comes with the driver, so a host without GPUs lacks it, and not every CUDA toolkit has its
// header: loaded at run time, with the few parts of its C interface that are used here (NVML API
// reference, stable since driver 510).
using Status = int;
using Device = struct nvmlDevice_st*;
constexpr Status kSuccess = 0, kNotSupported = 3;
constexpr unsigned long long kNotAvailable = ~0ull;

struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    if (library_) call("nvmlInit_v2");
  }
  ~Nvml() {
    if (!library_) return;
    function<>("nvmlShutdown")();
    dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  explicit operator bool() const { return library_ != nullptr; }

  template <class... Args>
  Status status(const char* name, Args... args) const {
    return function<Args...>(name)(args...);
  }
  template <class... Args>
  void call(const char* name, Args... args) const {
    check(status(name, args...), name);
  }
  void check(Status status, const char* name) const {
    if (status == kSuccess) return;
    auto* text = reinterpret_cast<const char* (*)(Status)>(dlsym(library_, "nvmlErrorString"));
    throw Error(std::string(name) + ": " + (text ? text(status) : std::to_string(status)));
  }

 private:
  template <class... Args>
  Status (*function(const char* name) const)(Args...) {
    void* symbol = dlsym(library_, name);
    if (!symbol) throw Error(std::string("NVML has no ") + name);
    return reinterpret_cast<Status (*)(Args...)>(symbol);
  }
  void* library_;
};

std::vector<GpuProcess> processes_on(const Nvml& nvml, Device device) {
  constexpr const char* kName = "nvmlDeviceGetComputeRunningProcesses_v3";
  unsigned count = 256;
  std::vector<ProcessInfo> infos(count);
  const Status status = nvml.status(kName, device, &count, infos.data());
  if (status == kNotSupported) return {};
  nvml.check(status, kName);
  std::vector<GpuProcess> processes;
  for (unsigned i = 0; i < count; ++i)
    processes.push_back(
        {infos[i].pid, infos[i].used_memory == kNotAvailable ? 0 : infos[i].used_memory});
  return processes;
}

GpuInfo read_gpu(const Nvml& nvml, unsigned index) {
  Device device = nullptr;
  nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device);
  GpuInfo gpu;
  char name[96];
  nvml.call("nvmlDeviceGetName", device, static_cast<char*>(name),
            static_cast<unsigned>(sizeof name));
  gpu.name = name;
  Memory memory{};
  nvml.call("nvmlDeviceGetMemoryInfo", device, &memory);
  gpu.memory_bytes = memory.total;
  gpu.free_bytes = memory.free;
  nvml.call("nvmlDeviceGetCudaComputeCapability", device, &gpu.compute_major, &gpu.compute_minor);
  gpu.processes = processes_on(nvml, device);
  return gpu;
}

// Threads that NVML starts inherit this mask, so that none of them takes a signal meant for rlk.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

GpuHost gpu_host() {
  const SignalsBlocked blocked;
  const Nvml nvml;
  GpuHost host;
  if (!nvml) return host;
  char driver[80];
  nvml.call("nvmlSystemGetDriverVersion", static_cast<char*>(driver),
            static_cast<unsigned>(sizeof driver));
  host.driver = driver;
  unsigned count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) host.gpus.push_back(read_gpu(nvml, i));
  return host;
}

#endif

}  // namespace rlk
