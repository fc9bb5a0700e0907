#include "rlk/rollout/scheduler.h"

#include <algorithm>
#include <numeric>

#include "rlk/base/error.h"

namespace rlk {
namespace {

constexpr int kShardShift = 24;  // page table entry = shard << 24 | page (ops.h)
int shard_of(int32_t entry) {
  return entry >> kShardShift;
}
int32_t page_of(int32_t entry) {
  return entry & 0xffffff;
}

}  // namespace

int32_t Scheduler::pages_for(int64_t tokens) const {
  return static_cast<int32_t>((tokens + config_.page_size - 1) / config_.page_size);
}

int64_t Scheduler::max_pages() const {
  return pages_for(config_.max_context);
}

int64_t Scheduler::free_pages() const {
  int64_t total = 0;
  for (const auto& shard : free_) total += static_cast<int64_t>(shard.size());
  return total;
}

Scheduler::Scheduler(const SchedulerConfig& config, std::vector<Request> requests)
    : config_(config), requests_(std::move(requests)), state_(requests_.size()) {
  RLK_CHECK(config_.max_running > 0 && config_.max_batch_tokens > 0, config_.max_running,
            config_.max_batch_tokens);
  std::vector<Diagnostic> bad;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const auto length = static_cast<int64_t>(requests_[i].prompt.size());
    const std::string where = "prompt " + std::to_string(requests_[i].prompt_id);
    const int64_t longest = std::min(length + requests_[i].max_new, config_.max_context);
    if (length == 0) bad.push_back({where, "is empty", "must have at least one token"});
    if (length >= config_.max_context)
      bad.push_back({where, std::to_string(length) + " tokens leave no room for a response",
                     "must be shorter than the context of " + std::to_string(config_.max_context)});
    else if (pages_for(longest) > config_.pages_per_shard * config_.cp)
      bad.push_back({where, "needs " + std::to_string(pages_for(longest)) + " K/V pages",
                     "the engine has " + std::to_string(config_.pages_per_shard * config_.cp)});
    waiting_.push_back(static_cast<int32_t>(i));
  }
  if (!bad.empty()) throw InputError(bad);
  for (int shard = 0; shard < config_.cp; ++shard) {
    std::vector<int32_t> pages(config_.pages_per_shard);
    std::iota(pages.rbegin(), pages.rend(), shard << kShardShift);
    free_.push_back(std::move(pages));
    users_.emplace_back(config_.pages_per_shard, 0);
  }
  free_slots_.resize(config_.max_running);
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  table_.resize(config_.max_running * max_pages(), 0);
}

int Scheduler::least_loaded_home() const {
  std::vector<int> load(config_.cp, 0);
  for (int32_t r : running_) ++load[state_[r].home];
  return static_cast<int>(std::min_element(load.begin(), load.end()) - load.begin());
}

// An admitted request with the same prompt that computes, or has computed, the prompt's K/V.
int32_t Scheduler::leader_of(int32_t request) const {
  for (int32_t r : running_)
    if (state_[r].leader < 0 && requests_[r].prompt_id == requests_[request].prompt_id) return r;
  return -1;
}

int32_t Scheduler::take_page(int home, size_t index) {
  for (int i = 0; i < config_.cp; ++i) {
    auto& shard = free_[(home + index + i) % config_.cp];
    if (shard.empty()) continue;
    const int32_t entry = shard.back();
    shard.pop_back();
    users_[shard_of(entry)][page_of(entry)] = 1;
    return entry;
  }
  RLK_CHECK(false, home, index);
  return -1;
}

// Reserves everything the sequence may need, so that a running sequence never waits for memory.
bool Scheduler::admit(int32_t request) {
  if (free_slots_.empty()) return false;
  const Request& r = requests_[request];
  State& s = state_[request];
  const auto length = static_cast<int32_t>(r.prompt.size());
  const int32_t leader = leader_of(request);
  const int32_t shared = leader < 0 ? 0 : (length - 1) / config_.page_size;
  const int32_t pages = pages_for(std::min(length + r.max_new, config_.max_context));
  if (free_pages() < pages - shared) return false;

  s.home = least_loaded_home();
  s.slot = free_slots_.back();
  free_slots_.pop_back();
  s.leader = leader;
  s.tokens = r.prompt;
  s.prompt_len = length;
  for (int32_t i = 0; i < pages; ++i) {
    if (i < shared) {
      const int32_t entry = state_[leader].pages[i];
      ++users_[shard_of(entry)][page_of(entry)];
      s.pages.push_back(entry);
    } else {
      s.pages.push_back(take_page(s.home, static_cast<size_t>(i)));
    }
  }
  std::copy(s.pages.begin(), s.pages.end(), table_.begin() + s.slot * max_pages());
  running_.push_back(request);
  return true;
}

