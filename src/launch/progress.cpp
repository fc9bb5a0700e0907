#include "rlk/launch/progress.h"

#include <sys/ioctl.h>

#include <cmath>

namespace rlk {
namespace {

constexpr std::chrono::seconds kPlainInterval{10};  // between two plain lines of one step

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(seconds));
  if (s < 60) return std::to_string(s) + "s";
  if (s < 3600) return std::to_string(s / 60) + "m" + std::to_string(100 + s % 60).substr(1) + "s";
  return std::to_string(s / 3600) + "h" + std::to_string(100 + s / 60 % 60).substr(1) + "m";
}

size_t columns(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string progress_text(const Progress& p) {
  std::string text = "step " + std::to_string(p.step + 1);
  if (p.steps > 0) text += "/" + std::to_string(p.steps);
  text += " " + p.phase;
  if (p.fraction > 0) text += " " + std::to_string(std::lround(p.fraction * 100)) + "%";
  if (p.tokens_per_s > 0) text += " " + std::to_string(std::llround(p.tokens_per_s)) + " tok/s";
  if (!p.note.empty()) text += " " + p.note;
  if (p.eta_s >= 0) text += ", " + duration(p.eta_s) + " left";
  return text;
}

void ProgressPrinter::show(const StatusMessage& message) {
  using Type = StatusMessage::Type;
  if (message.type != Type::phase && message.type != Type::progress) return;
  const bool new_step = !started_ || message.progress.step != shown_.step;
  if (message.type == Type::progress) {
    shown_ = message.progress;
  } else {  // keeps what is known of the run
    shown_.phase = message.progress.phase;
    shown_.step = message.progress.step;
    shown_.fraction = 0;
  }
  started_ = true;
  if (terminal_) {
    const std::string line = progress_text(shown_).substr(0, columns(out_) - 1);
    std::fprintf(out_, "\r%s\x1b[K", line.c_str());
    open_line_ = true;
  } else {
    const auto now = std::chrono::steady_clock::now();
    if (!new_step && now < next_plain_) return;
    next_plain_ = now + kPlainInterval;
    std::fprintf(out_, "%s\n", progress_text(shown_).c_str());
  }
  std::fflush(out_);
}

void ProgressPrinter::finish() {
  if (open_line_) std::fputc('\n', out_);
  std::fflush(out_);
  open_line_ = false;
}

}  // namespace rlk
