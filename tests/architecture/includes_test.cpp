// The shape of the source (docs/architecture.md): modules include downward only, CUDA stays under
// kernels/ and the backend's own folders, and nothing below the command line reads the environment.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "rlk/base/file.h"
#include "temp_dir.h"

namespace {

namespace fs = std::filesystem;

// What a module may include beside itself and base.
const std::map<std::string, std::set<std::string>> kMayUse = {
    {"base", {}},
    {"build_info", {}},
    {"profile", {}},
    {"plan", {"profile"}},
    {"device", {}},
    {"kernels", {"device"}},
    {"device/cuda", {"device", "kernels"}},
    {"comm", {"device"}},
    {"comm/cuda", {"comm", "device", "kernels"}},
    {"bench",
     {"worker", "rollout", "train", "model", "data", "device", "comm", "plan", "profile",
      "build_info"}},
    {"bench/cuda", {"bench", "device", "comm", "build_info", "kernels"}},
    {"data", {"profile"}},
    {"model", {"device", "comm", "profile"}},
    {"rollout", {"model", "data", "device", "comm", "profile"}},
    {"train", {"model", "data", "device", "comm", "profile"}},
    {"run", {"data", "plan", "profile", "build_info"}},
    {"gate", {"run", "data", "plan", "profile"}},
    {"launch", {"plan", "profile", "comm"}},
    {"worker",
     {"rollout", "train", "model", "data", "device", "comm", "plan", "profile", "run", "launch"}},
    {"cli",
     {"worker", "launch", "gate", "run", "rollout", "train", "model", "data", "comm", "device",
      "plan", "profile", "bench", "build_info"}},
    {"main", {"cli"}},
};
// The manifest records the environment, and a user's verifier is handed it; nothing of rlk is
// decided by it.
const std::set<std::string> kMaySeeEnvironment = {"src/run/inventory.cpp",
                                                  "src/data/reward_command.cpp"};
const std::set<std::string> kCudaFolders = {"kernels", "src/device/cuda", "src/comm/cuda",
                                            "src/bench/cuda"};

// "src/plan/memory.cpp", "include/rlk/plan/plan.h" -> "plan"; "src/main.cpp" -> "main".
std::string module_of(const fs::path& file) {
  auto part = file.begin();
  if (*part == "kernels") return "kernels";
  std::advance(part, *part == "src" ? 1 : 2);
  const std::string module = part->stem().string();
  const auto folder = std::next(part);
  return folder != file.end() && *folder == "cuda" ? module + "/cuda" : module;
}

std::vector<fs::path> sources(const fs::path& root) {
  std::vector<fs::path> files;
  for (const char* folder : {"src", "include/rlk", "kernels"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh")
        files.push_back(fs::relative(entry.path(), root));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool in_cuda_folder(const fs::path& file) {
  for (const std::string& folder : kCudaFolders)
    if (file.string().starts_with(folder + "/")) return true;
  return false;
}

// One line for each breach.
std::vector<std::string> breaches(const fs::path& root) {
  static const std::regex include(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
  static const std::regex cuda_header(R"(^(cuda|cublas|nccl|nvml|driver_types|curand).*\.h$)");
  static const std::regex environment(R"(\b(getenv|secure_getenv|environ)\b)");
  std::vector<std::string> found;
  for (const fs::path& file : sources(root)) {
    const std::string module = module_of(file);
    const auto allowed = kMayUse.find(module);
    if (allowed == kMayUse.end()) {
      found.push_back(file.string() + ": module " + module +
                      " is not in the table of tests/architecture");
      continue;
    }
    std::istringstream text(rlk::read_file(root / file));
    int number = 0;
    for (std::string line; std::getline(text, line);) {
      const std::string at = file.string() + ":" + std::to_string(++number) + ": ";
      std::smatch match;
      if (std::regex_search(line, match, include)) {
        const std::string target = match[1];
        std::string used;
        if (target.starts_with("rlk/")) used = target.substr(4, target.find('/', 4) - 4);
        if (target.starts_with("kernels/")) used = "kernels";
        if (!used.empty() && used != module.substr(0, module.find('/')) && used != "base" &&
            allowed->second.count(used) == 0)
          found.push_back(at + module + " must not use " + used);
        if (std::regex_match(target, cuda_header) && !in_cuda_folder(file))
          found.push_back(at + "CUDA header outside the CUDA folders");
      }
      const std::string code = line.substr(0, line.find("//"));
      if (module != "cli" && kMaySeeEnvironment.count(file.string()) == 0 &&
          std::regex_search(code, environment))
        found.push_back(at + "reads the environment below the command line");
    }
  }
  return found;
}

class FakeTree {
 public:
  void add(const std::string& file, const std::string& text) {
    fs::create_directories((dir_.path() / file).parent_path());
    std::ofstream(dir_.path() / file) << text;
  }
  std::vector<std::string> breaches() const { return ::breaches(dir_.path()); }

 private:
  rlk::test::TempDir dir_;
};

}  // namespace

TEST(Architecture, ModulesIncludeDownwardOnly) {
  const fs::path root = RLK_SOURCE_DIR;
  ASSERT_GT(sources(root).size(), 50u) << "the sources were not found";
  for (const std::string& breach : breaches(root)) ADD_FAILURE() << breach;
}

TEST(Architecture, TheTableHasNoCycle) {
  std::set<std::string> placed;
  for (size_t round = 0; round < kMayUse.size(); ++round)
    for (const auto& [module, uses] : kMayUse)
      if (std::all_of(uses.begin(), uses.end(), [&](const auto& m) { return placed.count(m) > 0; }))
        placed.insert(module);
  EXPECT_EQ(placed.size(), kMayUse.size());
}

TEST(Architecture, EachKindOfBreachIsFound) {
  FakeTree tree;
  tree.add("src/rollout/a.cpp", "#include <rlk/train/step.h>\n");
  tree.add("include/rlk/base/b.h", "\n#include \"rlk/plan/plan.h\"\n");
  tree.add("src/model/c.cpp", "#include <cuda_runtime.h>\n");
  tree.add("src/plan/d.cpp", "const char* x = std::getenv(\"X\");\n");
  tree.add("src/novel/e.cpp", "\n");
  tree.add("src/device/f.cpp", "#include \"kernels/launchers.h\"\n");
  tree.add("src/device/cuda/fine.cpp",
           "#include <cuda_runtime.h>\n#include \"kernels/launchers.h\"\n");
  tree.add("src/plan/fine.cpp", "#include \"rlk/profile/profile.h\"  // getenv\n");
  EXPECT_EQ(tree.breaches(),
            (std::vector<std::string>{
                "include/rlk/base/b.h:2: base must not use plan",
                "src/device/f.cpp:1: device must not use kernels",
                "src/model/c.cpp:1: CUDA header outside the CUDA folders",
                "src/novel/e.cpp: module novel is not in the table of tests/architecture",
                "src/plan/d.cpp:1: reads the environment below the command line",
                "src/rollout/a.cpp:1: rollout must not use train",
            }));
}
