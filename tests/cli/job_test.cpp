// Whole jobs through the real binary: eight ranks, the bundled model, gates, seal.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>

#include <chrono>
#include <fstream>
#include <map>
#include <regex>
#include <thread>

#include "cli/processes.h"
#include "cli/run_rlk.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"

namespace {

using namespace rlk;
using test::Call;
using test::Finished;
using test::run_rlk;
using test::TempDir;
namespace fs = std::filesystem;

// `rlk run` in the background, with more steps than it will be let finish.
class LongRun {
 public:
  LongRun(const fs::path& root, const std::string& id) : dir_(root / id), output_(root / "output") {
    pid_ = ::fork();
    if (pid_ != 0) return;
    const int out = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execl(RLK_BINARY, RLK_BINARY, "run", "--output-root", root.c_str(), "--run-id", id.c_str(),
            "--steps", "1000", "--rollout-batch-size", "2", "--max-response-len", "16",
            static_cast<char*>(nullptr));
    ::_exit(126);
  }
  ~LongRun() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
  }
  LongRun(const LongRun&) = delete;
  LongRun& operator=(const LongRun&) = delete;

  pid_t pid() const { return pid_; }
  std::string output() const { return read_file(output_.string()); }

  void wait_for_the_first_step() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!fs::exists(dir_ / "metrics.jsonl") && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_TRUE(fs::exists(dir_ / "metrics.jsonl")) << output();
  }

  // Process of every rank.
  std::map<int, pid_t> ranks() const {
    std::map<int, pid_t> found;
    for (const pid_t child : test::children_of(pid_)) {
      const std::string words = test::text_of("/proc/" + std::to_string(child) + "/cmdline");
      const std::string option("--rank\0", 7);
      const size_t at = words.find(option);
      if (at != words.npos) found[std::atoi(words.c_str() + at + option.size())] = child;
    }
    return found;
  }

  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  fs::path dir_, output_;
  pid_t pid_;
};

class Job : public ::testing::Test {
 protected:
  // A short verify, of enough prompts that some samples differ in reward; `more` comes last and so
  // wins.
  Finished verify(const std::string& id, std::vector<std::string> more = {}) {
    Call call{{"verify", "--output-root", runs_.path().string(), "--run-id", id, "--steps", "1",
               "--allow-dirty", "--rollout-batch-size", "6", "--max-response-len", "16"}};
    call.args.insert(call.args.end(), more.begin(), more.end());
    return run_rlk(call);
  }
  std::string dir(const std::string& id) const { return (runs_.path() / id).string(); }
  // Children of this process that are still there: a job's ranks, once it has ended.
  static int orphans() {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return static_cast<int>(test::children_of(::getpid()).size());
  }
  void SetUp() override { ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }
  bool sealed(const std::string& id) const { return fs::exists(runs_.path() / id / "COMPLETE"); }
  TempDir runs_;
};

}  // namespace

TEST_F(Job, VerifyPassesAndTheSealHoldsUntilAFileChanges) {
  const Finished f = verify("a");
  ASSERT_EQ(f.code, 0) << f.out << f.err;
  EXPECT_NE(f.out.find("passed and is sealed"), std::string::npos) << f.out;
  EXPECT_EQ(run_rlk({{"validate", "--run-dir", dir("a")}}).code, 0);
  std::ofstream(dir("a") + "/metrics.jsonl", std::ios::app) << "\n";
  const Finished again = run_rlk({{"validate", "--run-dir", dir("a")}});
  EXPECT_EQ(again.code, 3);
  EXPECT_NE(again.out.find("metrics.jsonl"), std::string::npos) << again.out;
}

TEST_F(Job, LayoutsAgreeAndSeedsDiffer) {
  ASSERT_EQ(verify("a", {"--tp", "8", "--rollout-tp", "1", "--rollout-cp", "4"}).code, 0);
  ASSERT_EQ(verify("b", {"--tp", "2", "--rollout-tp", "8", "--max-tokens-per-gpu", "64"}).code, 0);
  ASSERT_EQ(verify("c", {"--rollout-seed", "7"}).code, 0);
  const Finished same = run_rlk({{"compare", dir("a"), dir("b")}});
  EXPECT_EQ(same.code, 0) << same.out;
  const Finished other = run_rlk({{"compare", dir("a"), dir("c")}});
  EXPECT_EQ(other.code, 3) << other.out;
}

