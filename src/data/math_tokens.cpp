#include <algorithm>
#include <array>

#include "math_expr.h"

namespace rlk::math {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

template <size_t N>
bool among(const std::array<std::string_view, N>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Commands without meaning for a value.
constexpr std::array<std::string_view, 26> kIgnored = {
    "left", "right", "big", "Big",       "bigg",   "Bigg",   "bigl", "bigr",      "Bigl",
    "Bigr", "!",     ",",   ";",         ":",      " ",      "quad", "qquad",     "displaystyle",
    "rm",   "bf",    "$",   "textstyle", "limits", "mathbf", "vec",  "boldsymbol"};
// Commands whose argument is words.
constexpr std::array<std::string_view, 8> kTexts = {"text",   "mathrm", "textbf", "mbox",
                                                    "textrm", "textit", "hbox",   "operatorname"};

struct Spelling {
  std::string_view from, to;
};
constexpr Spelling kCommands[] = {{"dfrac", "\\frac"},
                                  {"tfrac", "\\frac"},
                                  {"cfrac", "\\frac"},
                                  {"dbinom", "\\binom"},
                                  {"tbinom", "\\binom"},
                                  {"cdot", "*"},
                                  {"times", "*"},
                                  {"div", "/"},
                                  {"le", "\\leq"},
                                  {"leqslant", "\\leq"},
                                  {"ge", "\\geq"},
                                  {"geqslant", "\\geq"},
                                  {"ne", "\\neq"},
                                  {"lbrace", "\\{"},
                                  {"rbrace", "\\}"},
                                  {"lbrack", "["},
                                  {"rbrack", "]"},
                                  {"lparen", "("},
                                  {"rparen", ")"},
                                  {"%", "%"},
                                  {"vert", "|"},
                                  {"lvert", "|"},
                                  {"rvert", "|"},
                                  {"mid", "|"},
                                  {"emptyset", "\\emptyset"},
                                  {"varnothing", "\\emptyset"},
                                  {"lt", "<"},
                                  {"gt", ">"},
                                  {"colon", ":"},
                                  {"land", ","},
                                  {"degree", "\\degree"},
                                  {"arcsin", "\\arcsin"}};
// UTF-8 spellings of the same.
constexpr Spelling kUnicode[] = {
    {"π", "\\pi"},  {"√", "\\sqrt"}, {"∞", "\\infty"}, {"°", "\\degree"},   {"−", "-"},
    {"×", "*"},     {"÷", "/"},      {"·", "*"},       {"≤", "\\leq"},      {"≥", "\\geq"},
    {"∪", "\\cup"}, {"±", "\\pm"},   {"≠", "\\neq"},   {"∅", "\\emptyset"}, {"∈", "\\in"}};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Tokens run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\') {
        command();
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '~') {
        space_ = true;
        ++at_;
      } else if (c == '$') {
        ++at_;
      } else if (is_digit(c) || (c == '.' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]))) {
        number();
      } else if (is_letter(c)) {
        add(Token::Kind::letter, text_.substr(at_++, 1));
      } else {
        symbol();
      }
    }
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), space_});
    space_ = false;
  }
  void add_spelled(std::string_view text) {
    add(text.starts_with('\\') ? Token::Kind::command : Token::Kind::symbol, text);
  }

  void number() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    if (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
      ++at_;
      while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    }
    std::string digits(text_.substr(begin, at_ - begin));
    if (digits.starts_with('.')) digits.insert(0, "0");
    add(Token::Kind::number, digits);
    // "{,}" and ",\!" group digits.
    for (const std::string_view group : {"{,}", ",\\!"}) {
      if (text_.substr(at_).starts_with(group) && at_ + group.size() < text_.size() &&
          is_digit(text_[at_ + group.size()])) {
        at_ += group.size();
        const size_t more = at_;
        Token head = std::move(tokens_.back());
        tokens_.pop_back();
        space_ = head.space;
        at_ = more;
        const size_t before = tokens_.size();
        number();
        tokens_[before].text.insert(0, head.text);
        return;
      }
    }
  }

  void symbol() {
    for (const Spelling& s : kUnicode) {
      if (text_.substr(at_).starts_with(s.from)) {
        at_ += s.from.size();
        return add_spelled(s.to);
      }
    }
    add(Token::Kind::symbol, text_.substr(at_++, 1));
  }

  void command() {
    size_t end = at_ + 1;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    if (end == at_ + 1 && end < text_.size()) ++end;  // \, \{ and the like
    const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end;
    if (among(kIgnored, name)) {
      if (name != "left" && name != "right" && name != "!") space_ = true;
      if ((name == "left" || name == "right") && at_ < text_.size() && text_[at_] == '.') ++at_;
      return;
    }
    if (among(kTexts, name)) return words();
    if (name == "circ") return degree();
    for (const Spelling& s : kCommands) {
      if (name == s.from) return add_spelled(s.to);
    }
    add(Token::Kind::command, "\\" + std::string(name));
  }

  // \text{...}: the argument, without nested commands' backslashes.
  void words() {
    if (at_ >= text_.size() || text_[at_] != '{') return;
    size_t depth = 0, end = at_;
    for (; end < text_.size(); ++end) {
      if (text_[end] == '{') ++depth;
      if (text_[end] == '}' && --depth == 0) break;
    }
    add(Token::Kind::text, text_.substr(at_ + 1, end - at_ - 1));
    at_ = std::min(end + 1, text_.size());
  }

  // x^\circ and x^{\circ}: the caret and the braces go too.
  void degree() {
    const bool braced = tokens_.size() >= 2 && tokens_.back().text == "{";
    if (braced) tokens_.pop_back();
    if (!tokens_.empty() && tokens_.back().text == "^") tokens_.pop_back();
    if (braced && at_ < text_.size() && text_[at_] == '}') ++at_;
    add(Token::Kind::command, "\\degree");
  }

  std::string_view text_;
  size_t at_ = 0;
  bool space_ = false;
  Tokens tokens_;
};

}  // namespace

Tokens tokenize(std::string_view latex) {
  return Lexer(latex).run();
}

std::string canonical_text(const Tokens& tokens) {
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Token& t = tokens[i];
    // {2} is 2: braces around one character say nothing.
    if (t.text == "{" && i + 2 < tokens.size() && tokens[i + 1].text.size() == 1 &&
        tokens[i + 2].text == "}")
      continue;
    if (t.text == "}" && i >= 2 && tokens[i - 1].text.size() == 1 && tokens[i - 2].text == "{")
      continue;
    for (const char c : t.text) {
      if (c == ' ' || c == '\n' || c == '\t') continue;
      out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
    }
  }
  while (out.ends_with('.')) out.pop_back();
  return out;
}

}  // namespace rlk::math
