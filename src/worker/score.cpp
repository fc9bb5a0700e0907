#include <cmath>
#include <ostream>

#include "local_model.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/safetensors.h"
#include "rlk/data/export.h"
#include "rlk/data/score_lines.h"
#include "rlk/train/trainer.h"

namespace rlk {
namespace {

constexpr int64_t kBatchTokens = 16384;  // of a forward pass; bits do not depend on it
constexpr int64_t kLogitRows = 4096;
constexpr const char* kSchema = "rlk.score.v1";

TrainerOptions trainer_options(const ScoreOptions& o) {
  TrainerOptions t{};
  t.topology = LocalRank::topology();
  t.temperature = o.sampling.temperature;
  t.top_p = o.sampling.top_p;
  t.top_k = o.sampling.top_k;
  t.super_batch_tokens = kBatchTokens;
  t.max_tokens = kLogitRows;
  t.page_size = LocalRank::page_size(o.model.backend);
  t.use = TrainerOptions::Use::score;
  return t;
}

// The log-prob of a token outside of the support is -inf, for which JSON has no number.
Json line_of(const Sample& s) {
  Json logp = Json::array();
  for (const float x : s.train_logp)
    logp.push_back(std::isfinite(x) ? Json(static_cast<double>(x)) : Json(nullptr));
  return {{"ids", s.tokens}, {"prompt_len", s.prompt_len}, {"logp", std::move(logp)}};
}

void write_tensors(const std::filesystem::path& out, const std::vector<Sample>& samples) {
  std::vector<int32_t> prompt_len, tokens;
  std::vector<int64_t> token_offset{0}, response_offset{0};
  std::vector<float> logp;
  for (const Sample& s : samples) {
    prompt_len.push_back(s.prompt_len);
    tokens.insert(tokens.end(), s.tokens.begin(), s.tokens.end());
    logp.insert(logp.end(), s.train_logp.begin(), s.train_logp.end());
    token_offset.push_back(static_cast<int64_t>(tokens.size()));
    response_offset.push_back(static_cast<int64_t>(logp.size()));
  }
  const auto shape = [](const auto& column) {
    return std::vector<int64_t>{static_cast<int64_t>(column.size())};
  };
  write_safetensors(
      out,
      {{"token_offset", DType::i64, shape(token_offset), token_offset.data()},
       {"response_offset", DType::i64, shape(response_offset), response_offset.data()},
       {"prompt_len", DType::i32, shape(prompt_len), prompt_len.data()},
       {"tokens", DType::i32, shape(tokens), tokens.data()},
       {"logp", DType::f32, shape(logp), logp.data()}},
      {{"schema", kSchema}});
}

}  // namespace

int64_t score_lines(const ScoreOptions& o, std::istream& in, const std::string& source,
                    std::ostream& lines) {
  if (!o.out.empty()) check_new_path(o.out);
  const ModelConfig config = read_model_config(o.model.dir);
  check_sampling(o.sampling, config);
  std::vector<Sample> samples =
      read_score_lines(in, source, config, o.model.dir / "tokenizer.json");

  LocalRank rank = open_model(o.model, config, 0);
  const Context context = rank.context();
  Trainer trainer(context, rank.weights(), rank.world(), trainer_options(o));
  const bool streams = o.out.empty();
  int64_t scored = 0;
  for (size_t first = 0; first < samples.size();) {
    std::vector<Sample> batch;
    for (int64_t n = 0; first < samples.size() && n < kBatchTokens; ++first) {
      n += static_cast<int64_t>(samples[first].tokens.size());
      batch.push_back(std::move(samples[first]));
    }
    trainer.score(rank.view(), false, batch, &Sample::train_logp);
    for (size_t i = 0; i < batch.size(); ++i) {
      scored += batch[i].response_len();
      if (streams) lines << line_of(batch[i]).dump() << '\n';
      samples[first - batch.size() + i] = std::move(batch[i]);
    }
    if (streams) lines.flush();
  }
  if (o.out.extension() == ".safetensors") {
    write_tensors(o.out, samples);
  } else if (!streams) {
    std::string text;
    for (const Sample& s : samples) text += line_of(s).dump() + "\n";
    write_file_atomic(o.out, text);
  }
  return scored;
}

}  // namespace rlk
