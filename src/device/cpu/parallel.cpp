#include "parallel.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "rlk/base/error.h"

namespace rlk::cpu {
namespace {

// threads - 1 workers; the caller is the last one.
class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // part(i) for i in [0, parts), parts <= threads.
  void run(int parts, const std::function<void(int)>& part) {
    {
      std::lock_guard lock(mutex_);
      part_ = &part;
      parts_ = parts;
      pending_ = static_cast<int>(workers_.size());
      ++epoch_;
    }
    start_.notify_all();
    guarded(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void guarded(int index) {
    try {
      if (index < parts_) (*part_)(index);
    } catch (...) {
      std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
  }

  void work(int index) {
    for (uint64_t seen = 0;;) {
      {
        std::unique_lock lock(mutex_);
        start_.wait(lock, [&] { return stop_ || epoch_ != seen; });
        if (stop_) return;
        seen = epoch_;
      }
      guarded(index);
      std::lock_guard lock(mutex_);
      if (--pending_ == 0) done_.notify_one();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int)>* part_ = nullptr;
  int parts_ = 0, pending_ = 0;
  uint64_t epoch_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
};

std::mutex pool_mutex;
std::unique_ptr<Pool> pool;  // null: one thread

struct FreeDeleter {
  void operator()(float* p) const { std::free(p); }
};
struct Scratch {
  std::unique_ptr<float, FreeDeleter> memory;
  size_t count = 0;
};

}  // namespace

void set_threads(int threads) {
  if (threads < 1)
    throw Error("cpu_ops: " + std::to_string(threads) + " threads, must be at least 1");
  std::lock_guard lock(pool_mutex);
  if ((pool ? pool->threads() : 1) == threads) return;
  pool.reset();
  if (threads > 1) pool = std::make_unique<Pool>(threads);
}

void for_each_part(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  std::unique_lock lock(pool_mutex, std::try_to_lock);
  const int64_t threads = lock.owns_lock() && pool ? pool->threads() : 1;
  const int64_t parts = std::min(threads, std::max<int64_t>(1, n / std::max<int64_t>(1, grain)));
  if (parts <= 1) {
    if (lock.owns_lock()) lock.unlock();
    return body(0, n);
  }
  pool->run(static_cast<int>(parts), [&](int i) { body(n * i / parts, n * (i + 1) / parts); });
}

float* scratch(int slot, size_t count) {
  thread_local Scratch slots[kScratchSlots];
  Scratch& s = slots[slot];
  if (s.count < count) {
    s.memory.reset();
    const size_t bytes = (count * sizeof(float) + 4095) / 4096 * 4096;
    s.memory.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!s.memory) throw std::bad_alloc();
    s.count = bytes / sizeof(float);
  }
  return s.memory.get();
}

}  // namespace rlk::cpu
