#pragma once
// A model on one rank of either backend, and what tests ask of it, answered in host memory.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "device/harness.h"
#include "model/model_fixture.h"
#include "rlk/model/head.h"
#include "rlk/model/memory.h"
#include "rlk/train/trainer.h"
#include "rlk/worker/local_rank.h"

namespace rlk::test {

class LoneModel {
 public:
  // arena_bytes: beside the weights, what engines take from the world.
  LoneModel(Backend backend, const ModelConfig& model, size_t arena_bytes,
            const LocalRank::Fill& fill)
      : config(model), rank(backend, 1, model, arena_bytes, fill), context(rank.context()) {
    if (rank.ops().stream_create) context.stream = rank.ops().stream_create();
  }
  ~LoneModel() {
    if (context.stream) rank.ops().stream_destroy(context.stream);
  }
  LoneModel(const LoneModel&) = delete;
  LoneModel& operator=(const LoneModel&) = delete;

  int page_size() const {
    return LocalRank::page_size(context.stream ? Backend::cuda : Backend::cpu);
  }

  Trainer trainer(float temperature) {
    TrainerOptions o{};
    o.topology = LocalRank::topology();
    o.adamw = {
        .lr = 0, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8, .weight_decay = 0, .clip_grad = 1};
    o.temperature = temperature;
    o.top_p = 1;
    o.top_k = -1;
    o.super_batch_tokens = 65536;
    o.max_tokens = 100;
    o.page_size = page_size();
    return Trainer(context, rank.weights(), rank.world(), o);
  }

  // Logits (T, padded vocabulary) of every position of one sequence, through the rollout form of
  // the forward pass.
  std::vector<bf16> logits(const std::vector<int32_t>& ids) const {
    const Ops& ops = rank.ops();
    const auto T = static_cast<int64_t>(ids.size());
    const auto pages = static_cast<int32_t>((T + page_size() - 1) / page_size());
    std::vector<int32_t> position(T), table(pages);
    for (int64_t t = 0; t < T; ++t) position[t] = static_cast<int32_t>(t);
    for (int32_t p = 0; p < pages; ++p) table[p] = pages - 1 - p;  // any order of pages
    const std::vector<AttentionSegment> segment{{0, 0, static_cast<int32_t>(T), 0}};
    Upload up(ops);
    const auto ids_at = up.add(ids), position_at = up.add(position), table_at = up.add(table),
               seq_at = up.add(std::vector<int32_t>(T, 0)), segment_at = up.add(segment),
               ones_at = up.add(std::vector<float>(T, 1.0f));
    up.commit(context.stream);
    const Batch batch{.T = T,
                      .ids = up.at<int32_t>(ids_at),
                      .position = up.at<int32_t>(position_at),
                      .seq = up.at<int32_t>(seq_at),
                      .segments = up.at<AttentionSegment>(segment_at),
                      .n_segments = 1,
                      .max_len = static_cast<int32_t>(T),
                      .max_context = static_cast<int32_t>(T)};
    KvCache cache{};
    kv_page_layout(cache, static_cast<int>(config.KH), static_cast<int>(config.Dh), page_size());
    DeviceBuffer kv(ops), acts(ops), rest(ops), partial(ops), workspace(ops), head_memory(ops);
    const int64_t kv_elements = pages * cache.page_stride;
    cache.k[0] = static_cast<bf16*>(kv.ensure(2 * kv_elements * 2));
    cache.v[0] = cache.k[0] + kv_elements;
    cache.page_table = up.at<int32_t>(table_at);
    cache.max_pages = pages;
    LayerActs a =
        layer_acts_at(acts.ensure(layer_acts_bytes(config, T, 8, false)), config, T, 8, false);
    AttentionArgs bounds{};
    bounds.cache = cache;
    bounds.n_segments = 1;
    bounds.max_len = bounds.max_context = batch.max_len;
    bounds.T = T;
    bounds.H = static_cast<int>(config.H);
    bounds.KH = static_cast<int>(config.KH);
    bounds.Dh = static_cast<int>(config.Dh);
    ForwardScratch scratch{static_cast<float*>(partial.ensure(T * config.D * 4)),
                           static_cast<bf16*>(rest.ensure(T * config.D * 2)),
                           workspace.ensure(static_cast<int64_t>(ops.attention_workspace(bounds)))};
    embed(context, rank.view(), batch, a.x);
    for (int l = 0; l < config.L; ++l)
      forward_layer(context, rank.view(), l, batch, cache, nullptr, l == 0 ? nullptr : a.x_mid, a,
                    scratch);
    const auto* ones = up.at<float>(ones_at);
    const RowSampling sampling{ones, ones, nullptr, nullptr, false};
    HeadActs head = head_acts_at(head_memory.ensure(head_acts_bytes(context, T, 8, false)), context,
                                 T, 8, false);
    head_logits(context, rank.view(), a.x_mid, scratch.delta, up.at<int32_t>(position_at), T,
                sampling, head);
    return on_host(head.logits, T * config.padded_vocab());
  }

