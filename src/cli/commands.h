#pragma once
// The subcommand table. A command gets the arguments after its name, prints to stdout, returns an
// exit code, and throws InputError or Error; it answers --help itself.

#include <string>
#include <vector>

namespace rlk {

using Arguments = std::vector<std::string>;

struct CommandRow {
  const char* name;
  const char* summary;  // null: internal, not listed
  int (*run)(const Arguments&);
};

const std::vector<CommandRow>& command_table();

int verify_command(const Arguments&);
int run_command(const Arguments&);
int plan_command(const Arguments&);
int validate_run_command(const Arguments&);
int compare_command(const Arguments&);
int debug_command(const Arguments&);
int score_command(const Arguments&);
int generate_command(const Arguments&);
int export_command(const Arguments&);
int tokenize_command(const Arguments&);
int bench_command(const Arguments&);
int prepare_command(const Arguments&);
int doctor_command(const Arguments&);
int worker_command(const Arguments&);

}  // namespace rlk
