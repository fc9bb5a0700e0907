// tokenize: commands around the data that runs are fed with.

#include <iostream>

#include "arguments.h"
#include "rlk/data/tokenize.h"

namespace rlk {

int tokenize_command(const Arguments& args) {
  CommandLine line(
      "rlk tokenize",
      "rlk tokenize: JSON lines {\"text\"} from stdin become {\"ids\"} on stdout; --decode: back");
  std::string file;
  bool decode = false, helped = false;
  line.option("--tokenizer", file, "tokenizer.json", "FILE");
  line.flag("--decode", decode, "ids to text");
  std::vector<Diagnostic> defects = line.parse(args, helped);
  if (helped) return kExitOk;
  if (file.empty()) defects.push_back({"--tokenizer", "missing", "must be a tokenizer.json"});
  if (!defects.empty()) throw InputError(defects);
  tokenize_lines(Tokenizer(std::filesystem::path(file)), decode, std::cin, "stdin", std::cout);
  if (!std::cout.flush()) throw Error("write to stdout failed");
  return kExitOk;
}

}  // namespace rlk