  // Whole fp32 gradients by tensor, as Weights::tensors() lists them, after Trainer::update.
  std::vector<std::vector<float>> gradients(Trainer& trainer) {
    const auto& tensors = rank.weights().tensors();
    const auto& owned = trainer.optimizer().owned();
    int64_t n = 0;
    for (const auto& o : owned) n = std::max(n, o.at + o.unit.count);
    const std::vector<float> all = on_host(trainer.optimizer().gradient(), n);
    std::vector<std::vector<float>> by_tensor(tensors.size());
    for (size_t t = 0; t < tensors.size(); ++t)
      by_tensor[t].resize(tensors[t].rows * tensors[t].cols);
    for (const auto& o : owned) {
      const TensorSpec& t = tensors[o.unit.tensor];
      for (int64_t e = 0; e < o.unit.count; ++e) {
        const int64_t at = o.unit.begin + e, row = at / t.slice_cols, col = at % t.slice_cols;
        const int64_t r = t.cut == Cut::rows ? o.unit.slice * t.slice_rows + row : row;
        const int64_t c = t.cut == Cut::columns ? o.unit.slice * t.slice_cols + col : col;
        by_tensor[o.unit.tensor][r * t.cols + c] = all[o.at + e];
      }
    }
    return by_tensor;
  }

  const ModelConfig config;
  LocalRank rank;
  Context context;

 private:
  template <class T>
  std::vector<T> on_host(const T* from, int64_t n) const {
    std::vector<T> to(n);
    rank.ops().copy(context.stream, to.data(), from, n * sizeof(T));
    rank.ops().synchronize(context.stream);
    return to;
  }
};

// Every model directory under $RLK_GOLDEN (default: tests/golden), sorted.
inline std::vector<std::filesystem::path> golden_models() {
  const char* root = std::getenv("RLK_GOLDEN");
  std::vector<std::filesystem::path> models;
  for (const auto& entry : std::filesystem::directory_iterator(
           root ? root : std::string(RLK_SOURCE_DIR) + "/tests/golden"))
    if (std::filesystem::exists(entry.path() / "expected.safetensors"))
      models.push_back(entry.path());
  std::sort(models.begin(), models.end());
  return models;
}

// Its weights; the file must stay.
inline LocalRank::Fill filled_from(const SafetensorsFile& file) {
  return [&file](Weights& weights, const Ops& ops) { weights.load(ops, read_from(file)); };
}

// CUDA attention has two head dimensions.
inline bool runs_on_cuda(const std::filesystem::path& model) {
  const int64_t Dh = read_model_config(model).Dh;
  return Dh == 64 || Dh == 128;
}

// How far two arrays are apart.
struct Agreement {
  double error = 0, reference = 0, dot = 0, norm = 0, worst = 0;
  void add(double x, double expected) {
    error += (x - expected) * (x - expected);
    reference += expected * expected;
    norm += x * x;
    dot += x * expected;
    worst = std::max(worst, std::abs(x - expected));
    if (!std::isfinite(x)) error = INFINITY;
  }
  double relative() const { return std::sqrt(error / reference); }
  double cosine() const { return dot / std::sqrt(norm * reference); }
};

}  // namespace rlk::test
