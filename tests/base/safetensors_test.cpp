#include "rlk/base/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "rlk/base/error.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) /
           ("rlk_st_" + std::to_string(getpid()) + "_" +
            testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    file_ = dir_ / "m.safetensors";
  }
  void TearDown() override { fs::remove_all(dir_); }

  void write_raw(const std::string& bytes) { std::ofstream(file_, std::ios::binary) << bytes; }
  // A file with this header text and that many data bytes.
  void write_file(const std::string& header, size_t data_bytes) {
    std::string bytes(8, '\0');
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
    write_raw(bytes + header + std::string(data_bytes, 'x'));
  }
  std::string error_of_open() {
    try {
      SafetensorsFile file(file_);
    } catch (const InputError& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find(file_.string()), 0u) << text;
      return text;
    }
    return "accepted";
  }
  // The header, padded to 8 bytes, is refused with a message that contains `expected`.
  void refuses(std::string header, size_t data_bytes, const std::string& expected) {
    header.append((8 - header.size() % 8) % 8, ' ');
    write_file(header, data_bytes);
    const std::string text = error_of_open();
    EXPECT_NE(text.find(expected), std::string::npos) << "header " << header << "\ngives " << text;
  }
  size_t files_in_folder() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), {}));
  }

  fs::path dir_, file_;
};

TEST_F(Safetensors, RoundTripsNamesShapesBytesAndMetadata) {
  const std::vector<uint8_t> mask = {1, 0, 1};
  const std::vector<float> logp = {-1.5f, 0.f};
  const std::vector<int64_t> ids = {7};
  write_safetensors(file_,
                    {{"mask", DType::u8, {3}, mask.data()},
                     {"logp", DType::f32, {2, 1}, logp.data()},
                     {"ids", DType::i64, {}, ids.data()},
                     {"none", DType::bf16, {0, 4}, nullptr}},
                    {{"format", "pt"}, {"é\"", "\n"}});
  const SafetensorsFile file(file_);
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "ids");  // falling element size
  EXPECT_EQ(file.tensors()[1].name, "logp");
  EXPECT_EQ(file.tensors()[2].name, "none");
  EXPECT_EQ(file.tensors()[3].name, "mask");
  const TensorInfo* t = file.find("logp");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(std::memcmp(file.data(*t), logp.data(), 8), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.data(*t)) % 4, 0u);
  EXPECT_EQ(std::memcmp(file.data(*file.find("mask")), mask.data(), 3), 0);
  EXPECT_EQ(file.find("ids")->elements(), 1);
  EXPECT_EQ(file.find("none")->elements(), 0);
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_EQ(file.metadata(),
            (std::vector<std::pair<std::string, std::string>>{{"format", "pt"}, {"é\"", "\n"}}));
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Safetensors, AcceptsAFileWithoutTensors) {
  write_safetensors(file_, {});
  EXPECT_TRUE(SafetensorsFile(file_).tensors().empty());
}

TEST_F(Safetensors, AcceptsHeadersInAnyOrder) {
  write_file(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
             R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]} })",
             8);
  EXPECT_EQ(SafetensorsFile(file_).tensors()[0].name, "a");
}

TEST_F(Safetensors, RefusesFilesThatAreNoSafetensors) {
  EXPECT_NE(error_of_open().find("No such file"), std::string::npos);
  write_raw("");
  EXPECT_NE(error_of_open().find("too few"), std::string::npos);
  write_raw("1234567");
  EXPECT_NE(error_of_open().find("too few"), std::string::npos);
  write_raw(std::string(8, '\0'));
  EXPECT_NE(error_of_open().find("does not begin with {"), std::string::npos);
  write_raw(std::string(64, '\xff'));
  EXPECT_NE(error_of_open().find("is larger than"), std::string::npos);
  write_file("[]", 0);
  EXPECT_NE(error_of_open().find("does not begin with {"), std::string::npos);
  file_ = dir_;
  EXPECT_NE(error_of_open().find("not a regular file"), std::string::npos);
}

TEST_F(Safetensors, RefusesHeaderLengthsBeyondLimitOrFile) {
  write_raw(std::string("\x10\0\0\0\0\0\0\0{}", 10));
  EXPECT_NE(error_of_open().find("header length 16 is larger than the file of 10 bytes"),
            std::string::npos);
  // 100 MB and one byte, in a (sparse) file that has them.
  write_raw(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10));
  fs::resize_file(file_, 100'000'200);
  EXPECT_NE(error_of_open().find("is larger than 100000000"), std::string::npos);
  // 100 MB of zeros after the brace: read, and refused at its first byte.
  write_raw(std::string("\x00\xe1\xf5\x05\0\0\0\0{", 9));
  fs::resize_file(file_, 100'000'200);
  EXPECT_NE(error_of_open().find("header:1:2: "), std::string::npos) << error_of_open();
}

