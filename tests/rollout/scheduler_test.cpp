#include "rlk/rollout/scheduler.h"

#include <gtest/gtest.h>

#include <map>

#include "rlk/base/error.h"

namespace rlk {
namespace {

SchedulerConfig config(int cp = 1) {
  return {.cp = cp,
          .page_size = 16,
          .pages_per_shard = 64,
          .max_running = 8,
          .max_batch_tokens = 64,
          .max_context = 128};
}

Request request(int64_t prompt_id, int length, int64_t max_new) {
  return {prompt_id, std::vector<int32_t>(length, static_cast<int32_t>(100 + prompt_id)), max_new};
}

struct Log {
  std::map<int32_t, int> prefill_rows;  // rows computed before the first token, by request
  std::map<int32_t, int> home;
  int plans = 0, steps = 0, copies = 0, most_rows = 0;
  int64_t idle = 0;  // steps that a sequence's row took no part in
};

// Runs to the end; every drawn token is 1, and `stop_after` of a request's tokens end it.
Log run(Scheduler& s, int cp, int64_t stop_after) {
  Log log;
  std::map<int32_t, int64_t> drawn;
  while (!s.done()) {
    const StepPlan plan = s.next();
    s.check();
    ++log.plans;
    log.steps += plan.steps;
    log.copies += static_cast<int>(plan.copies.size());
    std::vector<std::vector<Outcome>> outcomes(cp);
    int work = 0;
    for (int h = 0; h < cp; ++h) {
      int rows = 0;
      for (const Work& w : plan.work[h]) {
        ++work;
        rows += w.len;
        log.home[w.request] = h;
        if (drawn[w.request] == 0) log.prefill_rows[w.request] += w.len;
        if (w.draws == 0) continue;
        EXPECT_LE(w.draws, plan.steps);
        EXPECT_TRUE(plan.steps == 1 || w.decode()) << "only decode goes on for several steps";
        Outcome o{};
        while (static_cast<int32_t>(o.tokens.size()) < w.draws && !o.stop) {
          o.tokens.push_back(1);
          o.stop = ++drawn[w.request] == stop_after;
        }
        log.idle += plan.steps - static_cast<int64_t>(o.tokens.size());
        outcomes[h].push_back(std::move(o));
      }
      log.most_rows = std::max(log.most_rows, rows);
    }
    EXPECT_GT(work, 0) << "a step without work never ends";
    if (work == 0) break;
    s.advance(plan, outcomes);
    s.check();
  }
  return log;
}

TEST(Scheduler, SamplesOfOnePromptComputeItOnce) {
  Scheduler s(config(), {request(0, 50, 4), request(0, 50, 4), request(0, 50, 4)});
  const Log log = run(s, 1, 100);
  EXPECT_EQ(log.prefill_rows.at(0), 50);
  EXPECT_EQ(log.prefill_rows.at(1), 1);
  EXPECT_EQ(log.prefill_rows.at(2), 1);
  EXPECT_EQ(log.copies, 2);  // the page that the 50th token is on
}

TEST(Scheduler, OtherPromptsShareNothing) {
  Scheduler s(config(), {request(0, 50, 4), request(1, 50, 4)});
  EXPECT_EQ(run(s, 1, 100).prefill_rows.at(1), 50);
}

TEST(Scheduler, LongPromptsArePrefilledInChunks) {
  Scheduler s(config(), {request(0, 120, 2)});
  const Log log = run(s, 1, 100);
  EXPECT_EQ(log.prefill_rows.at(0), 120);
  EXPECT_LE(log.most_rows, 64);
}

TEST(Scheduler, AllPagesComeBack) {
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(request(i / 4, 10 + 3 * (i / 4), 1 + i % 7));
  Scheduler s(config(2), std::move(requests));
  const int64_t before = s.free_pages();
  run(s, 2, 5);
  EXPECT_EQ(s.free_pages(), before);
}

TEST(Scheduler, WaitsForMemoryInsteadOfFailing) {
  SchedulerConfig c = config();
  c.pages_per_shard = 9;  // room for one sequence of 128 tokens, not for two
  Scheduler s(c, {request(0, 100, 28), request(1, 100, 28)});
  EXPECT_GT(run(s, 1, 100).steps, 2 * 28);
  EXPECT_EQ(s.tokens(1).size(), 128u);
}

TEST(Scheduler, HomesTakeEqualShares) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(request(i, 20, 4));
  Scheduler s(config(4), std::move(requests));
  std::map<int, int> count;
  for (const auto& [r, home] : run(s, 4, 100).home) ++count[home];
  for (int h = 0; h < 4; ++h) EXPECT_EQ(count[h], 2);
}

TEST(Scheduler, StopAndLengthEndASequence) {
  Scheduler s(config(), {request(0, 5, 10)});
  run(s, 1, 3);
  EXPECT_EQ(s.tokens(0).size(), 8u);
  EXPECT_FALSE(s.truncated(0));
  Scheduler t(config(), {request(0, 5, 10)});
  run(t, 1, 100);
  EXPECT_EQ(t.tokens(0).size(), 15u);
  EXPECT_TRUE(t.truncated(0));
}

TEST(Scheduler, LookingAheadTakesFewerPlansAndTheSameTokens) {
  std::vector<Request> requests;
  for (int i = 0; i < 20; ++i) requests.push_back(request(i / 2, 10 + 9 * (i / 2), 1 + 5 * i % 23));
  for (const int64_t stop_after : {4, 9, 100}) {
    Scheduler one(config(2), requests);
    const Log steps = run(one, 2, stop_after);
    EXPECT_EQ(steps.plans, steps.steps);
    for (const int32_t ahead : {2, 5, 16}) {
      SchedulerConfig c = config(2);
      c.look_ahead = ahead;
      Scheduler several(c, requests);
      const Log log = run(several, 2, stop_after);
      EXPECT_LT(log.plans, steps.plans) << ahead;
      for (int32_t r = 0; r < 20; ++r) {
        EXPECT_EQ(several.tokens(r), one.tokens(r)) << ahead << " request " << r;
        EXPECT_EQ(several.truncated(r), one.truncated(r)) << ahead << " request " << r;
      }
    }
  }
}

TEST(Scheduler, LooksNoFurtherThanTheLongestSequence) {
  SchedulerConfig c = config();
  c.look_ahead = 8;
  Scheduler s(c, {request(0, 20, 12), request(1, 20, 4)});
  const Log log = run(s, 1, 100);
  EXPECT_EQ(log.plans, 3);  // prefill, 8 steps, the last 3
  EXPECT_EQ(log.steps, 12);
  EXPECT_EQ(log.idle, 5);  // request 1 has its 3 tokens after 3 of the 8
}

TEST(Scheduler, PrefillIsOneStep) {
  SchedulerConfig c = config();
  c.look_ahead = 8;
  Scheduler s(c, {request(0, 5, 40), request(1, 120, 2)});  // 120 tokens need two passes
  EXPECT_EQ(s.next().steps, 1);
}

TEST(SchedulerDeathTest, EndingEarlyTakesAStop) {
  SchedulerConfig c = config();
  c.look_ahead = 8;
  Scheduler s(c, {request(0, 5, 40)});
  s.advance(s.next(), {{{{1}, false}}});
  const StepPlan plan = s.next();
  ASSERT_EQ(plan.steps, 8);
  EXPECT_DEATH(s.advance(plan, {{{{1, 1, 1}, false}}}), "o.stop");
  s.advance(plan, {{{{1, 1, 1}, true}}});
  EXPECT_TRUE(s.done());
}

TEST(Scheduler, RefusesWhatCanNeverFit) {
  SchedulerConfig c = config();
  c.pages_per_shard = 2;
  try {
    Scheduler s(c, {request(3, 0, 5), request(4, 128, 5), request(5, 60, 60)});
    FAIL() << "accepted";
  } catch (const InputError& e) {
    EXPECT_EQ(e.diagnostics().size(), 3u) << e.what();
    EXPECT_NE(std::string(e.what()).find("prompt 5: needs 8 K/V pages"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace rlk
