#include <dlfcn.h>

#include <string>

#include "kernels/common/check.h"
#include "rlk/comm/native_sum.h"

namespace rlk {
namespace {

// NCCL is loaded when native mode asks for it, with the few parts of its C interface that are used
// here (nccl.h, stable since 2.10), so that rlk neither links nor needs it.
using Result = int;
using Comm = struct ncclComm*;
struct UniqueId {
  char bytes[128];
};
constexpr int kInt8 = 0, kFloat32 = 7, kBfloat16 = 9, kSum = 0;

struct Library {
  const char* (*error_string)(Result);
  Result (*get_unique_id)(UniqueId*);
  Result (*init_rank)(Comm*, int size, UniqueId, int rank);
  Result (*all_reduce)(const void*, void*, size_t, int type, int op, Comm, cudaStream_t);
  Result (*all_gather)(const void*, void*, size_t, int type, Comm, cudaStream_t);
  Result (*destroy)(Comm);

  void check(Result status, const char* call) const {
    if (status != 0) throw Error(std::string(call) + ": " + error_string(status));
  }
};

template <class Function>
void find(void* file, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(file, name));
  if (function == nullptr) throw Error(std::string("libnccl.so.2 has no ") + name);
}

// Loaded once, never unloaded.
const Library& library() {
  static const Library loaded = [] {
    void* file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr)
      throw Error(std::string("native mode on several GPUs needs NCCL: ") + dlerror());
    Library l{};
    find(file, "ncclGetErrorString", l.error_string);
    find(file, "ncclGetUniqueId", l.get_unique_id);
    find(file, "ncclCommInitRank", l.init_rank);
    find(file, "ncclAllReduce", l.all_reduce);
    find(file, "ncclAllGather", l.all_gather);
    find(file, "ncclCommDestroy", l.destroy);
    return l;
  }();
  return loaded;
}

class NcclSum final : public NativeSum {
 public:
  explicit NcclSum(Communicator& host) : l_(library()) {
    UniqueId mine{};
    if (host.rank() == 0) l_.check(l_.get_unique_id(&mine), "ncclGetUniqueId");
    std::vector<UniqueId> ids(static_cast<size_t>(host.size()));
    host.all_gather(nullptr, &mine, ids.data(), sizeof mine);
    l_.check(l_.init_rank(&comm_, host.size(), ids[0], host.rank()), "ncclCommInitRank");
  }
  ~NcclSum() override { (void)l_.destroy(comm_); }
  NcclSum(const NcclSum&) = delete;
  NcclSum& operator=(const NcclSum&) = delete;

  void add(Stream stream, bf16* data, int64_t n) override { reduce(stream, data, n, kBfloat16); }
  void add(Stream stream, float* data, int64_t n) override { reduce(stream, data, n, kFloat32); }
  void all_gather(Stream stream, const void* in, void* out, size_t bytes) override {
    l_.check(l_.all_gather(in, out, bytes, kInt8, comm_, cuda::stream_of(stream)), "ncclAllGather");
  }

 private:
  void reduce(Stream stream, void* data, int64_t n, int type) {
    l_.check(l_.all_reduce(data, data, static_cast<size_t>(n), type, kSum, comm_,
                           cuda::stream_of(stream)),
             "ncclAllReduce");
  }

  const Library& l_;
  Comm comm_ = nullptr;
};

}  // namespace

std::unique_ptr<NativeSum> nccl_sum(Communicator& host) {
  return std::make_unique<NcclSum>(host);
}

}  // namespace rlk
