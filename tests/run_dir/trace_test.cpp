// --trace-ops and rlk debug: the first differing op is named in execution order, whatever the
// layout and order of recording.
#include "rlk/run/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/philox.h"
#include "temp_dir.h"

namespace fs = std::filesystem;
using namespace rlk;
using rlk::test::TempDir;

namespace {

const std::vector<std::string> kOps = {"input_norm", "qkv",       "attention", "down",
                                       "logp",       "wgrad.qkv", "adamw"};
enum : uint16_t { kInputNorm, kQkv, kAttention, kDown, kLogp, kWgradQkv, kAdamW };
constexpr int kLayers = 3;

TraceRecord row(uint32_t step, TracePhase phase, int layer, uint16_t op, uint32_t prompt,
                uint32_t sample, int32_t position, int slice = -1) {
  TraceRecord r;
  r.step = step;
  r.phase = phase;
  r.layer = static_cast<int16_t>(layer);
  r.op = op;
  r.prompt = prompt;
  r.sample = sample;
  r.position = position;
  r.slice = static_cast<int8_t>(slice);
  r.hash = mix64(step * 1000003ull + static_cast<uint64_t>(phase) * 10007 + op * 101 +
                 static_cast<uint64_t>(layer + 1)) ^
           mix64(prompt * 77ull + sample * 13 + static_cast<uint64_t>(position + 1) * 1009 +
                 static_cast<uint64_t>(slice + 1));
  return r;
}

// Two steps of rollout, score, backward and optimizer over two sequences of four positions.
std::vector<TraceRecord> all_records() {
  std::vector<TraceRecord> records;
  for (uint32_t step = 0; step < 2; ++step) {
    for (const TracePhase phase : {TracePhase::rollout, TracePhase::score, TracePhase::backward})
      for (uint32_t sample = 0; sample < 2; ++sample)
        for (int32_t position = 0; position < 4; ++position)
          for (int layer = 0; layer < kLayers; ++layer)
            for (const uint16_t op : {kInputNorm, kQkv, kAttention, kDown})
              records.push_back(
                  row(step, phase, layer, op, 5, sample, position, op == kQkv ? 2 : -1));
    for (int slice = 0; slice < 8; ++slice) {
      records.push_back(
          row(step, TracePhase::backward, 1, kWgradQkv, kNoSequence, kNoSequence, -1, slice));
      records.push_back(
          row(step, TracePhase::optimizer, 1, kAdamW, kNoSequence, kNoSequence, -1, slice));
    }
  }
  return records;
}

using Edit = std::function<void(TraceRecord&)>;

// Deals the records to `ranks` files: shuffled inside a step, some of them to two ranks, as
// replicated ops are.
void write_trace(const fs::path& run, int ranks, const std::vector<TraceRecord>& records,
                 uint32_t seed) {
  std::mt19937 random(seed);
  for (int rank = 0; rank < ranks; ++rank) TraceWriter(run, rank, kOps).flush();
  for (int rank = 0; rank < ranks; ++rank) {
    fs::remove(run / "trace" / ("rank-" + std::to_string(rank) + ".bin"));
    TraceWriter writer(run, rank, kOps);
    for (uint32_t step = 0; step < 2; ++step) {
      std::vector<TraceRecord> own;
      for (size_t i = 0; i < records.size(); ++i) {
        const bool owns = static_cast<int>(i % ranks) == rank ||
                          (i % 3 == 0 && static_cast<int>((i + 1) % ranks) == rank);
        if (records[i].step == step && owns) own.push_back(records[i]);
      }
      std::shuffle(own.begin(), own.end(), random);
      for (const TraceRecord& r : own) writer.record(r);
    }
    writer.flush();
  }
}

TraceComparison compare(const std::vector<TraceRecord>& a, const std::vector<TraceRecord>& b) {
  TempDir dir;
  write_trace(dir.path() / "a", 4, a, 1);
  write_trace(dir.path() / "b", 7, b, 2);
  return compare_traces(dir.path() / "a", dir.path() / "b");
}

// all_records() with another hash wherever `where` holds.
std::vector<TraceRecord> damaged(const std::function<bool(const TraceRecord&)>& where) {
  auto records = all_records();
  for (TraceRecord& r : records)
    if (where(r)) r.hash ^= 1;
  return records;
}

std::string first_text(const std::vector<TraceRecord>& b) {
  const TraceComparison result = compare(all_records(), b);
  return result.first ? result.first->text() : "equal";
}

}  // namespace

