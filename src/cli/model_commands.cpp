// score, generate, export: commands around one model folder.

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "model_options.h"
#include "rlk/base/text.h"
#include "rlk/data/chat.h"
#include "rlk/run/export_model.h"

namespace rlk {
namespace {

constexpr int64_t kMaxTokens = 1 << 24, kMaxSamples = 1 << 12;

void refuse(const std::vector<Diagnostic>& defects) {
  if (!defects.empty()) throw InputError(defects);
}

// A full disk or a closed pipe must not look like success.
void finish(std::ostream& out, const std::string& name) {
  if (!out.flush()) throw Error("write to " + name + " failed");
}

}  // namespace

int score_command(const Arguments& args) {
  CommandLine line("rlk score",
                   "rlk score: JSON lines {\"ids\"} or {\"text\"} become {\"ids\", \"prompt_len\", "
                   "\"logp\"}: the log-prob of every token behind the first \"prompt_len\" (1)");
  ModelOptions model;
  ScoreOptions options;
  std::string in, out;
  bool helped = false;
  line.option("--in", in, "lines to score (stdin)", "FILE");
  line.option("--out", out, "where to: lines, or tensors as FILE.safetensors (lines on stdout)",
              "FILE");
  model.add_to(line);
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  options.model = model.model(defects);
  options.sampling = model.sampling(defects);
  options.out = out;
  std::ifstream file(in);
  if (!in.empty() && (!file || std::filesystem::is_directory(in)))
    defects.push_back({"--in " + in, "cannot be read", ""});
  refuse(defects);
  const int64_t tokens =
      score_lines(options, in.empty() ? std::cin : file, in.empty() ? "stdin" : in, std::cout);
  finish(std::cout, "stdout");
  if (!out.empty()) fmt::print("{}: {} log-probs\n", out, tokens);
  return kExitOk;
}

int generate_command(const Arguments& args) {
  CommandLine line("rlk generate",
                   "rlk generate: samples responses to a prompt, or to a file of prompts");
  ModelOptions model;
  GenerateOptions options;
  std::string prompt, prompts, seed = "1234", length = "512", samples = "1";
  bool raw = false, no_thinking = false, helped = false;
  line.option("--prompt", prompt, "one prompt; its response is printed as it is drawn", "TEXT");
  line.option("--prompts", prompts, "JSON lines; a JSON line a sample on stdout", "FILE");
  line.option("--prompt-key", options.prompt_key, "key of the lines (prompt)", "KEY");
  line.option("--samples", samples, "responses to each prompt (1)", "N");
  line.option("--max-response-len,--max-response-length", length, "tokens at most (512)", "N");
  line.option("--seed", seed, "as --rollout-seed of runs (1234)", "N");
  line.flag("--raw", raw, "prompts as they stand, without the model's chat template");
  line.flag("--no-thinking", no_thinking, "close the thinking part before the response");
  model.add_to(line);
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  if (prompt.empty() == prompts.empty())
    defects.push_back({"command line", prompt.empty() ? "nothing to answer" : "two sources",
                       "give one of --prompt and --prompts"});
  options.model = model.model(defects);
  options.sampling = model.sampling(defects);
  options.samples =
      static_cast<int32_t>(integer_option("--samples", samples, 1, kMaxSamples, defects));
  options.max_response_len = integer_option("--max-response-len", length, 1, kMaxTokens, defects);
  const auto number = parse_unsigned(seed);
  if (!number) defects.push_back({"--seed " + printable(seed), "must be an integer from 0 up", ""});
  refuse(defects);
  options.seed = *number;
  options.chat_template = !raw && has_chat_template(options.model.dir);
  options.thinking = !no_thinking;
  if (no_thinking && !options.chat_template)
    throw InputError(
        "--no-thinking",
        raw ? "means nothing beside --raw" : options.model.dir.string() + " has no chat template",
        "the chat template closes the thinking part");
  if (prompts.empty())
    generate_text(options, prompt, std::cout);
  else
    generate_lines(options, prompts, std::cout);
  finish(std::cout, "stdout");
  return kExitOk;
}

int export_command(const Arguments& args) {
  CommandLine line(
      "rlk export",
      "rlk export: a run's checkpoint (--save-interval), or any model folder, as a Hugging "
      "Face folder of bf16 safetensors");
  std::string from, out, version;
  bool helped = false;
  line.option("--from", from, "run directory, checkpoint in it, or model folder", "DIR");
  line.option("--version", version, "of a run: which checkpoint (the newest)", "N");
  line.option("--out", out, "folder to write; must not exist", "DIR");
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  if (from.empty())
    defects.push_back({"--from", "missing", "must be a run directory or a model folder"});
  if (out.empty()) defects.push_back({"--out", "missing", "must be the folder to write"});
  const auto number = parse_unsigned(version);
  if (!version.empty() && !number)
    defects.push_back({"--version " + printable(version), "must be an integer from 0 up", ""});
  refuse(defects);
  const ExportReport report = export_model(from, number, out);
  fmt::print("{}: {} tensors, {}\n", out, report.tensors, format_bytes(report.bytes));
  for (const std::string& file : report.files) fmt::print("  {}\n", file);
  if (report.version)
    fmt::print("weights of version {}: all fingerprints are those that the run recorded\n",
               *report.version);
  return kExitOk;
}

}  // namespace rlk
