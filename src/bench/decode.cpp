#include "rlk/bench/decode.h"

// The rollout engine's decode step on a synthetic model.
//
// Every request has a prompt of its own. The engine prefills them, then decodes around the asked
// context; what is timed is the host's clock between the moments at which a plan's tokens arrive,
// so launches, uploads and the host's own work count. Before, the same tokens are drawn one step at
// a time without graphs, and must be the same.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "decode_results.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/text.h"
#include "rlk/build_info/build_info.h"
#include "rlk/profile/model_config.h"
#include "rlk/rollout/engine.h"
#include "rlk/worker/fill_weights.h"
#include "rlk/worker/local_rank.h"

namespace rlk {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kPage = 128;
constexpr int64_t kPrefillTokens = 4096;  // rows of one prefill pass

void check_options(const DecodeBenchOptions& o, std::vector<Diagnostic> defects) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  for (const int64_t batch : o.batches)
    if (batch < 1 || batch > 4096)
      defects.push_back({"--batch", number(batch), "must be 1 to 4096"});
  if (o.look_ahead < 1 || o.steps < o.look_ahead || o.steps % o.look_ahead != 0)
    defects.push_back(
        {"--steps", number(o.steps), "must be a multiple of --look-ahead, which is at least 1"});
  if (o.context <= o.steps / 2)
    defects.push_back({"--context", number(o.context), "must be more than half of --steps"});
  if (!defects.empty()) throw InputError(defects);
}

struct Row {
  int64_t batch = 0;
  double ms = 0, eager_ms = 0, floor_ms = 0, bytes = 0;
};

// Steps that the last request decodes with the whole batch beside it, and those that the first ones
// draw while the others are prefilled.
struct Lengths {
  int64_t prompt, steps, extra;
};

Lengths lengths(const DecodeBenchOptions& o, int64_t batch) {
  const int64_t prompt = std::max<int64_t>(1, o.context - o.steps / 2);
  return {prompt, o.steps, batch * prompt / kPrefillTokens + 2};
}

RolloutOptions rollout_options(const DecodeBenchOptions& o, int64_t batch, int64_t context) {
  RolloutOptions r{};
  r.topology = LocalRank::topology();
  r.page_size = kPage;
  r.pages_per_rank = batch * ((context + kPage - 1) / kPage);
  r.max_running = batch;
  r.max_batch_tokens = kPrefillTokens;
  r.max_context = context;
  r.look_ahead = o.look_ahead;
  return r;
}

std::vector<GenerateRequest> make_requests(const DecodeBenchOptions& o, const Lengths& n,
                                           int64_t batch, int64_t vocab) {
  std::vector<GenerateRequest> all(batch);
  for (int64_t i = 0; i < batch; ++i) {
    all[i].prompt_index = i;
    for (int64_t t = 0; t < n.prompt; ++t)
      all[i].prompt.push_back(
          static_cast<int32_t>(mix64(i * 100003 + t) % static_cast<uint64_t>(vocab)));
    all[i].max_new = 1 + n.steps + n.extra;
    all[i].sampling = {o.temperature, o.top_p, o.top_k};
  }
  return all;
}

struct Timed {
  std::vector<GenerateResult> results;
  double step_ms;  // median over plans
};

Timed timed_run(RolloutEngine& engine, const WeightsView& view,
                const std::vector<GenerateRequest>& requests, int64_t steps, int32_t look_ahead) {
  // Arrivals of the last request's tokens: it is admitted last, and all others are still running.
  const auto last = static_cast<int32_t>(requests.size()) - 1;
  std::vector<Clock::time_point> at;
  Timed timed{engine.generate(view, requests, 1, 0,
                              [&](int32_t request, int32_t) {
                                if (request == last) at.push_back(Clock::now());
                              }),
              0};
  std::vector<double> ms;
  for (int64_t i = look_ahead; i <= steps; i += look_ahead)
    ms.push_back(std::chrono::duration<double, std::milli>(at[i] - at[i - look_ahead]).count() /
                 look_ahead);
  std::nth_element(ms.begin(), ms.begin() + static_cast<int64_t>(ms.size() / 2), ms.end());
  timed.step_ms = ms[ms.size() / 2];
  return timed;
}

// GB/s, read plus write, of a large copy on the device: what memory gives at best.
double copy_rate(const Ops& ops, Stream stream) {
  const int64_t bytes = int64_t{1} << (ops.stream_create ? 30 : 26);
  constexpr int kCopies = 10, kRounds = 5;
  DeviceBuffer from(ops), to(ops);
  from.ensure(bytes);
  to.ensure(bytes);
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    ops.synchronize(stream);
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i)
      ops.copy(stream, to.ensure(0), from.ensure(0), static_cast<size_t>(bytes));
    ops.synchronize(stream);
    const std::chrono::duration<double> took = Clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(bytes) * kCopies / took.count() / 1e9);
  }
  return best;
}

// What a step must read: every weight but the embedding's, and the keys and values of the batch.
double step_bytes(const ModelConfig& m, int64_t batch, int64_t context) {
  const int64_t layer = m.qkv_rows() * m.D + m.H * m.Dh * m.D + 3 * m.F * m.D;
  return 2.0 *
         static_cast<double>(m.L * layer + m.vocab * m.D + batch * context * m.L * 2 * m.KH * m.Dh);
}

