// Makes profiles/tiny/model.safetensors: random weights, then cross-entropy on the task's worked
// solutions with rlk's own trainer, for a fixed number of updates. The same bytes on every machine
// (docs/numerics.md, R8).
//
//   build/cpu/tools/warm_start --dir profiles/tiny        (profiles/tiny/make runs it after the
//   data scripts)

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>

#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/safetensors.h"
#include "rlk/data/prompts.h"
#include "rlk/data/tokenizer.h"
#include "rlk/profile/model_config.h"
#include "rlk/rollout/engine.h"
#include "rlk/train/trainer.h"
#include "rlk/worker/local_rank.h"

namespace rlk {
namespace {

namespace fs = std::filesystem;

struct Settings {
  fs::path dir = "profiles/tiny";
  int64_t updates = 200, batch = 64, report = 50;
  double lr = 2e-3;
  uint64_t seed = 1;
  int threads = 2;
};

constexpr uint64_t kEngineBytes = uint64_t{1} << 31;  // gradients, optimizer, K/V pages

// Matrices normal with standard deviation 0.02, norm weights one.
TensorReader random_weights(const Ops& ops, const std::vector<TensorSpec>& tensors, uint64_t seed) {
  return [&ops, &tensors, seed](const TensorSpec& t, int64_t row0, int64_t rows, int64_t col0,
                                int64_t cols, bf16* to) {
    const auto index = static_cast<uint64_t>(&t - tensors.data());
    for (int64_t r = 0; r < rows; ++r)
      if (t.vector)
        std::fill(to, to + cols, to_bf16(1.0f));
      else
        ops.init_normal(nullptr, {.w = to + r * cols,
                                  .n = cols,
                                  .first = (row0 + r) * t.cols + col0,
                                  .seed = seed,
                                  .tensor = index,
                                  .std = 0.02f});
  };
}

class WarmStart {
 public:
  explicit WarmStart(const Settings& s)
      : s_(s),
        config_(read_model_config(s.dir)),
        rank_(Backend::cpu, s.threads, config_, kEngineBytes,
              [&](Weights& weights, const Ops& ops) {
                weights.load(ops, random_weights(ops, weights.tensors(), s.seed));
              }),
        context_(rank_.context()),
        tokenizer_(s.dir / "tokenizer.json"),
        prompts_(s.dir / "prompts.jsonl", {.chat_template = false}, tokenizer_) {
    TrainerOptions t{};
    t.topology = LocalRank::topology();
    t.adamw = {
        .lr = s.lr, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0.01, .clip_grad = 1};
    t.temperature = t.top_p = 1;
    t.top_k = -1;
    t.super_batch_tokens = 65536;
    t.max_tokens = 1024;
    t.page_size = 16;
    trainer_ = std::make_unique<Trainer>(context_, rank_.weights(), rank_.world(), t);
    RolloutOptions r{};
    r.topology = LocalRank::topology();
    r.page_size = 16;
    r.pages_per_rank = 256 * 8;
    r.max_running = 256;
    r.max_batch_tokens = 4096;
    r.max_context = 128;
    r.stop = config_.eos;
    engine_ = std::make_unique<RolloutEngine>(context_, rank_.world(), r);
    read_solutions();
  }

  void run() {
    for (int64_t u = 0; u < s_.updates; ++u) {
      std::vector<Sample> batch;
      double tokens = 0, loss = 0;
      for (int64_t row : rows_of_step(s_.seed, u, prompts_.rows(), s_.batch)) {
        batch.push_back(demonstration(row));
        tokens += batch.back().response_len();
      }
      const auto count = static_cast<int>(batch.size());
      trainer_->update(batch, 0, count, u + 1, [&](int, int, float logp) {
        loss -= logp / tokens;
        return -1 / tokens;
      });
      if ((u + 1) % s_.report == 0 || u + 1 == s_.updates)
        std::printf("update %lld: loss %.4f, accuracy %.3f sampled, %.3f greedy\n",
                    static_cast<long long>(u + 1), loss, accuracy(1), accuracy(0));
      std::fflush(stdout);
    }
    write();
  }

 private:
  void read_solutions() {
    const std::string text = read_file(s_.dir / "prompts.jsonl");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      solutions_.push_back(parse_json(line, "prompts.jsonl")["solution"].get<std::string>());
  }

  // The row's solution, "29-6=23 \\boxed{23}", and the end-of-text token.
  Sample demonstration(int64_t row) const {
    Sample s;
    s.prompt = row;
    s.tokens = prompts_.tokens(row);
    s.prompt_len = static_cast<int32_t>(s.tokens.size());
    const auto ids = tokenizer_.encode(solutions_[row]);
    s.tokens.insert(s.tokens.end(), ids.begin(), ids.end());
    s.tokens.push_back(config_.eos.front());
    return s;
  }

  // Of 256 prompts, sampled at temperature 1: the share whose text ends in \boxed{label}.
  double accuracy(float temperature) {
    std::vector<GenerateRequest> requests;
    for (int64_t row : rows_of_step(99, 0, prompts_.rows(), 256))
      requests.push_back({.prompt_index = row,
                          .sample_index = 0,
                          .prompt = prompts_.tokens(row),
                          .max_new = 32,
                          .sampling = {.temperature = temperature}});
    const auto results = engine_->generate(rank_.view(), requests, 7, 0);
    double right = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      const std::span<const int32_t> ids(results[i].tokens);
      const std::string text = tokenizer_.decode(ids.subspan(requests[i].prompt.size()), true);
      right += text.ends_with("\\boxed{" + prompts_.label(requests[i].prompt_index) + "}");
    }
    return right / static_cast<double>(results.size());
  }

  void write() {
    const Weights& weights = rank_.weights();
    std::vector<std::vector<bf16>> data;
    std::vector<TensorSource> sources;
    for (const TensorSpec& t : weights.tensors()) {
      std::vector<bf16>& out = data.emplace_back(t.rows * t.cols);
      for (int slice = 0; slice < t.slices(); ++slice) {
        const bf16* from = weights.at(t, slice);
        for (int64_t e = 0; e < t.slice_elements(slice); ++e) {
          const int64_t row = e / t.slice_cols, col = e % t.slice_cols;
          const int64_t r = t.cut == Cut::rows ? slice * t.slice_rows + row : row;
          const int64_t c = t.cut == Cut::columns ? slice * t.slice_cols + col : col;
          out[r * t.cols + c] = from[e];
        }
      }
      sources.push_back({t.name, DType::bf16, t.shape(), nullptr});
    }
    for (size_t i = 0; i < data.size(); ++i) sources[i].data = data[i].data();
    write_safetensors(s_.dir / "model.safetensors", sources, {{"format", "pt"}});
  }

  Settings s_;
  ModelConfig config_;
  LocalRank rank_;
  Context context_;
  Tokenizer tokenizer_;
  PromptSet prompts_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<RolloutEngine> engine_;
  std::vector<std::string> solutions_;
};

}  // namespace
}  // namespace rlk

int main(int argc, char** argv) {
  rlk::Settings s;
  CLI::App app("makes the bundled model");
  app.add_option("--dir", s.dir);
  app.add_option("--updates", s.updates);
  app.add_option("--batch", s.batch);
  app.add_option("--report", s.report);
  app.add_option("--lr", s.lr);
  app.add_option("--seed", s.seed);
  app.add_option("--threads", s.threads);
  CLI11_PARSE(app, argc, argv);
  try {
    rlk::WarmStart(s).run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "warm_start: %s\n", e.what());
    return 1;
  }
  return 0;
}
