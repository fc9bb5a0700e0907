// Whole-file helpers and SHA-256: what they promise when the disk or the caller misbehaves.
#include "rlk/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "rlk/base/error.h"
#include "rlk/base/sha256.h"
#include "temp_dir.h"

namespace fs = std::filesystem;
using namespace rlk;
using rlk::test::TempDir;

namespace {

size_t entries(const fs::path& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), {}));
}

}  // namespace

TEST(File, AtomicWriteReplacesAndReadsBack) {
  TempDir dir;
  const fs::path path = dir.path() / "x.json";
  write_file_atomic(path, "one");
  write_file_atomic(path, std::string("t\0o", 3));
  EXPECT_EQ(read_file(path), std::string("t\0o", 3));
  EXPECT_EQ(entries(dir.path()), 1u) << "a temporary was left behind";
}

TEST(File, WhatMemoryCouldNotHoldIsRefusedByName) {
  TempDir dir;
  const fs::path path = dir.path() / "huge.json";
  write_file_atomic(path, "{}");
  fs::resize_file(path, (uintmax_t{4} << 30) + 1);
  try {
    read_file(path);
    FAIL() << "4 GiB were read";
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()),
              path.string() + ": 4294967297 bytes; must be at most 4294967296");
  }
}

TEST(File, FailedAtomicWriteLeavesTheTargetAndNoTemporary) {
  TempDir dir;
  const fs::path path = dir.path() / "x";
  fs::create_directory(path);  // rename of a file over a folder fails
  EXPECT_THROW(write_file_atomic(path, "text"), Error);
  EXPECT_TRUE(fs::is_directory(path));
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(File, FullDiskIsAnErrorThatNamesTheFile) {
  try {
    append_file("/dev/full", "text");
    FAIL() << "a full disk passed for success";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("/dev/full: No space left"), std::string::npos)
        << e.what();
  }
}

TEST(File, AppendAddsToTheEnd) {
  TempDir dir;
  append_file(dir.path() / "log", "a\n");
  append_file(dir.path() / "log", "b\n", true);
  EXPECT_EQ(read_file(dir.path() / "log"), "a\nb\n");
}

TEST(File, UnreadableInputsAreInputErrors) {
  TempDir dir;
  EXPECT_THROW(read_file(dir.path() / "missing"), InputError);
  EXPECT_THROW(read_file(dir.path()), InputError);
  const fs::path pipe = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(read_file(pipe), InputError);  // and does not hang
}

TEST(File, ALinkToNowhereIsThereAndWhatTheSystemDoesNotSayIsAnInputError) {
  TempDir dir;
  fs::create_symlink("nowhere", dir.path() / "link");
  EXPECT_TRUE(is_there(dir.path() / "link"));
  EXPECT_TRUE(is_there(dir.path()));
  EXPECT_FALSE(is_there(dir.path() / "missing"));
  EXPECT_FALSE(is_there(dir.path() / "missing/file"));
  EXPECT_THROW(is_there(dir.path() / std::string(300, 'x')), InputError);
}

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(hex(sha256("", 0)), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc", 3)),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesAndFilesAgreeWithOneShot) {
  TempDir dir;
  const std::string text(3'000'001, 'q');
  Sha256 hash;
  hash.update(text.data(), 7);
  hash.update(text.data() + 7, text.size() - 7);
  const Digest whole = sha256(text.data(), text.size());
  EXPECT_EQ(hash.finish(), whole);
  std::ofstream(dir.path() / "f", std::ios::binary) << text;
  EXPECT_EQ(sha256_file(dir.path() / "f"), whole);
  EXPECT_THROW(sha256_file(dir.path() / "missing"), Error);
}