TEST_F(Safetensors, RefusesBadJsonAndDuplicates) {
  refuses(R"({"a":)", 0, "header:1:");
  refuses(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
          R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1, "duplicate key \"a\"");
  refuses(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
          "duplicate key \"dtype\"");
  refuses("{\"\xff\":1}", 0, "UTF-8");
}

TEST_F(Safetensors, RefusesMalformedEntries) {
  refuses(R"({"a":1})", 0, "tensor a: is not an object");
  refuses(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "tensor a: dtype is missing");
  refuses(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor a: shape is missing");
  refuses(R"({"a":{"dtype":"U8","shape":[1]}})", 1, "tensor a: data_offsets are missing");
  refuses(R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1,
          "dtype F4 is not supported");
  refuses(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "shape has -1");
  refuses(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "shape has 1.0");
  refuses(R"({"a":{"dtype":"U8","shape":"1","data_offsets":[0,1]}})", 1, "shape is not an array");
  refuses(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,-1]}})", 1, "nonnegative");
  refuses(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "not two");
  refuses(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1, "unknown key \"x\"");
  refuses(R"({"__metadata__":{"a":1}})", 0, "__metadata__: value of \"a\" is not a string");
  refuses(R"({"__metadata__":[]})", 0, "__metadata__: is not an object");
}

TEST_F(Safetensors, RefusesWrongOffsets) {
  refuses(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "run backwards");
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 8,
          "hold 4 bytes, shape and dtype need 8");
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7,
          "end beyond the data of 7");
  refuses(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "leave a hole after 0");
  refuses(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
          R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          3, "tensor b: data_offsets 1..3 overlap the data before 2");
  refuses(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3,
          "2 bytes after the last tensor");
}

TEST_F(Safetensors, RefusesOverflow) {
  const std::string big = "9223372036854775807";
  refuses(R"({"a":{"dtype":"F32","shape":[)" + big + R"(],"data_offsets":[0,4]}})", 4, "overflows");
  refuses(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
          "overflows");
  refuses(R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]}})", 0,
          "shape has");
  refuses(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[)" + big + "," + big + "]}}", 1,
          "hold 0 bytes");
  refuses(R"({"a":{"dtype":"U8","shape":[)" + big + R"(],"data_offsets":[0,)" + big + "]}}", 1,
          "end beyond");
}

TEST_F(Safetensors, RefusesMisalignedData) {
  write_file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  EXPECT_NE(error_of_open().find("not aligned to F32"), std::string::npos) << error_of_open();
}

TEST_F(Safetensors, EveryTruncationIsRefused) {
  const std::vector<float> data = {1, 2, 3};
  write_safetensors(file_, {{"a", DType::f32, {3}, data.data()}}, {{"k", "v"}});
  const uintmax_t size = fs::file_size(file_);
  for (uintmax_t n = 0; n < size; ++n) {
    fs::resize_file(file_, n);
    EXPECT_NE(error_of_open(), "accepted") << n << " of " << size << " bytes";
    write_safetensors(file_, {{"a", DType::f32, {3}, data.data()}}, {{"k", "v"}});
  }
}

TEST_F(Safetensors, FailedWriteLeavesNothingBehind) {
  const std::vector<uint8_t> data(1 << 20, 1);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_safetensors(file_, {{"a", DType::u8, {1 << 20}, data.data()}}), Error);
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(files_in_folder(), 0u);
  EXPECT_THROW(write_safetensors(dir_ / "no" / "f", {}), Error);
}

TEST_F(Safetensors, FailedWriteKeepsTheOldFile) {
  write_safetensors(file_, {}, {{"version", "1"}});
  {
    SafetensorsWriter writer(file_, {{"a", DType::u8, {2}, 0, 0}});
    writer.append("x", 1);
  }
  EXPECT_EQ(SafetensorsFile(file_).metadata().at(0).second, "1");
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Safetensors, WriterStreamsAndPatchesMetadata) {
  SafetensorsWriter writer(file_, {{"a", DType::u8, {2}, 0, 0}}, {{"hash", "----"}});
  writer.append("x", 1);
  writer.append("y", 1);
  writer.set_metadata("hash", "abcd");
  writer.commit();
  const SafetensorsFile file(file_);
  EXPECT_EQ(std::memcmp(file.data(*file.find("a")), "xy", 2), 0);
  EXPECT_EQ(file.metadata().at(0).second, "abcd");
}

TEST_F(Safetensors, ReadsTheGoldenFileOfAnotherWriter) {
  // Byte for byte what the reference implementation writes for {"w": float32 [1, 2]}.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}         )";
  ASSERT_EQ(header.size() % 8, 0u) << header.size();
  write_file(header, 8);
  EXPECT_EQ(SafetensorsFile(file_).find("w")->shape, (std::vector<int64_t>{1, 2}));
}

}  // namespace
}  // namespace rlk