// A model without files runs as any other; prepared on disk it is the same one, tensor by tensor.
TEST_F(Job, ASyntheticModelRunsAndIsTheOneThatPrepareWrites) {
  const std::string shape = RLK_SOURCE_DIR "/profiles/tiny/config.json",
                    profile = (runs_.path() / "synthetic.json").string(),
                    model = (runs_.path() / "model").string();
  const Json json = {
      {"schema_version", "rlk.profile.v1"},
      {"name", "synthetic"},
      {"requirements", {{"backend", "cpu"}, {"ranks", 8}}},
      {"model", {{"source", "synthetic"}, {"shape", shape}, {"seed", 5}, {"prompt_tokens", 9}}},
      {"paths", {{"output_root", runs_.path().string()}}},
      {"task", {{"reward", "synthetic-hash"}}}};
  std::ofstream(profile) << json.dump();
  for (const auto& [id, tp, rollout] : {std::tuple("a", "1", "8"), {"b", "8", "2"}}) {
    const Finished f = verify(
        id, {"--profile", profile, "--tp", tp, "--rollout-tp", rollout, "--save-interval", "1"});
    ASSERT_EQ(f.code, 0) << f.out << f.err;
  }
  const Finished same = run_rlk({{"compare", dir("a"), dir("b")}});
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_TRUE(fs::exists(dir("a") + "/checkpoints/version-000001/config.json"));

  const Finished prepared = run_rlk({{"prepare", "--synthetic", shape, "--seed", "5", "--out",
                                      model, "--tokenizer-dir", RLK_SOURCE_DIR "/profiles/tiny"}});
  ASSERT_EQ(prepared.code, 0) << prepared.err;
  ASSERT_NE(verify("d", {"--model-root", model}).code, 2);  // its samples all have reward 0
  const auto fingerprints = [&](const std::string& id) {
    return Json::parse(read_file(dir(id) + "/weights/version-000000.json"))["tensors"];
  };
  EXPECT_EQ(fingerprints("a"), fingerprints("d"));
}

