#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "data/http_server.h"
#include "data/temp_dir.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/sha256.h"
#include "rlk/data/download.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

template <class Kind>
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Kind& error) {
    return error.what();
  }
  return "accepted";
}

// libcurl's file:// stands in for a server.
class Download : public testing::Test {
 protected:
  void SetUp() override {
    text_.assign(300000, 'x');
    text_ += "end\n";
    write_file_atomic(source_, text_);
  }
  TempDir dir_;
  std::string text_;
  const fs::path source_ = dir_ / "source", target_ = dir_ / "target";
  const std::string url_ = "file://" + source_.string();
  const fs::path part_ = partial_download(url_, target_);
};

TEST_F(Download, FetchesAndReturnsTheHash) {
  EXPECT_EQ(download(url_, target_, ""), hex(sha256(text_.data(), text_.size())));
  EXPECT_EQ(read_file(target_), text_);
  EXPECT_FALSE(fs::exists(part_));
}

TEST_F(Download, ContinuesWhereItStopped) {
  std::ofstream(part_) << std::string(1000, 'A');  // kept: only what follows is fetched
  download(url_, target_, "");
  EXPECT_EQ(read_file(target_), std::string(1000, 'A') + text_.substr(1000));
}

TEST_F(Download, StartsAnewWhenThePartIsLongerThanTheFile) {
  std::ofstream(part_) << std::string(400000, 'A');
  download(url_, target_, "");
  EXPECT_EQ(read_file(target_), text_);
}

TEST_F(Download, AWrongHashNeverBecomesTheFile) {
  const std::string sum = hex(sha256(text_.data(), text_.size()));
  std::string wrong = sum;
  wrong[0] ^= 1;
  EXPECT_NE(error_of<Error>([&] { download(url_, target_, wrong); }).find("SHA-256 is " + sum),
            std::string::npos);
  EXPECT_FALSE(fs::exists(target_));
  EXPECT_FALSE(fs::exists(part_));
  download(url_, target_, sum);
  EXPECT_TRUE(fs::exists(target_));
}

TEST_F(Download, AFailureNamesTheUrlAndKeepsThePart) {
  const std::string url = "file:///nonexistent/x";
  std::ofstream(partial_download(url, target_)) << "abc";
  const std::string text = error_of<Error>([&] { download(url, target_, ""); });
  EXPECT_NE(text.find(url), std::string::npos) << text;
  EXPECT_TRUE(fs::exists(partial_download(url, target_)));
}

TEST_F(Download, APartOfAnotherUrlIsNotContinued) {
  const fs::path other = partial_download(url_ + "2", target_);
  std::ofstream(other) << std::string(1000, 'A');
  download(url_, target_, "");
  EXPECT_EQ(read_file(target_), text_);
  EXPECT_EQ(fs::file_size(other), 1000u);
}

// From an HTTP server on the loopback interface, which may refuse ranges and break off.
class HttpDownload : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 5000; ++i)
      server_.body += "{\"prompt\": \"" + std::to_string(i) + "\", \"label\": 1}\n";
    sum_ = hex(sha256(server_.body.data(), server_.body.size()));
  }
  TempDir dir_;
  test::HttpServer server_;
  std::string sum_;
  const fs::path target_ = dir_ / "target", part_ = partial_download(server_.url(), target_);
};

TEST_F(HttpDownload, ATransferThatBreaksOffIsContinued) {
  server_.break_after = 60000;
  const std::string error = error_of<Error>([&] { download(server_.url(), target_, sum_); });
  EXPECT_NE(error.find("the same command continues it"), std::string::npos) << error;
  EXPECT_EQ(fs::file_size(part_), 60000u);
  EXPECT_EQ(download(server_.url(), target_, sum_), sum_);
  EXPECT_EQ(read_file(target_), server_.body);
  EXPECT_EQ(server_.ranges(), (std::vector<std::string>{"", "bytes=60000-"}));
}

TEST_F(HttpDownload, AServerWithoutRangesStartsAnew) {
  server_.takes_ranges = false;
  server_.break_after = 60000;
  EXPECT_NE(error_of<Error>([&] { download(server_.url(), target_, sum_); }), "accepted");
  EXPECT_EQ(download(server_.url(), target_, sum_), sum_);
  EXPECT_EQ(read_file(target_), server_.body);
  EXPECT_EQ(server_.ranges(), (std::vector<std::string>{"", "bytes=60000-", ""}));
}

TEST_F(HttpDownload, TheHashThatTheServerStatesIsChecked) {
  server_.headers = "X-Linked-Etag: \"" + sum_ + "\"\r\n";
  EXPECT_EQ(download(server_.url(), target_, ""), sum_);
  server_.headers = "X-Linked-Etag: \"" + std::string(64, '0') + "\"\r\n";
  const std::string error = error_of<Error>([&] { download(server_.url(), dir_ / "other", ""); });
  EXPECT_NE(error.find("must be " + std::string(64, '0')), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(dir_ / "other") ||
               fs::exists(partial_download(server_.url(), dir_ / "other")));
}