// A table whose entry does nothing: what a step takes without an op is what the op adds to it,
// overlap included.
template <class Args>
void drop(void (*&entry)(Stream, const Args&)) {
  entry = [](Stream, const Args&) {};
}

struct Part {
  const char* name;
  void (*leave_out)(Ops&);
};
const Part kParts[] = {
    {"attention", [](Ops& t) { drop(t.attention); }},
    {"rms_norm", [](Ops& t) { drop(t.rms_norm); }},
    {"qk_norm_rope", [](Ops& t) { drop(t.qk_norm_rope); }},
    {"logits_support", [](Ops& t) { drop(t.logits_support); }},
    {"logprob_stats", [](Ops& t) { drop(t.logprob_stats); }},
};

void print_profile(const DecodeBenchOptions& o, LocalRank& rank, const Context& context,
                   const RolloutOptions& options, const Lengths& n,
                   const std::vector<GenerateRequest>& requests, double whole_ms) {
  for (const Part& part : kParts) {
    Ops table = rank.ops();
    part.leave_out(table);
    Context without = context;
    without.attention = without.ffn = without.logp = &table;
    RolloutEngine engine(without, rank.world(), options);
    const double ms = timed_run(engine, rank.view(), requests, n.steps, o.look_ahead).step_ms;
    std::printf("           without %-15s %8.3f ms, %7.1f us less\n", part.name, ms,
                (whole_ms - ms) * 1e3);
  }
}

void write_csv(const DecodeBenchOptions& o, double rate, const std::vector<Row>& rows) {
  if (o.csv.empty()) return;
  const BuildInfo& build = build_info();
  std::ostringstream text;
  text << "# " << (o.backend == Backend::cuda ? "cuda" : "cpu") << ", revision " << build.revision
       << (build.dirty ? " (dirty)" : "") << ", copy ceiling " << rate << " GB/s\n"
       << "op,shape,us,gb_per_s,of_copy,tflop_per_s,library_us\n";
  for (const Row& r : rows)
    text << "decode," << o.shape << " batch=" << r.batch << " context=" << o.context << ','
         << r.ms * 1e3 << ',' << r.bytes / r.ms / 1e6 << ',' << r.floor_ms / r.ms << ",0,0\n";
  write_file_atomic(o.csv, text.str());
}

}  // namespace

int bench_decode(const DecodeBenchOptions& o, std::vector<Diagnostic> defects) {
  check_options(o, std::move(defects));
  ModelConfig m = model_of_shape(o.shape, "--shape");
  const int64_t most = *std::max_element(o.batches.begin(), o.batches.end());
  const Lengths longest = lengths(o, most);
  m.max_position = longest.prompt + 1 + longest.steps + longest.extra;
  m.eos.clear();
  const RolloutOptions options = rollout_options(o, most, m.max_position);
  RolloutOptions eager = options;
  eager.graphs = false;
  eager.look_ahead = 1;
  const auto kv_bytes = [&](const RolloutOptions& r) {
    return static_cast<size_t>(RolloutEngine::kv_bytes(m, r, 0));
  };
  size_t memory = 2 * kv_bytes(options);
  if (o.profile)
    for (const int64_t batch : o.batches)
      memory += std::size(kParts) * kv_bytes(rollout_options(o, batch, m.max_position));
  LocalRank rank(o.backend, std::max(1, static_cast<int>(std::thread::hardware_concurrency())), m,
                 memory, [](Weights& weights, const Ops& ops) { make_weights(weights, ops, 0); });
  const Context context = rank.context();
  const double rate = copy_rate(rank.ops(), context.stream);
  RolloutEngine engine(context, rank.world(), options), plain(context, rank.world(), eager);
  std::printf("%s, decode around context %lld, copy ceiling (read + write) %.0f GB/s\n",
              o.shape.c_str(), static_cast<long long>(o.context), rate);
  std::vector<Row> rows;
  int wrong = 0;
  for (const int64_t batch : o.batches) {
    const Lengths n = lengths(o, batch);
    const auto requests = make_requests(o, n, batch, m.vocab);
    const Timed want = timed_run(plain, rank.view(), requests, n.steps, 1);
    const Timed got = timed_run(engine, rank.view(), requests, n.steps, o.look_ahead);
    if (const std::string miss = bench::first_difference(got.results, want.results);
        !miss.empty()) {
      std::printf("batch %-4lld WRONG: %s\n", static_cast<long long>(batch), miss.c_str());
      ++wrong;
      continue;
    }
    Row row{batch, got.step_ms, want.step_ms};
    row.bytes = step_bytes(m, batch, o.context);
    row.floor_ms = row.bytes / rate / 1e6;
    std::printf(
        "batch %-4lld %8.3f ms a step %9.0f tokens/s   floor %7.3f ms (%.2f)   one step at "
        "a time, no graph %8.3f ms\n",
        static_cast<long long>(batch), row.ms, static_cast<double>(batch) / row.ms * 1e3,
        row.floor_ms, row.floor_ms / row.ms, row.eager_ms);
    std::fflush(stdout);
    if (o.profile)
      print_profile(o, rank, context, rollout_options(o, batch, m.max_position), n, requests,
                    row.ms);
    rows.push_back(row);
  }
  write_csv(o, rate, rows);
  return wrong > 0 ? kExitFailed : kExitOk;
}

}  // namespace rlk
