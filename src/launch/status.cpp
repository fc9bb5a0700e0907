#include "rlk/launch/status.h"

#include <unistd.h>

#include <array>
#include <cerrno>

#include "rlk/base/error.h"
#include "rlk/base/json.h"

namespace rlk {
namespace {

using Type = StatusMessage::Type;

struct TypeName {
  Type type;
  const char* name;
};
constexpr std::array<TypeName, 6> kTypes = {{{Type::ready, "ready"},
                                             {Type::phase, "phase"},
                                             {Type::progress, "progress"},
                                             {Type::failed, "failed"},
                                             {Type::done, "done"},
                                             {Type::alive, "alive"}}};

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("write to the launcher's status pipe");
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

std::string to_line(const StatusMessage& m) {
  Json j;
  for (const TypeName& t : kTypes)
    if (t.type == m.type) j["type"] = t.name;
  if (m.type == Type::phase || m.type == Type::progress || m.type == Type::failed) {
    j["phase"] = m.progress.phase;
    j["step"] = m.progress.step;
  }
  if (m.type == Type::progress) {
    j["steps"] = m.progress.steps;
    j["fraction"] = m.progress.fraction;
    j["tokens_per_s"] = m.progress.tokens_per_s;
    j["eta_s"] = m.progress.eta_s;
    j["note"] = m.progress.note;
  }
  if (m.type == Type::failed) {
    j["message"] = m.message;
    j["secondary"] = m.secondary;
  }
  // `replace`: a message that quotes a broken file may hold invalid UTF-8.
  return j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<StatusMessage> parse_status(std::string_view line) try {
  const Json j = Json::parse(line);
  const auto name = j.at("type").get<std::string>();
  StatusMessage m;
  bool known = false;
  for (const TypeName& t : kTypes)
    if (name == t.name) m.type = t.type, known = true;
  if (!known) return std::nullopt;
  if (m.type == Type::phase || m.type == Type::progress || m.type == Type::failed) {
    m.progress.phase = j.at("phase").get<std::string>();
    m.progress.step = j.at("step").get<int64_t>();
  }
  if (m.type == Type::progress) {
    m.progress.steps = j.at("steps").get<int64_t>();
    m.progress.fraction = j.at("fraction").get<double>();
    m.progress.tokens_per_s = j.at("tokens_per_s").get<double>();
    m.progress.eta_s = j.at("eta_s").get<double>();
    m.progress.note = j.at("note").get<std::string>();
  }
  if (m.type == Type::failed) {
    m.message = j.at("message").get<std::string>();
    m.secondary = j.at("secondary").get<bool>();
  }
  return m;
} catch (const Json::exception&) {
  return std::nullopt;
}

void StatusWriter::send(const StatusMessage& m) {
  const std::lock_guard lock(mutex_);
  write(m);
}

void StatusWriter::write(const StatusMessage& m) {
  write_all(fd_, to_line(m));
}

StatusWriter::~StatusWriter() {
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
  }
  leaving_.notify_all();
  if (timer_.joinable()) timer_.join();
}

void StatusWriter::ready() {
  send({Type::ready, {}, "", false});
  timer_ = std::thread([this] { beat(); });
}

void StatusWriter::beat() {
  std::unique_lock lock(mutex_);
  while (!leaving_.wait_for(lock, kHeartbeat, [this] { return left_; })) {
    try {
      write({Type::alive, {}, "", false});
    } catch (const Error&) {
      return;  // the launcher is gone; the working thread finds out by itself
    }
  }
}

void StatusWriter::phase(const std::string& name, int64_t step) {
  phase_ = name;
  step_ = step;
  StatusMessage m{Type::phase, {}, "", false};
  m.progress.phase = name;
  m.progress.step = step;
  send(m);
}

void StatusWriter::progress(const Progress& p) {
  send({Type::progress, p, "", false});
}

void StatusWriter::done() {
  send({Type::done, {}, "", false});
}

void StatusWriter::failed(const std::string& message, bool secondary) noexcept {
  try {
    StatusMessage m{Type::failed, {}, message, secondary};
    m.progress.phase = phase_;
    m.progress.step = step_;
    send(m);
  } catch (...) {  // The launcher is gone, and with it whoever could be told.
  }
}

}  // namespace rlk
