// Barrier, push all-gather, tree-reduce and broadcast; the scheme is in collective.h.
//
// tree_reduce, small: everyone pushes its partial to all and adds the aligned tree. Large: member m
// adds part m of each tile and pushes the rounded sums: (4 + out) bytes an element cross the links
// instead of 4 * size. The sums of a tile travel with the parts of the next. The bits are the same.

#include "kernels/collective/collective.h"
#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/leaves.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"

namespace rlk::cuda {
namespace {

constexpr int kThreads = 512;
// Up to here every lane gets a single small tile: latency counts. Measured choice, see
// docs/numerics.md (no bits depend on it).
constexpr int64_t kSmallTile = 4 << 10;
constexpr int64_t kOnePhaseBytes = 64 << 10;
constexpr int64_t kSums = kTileBytes / 2;  // in a slot of tree_reduce: parts, from here on sums

__device__ inline void store_flag(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ inline uint64_t load_flag(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

__device__ inline uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// A kind, its size in 16-byte units and its variant: members whose signatures differ are in
// different collectives.
uint32_t signature_of(Collective kind, uint64_t bytes, uint32_t variant) {
  return static_cast<uint32_t>(kind) << 28 | (variant & 0xf) << 24 |
         (static_cast<uint32_t>(ceil_div(static_cast<int64_t>(bytes), 16)) & 0xffffffu);
}

// One block's side of a lane's meetings.
struct Lane {
  const GroupView& group;
  uint32_t signature;
  uint32_t meeting;

  __device__ Lane(const GroupView& g, uint32_t s)
      : group(g), signature(s), meeting(g.memory[g.rank]->meeting[blockIdx.x]) {}

  // Member `receiver`'s staging for what `sender` pushes at the coming meeting.
  __device__ char* slot(int receiver, int sender) const {
    const int64_t slots = (static_cast<int64_t>(blockIdx.x) * 2 + (meeting & 1)) * group.size;
    return group.memory[receiver]->staging + (slots + sender) * kTileBytes;
  }

  // After the block's pushes: tells everyone, waits for everyone. All threads call it.
  // The slots of this meeting may be read until the next call.
  __device__ void meet() {
    const uint32_t number = meeting + 1;
    __syncthreads();
    const int m = threadIdx.x;
    if (m < group.size && m != group.rank) {
      __threadfence_system();
      store_flag(&group.memory[m]->flag[blockIdx.x][group.rank],
                 static_cast<uint64_t>(signature) << 32 | number);
      wait(m, number);
    }
    __syncthreads();
    meeting = number;
  }

  __device__ void wait(int member, uint32_t number) const {
    const uint64_t* flag = &group.memory[group.rank]->flag[blockIdx.x][member];
    const uint64_t start = now_ns();
    uint64_t value = load_flag(flag);
    for (uint32_t spins = 1; static_cast<int32_t>(static_cast<uint32_t>(value) - number) < 0;
         ++spins) {
      value = load_flag(flag);
      if (spins % 1024 != 0) continue;
      if (*static_cast<volatile uint32_t*>(&group.failure->set) != 0) return;
      if (now_ns() - start > group.deadline_ns) return fail(1, member, number, value);
    }
    // A member ahead of us has compared already.
    if (static_cast<uint32_t>(value) == number && value >> 32 != signature)
      fail(2, member, number, value);
  }

  __device__ void fail(uint32_t what, int member, uint32_t number, uint64_t value) const {
    WaitFailure& f = *group.failure;
    if (atomicCAS_system(&f.set, 0u, 3u) != 0) return;
    f.group = group.id;
    f.kind = signature >> 28;
    f.lane = blockIdx.x;
    f.meeting = number;
    f.member = member;
    f.seen_meeting = static_cast<uint32_t>(value);
    f.signature = signature;
    f.seen_signature = static_cast<uint32_t>(value >> 32);
    __threadfence_system();
    *static_cast<volatile uint32_t*>(&f.set) = what;
  }

  __device__ void finish() const {
    if (threadIdx.x == 0) group.memory[group.rank]->meeting[blockIdx.x] = meeting;
  }
};

// Words read past the caches that other GPUs' writes do not reach.
template <class Word>
__device__ inline Word load_fresh(const Word* p) {
  return __ldcg(p);
}
template <>
__device__ inline uint8_t load_fresh(const uint8_t* p) {
  return *static_cast<const volatile uint8_t*>(p);
}

__global__ void __launch_bounds__(32) barrier_kernel(GroupView group, uint32_t signature) {
  Lane lane(group, signature);
  lane.meet();
  lane.finish();
}

// root < 0: all_gather, everyone pushes `words` of `in`, out [size][words]. Else broadcast: the
// root alone pushes.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(GroupView group, uint32_t signature, const Word* in, Word* out, int64_t words,
                  int64_t tile, int root) {
  Lane lane(group, signature);
  const bool sends = root < 0 || root == group.rank;
  if (root < 0 && in != out + group.rank * words) {
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words;
         i += static_cast<int64_t>(gridDim.x) * kThreads)
      out[group.rank * words + i] = in[i];
  }
  for (int64_t first = blockIdx.x * tile; first < words; first += gridDim.x * tile) {
    const int count = static_cast<int>(min(tile, words - first));
    if (sends) {
      for (int i = threadIdx.x; i < count; i += kThreads) {
        const Word word = in[first + i];
        for (int m = 0; m < group.size; ++m) {
          if (m != group.rank) reinterpret_cast<Word*>(lane.slot(m, group.rank))[i] = word;
        }
      }
    }
    const char* slots = lane.slot(group.rank, 0);
    lane.meet();
    for (int m = 0; m < group.size; ++m) {
      if (m == group.rank || (root >= 0 && m != root)) continue;
      const Word* from = reinterpret_cast<const Word*>(slots + m * kTileBytes);
      Word* to = root < 0 ? out + m * words + first : out + first;
      for (int i = threadIdx.x; i < count; i += kThreads) to[i] = load_fresh(from + i);
    }
  }
  lane.finish();
}

template <bool OutF32>
__device__ inline void store_sum(void* out, int64_t i, float sum) {
  if constexpr (OutF32)
    static_cast<float*>(out)[i] = sum;
  else
    static_cast<bf16*>(out)[i].bits = static_cast<uint16_t>(round_pair(sum, 0.0f));
}

// The tree over the members' values of element i: one's own from `mine`, the others' from their
// slots.
template <int Size>
__device__ inline float tree_of(const char* slots, const float* mine, int64_t i, int rank) {
  float part[Size];
#pragma unroll
  for (int m = 0; m < Size; ++m)
    part[m] = m == rank ? mine[i]
                        : load_fresh(reinterpret_cast<const float*>(slots + m * kTileBytes) + i);
  return aligned_tree<Size>(part);
}

template <int Size, bool OutF32>
__global__ void __launch_bounds__(kThreads)
    reduce_whole_kernel(GroupView group, uint32_t signature, const float* partial, void* out,
                        int64_t n, int64_t tile) {
  Lane lane(group, signature);
  for (int64_t first = blockIdx.x * tile; first < n; first += gridDim.x * tile) {
    const int count = static_cast<int>(min(tile, n - first));
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const float value = partial[first + i];
#pragma unroll
      for (int m = 0; m < Size; ++m) {
        if (m != group.rank) reinterpret_cast<float*>(lane.slot(m, group.rank))[i] = value;
      }
    }
    const char* slots = lane.slot(group.rank, 0);
    lane.meet();
    for (int i = threadIdx.x; i < count; i += kThreads)
      store_sum<OutF32>(out, first + i, tree_of<Size>(slots, partial + first, i, group.rank));
  }
  lane.finish();
}

// Width neighbouring elements, moved as one word.
template <int Width>
struct alignas(4 * Width) Floats {
  float x[Width];
};
template <int Width, bool OutF32>
struct Sums : Floats<Width> {
  __device__ void set(int i, float sum) { this->x[i] = sum; }
};
template <int Width>
struct alignas(2 * Width) Sums<Width, false> {
  uint16_t x[Width];
  __device__ void set(int i, float sum) { x[i] = static_cast<uint16_t>(round_pair(sum, 0.0f)); }
};

template <class Word>
__device__ inline Word load_whole(const Word* p) {
  if constexpr (sizeof(Word) == 16)
    return __builtin_bit_cast(Word, __ldcg(reinterpret_cast<const uint4*>(p)));
  else if constexpr (sizeof(Word) == 8)
    return __builtin_bit_cast(Word, __ldcg(reinterpret_cast<const uint2*>(p)));
  else if constexpr (sizeof(Word) == 4)
    return __builtin_bit_cast(Word, __ldcg(reinterpret_cast<const uint32_t*>(p)));
  else
    return __builtin_bit_cast(Word, __ldcg(reinterpret_cast<const uint16_t*>(p)));
}

// A meeting hands parts of this tile's partials to their adders, and the sums of the tile before to
// everyone. n and part count words of Width elements; a tile is a part for each member.
template <int Size, int Width, bool OutF32>
__global__ void __launch_bounds__(kThreads)
    reduce_parts_kernel(GroupView group, uint32_t signature, const Floats<Width>* partial,
                        Sums<Width, OutF32>* out, int64_t n, int64_t part) {
  using In = Floats<Width>;
  using Out = Sums<Width, OutF32>;
  Lane lane(group, signature);
  const auto count_of = [&](int64_t tile, int m) {
    return static_cast<int>(max(min(part, n - tile - m * part), int64_t{0}));
  };
  const int64_t step = gridDim.x * part * Size;
  int64_t before = -1;
  for (int64_t tile = blockIdx.x * part * Size; tile < n || before >= 0; tile += step) {
    for (int m = 0; tile < n && m < Size; ++m) {
      if (m == group.rank) continue;
      In* to = reinterpret_cast<In*>(lane.slot(m, group.rank));
      for (int i = threadIdx.x; i < count_of(tile, m); i += kThreads)
        to[i] = partial[tile + m * part + i];
    }
    const char* slots = lane.slot(group.rank, 0);
    lane.meet();
    for (int m = 0; before >= 0 && m < Size; ++m) {
      if (m == group.rank) continue;
      const Out* from = reinterpret_cast<const Out*>(slots + m * kTileBytes + kSums);
      Out* to = out + before + m * part;
      for (int i = threadIdx.x; i < count_of(before, m); i += kThreads)
        to[i] = load_whole(from + i);
    }
    before = -1;
    if (tile >= n) continue;
    const int64_t own = tile + group.rank * part;
    for (int i = threadIdx.x; i < count_of(tile, group.rank); i += kThreads) {
      In value[Size];
#pragma unroll
      for (int m = 0; m < Size; ++m)
        value[m] = m == group.rank
                       ? partial[own + i]
                       : load_whole(reinterpret_cast<const In*>(slots + m * kTileBytes) + i);
      Out sum;
#pragma unroll
      for (int e = 0; e < Width; ++e) {
        float element[Size];
#pragma unroll
        for (int m = 0; m < Size; ++m) element[m] = value[m].x[e];
        sum.set(e, aligned_tree<Size>(element));
      }
      out[own + i] = sum;
#pragma unroll
      for (int m = 0; m < Size; ++m) {
        if (m == group.rank) continue;
        reinterpret_cast<Out*>(lane.slot(m, group.rank) + kSums)[i] = sum;
      }
    }
    before = tile;
  }
  lane.finish();
}

// Tile and lanes for `bytes` a member: small tiles over many lanes first, then larger tiles.
struct Shape {
  int64_t tile_bytes;
  unsigned lanes;
};

Shape shape_for(int64_t bytes, int64_t largest_tile, int max_lanes) {
  int64_t tile = kSmallTile;
  while (tile < largest_tile && ceil_div(bytes, tile) > max_lanes) tile *= 2;
  const int64_t lanes = ceil_div(bytes, tile);
  return {tile, static_cast<unsigned>(lanes < 1 ? 1 : lanes < max_lanes ? lanes : max_lanes)};
}

template <class Word>
void launch_gather(Stream stream, const GroupView& g, uint32_t signature, const void* in, void* out,
                   size_t bytes, int root) {
  const Shape shape = shape_for(static_cast<int64_t>(bytes), kTileBytes, g.lanes);
  const int64_t size = sizeof(Word);
  gather_kernel<Word><<<shape.lanes, kThreads, 0, stream_of(stream)>>>(
      g, signature, static_cast<const Word*>(in), static_cast<Word*>(out),
      static_cast<int64_t>(bytes) / size, shape.tile_bytes / size, root);
}

void gather(const char* op, Stream stream, const GroupView& g, uint32_t signature, const void* in,
            void* out, size_t bytes, int root) {
  if (bytes % 16 == 0 && aligned(in) && aligned(out))
    launch_gather<uint4>(stream, g, signature, in, out, bytes, root);
  else if (bytes % 4 == 0 && aligned(in, 4) && aligned(out, 4))
    launch_gather<uint32_t>(stream, g, signature, in, out, bytes, root);
  else
    launch_gather<uint8_t>(stream, g, signature, in, out, bytes, root);
  check_launch(op);
}

template <int Size, int Width, bool OutF32>
void launch_parts(Stream stream, const GroupView& g, uint32_t signature, const float* partial,
                  void* out, int64_t n, const Shape& shape) {
  reduce_parts_kernel<Size, Width, OutF32><<<shape.lanes, kThreads, 0, stream_of(stream)>>>(
      g, signature, reinterpret_cast<const Floats<Width>*>(partial),
      static_cast<Sums<Width, OutF32>*>(out), n / Width, shape.tile_bytes / Size / 4 / Width);
}

template <int Size, bool OutF32>
void launch_reduce(Stream stream, const GroupView& g, uint32_t signature, const float* partial,
                   void* out, int64_t n) {
  if (n * 4 <= kOnePhaseBytes) {
    const Shape shape = shape_for(n * 4, kTileBytes, g.lanes);
    reduce_whole_kernel<Size, OutF32><<<shape.lanes, kThreads, 0, stream_of(stream)>>>(
        g, signature, partial, out, n, shape.tile_bytes / 4);
    return;
  }
  const Shape shape = shape_for(n * 4, Size * kSums, g.lanes);
  if (n % 4 == 0 && aligned(partial) && aligned(out))
    launch_parts<Size, 4, OutF32>(stream, g, signature, partial, out, n, shape);
  else
    launch_parts<Size, 1, OutF32>(stream, g, signature, partial, out, n, shape);
}

}  // namespace

