// prepare: puts a run's assets in place.

#include <fmt/format.h>

#include "arguments.h"
#include "rlk/base/sha256.h"
#include "rlk/base/text.h"
#include "rlk/data/download.h"
#include "rlk/data/synthetic.h"

namespace rlk {
namespace {

struct Request {
  bool download = false;
  std::string url, sha256, convert, synthetic, tokenizer_dir, out, seed;
};

void add_options(CommandLine& line, Request& r) {
  line.flag("--download-data", r.download,
            "fetch and convert DAPO-Math-17k; an interrupted download continues");
  line.option("--url", r.url, "with --download-data: another source", "URL");
  line.option("--sha256", r.sha256,
              "with --download-data: what the downloaded file's SHA-256 must be", "HEX");
  line.option("--convert", r.convert, "the same from a file that is here: JSON lines or Parquet",
              "FILE");
  line.option("--synthetic", r.synthetic,
              "a model of random weights: qwen3-0.6b ... qwen3-32b, or a config.json", "SHAPE");
  line.option("--tokenizer-dir", r.tokenizer_dir, "with --synthetic: copy the tokenizer from here",
              "DIR");
  line.option("--seed", r.seed, "with --synthetic (0)", "N");
  line.option("--out", r.out, "what is written", "FILE|DIR");
}

// An option of another thing than the one that is done would be believed to have worked.
void check_options(const Request& r, std::vector<Diagnostic>& defects) {
  const int asked = int{r.download} + !r.convert.empty() + !r.synthetic.empty();
  if (asked != 1)
    defects.push_back({"command line", "nothing to do, or more than one thing",
                       "give one of --download-data, --convert and --synthetic; rlk doctor says "
                       "what is missing"});
  const auto only_with = [&](const char* option, const std::string& value, const char* what,
                             bool done) {
    if (!value.empty() && !done)
      defects.push_back({option, "means nothing without " + std::string(what), ""});
  };
  only_with("--url", r.url, "--download-data", r.download);
  only_with("--sha256", r.sha256, "--download-data", r.download);
  only_with("--tokenizer-dir", r.tokenizer_dir, "--synthetic", !r.synthetic.empty());
  only_with("--seed", r.seed, "--synthetic", !r.synthetic.empty());
  if (!r.sha256.empty() && (r.sha256.size() != 64 ||
                            r.sha256.find_first_not_of("0123456789abcdef") != std::string::npos))
    defects.push_back({"--sha256", printable(r.sha256), "must be 64 lower-case hex digits"});
  if (r.out.empty()) defects.push_back({"--out", "missing", "must be the file or folder to write"});
}

// "prompt_data_sha256" is what a profile's task takes.
void report_prompts(const std::string& out, int64_t rows) {
  const std::string sha256 = hex(sha256_file(out));
  fmt::print(
      "{}: {} prompts\nIn the profile: paths.prompt_data \"{}\", task.prompt_data_sha256 \"{}\"\n",
      out, rows, out, sha256);
}

}  // namespace

int prepare_command(const Arguments& args) {
  CommandLine line("rlk prepare",
                   "rlk prepare: data and models for runs (what is missing: rlk doctor)");
  Request r;
  add_options(line, r);
  bool helped = false;
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  check_options(r, defects);
  const auto seed = parse_unsigned(r.seed.empty() ? "0" : r.seed);
  if (!seed) defects.push_back({"--seed", printable(r.seed), "must be an integer from 0 up"});
  if (!defects.empty()) throw InputError(defects);

  if (r.download) {
    report_prompts(r.out, fetch_prompts(r.url.empty() ? kDapoMathUrl : r.url, r.out, r.sha256));
  } else if (!r.convert.empty()) {
    report_prompts(r.out, convert_prompts(r.convert, r.out));
  } else {
    write_synthetic_checkpoint(model_of_shape(r.synthetic, "--synthetic"), *seed, r.tokenizer_dir,
                               r.out);
    fmt::print("{}: a {} of random weights, seed {}\n", r.out, r.synthetic, *seed);
  }
  return kExitOk;
}

}  // namespace rlk
