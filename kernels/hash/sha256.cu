// sha256_pieces: 32 pieces a block, a lane each (a SHA-256 chain is serial). One warp reads the
// data and expands the message schedule into shared memory, another runs the rounds, each on a
// scheduler of its own: a round takes 14 instructions, a schedule word 10, and the integer pipe of
// a scheduler takes one every other cycle, so one warp with both would need 1.7 times as long for a
// piece. About 16,000 pieces saturate an H200, fewer run at the latency of one piece. FIPS 180-4.

#include "kernels/common/check.h"
#include "kernels/common/grid.h"
#include "kernels/common/ptx.cuh"
#include "kernels/launchers.h"

namespace rlk::cuda {
namespace {

constexpr int kLanes = 32, kThreads = 2 * kLanes;

__constant__ uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

__device__ inline uint32_t rotr(uint32_t x, int n) {
  return __funnelshift_r(x, x, n);
}
__device__ inline uint32_t big_endian(uint32_t x) {
  return __byte_perm(x, 0, 0x0123);
}

struct State {
  uint32_t h[8];
};

__device__ inline State initial_state() {
  return {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
           0x5be0cd19}};
}

// Word r of the schedule, plus the round's constant; in order. Unrolled: `w` stays in registers.
__device__ inline uint32_t next_word(uint32_t (&w)[16], int r) {
  if (r >= 16) {
    const uint32_t w15 = w[(r + 1) % 16], w2 = w[(r + 14) % 16];
    const uint32_t s0 = rotr(w15, 7) ^ rotr(w15, 18) ^ (w15 >> 3);
    const uint32_t s1 = rotr(w2, 17) ^ rotr(w2, 19) ^ (w2 >> 10);
    w[r % 16] += s0 + w[(r + 9) % 16] + s1;
  }
  return kRound[r] + w[r % 16];
}

// One block; words_of(r) gives words r..r+3.
template <class Words>
__device__ inline void compress(State& state, Words words_of) {
  uint32_t v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = state.h[i];
#pragma unroll
  for (int first = 0; first < 64; first += 4) {
    const uint4 four = words_of(first);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // v rotates by renaming: a is v[-r mod 8] and so on.
      const int r = first + i;
      const auto at = [&](int name) -> uint32_t& { return v[(name + 64 - r) % 8]; };
      const uint32_t a = at(0), b = at(1), c = at(2), e = at(4), f = at(5), g = at(6);
      const uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
      const uint32_t t1 = at(7) + sum1 + ((e & f) ^ (~e & g)) + words[i];
      const uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
      at(3) += t1;
      at(7) = t1 + sum0 + ((a & b) ^ (a & c) ^ (b & c));
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) state.h[i] += v[i];
}

__device__ inline uint4 next_words(uint32_t (&w)[16], int r) {
  const uint32_t w0 = next_word(w, r), w1 = next_word(w, r + 1), w2 = next_word(w, r + 2);
  return make_uint4(w0, w1, w2, next_word(w, r + 3));
}

struct Block {
  uint4 part[4];
};

__device__ inline Block load_block(const uint4* p) {
  return {{p[0], p[1], p[2], p[3]}};
}

__device__ inline void to_words(const Block& b, uint32_t (&w)[16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[4 * i] = big_endian(b.part[i].x);
    w[4 * i + 1] = big_endian(b.part[i].y);
    w[4 * i + 2] = big_endian(b.part[i].z);
    w[4 * i + 3] = big_endian(b.part[i].w);
  }
}

// The last partial block's bytes, 0x80, zeros, and the bit length: one block or two.
__device__ inline void finish(State& state, const uint8_t* tail, int count, uint64_t bytes) {
  const int blocks = count + 9 <= 64 ? 1 : 2;
  for (int b = 0; b < blocks; ++b) {
    uint32_t w[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      w[i] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = b * 64 + 4 * i + j;
        const uint32_t byte = at < count ? tail[at] : at == count ? 0x80u : 0u;
        w[i] = w[i] << 8 | byte;
      }
    }
    if (b == blocks - 1) {
      w[14] = static_cast<uint32_t>(bytes >> 29);
      w[15] = static_cast<uint32_t>(bytes << 3);
    }
    compress(state, [&](int r) { return next_words(w, r); });
  }
}

