// The run directory's writer and reader: what is written comes back, and no failure passes for
// success.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <limits>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/run/manifest_digest.h"
#include "rlk/run/run_reader.h"
#include "rlk/run/run_writer.h"
#include "run_dir/io_faults.h"
#include "run_dir/synthetic_run.h"
#include "temp_dir.h"

namespace fs = std::filesystem;
using namespace rlk;
using rlk::test::Call;
using rlk::test::IoFault;
using rlk::test::passing_content;
using rlk::test::RunContent;
using rlk::test::TempDir;
using rlk::test::write_run;

namespace {

template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "nothing was thrown";
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

// A plan below `root`, ready for RunWriter::create.
Plan plan_in(const fs::path& root, const std::string& run_id) {
  Plan plan = passing_content().plan;
  plan.run_id = run_id;
  plan.output_root = root;
  plan.run_dir = root / run_id;
  return plan;
}

RunWriter create(const fs::path& root, const std::string& run_id = "r") {
  return RunWriter::create(plan_in(root, run_id), passing_content().inputs);
}

std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir))
    names.push_back(entry.path().filename().string());
  return names;
}

}  // namespace

TEST(RunWriter, SidecarComesBackBitForBit) {
  TempDir dir;
  RunContent content = passing_content();
  content.steps[0].samples[1].truncated = true;
  content.steps[0].samples[1].rollout_logp[0] = -0.0f;
  content.steps[0].samples[1].train_logp[0] = std::bit_cast<float>(0x7fc00123u);
  const RunReader reader(write_run(dir.path(), content));
  for (const Trajectory& expected : content.steps) {
    const Trajectory got = reader.sidecar(expected.step);
    EXPECT_EQ(got.weight_version, expected.weight_version);
    ASSERT_EQ(got.samples.size(), expected.samples.size());
    for (size_t i = 0; i < got.samples.size(); ++i) {
      const Sample &a = got.samples[i], &b = expected.samples[i];
      EXPECT_EQ(a.prompt, b.prompt);
      EXPECT_EQ(a.sample, b.sample);
      EXPECT_EQ(a.prompt_len, b.prompt_len);
      EXPECT_EQ(a.tokens, b.tokens);
      EXPECT_EQ(a.truncated, b.truncated);
      EXPECT_EQ(a.reward, b.reward);
      EXPECT_EQ(a.advantage, b.advantage);
      EXPECT_EQ(a.ref_logp, b.ref_logp);
      for (size_t j = 0; j < b.rollout_logp.size(); ++j) {
        EXPECT_EQ(std::bit_cast<uint32_t>(a.rollout_logp[j]),
                  std::bit_cast<uint32_t>(b.rollout_logp[j]))
            << i << " " << j;
        EXPECT_EQ(std::bit_cast<uint32_t>(a.train_logp[j]),
                  std::bit_cast<uint32_t>(b.train_logp[j]))
            << i << " " << j;
      }
    }
  }
}

