#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <unordered_set>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json_reader.h"
#include "rlk/data/download.h"
#include "rlk/data/export.h"
#include "subprocess.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

constexpr int kNoPyarrow = 3, kNoPython = 127;
constexpr const char* kParquetToLines = R"(import json, sys
try:
    import pyarrow.parquet as parquet
except ImportError:
    sys.exit(3)
try:
    for batch in parquet.ParquetFile(sys.argv[1]).iter_batches():
        for row in batch.to_pylist():
            print(json.dumps(row, default=str))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
)";

// Runs the script above with its output in `lines`.
void parquet_to_lines(const fs::path& in, const std::string& name, const fs::path& lines) {
  const int out = ::open(lines.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out < 0) throw system_error("create " + lines.string());
  const pid_t pid = start_process({"python3", "-c", kParquetToLines, in.string()}, -1, out);
  ::close(out);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == kNoPyarrow || code == kNoPython) {
    throw InputError(name, "Parquet is read through Python's pyarrow, which is not installed",
                     "type: python3 -m pip install pyarrow");
  }
  if (code != 0) throw InputError(name, "pyarrow could not read it (its message is above)");
}

// The label of a row, under one of its usual names; null when there is none.
Json label_of(const Json& row) {
  for (const char* key : {"label", "answer"})
    if (row.contains(key)) return row[key];
  if (row.contains("reward_model") && row["reward_model"].is_object() &&
      row["reward_model"].contains("ground_truth"))
    return row["reward_model"]["ground_truth"];
  return nullptr;
}

std::string converted(const std::string& text, const std::string& file, int64_t* rows) {
  std::string out;
  std::unordered_set<std::string> seen;
  size_t line = 1;
  for (size_t at = 0; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string where = file + ":" + std::to_string(line);
    const Json row = parse_json(std::string_view(text).substr(at, end - at), file, line);
    at = end + 1;
    if (!row.is_object()) throw InputError(where, shown(row), "must be an object");
    const Json label = label_of(row);
    if (!row.contains("prompt") || !(row["prompt"].is_string() || row["prompt"].is_array()))
      throw InputError(where, "has no prompt", "must be a string or an array of chat messages");
    if (!label.is_string() && !label.is_number())
      throw InputError(where, "has no label",
                       "must be a string or number in label, answer or reward_model.ground_truth");
    if (row["prompt"] == "" || row["prompt"] == Json::array())
      throw InputError(where, "the prompt is empty");
    const std::string object = Json{{"prompt", row["prompt"]}, {"label", label}}.dump() + "\n";
    if (!seen.insert(object).second) continue;
    out += object;
    ++*rows;
  }
  if (*rows == 0) throw InputError(file, "has no prompts");
  return out;
}

// A file that is removed with its owner.
struct Temporary {
  const fs::path path;
  ~Temporary() { ::unlink(path.c_str()); }
};

// `name` is what messages call the input.
int64_t convert_named(const fs::path& in, const std::string& name, const fs::path& out) {
  std::string text = read_file(in);
  if (text.starts_with("PAR1")) {
    const Temporary lines{out.string() + ".lines"};
    parquet_to_lines(in, name, lines.path);
    text = read_file(lines.path);
  }
  int64_t rows = 0;
  write_file_atomic(out, converted(text, name, &rows));
  return rows;
}

}  // namespace

int64_t convert_prompts(const fs::path& in, const fs::path& out) {
  check_new_path(out);
  return convert_named(in, in.string(), out);
}

int64_t fetch_prompts(const std::string& url, const fs::path& out, const std::string& sha256) {
  check_new_path(out);
  const fs::path fetched = out.string() + ".source";
  download(url, fetched, sha256);
  const Temporary source{fetched};
  return convert_named(source.path, url, out);
}

}  // namespace rlk
