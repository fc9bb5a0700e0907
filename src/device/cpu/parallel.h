#pragma once
// Worker threads and scratch memory of the CPU backend. Work is split over outputs, statically, so
// that the number of threads decides who computes an element and never how.
//
// One pool a process, sized by cpu_ops(threads). for_each_part may be called from any thread; while
// one caller holds the workers, another runs its parts itself. Scratch belongs to the calling
// thread and is kept between calls.

#include <cstddef>
#include <cstdint>
#include <functional>

namespace rlk::cpu {

void set_threads(int threads);

// Calls body(begin, end) on consecutive ranges that cover [0, n), each at least `grain` long where
// n allows, all of them done on return. An exception of the body is thrown again here.
void for_each_part(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

// At least `count` floats of this thread's scratch `slot` (0..kScratchSlots-1), 64-byte aligned,
// contents undefined. Valid until the thread's next call for the same slot.
inline constexpr int kScratchSlots = 8;
float* scratch(int slot, size_t count);

}  // namespace rlk::cpu
