// Options: precedence, limits, messages. Every limit is tested from both sides.
#include "rlk/plan/make_plan.h"

#include <gtest/gtest.h>

#include <fstream>

#include "plan/plan_fixture.h"
#include "temp_dir.h"

namespace {

using namespace rlk;
using test::defects;
using test::inputs;

Options options(std::vector<GivenOption> command_line, Command command = Command::verify) {
  return make_plan(inputs(std::move(command_line), command)).options;
}

void set_default(Profile& profile, const std::string& option, const std::string& text) {
  profile.defaults.push_back({option, text, "test.json: defaults." + option});
}

}  // namespace

TEST(Options, BuiltInValuesAreTheDocumentedOnes) {
  PlanInputs in = inputs();
  in.profile->defaults.clear();
  in.profile->verify.clear();
  in.profile->defaults.push_back(
      {"max-response-len", "64", ""});  // the tiny model has 512 positions
  const Options verify = make_plan(in).options;
  in.command = Command::run;
  const Options run = make_plan(in).options;
  EXPECT_EQ(verify.topology.tp, 4);
  EXPECT_EQ(verify.topology.cp, 2);
  EXPECT_EQ(verify.topology.rollout_tp, 4);
  EXPECT_EQ(verify.topology.rollout_cp, 1);
  EXPECT_EQ(verify.topology.engines(), 2);
  EXPECT_EQ(verify.steps, 2);
  EXPECT_EQ(run.steps, 200);
  EXPECT_EQ(verify.kl_coef, 0.01);
  EXPECT_EQ(run.kl_coef, 0);
  EXPECT_EQ(verify.temperature, 1.0f);
  EXPECT_EQ(verify.top_p, 1.0f);
  EXPECT_EQ(verify.top_k, -1);
  EXPECT_EQ(verify.lr, 5e-7);
  EXPECT_EQ(verify.weight_decay, 0.1);
  EXPECT_EQ(verify.eps_clip, 0.2);
  EXPECT_EQ(verify.kl_estimator, 3);
  EXPECT_EQ(verify.rollout_batch_size, 1);
  EXPECT_EQ(verify.samples_per_prompt, 8);
  EXPECT_EQ(verify.global_batch_size, 8);
  EXPECT_EQ(verify.seed, 1234u);
  EXPECT_EQ(verify.rollout_seed, 1234u);
  EXPECT_EQ(verify.threads, 2);  // 16 cores, 8 ranks
  EXPECT_EQ(verify.save_interval, 0);
  EXPECT_FALSE(verify.token_mean);
  EXPECT_TRUE(verify.consistency && verify.std_normalization);
}

TEST(Options, CommandLineOverEnvironmentOverVerifyOverDefaults) {
  PlanInputs in = inputs();
  EXPECT_EQ(make_plan(in).options.rollout_batch_size, 4);
  in.command = Command::run;
  EXPECT_EQ(make_plan(in).options.rollout_batch_size, 16);
  in.command = Command::verify;
  in.environment["RLK_ROLLOUT_BATCH_SIZE"] = "3";
  EXPECT_EQ(make_plan(in).options.rollout_batch_size, 3);
  in.command_line = {{"rollout-batch-size", "2"}};
  EXPECT_EQ(make_plan(in).options.rollout_batch_size, 2);
}

TEST(Options, AnEmptyEnvironmentVariableIsUnset) {
  PlanInputs in = inputs();
  in.environment["RLK_TP"] = "";
  EXPECT_EQ(make_plan(in).options.topology.tp, 4);
}

TEST(Options, PathsListenToTheKnownSystemsVariables) {
  PlanInputs in = inputs();
  in.environment["RLK_REPRO_OUTPUT_ROOT"] = "there";
  EXPECT_EQ(make_plan(in).output_root, "/here/there");
  in.environment["RLK_OUTPUT_ROOT"] = "/other";
  EXPECT_EQ(make_plan(in).output_root, "/other");
}

TEST(Options, RunsLieInTheWorkspaceUnlessAnOutputRootIsGiven) {
  PlanInputs in = inputs();
  in.profile->paths.output_root.reset();
  EXPECT_NE(defects(in).find("--output-root: missing"), std::string::npos);
  in.profile->paths.workspace = "/w";
  EXPECT_EQ(make_plan(in).run_dir, "/w/runs/id");
}

TEST(Options, OmittedCpIsRanksOverTp) {
  for (int tp : {1, 2, 4, 8}) EXPECT_EQ(options({{"tp", std::to_string(tp)}}).topology.cp, 8 / tp);
  EXPECT_EQ(options({{"cp", "8"}}).topology.tp, 1);
}

