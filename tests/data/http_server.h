#pragma once
// One file over HTTP on the loopback interface, from a thread of its own. Set the fields between
// requests.

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace rlk::test {

class HttpServer {
 public:
  HttpServer() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, 8) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      std::abort();
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpServer() {
    ::shutdown(listener_, SHUT_RDWR);  // ends accept()
    thread_.join();
    ::close(listener_);
  }

  std::string body, headers, status = "200 OK";
  bool takes_ranges = true;
  size_t break_after = 0;  // bytes of the next answer; 0: all of it

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/file"; }
  // Range header of every request, empty where there was none.
  std::vector<std::string> ranges() {
    const std::lock_guard lock(mutex_);
    return ranges_;
  }

 private:
  void serve() {
    for (int client; (client = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(client)) {
      std::string request;
      char buffer[4096];
      for (ssize_t n; request.find("\r\n\r\n") == std::string::npos &&
                      (n = ::read(client, buffer, sizeof buffer)) > 0;)
        request.append(buffer, static_cast<size_t>(n));
      answer(client, request);
    }
  }

  void answer(int client, const std::string& request) {
    std::string range;
    const size_t at = request.find("Range: ");
    if (at != std::string::npos) range = request.substr(at + 7, request.find('\r', at) - at - 7);
    {
      const std::lock_guard lock(mutex_);
      ranges_.push_back(range);
    }
    const size_t from =
        takes_ranges && !range.empty() ? std::strtoull(range.c_str() + 6, nullptr, 10) : 0;
    std::string head = "HTTP/1.1 " + status + "\r\n";
    if (from > 0)
      head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " + std::to_string(from) + "-" +
             std::to_string(body.size() - 1) + "/" + std::to_string(body.size()) + "\r\n";
    std::string text = head + headers + "Connection: close\r\nContent-Length: " +
                       std::to_string(body.size() - from) + "\r\n\r\n";
    text += break_after ? body.substr(from, break_after) : body.substr(from);
    break_after = 0;
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(client, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }

  int listener_ = -1, port_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<std::string> ranges_;
};

}  // namespace rlk::test
