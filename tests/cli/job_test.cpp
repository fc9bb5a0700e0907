// Whole jobs through the real binary: eight ranks, the bundled model, gates, seal.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "cli/run_rlk.h"
#include "rlk/base/json.h"

namespace {

using namespace rlk;
using test::Call;
using test::Finished;
using test::run_rlk;
using test::TempDir;
namespace fs = std::filesystem;

class Job : public ::testing::Test {
 protected:
  // A short verify; `more` comes last and so wins.
  Finished verify(const std::string& id, std::vector<std::string> more = {}) {
    Call call{{"verify", "--output-root", runs_.path().string(), "--run-id", id, "--steps", "1",
               "--allow-dirty", "--rollout-batch-size", "2", "--max-response-len", "16"}};
    call.args.insert(call.args.end(), more.begin(), more.end());
    return run_rlk(call);
  }
  std::string dir(const std::string& id) const { return (runs_.path() / id).string(); }
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

TEST_F(Job, NativeModeMeasuresAMismatch) {
  const Finished f = verify("n", {"--mode", "native", "--rollout-tp", "1", "--format", "json"});
  ASSERT_EQ(f.code, 0) << f.out << f.err;
  const Json outcome = Json::parse(f.out);
  EXPECT_TRUE(outcome["sealed"]);
  std::ifstream metrics(dir("n") + "/metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(metrics, line));
  EXPECT_GT(Json::parse(line)["mismatch_count"].get<int64_t>(), 0) << line;
}

TEST_F(Job, AFailedGateIsExitThreeAndNoSeal) {
  const Finished f = verify("z", {"--lr", "0"});
  EXPECT_EQ(f.code, 3) << f.out << f.err;
  EXPECT_NE(f.out.find("fail  learning_rate"), std::string::npos) << f.out;
  EXPECT_FALSE(sealed("z"));
}

TEST_F(Job, AnInterruptedJobExitsWith130AndIsNotSealed) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, 1);
    ::dup2(null, 2);
    const std::string root = runs_.path().string();
    ::execl(RLK_BINARY, RLK_BINARY, "run", "--output-root", root.c_str(), "--run-id", "i",
            "--steps", "1000", "--rollout-batch-size", "2", "--max-response-len", "16",
            static_cast<char*>(nullptr));
    ::_exit(126);
  }
  // Interrupt it in the middle: when the first step's metrics are there.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!fs::exists(dir("i") + "/metrics.jsonl") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(child, SIGINT);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_FALSE(sealed("i"));
  EXPECT_EQ(Json::parse(read_file(dir("i") + "/manifest.json"))["status"], "interrupted");
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
