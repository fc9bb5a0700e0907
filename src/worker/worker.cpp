#include "rlk/worker/worker.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

#include "rank.h"
#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/launch/status.h"
#include "rlk/run/run_writer.h"
#include "step_loop.h"

namespace rlk {
namespace {

// Lines on stderr: "HH:MM:SS.mmm [rank R] level text".
void init_logging(int rank) {
  auto logger = std::make_shared<spdlog::logger>(
      "rlk", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e [rank " + std::to_string(rank) + "] %^%l%$ %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace

int worker_main(const WorkerCall& w) {
  init_logging(w.rank);
  StatusWriter status(w.status_fd);
  const Plan plan = plan_from_json(read_file(w.plan));
  std::unique_ptr<World> world = shm_world_open(w.world_fd, w.rank, w.timeout);
  try {
    status.ready();
    status.phase("load", 0);
    Rank rank(plan, *world, make_op_tables(plan, w.rank), w.timeout);
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