TEST(RunWriter, RecordsComeBack) {
  TempDir dir;
  RunContent content = passing_content();
  content.ranks[3].graphs = GraphReadback{{1, 2, 4}, {1, 2}, {{2, 77}}, 5};
  content.ranks[3].memory = MemoryReadback{1000, 990};
  const RunReader reader(write_run(dir.path(), content));
  const VersionFingerprints v = reader.version(1);
  EXPECT_EQ(v.version, 1u);
  ASSERT_EQ(v.tensors.size(), 3u);
  EXPECT_EQ(v.tensors.at("model.norm.weight").gradient,
            content.versions[1].tensors.at("model.norm.weight").gradient);
  EXPECT_FALSE(reader.version(0).tensors.at("model.norm.weight").gradient.has_value());
  EXPECT_EQ(reader.rollout_weights(1).engines, content.rollouts[1].engines);
  const RankRecord r = reader.rank_record(3);
  EXPECT_EQ(r.pid, 1003);
  EXPECT_EQ(r.ops.at("ffn.gemm").calls, 12u);
  EXPECT_EQ(r.graphs->captured, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(r.graphs->replays, (std::map<int64_t, uint64_t>{{2, 77}}));
  EXPECT_EQ(r.graphs->eager_decodes, 5u);
  EXPECT_EQ(r.memory->planned, 1000u);
  EXPECT_EQ(r.memory->used, 990u);
  EXPECT_FALSE(reader.rank_record(2).memory.has_value());
  EXPECT_EQ(reader.metrics().size(), 2u);
  EXPECT_EQ(reader.texts(0).size(), 6u);
}

TEST(RunWriter, ManifestCarriesItsDigestAndTheHashesOfAllEvidence) {
  TempDir dir;
  const fs::path run = write_run(dir.path(), passing_content());
  const Json manifest = RunReader(run).manifest();
  EXPECT_EQ(manifest["status"], "finished");
  EXPECT_EQ(manifest["digest"], manifest_digest(manifest));
  EXPECT_EQ(manifest["topology"]["engines"], 2);
  EXPECT_EQ(manifest["sampling"]["temperature"], 1.0);
  EXPECT_EQ(manifest["commands"].size(), 8u);
  EXPECT_EQ(manifest["plan_sha256"], hex(sha256_file(run / "plan.json")));
  EXPECT_EQ(manifest["files"].size(), 1u + 2 + 2 + 3 + 2 + 8);
  EXPECT_EQ(manifest["files"]["metrics.jsonl"], hex(sha256_file(run / "metrics.jsonl")));
}

TEST(RunWriter, ManifestShowsFloatOptionsAsTyped) {
  TempDir dir;
  RunContent content = passing_content();
  content.plan.options.temperature = 0.7f;
  const fs::path run = write_run(dir.path(), content);
  EXPECT_CONTAINS(read_file(run / "manifest.json"), "\"temperature\": 0.7,");
}

TEST(RunWriter, RunIdIsNeverReused) {
  TempDir dir;
  write_run(dir.path(), passing_content());
  const std::string before = read_file(dir.path() / "synthetic" / "manifest.json");
  const auto again = [&] { write_run(dir.path(), passing_content()); };
  EXPECT_CONTAINS(message_of<InputError>(again), "--run-id synthetic: ");
  EXPECT_EQ(read_file(dir.path() / "synthetic" / "manifest.json"), before);
}

TEST(RunWriter, HostileRunIdsAreRefused) {
  TempDir dir;
  for (const std::string id :
       {"", ".", "..", "../x", "a/b", "/etc", ".hidden", "-x", "a b", "a\nb", "\xc3\xa4"}) {
    EXPECT_CONTAINS(message_of<InputError>([&] { create(dir.path(), id); }),
                    "must be one path component")
        << id;
  }
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(RunWriter, UnusableOutputRootIsBadInput) {
  TempDir dir;
  std::ofstream(dir.path() / "file") << "x";
  EXPECT_CONTAINS(message_of<InputError>([&] { create(dir.path() / "file"); }), "--output-root");
  EXPECT_CONTAINS(message_of<InputError>([&] { create("/proc/rlk"); }),
                  "--output-root /proc/rlk: ");
}

TEST(RunWriter, NothingIsWrittenTwice) {
  TempDir dir;
  const RunContent content = passing_content();
  RunWriter writer(write_run(dir.path(), content));
  EXPECT_CONTAINS(message_of<Error>([&] { writer.write_sidecar(content.steps[0]); }),
                  "already written");
  EXPECT_CONTAINS(message_of<Error>([&] { writer.write_version(content.versions[1]); }),
                  "already written");
  EXPECT_CONTAINS(message_of<Error>([&] { writer.write_rank_record(content.ranks[1]); }),
                  "already written");
  EXPECT_CONTAINS(message_of<Error>([&] { writer.finish(RunStatus::finished, "", {}); }),
                  "finished already");
}

TEST(RunWriter, FirstFailureIsKept) {
  TempDir dir;
  RunWriter writer = create(dir.path());
  writer.write_failure(3, "rollout", "first");
  writer.write_failure(5, "train", "second");
  const Json failure = Json::parse(read_file(writer.dir() / "failure.json"));
  EXPECT_EQ(failure["rank"], 3);
  EXPECT_EQ(failure["message"], "first");
  for (const std::string& name : names_in(writer.dir())) EXPECT_NE(name.substr(0, 2), ".f");
}

TEST(RunWriter, TextsWithBytesThatAreNoUtf8AreWritten) {
  TempDir dir;
  RunContent content = passing_content();
  content.texts[0][0].response_text = "a\xff\"\n";
  const RunReader reader(write_run(dir.path(), content));
  EXPECT_EQ(reader.texts(0)[0]["response_text"], "a\xef\xbf\xbd\"\n");
}

// Each system call of each write fails once, with the errors that disks give: Error, no temporary,
// no damaged file.
TEST(RunWriter, EveryFailingSystemCallIsAnErrorAndLeavesNoPartialFile) {
  struct Write {
    const char* name;
    std::string file;
    std::function<void(RunWriter&)> run;
  };
  const RunContent c = passing_content();
  const std::vector<Write> writes = {
      {"metrics", "metrics.jsonl", [&](RunWriter& w) { w.append_metrics(c.metrics[0]); }},
      {"sidecar", "sidecars/step-000000.safetensors",
       [&](RunWriter& w) { w.write_sidecar(c.steps[0]); }},
      {"texts", "trajectories/step-000000.jsonl",
       [&](RunWriter& w) { w.write_texts(0, c.texts[0]); }},
      {"version", "weights/version-000000.json",
       [&](RunWriter& w) { w.write_version(c.versions[0]); }},
      {"rollout", "weights/rollout-000000.json",
       [&](RunWriter& w) { w.write_rollout_weights(c.rollouts[0]); }},
      {"rank", "evidence/rank-0.json", [&](RunWriter& w) { w.write_rank_record(c.ranks[0]); }},
  };
  int injected = 0;
  for (const Write& write : writes) {
    for (const Call call : {Call::write, Call::pwrite, Call::fsync, Call::rename}) {
      for (int nth = 0;; ++nth) {
        TempDir dir;
        RunWriter writer = create(dir.path());
        bool thrown = false;
        int calls = 0;
        {
          IoFault fault(call, nth, ENOSPC);
          try {
            write.run(writer);
          } catch (const Error& e) {
            thrown = true;
            EXPECT_CONTAINS(e.what(), "No space left on device");
          }
          calls = fault.calls();
        }
        if (calls <= nth) {
          EXPECT_FALSE(thrown) << write.name;
          break;
        }
        ++injected;
        EXPECT_TRUE(thrown) << write.name << " call " << nth << " of kind "
                            << static_cast<int>(call);
        const fs::path file = writer.dir() / write.file;
        if (file.parent_path() == writer.dir()) continue;
        for (const std::string& name : names_in(file.parent_path()))
          EXPECT_EQ(name, file.filename().string());
      }
    }
  }
  EXPECT_GE(injected, 20) << "the faults do not reach the code under test";
}

TEST(RunWriter, FailedManifestReplacementKeepsTheRunUnfinished) {
  TempDir dir;
  RunWriter writer = create(dir.path());
  writer.append_metrics(passing_content().metrics[0]);
  {
    IoFault fault(Call::rename, 0, EIO);
    EXPECT_CONTAINS(message_of<Error>([&] { writer.finish(RunStatus::finished, "", {}); }),
                    "Input/output error");
  }
  EXPECT_EQ(RunReader(writer.dir()).manifest()["status"], "running");
}

// RLIMIT_FSIZE stops a real write(2) where a full disk would.
TEST(RunWriter, RealSizeLimitStopsASidecarWithAnError) {
  TempDir dir;
  RunWriter writer = create(dir.path());
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{256, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message =
      message_of<Error>([&] { writer.write_sidecar(passing_content().steps[0]); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_CONTAINS(message, "File too large");
  EXPECT_TRUE(names_in(writer.dir() / "sidecars").empty());
}

TEST(RunReader, FolderWithoutManifestIsNoRun) {
  TempDir dir;
  EXPECT_CONTAINS(message_of<InputError>([&] { RunReader reader(dir.path()); }),
                  "is not a run directory");
}

TEST(RunReader, TruncatedMetricsLineIsFound) {
  TempDir dir;
  const fs::path run = write_run(dir.path(), passing_content());
  fs::resize_file(run / "metrics.jsonl", fs::file_size(run / "metrics.jsonl") - 5);
  EXPECT_CONTAINS(message_of<InputError>([&] { RunReader(run).metrics(); }), "ends inside a line");
}

TEST(Metrics, SummaryFollowsFromTheSamples) {
  const Trajectory t = passing_content().steps[0];
  const StepMetrics m = summarise(t);
  EXPECT_EQ(m.samples, 6);
  EXPECT_EQ(m.prompt_tokens, 18);
  EXPECT_EQ(m.response_tokens, 2 * (2 + 3 + 4));
  EXPECT_EQ(m.response_len_max, 4);
  EXPECT_DOUBLE_EQ(m.reward_mean, 1.0 / 3);
  EXPECT_DOUBLE_EQ(m.reward_std, std::sqrt(2.0) / 3);
  EXPECT_EQ(m.advantage_min, -0.707);
  EXPECT_EQ(m.mismatch_count, 0);
}

TEST(Metrics, SignedZeroIsAMismatchAndNanIsNeverEqual) {
  Trajectory t = passing_content().steps[0];
  t.samples[0].rollout_logp[0] = 0.0f;
  t.samples[0].train_logp[0] = -0.0f;
  EXPECT_EQ(summarise(t).mismatch_count, 1);
  EXPECT_EQ(summarise(t).mismatch_max_abs, 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  t.samples[1].rollout_logp[1] = t.samples[1].train_logp[1] = nan;
  t.samples[2].rollout_logp[0] -= 1;
  EXPECT_EQ(summarise(t).mismatch_count, 3);
  EXPECT_TRUE(std::isnan(summarise(t).mismatch_max_abs))
      << "a NaN must not be hidden by later values";
  EXPECT_TRUE(Json::parse(to_json(summarise(t)).dump())["mismatch_max_abs"].is_null());
}