// The range that holds a piece: the last whose first_piece is not past it.
__device__ inline const Sha256Range& find_range(const Sha256Args& a, int64_t piece) {
  int low = 0, high = a.n_ranges;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (a.ranges[middle].first_piece <= piece ? low : high) = middle;
  }
  return a.ranges[low];
}

// A lane's piece.
struct PieceData {
  const uint8_t* data = nullptr;
  int64_t bytes = 0;
  __device__ int blocks() const { return static_cast<int>(bytes / 64); }
};

__device__ inline PieceData piece_data(const Sha256Args& a, int64_t piece) {
  if (piece >= a.pieces) return {};
  const Sha256Range range = find_range(a, piece);
  const int64_t begin = (piece - range.first_piece) * a.piece;
  return {static_cast<const uint8_t*>(range.data) + begin, min(a.piece, range.bytes - begin)};
}

// Two buffers of 64 words a lane between the warps, four words of every lane side by side. Named
// barriers say that a buffer is full, or free.
constexpr int kBufferBytes = 64 * kLanes * 4;
__device__ inline int full(int block) {
  return 1 + block % 2;
}
__device__ inline int free(int block) {
  return 3 + block % 2;
}
__device__ inline uint32_t slot(uint32_t buffers, int block, int r) {
  return buffers + block % 2 * kBufferBytes + (r / 4 * kLanes + lane_id()) * 16;
}

__device__ inline void expand_schedules(const PieceData& piece, int blocks, uint32_t buffers) {
  Block next{};
  if (piece.blocks() > 0) next = load_block(reinterpret_cast<const uint4*>(piece.data));
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    uint32_t w[16];
    to_words(next, w);
    if (b + 1 < piece.blocks())  // read while this one is expanded
      next = load_block(reinterpret_cast<const uint4*>(piece.data + (b + 1) * int64_t{64}));
    __syncwarp();
    if (b >= 2) bar_sync(free(b), kThreads);
#pragma unroll
    for (int r = 0; r < 64; r += 4) st_shared(slot(buffers, b, r), next_words(w, r));
    bar_arrive(full(b), kThreads);
  }
}

__device__ inline State run_rounds(const PieceData& piece, int blocks, uint32_t buffers) {
  State state = initial_state();
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    bar_sync(full(b), kThreads);
    if (b < piece.blocks())
      compress(state, [&](int r) {
        return __builtin_bit_cast(uint4, ld_shared_float4(slot(buffers, b, r)));
      });
    __syncwarp();
    if (b + 2 < blocks) bar_arrive(free(b), kThreads);
  }
  return state;
}

__global__ void __launch_bounds__(kThreads) sha256_kernel(Sha256Args a) {
  __shared__ uint4 buffers[2 * kBufferBytes / 16];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kLanes + lane_id();
  const PieceData piece = piece_data(a, index);
  const int blocks = __reduce_max_sync(0xffffffffu, piece.blocks());  // of the longest piece
  if (warp_id() == 0) return expand_schedules(piece, blocks, smem_address(buffers));
  State state = run_rounds(piece, blocks, smem_address(buffers));
  if (index >= a.pieces) return;
  finish(state, piece.data + piece.blocks() * int64_t{64}, static_cast<int>(piece.bytes % 64),
         static_cast<uint64_t>(piece.bytes));
  uint8_t* out = a.digest + index * 32;
#pragma unroll
  for (int i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(state.h[i / 4] >> (24 - i % 4 * 8));
}

}  // namespace

void sha256_pieces(Stream stream, const Sha256Args& a) {
  if (a.pieces == 0) return;
  require(a.piece > 0 && a.piece % 16 == 0, "sha256_pieces",
          "piece = " + std::to_string(a.piece) + ", must be a multiple of 16");
  sha256_kernel<<<blocks_for(a.pieces, kLanes), kThreads, 0, stream_of(stream)>>>(a);
  check_launch("sha256_pieces");
}

}  // namespace rlk::cuda
