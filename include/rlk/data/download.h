#pragma once
// Fetching and converting prompt data for `rlk prepare`. One thread.

#include <cstdint>
#include <filesystem>
#include <string>

namespace rlk {

// Where DAPO-Math-17k is published as JSON lines with the keys prompt and label.
inline constexpr const char* kDapoMathUrl =
    "https://huggingface.co/datasets/zhuzilin/dapo-math-17k/resolve/main/dapo-math-17k.jsonl";

// What an interrupted download of `url` to `path` leaves: a name for each URL, so that nothing is
// continued with something else.
std::filesystem::path partial_download(const std::string& url, const std::filesystem::path& path);

// Fetches `url` to `path` by way of its partial_download, which the next one continues. The SHA-256
// (64 hex digits) is compared before the file appears; when `sha256` is empty, with the one that
// Hugging Face states in its answer, if it does. Returns the file's SHA-256. Throws Error, after
// removing a file whose hash is wrong.
std::string download(const std::string& url, const std::filesystem::path& path,
                     const std::string& sha256);

// JSON lines, or Parquet by way of Python's pyarrow, to JSON lines {"prompt", "label"}: the label
// is taken from "label", "answer" or "reward_model.ground_truth"; rows that repeat an earlier one
// are dropped. Returns the rows written. InputError names file and line, or says how to install
// pyarrow.
int64_t convert_prompts(const std::filesystem::path& in, const std::filesystem::path& out);

// Downloads to out.source, converts that to `out`, and removes it, also when it cannot be
// converted; InputError then names line of `url`. `sha256` is the source's. Returns the rows.
int64_t fetch_prompts(const std::string& url, const std::filesystem::path& out,
                      const std::string& sha256);

}  // namespace rlk
