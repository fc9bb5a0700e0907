#pragma once
// Continuous batching, paging and prefix sharing of one engine. Pure and deterministic: every rank
// of an engine runs a copy and they stay equal, since they are told the same tokens. Nothing here
// can change a token's bits (R3, R4, R6).
//
// A sequence has a home, one of the engine's CP ranks, which computes its rows. Its pages are dealt
// over the memories of all CP ranks, so a sequence may use the whole engine's K/V.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace rlk {

struct SchedulerConfig {
  int cp = 1;  // homes, and page shards
  int32_t page_size = 128;
  int64_t pages_per_shard = 0;
  int64_t max_running = 0;       // sequences at once, over all homes
  int64_t max_batch_tokens = 0;  // rows of one home's forward pass
  int64_t max_context = 0;       // tokens of a sequence
  int32_t look_ahead = 1;        // decode steps of one plan, at most
};

struct Request {
  int64_t prompt_id = 0;  // equal ids have equal prompts and may share pages
  std::vector<int32_t> prompt;
  int64_t max_new = 0;
};

// Rows [begin, begin + len) of a sequence in the next forward pass of its home.
struct Work {
  int32_t request, slot;  // slot: row of the page table
  int32_t begin, len;
  int32_t draws;  // tokens to draw: 0 before the prompt's end, else one, in a plan of several steps
                  // at most one a step

  bool decode() const { return len == 1 && draws > 0; }
};

// What a Work with draws came to: all of its draws, or fewer and the last one a stop token.
struct Outcome {
  std::vector<int32_t> tokens;
  bool stop;
};

// A page to duplicate before the pass: a follower takes over the part of a page that its prompt
// shares with the leader.
struct PageCopy {
  int32_t from, to;  // page table entries
  int home;          // who copies
};

// One forward pass; or, where all of its work is decode, several, each on the tokens that the one
// before drew. Sequences that end on the way are idle until the plan is done.
struct StepPlan {
  std::vector<std::vector<Work>> work;  // by home
  std::vector<PageCopy> copies;
  int32_t steps = 1;
};

class Scheduler {
 public:
  // Throws InputError when a request can never fit: longer than the context, or more pages than the
  // engine has.
  Scheduler(const SchedulerConfig&, std::vector<Request>);

  bool done() const { return waiting_.empty() && running_.empty(); }
  StepPlan next();
  // Tells the outcome of every Work with draws, home by home in the order of the plan.
  void advance(const StepPlan&, const std::vector<std::vector<Outcome>>&);

  const std::vector<int32_t>& tokens(int32_t request) const { return state_[request].tokens; }
  bool truncated(int32_t request) const { return state_[request].truncated; }
  int64_t max_pages() const;                                         // of one sequence
  const std::vector<int32_t>& page_table() const { return table_; }  // [max_running, max_pages]
  int64_t free_pages() const;
  // Every page is free or counted by its holders; aborts otherwise. For tests and when idle.
  void check() const;

 private:
  struct State {
    std::vector<int32_t> tokens;
    std::vector<int32_t> pages;  // entries, shared ones first
    int32_t prompt_len = 0, computed = 0, slot = -1, leader = -1;
    int home = 0;
    bool truncated = false, finished = false;
  };

  bool admit(int32_t request);
  int32_t leader_of(int32_t request) const;
  void follow(int32_t request, StepPlan&);
  void look_ahead(StepPlan&) const;
  int32_t take_page(int home, size_t index);
  void release(int32_t request);
  int32_t pages_for(int64_t tokens) const;
  int64_t room(int32_t request) const;  // tokens it may still draw
  int least_loaded_home() const;

  SchedulerConfig config_;
  std::vector<Request> requests_;
  std::vector<State> state_;
  std::deque<int32_t> waiting_;
  std::vector<int32_t> running_;             // in order of admission
  std::vector<std::vector<int32_t>> free_;   // pages by shard
  std::vector<std::vector<int32_t>> users_;  // [shard][page] holders
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> table_;
};

}  // namespace rlk
