#include "rlk/data/chat.h"

#include <map>
#include <string_view>

#include "rlk/base/error.h"
#include "rlk/base/file.h"
#include "rlk/base/json.h"
#include "rlk/base/sha256.h"

namespace rlk {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kToolResponse = "<tool_response>", kEndToolResponse = "</tool_response>";

// SHA-256 of the template text in Qwen3's tokenizer_config.json; render_chat follows this text.
constexpr const char* kTemplateSha256 =
    "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5";

const char* name_of(Role role) {
  switch (role) {
    case Role::system:
      return "system";
    case Role::user:
      return "user";
    case Role::assistant:
      return "assistant";
  }
  RLK_CHECK(false, static_cast<int>(role));
}

std::string_view strip_front(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  return text;
}
std::string_view strip_back(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

std::string_view before_first(std::string_view text, std::string_view mark) {
  return text.substr(0, text.find(mark));
}
std::string_view after_last(std::string_view text, std::string_view mark) {
  const size_t at = text.rfind(mark);
  return at == std::string_view::npos ? text : text.substr(at + mark.size());
}

// The last turn that the user typed (a tool's response is a user turn too); the last turn when
// there is none.
size_t last_query(const std::vector<ChatMessage>& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string_view content = messages[i].content;
    if (messages[i].role == Role::user &&
        !(content.starts_with(kToolResponse) && content.ends_with(kEndToolResponse)))
      return i;
  }
  return messages.size() - 1;
}

std::string assistant_turn(const ChatMessage& message, bool after_query, bool last) {
  std::string_view content = message.content, reasoning;
  if (message.reasoning) {
    reasoning = *message.reasoning;
  } else if (content.find(kEndThink) != std::string_view::npos) {
    reasoning = strip_front(after_last(strip_back(before_first(content, kEndThink)), kThink));
    content = strip_front(after_last(content, kEndThink));
  }
  if (!after_query || (!last && reasoning.empty())) return std::string(content);
  return std::string(kThink) + "\n" + std::string(strip_front(strip_back(reasoning))) + "\n" +
         std::string(kEndThink) + "\n\n" + std::string(strip_front(content));
}

// The templates that a model folder carries, by place.
std::map<std::string, std::string> templates_of(const std::filesystem::path& model_dir) {
  std::map<std::string, std::string> found;
  const auto config = model_dir / "tokenizer_config.json",
             jinja = model_dir / "chat_template.jinja";
  if (is_there(jinja)) found[jinja.string()] = read_file(jinja);
  if (!is_there(config)) return found;
  const Json json = parse_json(read_file(config), config.string());
  const auto it = json.is_object() ? json.find("chat_template") : json.end();
  if (it != json.end() && !it->is_null())
    found[config.string() + ": chat_template"] =
        it->is_string() ? it->get<std::string>() : it->dump();
  return found;
}

}  // namespace

std::string render_chat(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                        bool thinking) {
  RLK_CHECK(!messages.empty());
  const size_t query = last_query(messages);
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    text += std::string("<|im_start|>") + name_of(m.role) + "\n";
    text += m.role == Role::assistant ? assistant_turn(m, i > query, i + 1 == messages.size())
                                      : m.content;
    text += "<|im_end|>\n";
  }
  if (add_generation_prompt) {
    text += "<|im_start|>assistant\n";
    if (!thinking) text += std::string(kThink) + "\n\n" + std::string(kEndThink) + "\n\n";
  }
  return text;
}

void check_chat_template(const std::filesystem::path& model_dir) {
  for (const auto& [where, text] : templates_of(model_dir)) {
    if (hex(sha256(text.data(), text.size())) != kTemplateSha256)
      throw InputError(where, "is not Qwen3's chat template",
                       "set task.chat_template to false and give rendered prompts");
  }
}

bool has_chat_template(const std::filesystem::path& model_dir) {
  return !templates_of(model_dir).empty();
}

}  // namespace rlk
