#include "commands.h"

namespace rlk {

const std::vector<CommandRow>& command_table() {
  static const std::vector<CommandRow> table = {
      {"verify", "two real optimizer steps and every gate, then the seal", verify_command},
      {"run", "long training, validated and sealed at its end", run_command},
      {"plan", "the fully expanded plan; nothing is started", plan_command},
      {"validate", "run the gates on a run directory again", validate_run_command},
      {"compare", "first difference between two runs' trajectories", compare_command},
      {"debug", "first op whose output differs between two traced runs", debug_command},
      {"doctor", "whether host, profile and files can run, and what to type next", doctor_command},
      {"prepare", "fetch and convert data; models of random weights", prepare_command},
      {"score", "log-probs of given tokens, the bits that a run gives them", score_command},
      {"generate", "samples from a model: a prompt, or a file of prompts", generate_command},
      {"export", "a run's weights as a Hugging Face folder", export_command},
      {"tokenize", "text to token ids and back, JSON lines", tokenize_command},
      {"bench", "kernels and engines: verified, timed", bench_command},
      {"worker", nullptr, worker_command},
  };
  return table;
}

}  // namespace rlk