TEST(Trace, RecordingOrderRanksAndReplicasDoNotMatter) {
  const TraceComparison result = compare(all_records(), all_records());
  EXPECT_FALSE(result.first.has_value()) << result.first->text();
  EXPECT_EQ(result.compared, all_records().size());
}

TEST(Trace, ForwardCauseIsNamedBeforeItsEffects) {
  // attention of layer 1 goes wrong at position 2; everything that depends on it follows.
  const std::string text = first_text(damaged([](const TraceRecord& r) {
    if (r.step == 1) return true;
    if (r.phase != TracePhase::rollout) return r.phase > TracePhase::rollout;
    if (r.sample != 1 || r.position < 2) return false;
    return r.position > 2 || r.layer > 1 || (r.layer == 1 && r.op >= kAttention);
  }));
  EXPECT_EQ(text.substr(0, text.find(": a")),
            "step 0, rollout, layer 1, op attention, prompt 5, sample 1, position 2");
}

TEST(Trace, BackwardRunsFromTheLastLayerToTheFirst) {
  const std::string text = first_text(damaged([](const TraceRecord& r) {
    return r.step == 1 && r.phase == TracePhase::backward &&
           (r.layer == 0 || (r.layer == 1 && r.op == kWgradQkv && r.slice == 6));
  }));
  EXPECT_EQ(text.substr(0, text.find(": a")), "step 1, backward, layer 1, op wgrad.qkv, slice 6");
}

TEST(Trace, SliceOfAWideOpIsNamed) {
  const std::string text = first_text(damaged([](const TraceRecord& r) {
    return r.phase == TracePhase::score && r.op == kQkv && r.position == 3;
  }));
  EXPECT_EQ(text.substr(0, text.find(": a")),
            "step 0, score, layer 0, op qkv, prompt 5, sample 0, position 3, slice 2");
}

TEST(Trace, ReplicasThatDisagreeInsideOneRunAreReported) {
  auto b = all_records();
  TraceRecord replica = row(0, TracePhase::score, 2, kDown, 5, 0, 1);
  replica.hash ^= 4;
  b.push_back(replica);
  EXPECT_NE(first_text(b).find(
                "score, layer 2, op down, prompt 5, sample 0, position 1: ranks of b disagree"),
            std::string::npos)
      << first_text(b);
}

TEST(Trace, MissingRecordIsADifference) {
  auto b = all_records();
  b.erase(b.begin() + 7);
  EXPECT_NE(first_text(b).find("recorded in a alone"), std::string::npos) << first_text(b);
}

TEST(Trace, MissingStepIsADifference) {
  auto b = all_records();
  std::erase_if(b, [](const TraceRecord& r) { return r.step == 1; });
  EXPECT_NE(first_text(b).find("step 1"), std::string::npos);
}

namespace {

// One run whose score phase repeats what its rollout computed, apart from `edit`.
TraceComparison compare_phases(const std::function<void(std::vector<TraceRecord>&)>& edit) {
  std::vector<TraceRecord> records;
  for (const TraceRecord& r : all_records()) {
    if (r.phase != TracePhase::rollout) continue;
    records.push_back(r);
    records.push_back(r);
    records.back().phase = TracePhase::score;
  }
  edit(records);
  TempDir dir;
  write_trace(dir.path(), 4, records, 3);
  return compare_trace_phases(dir.path(), TracePhase::rollout, TracePhase::score);
}

}  // namespace

TEST(TracePhases, EqualRowsOfRolloutAndScoreAreEqual) {
  const TraceComparison result = compare_phases([](auto&) {});
  EXPECT_FALSE(result.first.has_value()) << result.first->text();
  EXPECT_EQ(result.compared, 2u * 2 * 4 * kLayers * 4);
}

TEST(TracePhases, RowsOfOnePhaseAloneAreSkipped) {
  const TraceComparison result = compare_phases([](auto& records) {
    std::erase_if(records, [](const TraceRecord& r) {
      return r.phase == TracePhase::rollout && r.position == 3;
    });
  });
  EXPECT_FALSE(result.first.has_value()) << result.first->text();
  EXPECT_EQ(result.compared, 2u * 2 * 3 * kLayers * 4);
}

