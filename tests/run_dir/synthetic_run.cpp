#include "run_dir/synthetic_run.h"

#include "rlk/base/sha256.h"

namespace rlk::test {
namespace {

constexpr int kPrompts = 2, kSamplesPerPrompt = 3, kRanks = 8;
constexpr int64_t kSteps = 2;
constexpr const char* kTensors[] = {"model.embed_tokens.weight",
                                    "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"};

Digest digest_of(const std::string& text) {
  return sha256(text.data(), text.size());
}

Plan make_plan() {
  Plan plan;
  plan.options.topology = {.ranks = kRanks, .tp = 4, .cp = 2, .rollout_tp = 4, .rollout_cp = 1};
  plan.options.steps = kSteps;
  plan.options.max_response_len = 16;
  plan.options.rollout_batch_size = kPrompts;
  plan.options.samples_per_prompt = kSamplesPerPrompt;
  plan.options.global_batch_size = kPrompts * kSamplesPerPrompt;
  plan.profile_name = "synthetic";
  plan.run_id = "synthetic";
  plan.model_root = "/models/tiny";
  plan.prompt_data = "/data/prompts.jsonl";
  plan.task.reward = "deepscaler";
  plan.task.prompt_key = "prompt";
  plan.task.label_key = "label";
  plan.memory = {{"train.weights", 1024}};
  return plan;
}

Sample make_sample(int64_t step, int64_t prompt, int32_t index) {
  Sample s;
  s.prompt = prompt;
  s.sample = index;
  s.prompt_len = 3;
  const int response = 2 + index;
  for (int i = 0; i < s.prompt_len + response; ++i)
    s.tokens.push_back(static_cast<int32_t>(100 * prompt + 10 * index + i + step));
  for (int i = 0; i < response; ++i) {
    const float logp =
        -0.25f * static_cast<float>(1 + i + index) - 0.01f * static_cast<float>(step);
    s.rollout_logp.push_back(logp);
    s.train_logp.push_back(logp);
    s.ref_logp.push_back(step == 0 ? logp : logp - 0.125f);
  }
  s.reward = index == 0 ? 1 : 0;
  s.advantage = index == 0 ? 1.414 : -0.707;
  return s;
}

Trajectory make_step(int64_t step) {
  Trajectory t;
  t.step = step;
  t.weight_version = static_cast<uint64_t>(step);
  for (int p = 0; p < kPrompts; ++p)
    for (int i = 0; i < kSamplesPerPrompt; ++i)
      t.samples.push_back(make_sample(step, kPrompts * step + p, i));
  return t;
}

StepMetrics make_metrics(const Trajectory& t) {
  StepMetrics m = summarise(t);
  m.updates = {{.loss = 0.5,
                .policy_loss = 0.25,
                .kl = 0.125,
                .clip_fraction = 0,
                .grad_norm = 1.5,
                .lr = 5e-7}};
  m.seconds = {.rollout = 1,
               .sync = 0.5,
               .score = 1,
               .train = 2,
               .optimizer = 0.25,
               .audit = 0.25,
               .step = 5};
  return m;
}

VersionFingerprints make_version(uint64_t version) {
  VersionFingerprints v;
  v.version = version;
  for (const std::string name : kTensors) {
    const auto digest = [&](const char* what) {
      return digest_of(name + what + std::to_string(version));
    };
    TensorFingerprints t;
    t.weight = digest("weight");
    if (version > 0) {
      t.gradient = digest("gradient");
      t.master = digest("master");
      t.exp_avg = digest("exp_avg");
      t.exp_avg_sq = digest("exp_avg_sq");
    }
    v.tensors.emplace(name, t);
  }
  return v;
}

RolloutFingerprints make_rollout(int64_t step, const VersionFingerprints& version, int engines) {
  std::map<std::string, Digest> tensors;
  for (const auto& [name, t] : version.tensors) tensors.emplace(name, t.weight);
  return {step, version.version, std::vector(static_cast<size_t>(engines), tensors)};
}

std::vector<SampleText> make_texts(const Trajectory& t) {
  std::vector<SampleText> texts;
  for (const Sample& s : t.samples)
    texts.push_back(
        {s.prompt, s.sample, "1 + 1 =", "\\boxed{2}", "2", s.reward, s.advantage, s.truncated});
  return texts;
}

}  // namespace

std::map<std::string, OpReadback> strict_ops() {
  std::map<std::string, OpReadback> ops;
  const std::map<std::string, std::vector<std::string>> modules = {
      {"attention",
       {"gemm", "gemm_dgrad", "gemm_wgrad", "rms_norm", "rms_norm_bwd", "rms_norm_wgrad",
        "qk_norm_rope", "qk_norm_rope_bwd", "attention", "attention_delta", "attention_bwd_dq",
        "attention_bwd_dkv"}},
      {"ffn",
       {"gemm", "gemm_dgrad", "gemm_wgrad", "embedding", "embedding_bwd", "swiglu", "swiglu_bwd",
        "gemm_swiglu", "adamw"}},
      {"logp",
       {"gemm", "gemm_dgrad", "gemm_wgrad", "rms_norm", "logprob_stats", "logprob_merge",
        "logprob_bwd", "sample", "sample_merge"}},
      {"run", {"sha256_pieces"}}};
  for (const auto& [module, names] : modules)
    for (const std::string& name : names)
      ops.emplace(module + "." + name, OpReadback{"cpu", true, 12, 0});
  return ops;
}

RunContent passing_content() {
  RunContent c;
  c.plan = make_plan();
  c.inputs.model_files = {{"model.safetensors", hex(digest_of("model"))}};
  c.inputs.data_sha256 = hex(digest_of("data"));
  for (int64_t step = 0; step <= kSteps; ++step)
    c.versions.push_back(make_version(static_cast<uint64_t>(step)));
  for (int64_t step = 0; step < kSteps; ++step) {
    c.steps.push_back(make_step(step));
    c.metrics.push_back(make_metrics(c.steps.back()));
    c.texts.push_back(make_texts(c.steps.back()));
    c.rollouts.push_back(make_rollout(step, c.versions[static_cast<size_t>(step)],
                                      c.plan.options.topology.engines()));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    c.inputs.commands.push_back({"rlk", "worker", "--rank", std::to_string(rank)});
    c.ranks.push_back({rank, 1000 + rank, kSteps, strict_ops(), std::nullopt});
    c.exits.push_back({rank, 0, 0});
  }
  return c;
}

std::filesystem::path write_run(const std::filesystem::path& root, const RunContent& content) {
  Plan plan = content.plan;
  plan.output_root = root;
  plan.run_dir = root / plan.run_id;
  RunWriter writer = RunWriter::create(plan, content.inputs);
  for (const auto& v : content.versions) writer.write_version(v);
  for (const auto& r : content.rollouts) writer.write_rollout_weights(r);
  for (const auto& t : content.steps) writer.write_sidecar(t);
  for (size_t i = 0; i < content.texts.size(); ++i)
    writer.write_texts(static_cast<int64_t>(i), content.texts[i]);
  for (const auto& m : content.metrics) writer.append_metrics(m);
  for (const auto& r : content.ranks) writer.write_rank_record(r);
  writer.finish(content.status, "", content.exits);
  return writer.dir();
}

}  // namespace rlk::test
