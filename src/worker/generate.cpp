#include <unistd.h>

#include <algorithm>
#include <ostream>

#include "local_model.h"
#include "rlk/base/error.h"
#include "rlk/base/json.h"
#include "rlk/base/text.h"
#include "rlk/data/chat.h"
#include "rlk/data/prompts.h"
#include "rlk/device/gpus.h"

namespace rlk {
namespace {

constexpr int64_t kMaxRunning = 256;                  // sequences decoded at once, as in runs
constexpr int64_t kBatchTokens = 2048;                // of a prefill step; bits do not depend on it
constexpr uint64_t kDeviceSlack = uint64_t{4} << 30;  // activations, logits, graphs

// What K/V pages may take of the memory that is there.
uint64_t kv_budget(const LocalModel& model, const ModelConfig& m) {
  if (model.backend == Backend::cpu)
    return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
           static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 4;
  const uint64_t free = gpu_host().gpus.at(0).free_bytes;
  const uint64_t taken = weight_bytes(m) + kDeviceSlack;
  return free > taken ? free - taken : 0;
}

// Pages for `running` sequences of `longest` tokens, or what the budget leaves.
RolloutOptions rollout_options(const LocalModel& model, const ModelConfig& m, int64_t longest,
                               int64_t running) {
  RolloutOptions r{};
  r.topology = LocalRank::topology();
  r.page_size = LocalRank::page_size(model.backend);
  r.max_running = running;
  r.max_batch_tokens = kBatchTokens;
  r.max_context = m.max_position;
  r.stop = m.eos;
  if (running == 1) r.look_ahead = 1;  // somebody watches
  r.pages_per_rank = 1;
  const auto page = static_cast<uint64_t>(RolloutEngine::kv_bytes(m, r, 0));
  const int64_t each = (longest + r.page_size - 1) / r.page_size;
  const auto budget = static_cast<int64_t>(kv_budget(model, m) / page);
  if (budget < each)
    throw InputError("--max-response-len",
                     "a sequence of " + std::to_string(longest) + " tokens needs " +
                         format_bytes(static_cast<uint64_t>(each) * page) + " of K/V pages",
                     "there is room for " + format_bytes(static_cast<uint64_t>(budget) * page));
  r.pages_per_rank = std::min(running * each, budget);
  return r;
}

PromptOptions prompt_options(const GenerateOptions& o, const ModelConfig& m) {
  PromptOptions p;
  p.prompt_key = o.prompt_key;
  p.label_key = "";
  p.chat_template = o.chat_template;
  p.thinking = o.thinking;
  p.max_tokens = m.max_position - 1;
  return p;
}

std::vector<GenerateRequest> requests_of(const GenerateOptions& o, const PromptSet& prompts) {
  std::vector<GenerateRequest> requests;
  for (int64_t row = 0; row < prompts.rows(); ++row) {
    const std::vector<int32_t> prompt = prompts.tokens(row);
    for (int32_t s = 0; s < o.samples; ++s)
      requests.push_back({.prompt_index = row,
                          .sample_index = s,
                          .prompt = prompt,
                          .max_new = o.max_response_len,
                          .sampling = o.sampling});
  }
  return requests;
}

int64_t longest_of(const std::vector<GenerateRequest>& requests, const ModelConfig& m) {
  int64_t longest = 0;
  for (const GenerateRequest& r : requests)
    longest = std::max(longest, static_cast<int64_t>(r.prompt.size()) + r.max_new);
  return std::min(longest, m.max_position);
}

// Weights and engine for some requests. Members in the order of their construction.
struct Generator {
  Generator(const GenerateOptions& o, const ModelConfig& m,
            const std::vector<GenerateRequest>& requests, int64_t running)
      : options(rollout_options(o.model, m, longest_of(requests, m), running)),
        rank(open_model(o.model, m, static_cast<uint64_t>(RolloutEngine::kv_bytes(m, options, 0)))),
        engine(rank.context(), rank.world(), options),
        view(rank.view()),
        seed(o.seed) {}

  std::vector<GenerateResult> run(const std::vector<GenerateRequest>& requests,
                                  const RolloutEngine::OnToken& on_token = nullptr) {
    return engine.generate(view, requests, seed, 0, on_token);
  }

  RolloutOptions options;
  LocalRank rank;
  RolloutEngine engine;
  WeightsView view;
  uint64_t seed;
};

// `prompt` as the only line of a prompt file.
std::string prompt_line(const GenerateOptions& o, const std::string& prompt) {
  try {
    return Json{{o.prompt_key, prompt}}.dump();
  } catch (const Json::exception&) {
    throw InputError("--prompt", printable(prompt), "must be UTF-8");
  }
}

// A model's tokenizer and the prompts, checked against each other.
struct Input {
  template <class... Source>  // of the PromptSet: a file, or lines and their name
  explicit Input(const GenerateOptions& o, const Source&... source)
      : config(read_model_config(o.model.dir)),
        tokenizer(o.model.dir / "tokenizer.json"),
        prompts(source..., prompt_options(o, config), tokenizer) {
    check_sampling(o.sampling, config);
    if (o.chat_template) check_chat_template(o.model.dir);
  }

  ModelConfig config;
  Tokenizer tokenizer;
  PromptSet prompts;
};

}  // namespace

void generate_text(const GenerateOptions& o, const std::string& prompt, std::ostream& out) {
  const Input input(o, prompt_line(o, prompt), std::string("--prompt"));
  const std::vector<GenerateRequest> requests = requests_of(o, input.prompts);
  Generator generator(o, input.config, requests, 1);
  for (const GenerateRequest& request : requests) {
    StreamDecoder decoder(input.tokenizer, true);
    generator.run({request},
                  [&](int32_t, int32_t token) { out << decoder.push(token) << std::flush; });
    out << decoder.finish() << std::endl;
  }
}

void generate_lines(const GenerateOptions& o, const std::filesystem::path& prompts,
                    std::ostream& out) {
  const Input input(o, prompts);
  const std::vector<GenerateRequest> requests = requests_of(o, input.prompts);
  const auto total = static_cast<int64_t>(requests.size());
  const int64_t running = std::min(total, kMaxRunning);
  Generator generator(o, input.config, requests, running);
  for (int64_t first = 0; first < total; first += running) {
    const int64_t end = std::min(total, first + running);
    const std::vector<GenerateRequest> batch(requests.begin() + first, requests.begin() + end);
    const std::vector<GenerateResult> results = generator.run(batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      const GenerateResult& r = results[i];
      const auto prompt_len = batch[i].prompt.size();
      const Json line = {
          {"prompt", batch[i].prompt_index},
          {"sample", batch[i].sample_index},
          {"text", input.tokenizer.decode(std::span(r.tokens).subspan(prompt_len), true)},
          {"ids", r.tokens},
          {"prompt_len", prompt_len},
          {"logp", std::vector<double>(r.logp.begin(), r.logp.end())},
          {"truncated", r.truncated}};
      out << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    }
    out.flush();
  }
}

}  // namespace rlk
