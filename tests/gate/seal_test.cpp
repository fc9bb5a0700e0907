// The seal: only a run that passed gets one, and no later change of any file goes unnoticed.
#include "rlk/gate/seal.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <functional>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
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

fs::path sealed_run(const TempDir& dir) {
  const fs::path run = write_run(dir.path(), passing_content());
  EXPECT_TRUE(validate_command(run, true).sealed);
  return run;
}

}  // namespace

TEST(Seal, PassedRunIsSealedAndStaysIntact) {
  TempDir dir;
  const fs::path run = sealed_run(dir);
  const ValidateReport again = validate_command(run, false);
  EXPECT_TRUE(again.passed()) << to_text(again.validation);
  EXPECT_TRUE(again.sealed);
  EXPECT_TRUE(validate_command(run, true).passed()) << "sealing twice is no error";
  EXPECT_THROW(seal_run(run, again.validation), InputError);
  const Json validation = Json::parse(read_file(run / "run-validation.json"));
  EXPECT_EQ(validation["passed"], true);
  const std::string command = "cd " + run.string() + " && sha256sum --quiet -c COMPLETE";
  EXPECT_EQ(std::system(command.c_str()), 0) << "the seal is not what sha256sum reads";
}

TEST(Seal, FailedRunIsRecordedButNotSealed) {
  TempDir dir;
  RunContent content = passing_content();
  content.exits[0].signal = 9;
  const fs::path run = write_run(dir.path(), content);
  const ValidateReport report = validate_command(run, true);
  EXPECT_FALSE(report.passed());
  EXPECT_FALSE(report.sealed);
  EXPECT_FALSE(fs::exists(run / "COMPLETE"));
  EXPECT_EQ(Json::parse(read_file(run / "run-validation.json"))["passed"], false);
}

TEST(Seal, ValidationWithoutSealWritesNothing) {
  TempDir dir;
  const fs::path run = write_run(dir.path(), passing_content());
  const ValidateReport report = validate_command(run, false);
  EXPECT_TRUE(report.passed());
  EXPECT_FALSE(report.sealed);
  EXPECT_FALSE(fs::exists(run / "run-validation.json"));
}

struct Change {
  const char* name;
  std::function<void(const fs::path&)> change;
  const char* defect;
};

class ChangedAfterTheSeal : public testing::TestWithParam<Change> {};

TEST_P(ChangedAfterTheSeal, IsFound) {
  TempDir dir;
  const fs::path run = sealed_run(dir);
  GetParam().change(run);
  const ValidateReport report = validate_command(run, false);
  EXPECT_FALSE(report.passed());
  std::string all;
  for (const std::string& defect : report.seal_defects) all += defect + "\n";
  EXPECT_NE(all.find(GetParam().defect), std::string::npos) << all;
}

void flip_a_byte(const fs::path& path, size_t from_end) {
  std::string text = read_file(path);
  text[text.size() - from_end] ^= 1;
  write_file_atomic(path, text);
}

const Change kChanges[] = {
    {"EditedManifest", [](const fs::path& run) { flip_a_byte(run / "manifest.json", 40); },
     "manifest.json was changed after the seal"},
    {"EditedValidation",
     [](const fs::path& run) { append_file(run / "run-validation.json", "\n"); },
     "run-validation.json was changed after the seal"},
    {"TruncatedSidecar",
     [](const fs::path& run) { fs::resize_file(run / "sidecars/step-000000.safetensors", 64); },
     "sidecars/step-000000.safetensors was changed after the seal"},
    {"FlippedLogprobBit",
     [](const fs::path& run) { flip_a_byte(run / "sidecars/step-000001.safetensors", 8); },
     "sidecars/step-000001.safetensors was changed after the seal"},
    {"ExtraFile", [](const fs::path& run) { append_file(run / "notes.txt", "x"); },
     "notes.txt was added after the seal"},
    {"MissingFile", [](const fs::path& run) { fs::remove(run / "plan.json"); },
     "plan.json is missing"},
    {"EmptySeal", [](const fs::path& run) { write_file_atomic(run / "COMPLETE", ""); },
     "COMPLETE ends inside a line"},
    {"MalformedSealLine", [](const fs::path& run) { append_file(run / "COMPLETE", "hello\n"); },
     "COMPLETE has the line \"hello\""},
    {"RepeatedSealLine",
     [](const fs::path& run) {
       const std::string text = read_file(run / "COMPLETE");
       append_file(run / "COMPLETE", text.substr(0, text.find('\n') + 1));
     },
     "COMPLETE has the line"},
    {"SealLineForAFileThatNeverWas",
     [](const fs::path& run) { append_file(run / "COMPLETE", std::string(64, 'a') + "  ghost\n"); },
     "ghost is missing"},
};
INSTANTIATE_TEST_SUITE_P(Changes, ChangedAfterTheSeal, testing::ValuesIn(kChanges),
                         [](const auto& test) { return std::string(test.param.name); });

// Whatever fails while sealing, the run is either sealed whole or not at all.
TEST(Seal, EveryFailingSystemCallLeavesTheRunUnsealed) {
  TempDir dir;
  const fs::path run = write_run(dir.path(), passing_content());
  const Validation validation = validate_run(run);
  int injected = 0;
  for (const Call call : {Call::write, Call::fsync, Call::rename}) {
    for (int nth = 0; nth < 2;
         ++nth) {  // the validation's file, then the seal's (fsync: file, folder)
      IoFault fault(call, nth, ENOSPC);
      EXPECT_THROW(seal_run(run, validation), Error);
      EXPECT_FALSE(is_sealed(run)) << static_cast<int>(call) << " " << nth;
      injected += fault.calls() > nth;
    }
  }
  EXPECT_EQ(injected, 6);
  seal_run(run, validation);
  EXPECT_TRUE(validate_command(run, false).passed()) << "the failed attempts left something behind";
}
