#include "rlk/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace rlk {

void init_logging(const std::string& prefix) {
  auto logger = std::make_shared<spdlog::logger>(
      "rlk", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e " + (prefix.empty() ? "" : "[" + prefix + "] ") + "%^%l%$ %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace rlk
