// The status protocol and what is shown of it.

#include "rlk/launch/status.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "rlk/base/error.h"
#include "rlk/launch/launch.h"
#include "rlk/launch/progress.h"

namespace rlk {
namespace {

using Type = StatusMessage::Type;

TEST(Status, EveryMessageComesBackAsItWasSent) {
  const Progress p{"rollout", 3, 60, 0.25, 812.5, 200.5, "reward 0.42"};
  for (Type type : {Type::ready, Type::phase, Type::progress, Type::failed, Type::done}) {
    StatusMessage sent{type, {}, "", false};
    if (type == Type::progress) sent.progress = p;
    if (type == Type::phase || type == Type::failed)
      sent.progress.phase = "train", sent.progress.step = 7;
    if (type == Type::failed) sent.message = "two\nlines \"quoted\"", sent.secondary = true;
    const std::string line = to_line(sent);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    const auto got = parse_status(line);
    ASSERT_TRUE(got) << line;
    EXPECT_EQ(to_line(*got), line);
    EXPECT_EQ(got->message, sent.message);
    EXPECT_EQ(got->progress.note, sent.progress.note);
    EXPECT_EQ(got->progress.eta_s, sent.progress.eta_s);
  }
}

TEST(Status, InvalidUtf8InAMessageIsReplaced) {
  const auto got =
      parse_status(to_line({Type::failed, {"load", 0, 0, 0, 0, -1, ""}, "bad \xff byte", false}));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->message, "bad \xef\xbf\xbd byte");
}

TEST(Status, OtherTextIsNoMessage) {
  for (const char* line :
       {"", "x", "{}", "[]", "3", R"({"type":"stop"})", R"({"type":3})", R"({"type":"phase"})",
        R"({"type":"phase","phase":"a","step":"b"})", R"({"type":"ready")"})
    EXPECT_FALSE(parse_status(line)) << line;
}

TEST(Status, WriterWithoutLauncherThrows) {
  signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  StatusWriter writer(ends[1]);
  EXPECT_THROW(writer.ready(), Error);
  writer.failed("not thrown", false);
  close(ends[1]);
}

TEST(Progress, TextSaysStepPhaseSpeedAndTimeLeft) {
  EXPECT_EQ(progress_text({"rollout", 3, 60, 0.25, 812.4, 200.5, "reward 0.42"}),
            "step 4/60 rollout 25% 812 tok/s reward 0.42, 3m21s left");
  EXPECT_EQ(progress_text({"load", 0, 0, 0, 0, -1, ""}), "step 1 load");
  EXPECT_EQ(progress_text({"load", 0, 2, 0, 0, 7322, ""}), "step 1/2 load, 2h02m left");
}

std::string shown(bool terminal, const std::vector<StatusMessage>& messages) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  ProgressPrinter printer(out, terminal);
  for (const auto& m : messages) printer.show(m);
  printer.finish();
  std::fclose(out);
  std::string all(text, size);
  free(text);
  return all;
}

TEST(Progress, RewritesOneLineOnATerminalAndPrintsOnePerStepElsewhere) {
  const std::vector<StatusMessage> messages = {
      {Type::ready, {}, "", false},
      {Type::phase, {"rollout", 0, 0, 0, 0, -1, ""}, "", false},
      {Type::progress, {"rollout", 0, 2, 0.5, 10, -1, ""}, "", false},
      {Type::phase, {"train", 0, 0, 0, 0, -1, ""}, "", false},
      {Type::phase, {"rollout", 1, 0, 0, 0, -1, ""}, "", false},
      {Type::done, {}, "", false}};
  EXPECT_EQ(shown(true, messages),
            "\rstep 1 rollout\x1b[K\rstep 1/2 rollout 50% 10 tok/s\x1b[K\rstep 1/2 train 10 "
            "tok/s\x1b[K\rstep 2/2 rollout "
            "10 tok/s\x1b[K\n");
  EXPECT_EQ(shown(false, messages), "step 1 rollout\nstep 2/2 rollout 10 tok/s\n");
}

TEST(Launch, WorkerArgumentsAreInOrder) {
  LaunchConfig config;
  config.args = {"worker", "--plan", "/r/plan.json"};
  config.limits.collective = std::chrono::milliseconds(1500);
  EXPECT_EQ(
      worker_argv(config, 5),
      (std::vector<std::string>{"rlk", "worker", "--plan", "/r/plan.json", "--rank", "5",
                                "--world-fd", "3", "--status-fd", "4", "--timeout-ms", "1500"}));
}

}  // namespace
}  // namespace rlk