// The leader has the prompt's K/V: take over the whole pages by reference and the rest by copy, up
// to the last prompt token, whose logits the follower computes itself.
void Scheduler::follow(int32_t request, StepPlan& plan) {
  State& s = state_[request];
  const int32_t shared = (s.prompt_len - 1) / config_.page_size;
  s.computed = s.prompt_len - 1;
  if (s.computed % config_.page_size != 0)
    plan.copies.push_back({state_[s.leader].pages[shared], s.pages[shared], s.home});
}

StepPlan Scheduler::next() {
  while (!waiting_.empty() && admit(waiting_.front())) waiting_.pop_front();
  StepPlan plan;
  plan.work.resize(config_.cp);
  std::vector<int64_t> budget(config_.cp, config_.max_batch_tokens);
  for (int32_t r : running_) {
    State& s = state_[r];
    if (s.finished) continue;  // kept for its followers
    if (s.leader >= 0 && s.computed == 0) {
      if (state_[s.leader].computed < s.prompt_len) continue;  // waits for the leader's prefill
      follow(r, plan);
    }
    const auto known = static_cast<int32_t>(s.tokens.size());
    const auto len = static_cast<int32_t>(std::min<int64_t>(known - s.computed, budget[s.home]));
    if (len == 0) continue;
    budget[s.home] -= len;
    plan.work[s.home].push_back({r, s.slot, s.computed, len, s.computed + len == known ? 1 : 0});
  }
  look_ahead(plan);
  return plan;
}

int64_t Scheduler::room(int32_t request) const {
  const State& s = state_[request];
  const auto known = static_cast<int64_t>(s.tokens.size());
  return std::min(requests_[request].max_new - (known - s.prompt_len), config_.max_context - known);
}

// Decode goes on for several steps: pages are reserved, and until a sequence ends nothing can be
// admitted, so no step's plan waits for another's outcome.
void Scheduler::look_ahead(StepPlan& plan) const {
  for (const auto& works : plan.work)
    if (!std::all_of(works.begin(), works.end(), [](const Work& w) { return w.decode(); })) return;
  for (auto& works : plan.work)
    for (Work& w : works) {
      w.draws = static_cast<int32_t>(std::min<int64_t>(config_.look_ahead, room(w.request)));
      plan.steps = std::max(plan.steps, w.draws);
    }
}

void Scheduler::release(int32_t request) {
  State& s = state_[request];
  for (int32_t entry : s.pages)
    if (--users_[shard_of(entry)][page_of(entry)] == 0) free_[shard_of(entry)].push_back(entry);
  s.pages.clear();
  free_slots_.push_back(s.slot);
  s.slot = -1;
  s.finished = true;
}

void Scheduler::advance(const StepPlan& plan, const std::vector<std::vector<Outcome>>& outcomes) {
  for (int home = 0; home < config_.cp; ++home) {
    size_t next = 0;
    for (const Work& w : plan.work[home]) {
      State& s = state_[w.request];
      s.computed += w.len;
      if (w.draws == 0) continue;
      const Outcome& o = outcomes[home][next++];
      const auto drawn = static_cast<int32_t>(o.tokens.size());
      RLK_CHECK(drawn == w.draws || (drawn > 0 && drawn < w.draws && o.stop), w.request, drawn,
                w.draws, o.stop);
      s.computed += drawn - 1;  // the last one is only known
      s.tokens.insert(s.tokens.end(), o.tokens.begin(), o.tokens.end());
      const bool full = room(w.request) <= 0;
      s.truncated = full && !o.stop;
      s.finished = full || o.stop;
    }
  }
  // A leader stays admitted until no follower still waits for its prompt.
  auto needed = [&](int32_t r) {
    return std::any_of(running_.begin(), running_.end(),
                       [&](int32_t f) { return state_[f].leader == r && state_[f].computed == 0; });
  };
  std::vector<int32_t> left;
  for (int32_t r : running_)
    if (!state_[r].finished || needed(r)) left.push_back(r);
  for (int32_t r : running_)
    if (std::find(left.begin(), left.end(), r) == left.end()) release(r);
  running_ = std::move(left);
}

void Scheduler::check() const {
  for (int shard = 0; shard < config_.cp; ++shard) {
    std::vector<int32_t> holders(config_.pages_per_shard, 0);
    for (int32_t r : running_)
      for (int32_t entry : state_[r].pages)
        if (shard_of(entry) == shard) ++holders[page_of(entry)];
    for (int32_t entry : free_[shard]) {
      RLK_CHECK(holders[page_of(entry)] == 0, entry);
      holders[page_of(entry)] = 0;
    }
    for (int64_t p = 0; p < config_.pages_per_shard; ++p)
      RLK_CHECK(holders[p] == users_[shard][p], p, holders[p], users_[shard][p]);
  }
}

}  // namespace rlk
