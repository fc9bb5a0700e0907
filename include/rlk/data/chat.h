#pragma once
// Qwen3's chat template for system, user and assistant turns, as text. Pure functions.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace rlk {

enum class Role { system, user, assistant };

struct ChatMessage {
  Role role = Role::user;
  std::string content;
  std::optional<std::string> reasoning;  // reasoning_content of an assistant's turn
};

// What Hugging Face's apply_chat_template(messages, tokenize=False, add_generation_prompt=...,
// enable_thinking=...) gives: thinking of turns before the last user's is dropped; `thinking` =
// false closes an empty think block in the generation prompt.
std::string render_chat(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                        bool thinking);

// InputError when the folder's tokenizer_config.json or chat_template.jinja carries a template that
// is not the one above. A folder without a template passes.
void check_chat_template(const std::filesystem::path& model_dir);

// Whether the folder carries a chat template, whatever it is.
bool has_chat_template(const std::filesystem::path& model_dir);

}  // namespace rlk
