#include "rlk/run/inventory.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <map>
#include <string_view>

#include "rlk/build_info/build_info.h"

namespace rlk {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

Json source_inventory() {
  return {{"revision", build_info().revision}, {"dirty", build_info().dirty}};
}

Json build_inventory() {
  const BuildInfo& b = build_info();
  return {{"version", b.version},
          {"compiler", b.compiler},
          {"type", b.type},
          {"flags", b.flags},
          {"cuda", b.cuda}};
}

Json host_inventory() {
  utsname names{};
  ::uname(&names);
  return {{"host", names.nodename},
          {"kernel", std::string(names.sysname) + " " + names.release},
          {"cpu", cpu_model()},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE)}};
}

Json environment_inventory() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    for (const char* prefix : {"RLK_", "CUDA_", "NCCL_", "OMP_"})
      if (text.starts_with(prefix)) found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  Json environment = Json::object();
  for (const auto& [name, value] : found) environment[name] = value;
  return environment;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace rlk