TEST(Options, CpOfTheProfileYieldsToTpOfTheCommandLine) {
  PlanInputs in = inputs({{"tp", "8"}});
  set_default(*in.profile, "tp", "4");
  set_default(*in.profile, "cp", "2");
  EXPECT_EQ(make_plan(in).options.topology.cp, 1);
  in.command_line.clear();
  EXPECT_EQ(make_plan(in).options.topology.cp, 2);
  in.environment["RLK_TP"] = "2";
  EXPECT_EQ(make_plan(in).options.topology.cp, 4);
  in.command_line = {{"cp", "2"}};  // stands above the environment's tp: kept, and then wrong
  EXPECT_NE(defects(in).find("--cp 2: times RLK_TP=2 must be the 8 ranks"), std::string::npos)
      << defects(in);
}

TEST(Options, LimitsFromBothSides) {
  const struct {
    const char *option, *right, *wrong, *message;
  } cases[] = {
      {"tp", "8", "3", "--tp 3: must be 1, 2, 4 or 8 on this profile"},
      {"tp", "1", "16", "--tp 16: must be"},
      {"rollout-tp", "2", "0", "--rollout-tp 0: must be 1, 2, 4 or 8"},
      {"rollout-cp", "2", "4", "--rollout-cp 4: times --rollout-tp must divide the 8 ranks"},
      {"temperature", "0", "-0.1", "--temperature -0.1: must be a finite number from 0"},
      {"temperature", "1.3", "inf", "--temperature inf: must be"},
      {"temperature", "0.7", "nan", "--temperature nan: must be"},
      {"temperature", "1e2", "1.0x", "--temperature 1.0x: must be"},
      {"top-p", "1", "0", "--top-p 0: must be a finite number above 0, at most 1"},
      {"top-p", "0.01", "1.0001", "--top-p 1.0001: must be"},
      {"temperature", "1e-06", "1e-7", "--temperature 1e-7: must be 0 (greedy) or from 1e-06 to"},
      {"temperature", "1e-06", "1e-50", "--temperature 1e-50: must be 0 (greedy) or from 1e-06 to"},
      {"top-p", "1e-30", "1e-60", "--top-p 1e-60: is 0 as a 32-bit number"},
      {"top-k", "-1", "0", "--top-k 0: must be -1 (all) or at least 1"},
      {"top-k", "419", "420", "--top-k 420: must be -1 or from 1 to the vocabulary's 419"},
      {"steps", "1", "0", "--steps 0: must be an integer from 1"},
      {"steps", "7", "99999999999999999999", "--steps 99999999999999999999: must be"},
      {"max-response-len", "511", "512", "--max-response-len 512: leaves no room for a prompt"},
      {"lr", "0", "-1e-7", "--lr -1e-7: must be"},
      {"eps-clip", "0.2", "0", "--eps-clip 0: must be"},
      {"kl-coef", "0", "x", "--kl-coef x: must be"},
      {"loss-aggregation", "token-mean", "mean",
       "--loss-aggregation mean: must be sample-mean or token-mean"},
      {"kl-estimator", "k1", "k4", "--kl-estimator k4: must be k1, k2 or k3"},
      {"grpo-std-normalization", "disabled", "no",
       "--grpo-std-normalization no: must be enabled or disabled"},
      {"save-interval", "off", "-1", "--save-interval -1: must be"},
      {"global-batch-size", "16", "7", "--global-batch-size 7: must divide the 32 samples"},
      {"rollout-batch-size", "65536", "0", "--rollout-batch-size 0: must be"},
      {"samples-per-prompt", "1", "4097", "--samples-per-prompt 4097: must be"},
      {"seed", "18446744073709551615", "-1", "--seed -1: must be"},
      {"threads", "4", "0", "--threads 0: must be"},
      {"max-tokens-per-gpu", "1", "0", "--max-tokens-per-gpu 0: must be"},
      {"gpu-memory-utilization", "0.5", "1.5", "--gpu-memory-utilization 1.5: must be"},
      {"backend", "cpu", "rocm", "--backend rocm: must be auto, cpu or cuda"},
      {"mode", "native", "fast", "--mode fast: must be consistency or native"},
      {"group", "M101", "M10", "--group M10: must be M and three bits"},
      {"modules", "attention=native,ffn=strict", "attention",
       "--modules attention: must be a list"},
      {"modules", "logp=native", "head=native", "--modules head=native: must be a list"},
      {"launcher", "local", "ray", "--launcher ray: must be local"},
      {"run-id", "A.b_c-9", "../x", "--run-id ../x: must be at most 128 letters"},
      {"run-id", "9", ".hidden", "--run-id .hidden: must be"},
      {"run-id", "a", "", "--run-id : must be"},
      {"run-id", "a..b", "a/b", "--run-id a/b: must be"},
      {"model-root", RLK_SOURCE_DIR "/profiles/tiny", "/nowhere",
       "/nowhere/config.json: No such file"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(defects(inputs({{c.option, c.right}})), "") << c.option << " " << c.right;
    const std::string text = defects(inputs({{c.option, c.wrong}}));
    EXPECT_NE(text.find(c.message), std::string::npos)
        << "--" << c.option << " " << c.wrong << " gave: " << (text.empty() ? "no error" : text);
  }
}

TEST(Options, AllErrorsOfAllSourcesAreReportedAtOnce) {
  PlanInputs in =
      inputs({{"tp", "3"}, {"top-p", "2"}, {"run-id", "a/b"}, {"model-root", "/nowhere"}});
  in.environment["RLK_LR"] = "fast";
  set_default(*in.profile, "top-k", "zero");
  in.defects = {{"--tmperature", "unknown option", ""}};
  const std::string text = defects(in);
  for (const char* part : {"--tp 3", "--top-p 2", "--run-id a/b", "/nowhere", "RLK_LR=fast",
                           "test.json: defaults.top-k zero", "--tmperature"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in:\n" << text;
}

TEST(Options, AnUnreadableProfileDoesNotHideErrorsOfTheCommandLine) {
  PlanInputs in = inputs({{"top-p", "2"}});
  in.profile.reset();
  in.defects = {{"p.json", "malformed", ""}};
  const std::string text = defects(in);
  EXPECT_NE(text.find("p.json: malformed"), std::string::npos);
  EXPECT_NE(text.find("--top-p 2"), std::string::npos);
}

TEST(Options, ModulesDecideTheModeUnlessItIsGiven) {
  EXPECT_TRUE(options({}).strict_ffn);
  const Options native = options({{"mode", "native"}});
  EXPECT_FALSE(native.consistency || native.strict_attention || native.strict_ffn ||
               native.strict_logp);
  const Options mixed = options({{"group", "M101"}});
  EXPECT_FALSE(mixed.consistency);
  EXPECT_TRUE(mixed.strict_attention && mixed.strict_logp && !mixed.strict_ffn);
  EXPECT_TRUE(options({{"group", "M111"}}).consistency);
  const Options partly = options({{"mode", "native"}, {"modules", "ffn=strict"}});
  EXPECT_TRUE(partly.strict_ffn && !partly.strict_attention && !partly.strict_logp);
  EXPECT_NE(
      defects(inputs({{"mode", "consistency"}, {"group", "M110"}})).find("needs --mode native"),
      std::string::npos);
  EXPECT_NE(
      defects(inputs({{"modules", "ffn=strict"}, {"group", "M111"}})).find("must not stand beside"),
      std::string::npos);
}

// NCCL refuses two ranks on one GPU.
TEST(Options, NativeSumsOverRanksThatShareAGpuAreRefused) {
  PlanInputs in = inputs({{"backend", "cuda"}, {"group", "M110"}});
  in.profile->ranks_per_gpu = 8;
  EXPECT_NE(defects(in).find("ranks_per_gpu: 8 ranks share a GPU, and native modules sum over TP"),
            std::string::npos)
      << defects(in);
  const auto passes = [&](std::vector<GivenOption> options) {
    PlanInputs other = inputs(std::move(options));
    other.profile->ranks_per_gpu = 8;
    EXPECT_EQ(defects(other), "");
  };
  passes({{"backend", "cuda"}, {"group", "M110"}, {"tp", "1"}, {"rollout-tp", "1"}});
  passes({{"backend", "cuda"}, {"group", "M111"}});
  passes({{"backend", "cpu"}, {"group", "M110"}});
  in.profile->ranks_per_gpu = 1;
  EXPECT_EQ(defects(in), "");
}

TEST(Options, CudaNeedsTheBuildTheGpusAndTheModels) {
  PlanInputs in = inputs();
  in.profile->requirements.backend = "cuda";
  in.profile->requirements.gpu_models = {"H100", "H200"};
  in.profile->requirements.gpu_memory_gib = 80;
  EXPECT_EQ(make_plan(in).options.backend, Backend::cuda) << "a plan alone needs no GPU";
  in.starting = true;
  EXPECT_NE(defects(in).find("built without CUDA"), std::string::npos);
  in.host.cuda_built = true;
  EXPECT_NE(defects(in).find("need 8 GPUs, this host has 0"), std::string::npos);
  in.host.gpus.assign(8, {"NVIDIA A100", 80ULL << 30});
  EXPECT_NE(defects(in).find("this host has NVIDIA A100"), std::string::npos);
  in.host.gpus.assign(8, {"NVIDIA H100 PCIe", 40ULL << 30});
  EXPECT_NE(defects(in).find("gpu_memory_gib"), std::string::npos);
  in.host.gpus.assign(8, {"NVIDIA H100 80GB HBM3", 80ULL << 30});
  EXPECT_EQ(defects(in).find("requirements"), std::string::npos) << defects(in);
}

TEST(Options, AutoTakesCudaOnlyWhereItCanRun) {
  PlanInputs in = inputs({{"backend", "auto"}});
  in.profile->requirements.backend = "auto";
  EXPECT_EQ(make_plan(in).options.backend, Backend::cpu);
  in.host.cuda_built = true;
  EXPECT_EQ(make_plan(in).options.backend, Backend::cpu);
  in.host.gpus.assign(8, {"NVIDIA H200", 139ULL << 30});
  EXPECT_EQ(make_plan(in).options.backend, Backend::cuda);
}

TEST(Synthetic, HasNoFilesAndOnlyTheHashReward) {
  PlanInputs in = inputs();
  in.profile->synthetic = SyntheticModel{"qwen3-8b", 3, 100};
  in.profile->shape = "qwen3-8b";
  in.profile->task.reward = "synthetic-hash";
  const std::string beside = defects(in);  // the fixture's paths
  for (const char* part : {"model-root", "prompt-data"})
    EXPECT_NE(beside.find(std::string(part) + ": " RLK_SOURCE_DIR), std::string::npos) << beside;
  in.profile->paths.model_root.reset();
  in.profile->paths.prompt_data.reset();
  in.starting = true;
  const Plan plan = make_plan(in);
  EXPECT_EQ(plan.model.D, 4096);
  EXPECT_EQ(plan.synthetic->seed, 3u);
  EXPECT_EQ(plan.model_root, "");
  const Plan again = plan_from_json(plan_to_json(plan));
  EXPECT_EQ(plan_to_json(again), plan_to_json(plan));

  in.profile->task.reward = "deepscaler";
  EXPECT_NE(defects(in).find("task.reward: \"deepscaler\""), std::string::npos) << defects(in);
  in.profile->task.reward = "synthetic-hash";
  in.profile->synthetic->prompt_tokens = 40960 - 64 + 1;
  EXPECT_NE(defects(in).find("model.prompt_tokens"), std::string::npos) << defects(in);
  in.profile->synthetic->prompt_tokens = 40960 - 64;
  EXPECT_EQ(defects(in), "");
  in.profile->shape = "qwen3-9b";
  EXPECT_NE(defects(in).find("model.shape: \"qwen3-9b\""), std::string::npos) << defects(in);
}

TEST(Shape, StandsInForAModelThatIsNotThereInAPlanAlone) {
  PlanInputs in = inputs({{"model-root", "/nowhere"}});
  in.profile->shape = "qwen3-4b";
  EXPECT_EQ(make_plan(in).model.D, 2560);
  in.starting = true;
  EXPECT_NE(defects(in).find("/nowhere/config.json"), std::string::npos) << defects(in);
  in.command_line.clear();
  in.starting = false;
  EXPECT_EQ(make_plan(in).model.vocab, 419) << "what is there counts";
}

TEST(Preflight, ARunIdIsNeverReused) {
  test::TempDir dir;
  std::filesystem::create_directory(dir.path() / "taken");
  PlanInputs in = inputs({{"output-root", dir.path().string()}, {"run-id", "taken"}});
  EXPECT_EQ(defects(in).find("taken"), std::string::npos) << "a plan may name an existing run";
  in.starting = true;
  EXPECT_NE(defects(in).find("--run-id taken: " + (dir.path() / "taken").string() + " exists"),
            std::string::npos)
      << defects(in);
}

TEST(Preflight, MissingInputsAreNamedBeforeAnythingStarts) {
  test::TempDir dir;
  std::filesystem::copy(RLK_SOURCE_DIR "/profiles/tiny/config.json", dir.path() / "config.json");
  PlanInputs in = inputs({{"model-root", dir.path().string()}, {"prompt-data", "/nowhere.jsonl"}});
  in.starting = true;
  const std::string text = defects(in);
  for (const char* part :
       {"/nowhere.jsonl: no such file", "no model.safetensors", "no tokenizer.json"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in:\n" << text;
}

TEST(Preflight, PromptsWithAnotherHashAreRefused) {
  PlanInputs in = inputs();
  in.starting = true;
  in.profile->task.prompt_data_sha256 = std::string(64, '0');
  EXPECT_NE(defects(in).find("task.prompt_data_sha256"), std::string::npos);
}

TEST(Memory, MoreTensorParallelRanksHoldLessOfTheModel) {
  const auto weights = [](const char* tp) {
    return make_plan(inputs({{"tp", tp}, {"rollout-tp", tp}})).memory.at("weights.bf16");
  };
  EXPECT_LT(weights("8"), weights("4"));
  EXPECT_LT(weights("4"), weights("1"));
}

TEST(Memory, APlanThatCannotFitIsRefused) {
  PlanInputs in = inputs({{"backend", "cuda"}});
  in.profile->requirements.gpu_memory_gib = 0.01;
  EXPECT_NE(defects(in).find("memory plan: a rank needs"), std::string::npos);
  in.profile->requirements.gpu_memory_gib = 8;
  const Plan plan = make_plan(in);
  EXPECT_GT(plan.options.gpu_memory_utilization, 0);
  EXPECT_GT(plan.kv_pages, 0);
}

PlanInputs bundled(const std::string& name, std::vector<GivenOption> options = {}) {
  PlanInputs in;
  in.command = Command::verify;
  in.command_line = std::move(options);
  in.profile = read_profile(RLK_SOURCE_DIR "/profiles/" + name + ".json");
  in.working_folder = "/here";
  in.default_run_id = "id";
  return in;
}

// A full replica with a reference is too much for four GPUs of 80 GB: refused with the numbers, and
// each option that the message names does make it fit.
TEST(Memory, ARefusedPlanNamesOptionsThatFit) {
  const std::vector<GivenOption> replica = {{"tp", "1"}, {"rollout-tp", "1"}};
  const std::string text = defects(bundled("qwen3-8b-x4", replica));
  EXPECT_NE(text.find("memory plan: a rank needs"), std::string::npos) << text;
  EXPECT_NE(text.find("optimizer.state"), std::string::npos) << text;
  EXPECT_NE(text.find("it would fit with --tp 2 --rollout-tp 2, or"), std::string::npos) << text;
  EXPECT_EQ(defects(bundled("qwen3-8b-x4", {{"tp", "2"}, {"rollout-tp", "2"}})), "");
  const std::string none = defects(bundled("qwen3-8b-x4", {{"gpu-memory-utilization", "0.3"}}));
  EXPECT_NE(none.find("more GPUs, or GPUs of more memory"), std::string::npos) << none;
}

TEST(Memory, MoreMemoryKeepsMoreActivations) {
  uint64_t before = 0;
  for (const char* share : {"0.9", "0.94", "0.98"}) {
    const Plan plan = make_plan(bundled("qwen3-8b-x2", {{"gpu-memory-utilization", share}}));
    EXPECT_GT(plan.memory.at("train.activations"), before) << share;
    before = plan.memory.at("train.activations");
    uint64_t sum = 0;
    for (const auto& [item, bytes] : plan.memory) sum += bytes;
    EXPECT_LE(static_cast<double>(sum), 141.0 * (1 << 30) * std::stod(share));
  }
}

TEST(Memory, Qwen3FitsItsHost) {
  PlanInputs in =
      inputs({{"model-root", RLK_SOURCE_DIR "/tests/plan/qwen3-8b"}, {"max-response-len", "7168"}},
             Command::run);
  in.profile->requirements.backend = "cuda";
  in.profile->requirements.gpu_memory_gib = 80;
  const Plan plan = make_plan(in);
  EXPECT_EQ(plan.model.L, 36);
  // bf16 weights of 8.2e9 parameters over TP 4: 4.1e9 bytes, and padding of the vocabulary.
  EXPECT_NEAR(static_cast<double>(plan.memory.at("weights.bf16")), 4.1e9, 0.03e9);
  EXPECT_LE(plan.arena_bytes, static_cast<uint64_t>(80.0 * (1 << 30)));
  EXPECT_GE(plan.kv_pages * plan.page_size, 32 * 8192) << "room for 32 long responses an engine";
}
