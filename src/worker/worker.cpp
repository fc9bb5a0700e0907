#include "rlk/worker/worker.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "rank.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/log.h"
#include "rlk/launch/status.h"
#include "rlk/run/run_writer.h"
#include "step_loop.h"

namespace rlk {
namespace {

struct WorkerArgs {
  std::string plan;
  int rank = -1, world_fd = kWorldFd, status_fd = kStatusFd;
  int64_t timeout_ms = 0;
};

WorkerArgs parse(std::vector<std::string> args) {
  WorkerArgs w;
  CLI::App app("a rank of a run; started by rlk itself", "rlk worker");
  app.add_option("--plan", w.plan)->required();
  app.add_option("--rank", w.rank)->required();
  app.add_option("--world-fd", w.world_fd);
  app.add_option("--status-fd", w.status_fd);
  app.add_option("--timeout-ms", w.timeout_ms)->required();
  std::reverse(args.begin(), args.end());  // what CLI11's vector form expects
  try {
    app.parse(args);
  } catch (const CLI::ParseError& e) {
    throw InputError("rlk worker", e.what());
  }
  return w;
}

}  // namespace

int worker_main(const std::vector<std::string>& args) {
  const WorkerArgs w = parse(args);
  init_logging("rank " + std::to_string(w.rank));
  StatusWriter status(w.status_fd);
  const Plan plan = plan_from_json(read_file(w.plan));
  std::unique_ptr<World> world =
      shm_world_open(w.world_fd, w.rank, std::chrono::milliseconds(w.timeout_ms));
  try {
    status.ready();
    status.phase("load", 0);
    Rank rank(plan, *world, make_op_tables(plan, w.rank), std::chrono::milliseconds(w.timeout_ms));
    run_steps(rank, status);
    status.done();
    // Everything is on disk and nobody reads this rank's memory any more: the kernel takes it back.
    std::_Exit(kExitOk);
  } catch (const std::exception& e) {
    // Whoever raised the abort flag has reported the failure that came first.
    const bool secondary =
        dynamic_cast<const AbortError*>(&e) != nullptr || !world->abort_reason().empty();
    status.failed(e.what(), secondary);
    if (!secondary) RunWriter(plan.run_dir).write_failure(w.rank, status.current_phase(), e.what());
    shm_world_abort(w.world_fd, "rank " + std::to_string(w.rank) + ": " + e.what());
    spdlog::error("{}", e.what());
    std::_Exit(kExitFailed);  // the ranks' shared memory goes with the processes
  }
}

}  // namespace rlk