TEST(TracePhases, FirstDifferenceIsNamed) {
  const TraceComparison result = compare_phases([](auto& records) {
    for (TraceRecord& r : records)
      if (r.phase == TracePhase::score && r.step == 1 && r.position >= 1 && r.layer == 2 &&
          r.op >= kAttention)
        r.hash ^= 8;
  });
  ASSERT_TRUE(result.first.has_value());
  EXPECT_EQ(result.first->text().substr(0, result.first->text().find(": a")),
            "step 1, rollout, layer 2, op attention, prompt 5, sample 0, position 1");
}

TEST(TracePhases, NothingToCompareIsRefused) {
  EXPECT_THROW(compare_phases([](auto& records) {
                 std::erase_if(records,
                               [](const TraceRecord& r) { return r.phase == TracePhase::score; });
               }),
               InputError);
}

TEST(Trace, DamagedFilesAreRefusedByName) {
  TempDir dir;
  const auto expect_refused = [&](const char* what,
                                  const std::function<void(const fs::path&)>& damage) {
    const fs::path run = dir.path() / what;
    write_trace(run, 2, all_records(), 1);
    damage(run / "trace/rank-1.bin");
    try {
      compare_traces(run, run);
      FAIL() << what << " passed";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find("rank-1.bin"), std::string::npos) << e.what();
    }
  };
  expect_refused("empty", [](const fs::path& f) { fs::resize_file(f, 0); });
  expect_refused("short header", [](const fs::path& f) { fs::resize_file(f, 20); });
  expect_refused("short record",
                 [](const fs::path& f) { fs::resize_file(f, fs::file_size(f) - 1); });
  expect_refused("magic", [](const fs::path& f) {
    std::string t = read_file(f);
    t[0] = 'X';
    write_file_atomic(f, t);
  });
  expect_refused("op id", [](const fs::path& f) {
    std::string t = read_file(f);
    t[t.size() - 26] = '\x7f';
    write_file_atomic(f, t);
  });
  expect_refused("steps backwards", [](const fs::path& f) {
    std::string t = read_file(f);
    std::string last = t.substr(t.size() - 32);
    last[0] = 0;
    write_file_atomic(f, t + last);
  });
}

TEST(Trace, RunWithoutTraceAndOtherOpTablesAreRefused) {
  TempDir dir;
  EXPECT_THROW(compare_traces(dir.path(), dir.path()), InputError);
  write_trace(dir.path() / "a", 1, all_records(), 1);
  TraceWriter(dir.path() / "b", 0, {"other"}).flush();
  EXPECT_THROW(compare_traces(dir.path() / "a", dir.path() / "b"), InputError);
}

TEST(Trace, WritingToAFullDiskIsAnError) {
  TempDir dir;
  TraceWriter writer(dir.path(), 0, kOps);
  fs::remove(dir.path() / "trace/rank-0.bin");
  fs::create_symlink("/dev/full", dir.path() / "trace/rank-0.bin");
  writer.record(all_records()[0]);
  EXPECT_THROW(writer.flush(), Error);
}

TEST(Trace, TwoMillionRecordsCompareInSeconds) {
  TempDir dir;
  const auto write = [&](const char* name, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      TraceWriter writer(dir.path() / name, rank, kOps);
      for (int32_t position = rank; position < 50000; position += ranks)
        for (int layer = 0; layer < 10; ++layer)
          for (const uint16_t op : {kInputNorm, kQkv, kAttention, kDown})
            writer.record(row(0, TracePhase::score, layer, op, 1, 0, position));
      writer.flush();
    }
  };
  write("a", 1);
  write("b", 8);
  const auto begin = std::chrono::steady_clock::now();
  const TraceComparison result = compare_traces(dir.path() / "a", dir.path() / "b");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_FALSE(result.first.has_value());
  EXPECT_EQ(result.compared, 2'000'000u);
  RecordProperty("seconds", std::to_string(seconds.count()));
  EXPECT_LT(seconds.count(), 30) << "a loaded two-core machine took a second or two";
}