void collective_barrier(Stream stream, const GroupView& g) {
  barrier_kernel<<<1, 32, 0, stream_of(stream)>>>(g, signature_of(Collective::barrier, 0, 0));
  check_launch("barrier");
}

void collective_all_gather(Stream stream, const GroupView& g, const void* in, void* out,
                           size_t bytes) {
  gather("all_gather", stream, g, signature_of(Collective::all_gather, bytes, 0), in, out, bytes,
         -1);
}

void collective_broadcast(Stream stream, const GroupView& g, void* data, size_t bytes, int root) {
  gather("broadcast", stream, g,
         signature_of(Collective::broadcast, bytes, static_cast<uint32_t>(root)), data, data, bytes,
         root);
}

void collective_tree_reduce(Stream stream, const GroupView& g, const float* partial, void* out,
                            int64_t n, bool out_f32) {
  const uint32_t signature =
      signature_of(Collective::tree_reduce, static_cast<uint64_t>(n) * 4, out_f32 ? 1 : 0);
  for_leaf_count("tree_reduce", g.size, [&]<int Size>() {
    if (out_f32)
      launch_reduce<Size, true>(stream, g, signature, partial, out, n);
    else
      launch_reduce<Size, false>(stream, g, signature, partial, out, n);
  });
  check_launch("tree_reduce");
}

}  // namespace rlk::cuda