TEST_F(Job, NativeModeMeasuresAMismatch) {
  const Finished f = verify("n", {"--mode", "native", "--rollout-tp", "1", "--format", "json"});
  ASSERT_EQ(f.code, 0) << f.out << f.err;
  const Json outcome = Json::parse(f.out);
  EXPECT_TRUE(outcome["sealed"]);
  for (const Json& gate : outcome["validation"]["gates"]) {
    EXPECT_EQ(gate["verdict"], gate["name"] == "graphs" ? "not_applicable" : "pass") << gate;
  }
  std::ifstream metrics(dir("n") + "/metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(metrics, line));
  EXPECT_GT(Json::parse(line)["mismatch_count"].get<int64_t>(), 0) << line;
}

TEST_F(Job, EveryModuleGroupPasses) {
  for (int group = 0; group < 8; ++group) {
    const std::string name = std::string("M") + (group & 4 ? "1" : "0") + (group & 2 ? "1" : "0") +
                             (group & 1 ? "1" : "0");
    const Finished f = verify(name, {"--group", name, "--tp", "2", "--rollout-tp", "1"});
    EXPECT_EQ(f.code, 0) << name << f.out << f.err;
    const Json record = Json::parse(read_file(dir(name) + "/evidence/rank-3.json"));
    const std::pair<const char*, bool> strict[] = {{"attention.gemm", (group & 4) != 0},
                                                   {"ffn.gemm", (group & 2) != 0},
                                                   {"ffn.gemm_swiglu", (group & 2) != 0},
                                                   {"logp.gemm", (group & 1) != 0},
                                                   {"attention.attention", (group & 4) != 0},
                                                   {"logp.logprob_stats", (group & 1) != 0},
                                                   {"run.sha256_pieces", true}};
    for (const auto& [op, is_strict] : strict) {
      EXPECT_EQ(record["ops"][op]["strict"], is_strict) << name << " " << op;
      EXPECT_EQ(record["ops"][op]["implementation"], is_strict ? "cpu" : "cpu.native") << name;
    }
  }
}

TEST_F(Job, AFailedGateIsExitThreeAndNoSeal) {
  const Finished f = verify("z", {"--lr", "0"});
  EXPECT_EQ(f.code, 3) << f.out << f.err;
  EXPECT_NE(f.out.find("fail  learning_rate"), std::string::npos) << f.out;
  EXPECT_FALSE(sealed("z"));
}

TEST_F(Job, AnInterruptedJobExitsWith130AndLeavesNoProcess) {
  LongRun run(runs_.path(), "i");
  run.wait_for_the_first_step();
  EXPECT_EQ(run.ranks().size(), 8u);
  ::kill(run.pid(), SIGINT);
  const int status = run.wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_EQ(orphans(), 0);
  EXPECT_FALSE(sealed("i"));
  EXPECT_EQ(Json::parse(read_file(dir("i") + "/manifest.json"))["status"], "interrupted");
}

TEST_F(Job, AKilledRankFailsTheRunByNameAndPhase) {
  LongRun run(runs_.path(), "k");
  run.wait_for_the_first_step();
  ::kill(run.ranks().at(5), SIGKILL);
  const int status = run.wait();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(orphans(), 0);
  const std::regex named(
      "run FAILED: rank 5 failed in (rollout|score|train|audit) of step \\d+: killed by SIGKILL");
  EXPECT_TRUE(std::regex_search(run.output(), named)) << run.output();
  EXPECT_FALSE(sealed("k"));
  const Finished gates = run_rlk({{"validate", "--run-dir", dir("k")}});
  EXPECT_EQ(gates.code, 3);
  EXPECT_NE(gates.out.find("fail  ranks"), std::string::npos) << gates.out;
}

TEST_F(Job, AKilledLauncherLeavesNoProcessAndNoSeal) {
  LongRun run(runs_.path(), "l");
  run.wait_for_the_first_step();
  ::kill(run.pid(), SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(run.wait()));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (orphans() != 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(orphans(), 0);
  EXPECT_EQ(run_rlk({{"validate", "--run-dir", dir("l"), "--seal"}}).code, 3);
  EXPECT_FALSE(sealed("l"));
}

TEST_F(Job, ARunIdIsNeverUsedTwice) {
  ASSERT_EQ(verify("once").code, 0);
  const std::string seal = read_file(dir("once") + "/COMPLETE");
  const Finished again = verify("once");
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.err.find("a run id is never reused"), std::string::npos) << again.err;
  EXPECT_EQ(read_file(dir("once") + "/COMPLETE"), seal);
  EXPECT_EQ(run_rlk({{"validate", "--run-dir", dir("once")}}).code, 0);
}

TEST_F(Job, AnEditedManifestIsFoundByValidate) {
  ASSERT_EQ(verify("m").code, 0);
  const std::string path = dir("m") + "/manifest.json";
  std::string text = read_file(path);
  const size_t at = text.find("\"seed\": 1234");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 12, "\"seed\": 1235");
  std::ofstream(path) << text;
  const Finished f = run_rlk({{"validate", "--run-dir", dir("m")}});
  EXPECT_EQ(f.code, 3);
  EXPECT_NE(f.out.find("fail  manifest"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("seal: manifest.json"), std::string::npos) << f.out;
}

TEST_F(Job, DebugFindsEveryOpOfTwoLayoutsEqual) {
  ASSERT_EQ(verify("a", {"--trace-ops", "--tp", "8", "--rollout-tp", "1"}).code, 0);
  ASSERT_EQ(
      verify("b", {"--trace-ops", "--tp", "2", "--rollout-tp", "4", "--rollout-cp", "2"}).code, 0);
  const Finished f = run_rlk({{"debug", dir("a"), dir("b")}});
  EXPECT_EQ(f.code, 0) << f.out << f.err;
  EXPECT_EQ(f.out.find("equal: "), 0u) << f.out;
}

TEST_F(Job, ADetachedJobGoesOnAlone) {
  const Finished f = verify("d", {"--detach"});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.out, dir("d") + "\n");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!sealed("d") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(sealed("d"));
}

TEST_F(Job, ADryRunLeavesNothing) {
  const Finished f = verify("dry", {"--dry-run"});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("layout: 8 ranks"), std::string::npos);
  EXPECT_FALSE(fs::exists(dir("dry")));
}
