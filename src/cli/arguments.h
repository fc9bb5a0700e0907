#pragma once
// Command lines. Names, arity and types only: what a value means is checked by whoever reads it, so
// that all errors of one input are reported together.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "rlk/base/error.h"

namespace CLI {
class App;
}

namespace rlk {

// One command's options, through CLI11, which only arguments.cpp includes: it takes a compiler
// longer than most of rlk. `names` are "--tp,--tp-size", or a bare word for an argument by its
// place; `type` is what the help text calls the value. Of an option given twice the last counts.
class CommandLine {
 public:
  CommandLine(const std::string& command, const std::string& title);
  ~CommandLine();

  // T: std::string, float, double, int32_t, int64_t, or std::vector<int64_t>, given as "1,8,64".
  template <class T>
  void option(const std::string& names, T& value, const std::string& help, const std::string& type,
              const std::string& group = "Options");
  void flag(const std::string& names, bool& value, const std::string& help,
            const std::string& group = "Options");

  // The same for those who want to know that it was given.
  void on_option(const std::string& names, std::function<void(const std::string&)> given,
                 const std::string& help, const std::string& type, const std::string& group);
  void on_flag(const std::string& names, std::function<void()> given, const std::string& help,
               const std::string& group);

  // Once: fills the values and returns every defect of the syntax; a value with a defect stays as
  // it was. On --help prints the help text and sets `helped`.
  std::vector<Diagnostic> parse(Arguments args, bool& helped);

 private:
  std::unique_ptr<CLI::App> app_;
  std::vector<Diagnostic> defects_;
};

}  // namespace rlk