TEST_F(HttpDownload, AFileThatChangedMeanwhileNeverBecomesTheTarget) {
  server_.break_after = 60000;
  EXPECT_NE(error_of<Error>([&] { download(server_.url(), target_, sum_); }), "accepted");
  server_.body[10] ^= 1;
  server_.body[70000] ^= 1;
  EXPECT_NE(error_of<Error>([&] { download(server_.url(), target_, sum_); }), "accepted");
  EXPECT_FALSE(fs::exists(target_) || fs::exists(part_));
}

TEST_F(HttpDownload, AMissingFileIsAnErrorThatLeavesNothing) {
  server_.status = "404 Not Found";
  const std::string error = error_of<Error>([&] { download(server_.url(), target_, ""); });
  EXPECT_NE(error.find("404"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(target_) || fs::exists(part_));
}

TEST_F(HttpDownload, WithoutANetworkAFileOfOnesOwnIsNamed) {
  const std::string error = error_of<Error>([&] { download("http://127.0.0.1:1/x", target_, ""); });
  EXPECT_NE(error.find("rlk prepare --convert"), std::string::npos) << error;
}

TEST_F(HttpDownload, WhatWasFetchedIsConverted) {
  server_.body += "{\"prompt\": \"0\", \"label\": 1}\n";
  EXPECT_EQ(fetch_prompts(server_.url(), target_, ""), 5000);
  EXPECT_TRUE(read_file(target_).starts_with("{\"prompt\":\"0\",\"label\":1}\n"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(HttpDownload, WhatCannotBeConvertedIsNamedAndNotKept) {
  server_.body += "{\"prompt\": \"0\"}\n";
  const std::string error =
      error_of<InputError>([&] { fetch_prompts(server_.url(), target_, ""); });
  EXPECT_EQ(error.find(server_.url() + ":5001: has no label"), 0u) << error;
  EXPECT_TRUE(fs::is_empty(dir_.path()));
}

class Convert : public testing::Test {
 protected:
  std::string converted(const std::string& lines) {
    write_file_atomic(dir_ / "in", lines);
    fs::remove(dir_ / "out");
    rows_ = convert_prompts(dir_ / "in", dir_ / "out");
    return read_file(dir_ / "out");
  }
  TempDir dir_;
  int64_t rows_ = 0;
};

TEST_F(Convert, TakesTheUsualKeysAndDropsRepeatedRows) {
  EXPECT_EQ(
      converted(
          R"({"prompt": "a", "label": "1", "x": 2})"
          "\n"
          R"({"prompt": [{"role": "user", "content": "b"}], "reward_model": {"ground_truth": "2"}})"
          "\n"
          R"({"answer": 3, "prompt": "c"})"
          "\n"
          R"({"prompt": "a", "label": "1"})"
          "\n"),
      R"({"prompt":"a","label":"1"})"
      "\n"
      R"({"prompt":[{"role":"user","content":"b"}],"label":"2"})"
      "\n"
      R"({"prompt":"c","label":3})"
      "\n");
  EXPECT_EQ(rows_, 3);
}

TEST_F(Convert, ErrorsNameFileAndLine) {
  const std::string in = (dir_ / "in").string();
  const auto error = [&](const std::string& line) {
    return error_of<InputError>([&] { converted("{\"prompt\":\"p\",\"label\":\"l\"}\n" + line); });
  };
  EXPECT_EQ(error("{\"prompt\":").find(in + ":2:11: "), 0u) << error("{\"prompt\":");
  EXPECT_EQ(error("{\"label\":\"l\"}").find(in + ":2: has no prompt"), 0u);
  EXPECT_EQ(error("{\"prompt\":\"p\"}").find(in + ":2: has no label"), 0u);
  EXPECT_EQ(error("[]").find(in + ":2: "), 0u);
  for (const char* empty : {"\"\"", "[]"})
    EXPECT_EQ(error(std::string("{\"label\":1,\"prompt\":") + empty + "}"),
              in + ":2: the prompt is empty");
  EXPECT_NE(error_of<InputError>([&] { converted(""); }), "accepted");
}

// Stand-ins for python3 on PATH: one without pyarrow, one that converts, one that fails.
TEST_F(Convert, ParquetGoesThroughPyarrowWhereItIs) {
  const std::string path = std::getenv("PATH");
  const auto with_python = [&](const std::string& script) {
    std::ofstream(dir_ / "python3") << "#!/bin/sh\n" << script << "\n";
    fs::permissions(dir_ / "python3", fs::perms::owner_all);
    setenv("PATH", (dir_.path().string() + ":" + path).c_str(), 1);
    const std::string text = error_of<InputError>([&] { converted("PAR1...PAR1"); });
    setenv("PATH", path.c_str(), 1);
    return text;
  };
  EXPECT_NE(with_python("exit 3").find("pip install pyarrow"), std::string::npos);
  EXPECT_NE(with_python("exit 1").find("could not read it"), std::string::npos);
  EXPECT_EQ(with_python("echo '{\"prompt\": \"p\", \"label\": \"l\"}'"), "accepted");
  EXPECT_EQ(read_file(dir_ / "out"), "{\"prompt\":\"p\",\"label\":\"l\"}\n");
  EXPECT_FALSE(fs::exists(dir_ / "out.lines"));
}

}  // namespace
}  // namespace rlk
