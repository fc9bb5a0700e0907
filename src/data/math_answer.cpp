#include "rlk/data/math_answer.h"

#include <algorithm>
#include <array>
#include <map>

#include "math_expr.h"

namespace rlk {
namespace {

using namespace math;

constexpr size_t kMaxAnswer = 4096;  // bytes; longer answers are equal only as texts
constexpr size_t kMaxItems = 64;     // of a list
constexpr int kMaxNesting = 16;

constexpr std::array<std::string_view, 48> kUnits = {
    "cm",     "mm",      "km",     "kg",      "mg",     "ml",      "mph",    "ft",
    "in",     "sec",     "min",    "hr",      "degree", "degrees", "inch",   "inches",
    "foot",   "feet",    "yard",   "yards",   "mile",   "miles",   "meter",  "meters",
    "second", "seconds", "minute", "minutes", "hour",   "hours",   "day",    "days",
    "week",   "weeks",   "month",  "months",  "year",   "years",   "dollar", "dollars",
    "cent",   "cents",   "unit",   "units",   "square", "cubic",   "points", "people"};

// What an answer says.
struct Answer {
  enum class Kind { text, scalar, list, tuple, matrix, equation } kind = Kind::text;
  std::string text;  // of a text; brackets of a tuple; the variable of "x = 5", if it is one
  std::vector<Expression> readings;  // of a scalar: 50% is 1/2 and 50
  std::vector<Answer>
      items;  // list (unordered), tuple (ordered), matrix (row-major), equation (both sides)
  size_t columns = 0;  // of a matrix
};

bool opens(const Token& t) {
  return t.kind != Token::Kind::text && (t.text == "(" || t.text == "[" || t.text == "{" ||
                                         t.text == "\\{" || t.text == "\\begin");
}
bool closes(const Token& t) {
  return t.kind != Token::Kind::text &&
         (t.text == ")" || t.text == "]" || t.text == "}" || t.text == "\\}" || t.text == "\\end");
}
bool is_symbol(const Token& t, std::string_view text) {
  return t.kind != Token::Kind::text && t.text == text;
}

std::string word_of(const Token& t) {
  const size_t first = t.text.find_first_not_of(' ');
  if (t.kind != Token::Kind::text || first == std::string::npos) return "";
  return t.text.substr(first, t.text.find_last_not_of(' ') - first + 1);
}

class Reader {
 public:
  explicit Reader(const Tokens& tokens) : tokens_(tokens) {}

  Answer read(size_t begin, size_t end) {
    trim(&begin, &end);
    if (begin >= end || depth_ == kMaxNesting) return text(begin, end);
    ++depth_;
    Answer answer = untrimmed(begin, end);
    --depth_;
    return answer;
  }

 private:
  using Range = std::pair<size_t, size_t>;
  using Kind = Answer::Kind;

  const Token& at(size_t i) const { return tokens_[i]; }

  Answer text(size_t begin, size_t end) const {
    Answer answer;
    answer.text =
        canonical_text(Tokens(tokens_.begin() + begin, tokens_.begin() + std::max(begin, end)));
    if (answer.text.size() > 2 && answer.text.front() == '(' && answer.text.back() == ')')
      answer.text = answer.text.substr(1, answer.text.size() - 2);
    return answer;
  }

  Answer untrimmed(size_t begin, size_t end) {
    if (const auto parts = split(begin, end, [](const Token& t) { return is_symbol(t, "\\cup"); });
        parts.size() > 1)
      return list(parts);
    if (enclosed(begin, end)) return bracketed(begin, end);
    const auto comma = [](const Token& t) {
      const std::string word = word_of(t);
      return is_symbol(t, ",") || is_symbol(t, ";") || word == "and" || word == "or";
    };
    if (const auto parts = split(begin, end, comma); parts.size() > 1) return list(parts);
    if (const auto parts = split(begin, end, [](const Token& t) { return is_symbol(t, "\\in"); });
        parts.size() == 2)
      return read(parts[1].first, parts[1].second);
    if (auto interval = inequality(begin, end)) return *interval;
    if (const auto parts = split(begin, end, [](const Token& t) { return is_symbol(t, "="); });
        parts.size() > 1)
      return equation(parts);
    return scalar(begin, end);
  }

  // Punctuation at the end, and units: trailing words with their exponents, degree signs.
  void trim(size_t* begin, size_t* end) const {
    for (bool again = true; again && *begin < *end;) {
      again = false;
      const Token& last = at(*end - 1);
      if (is_symbol(last, ".") || is_symbol(last, ",") || is_symbol(last, ":") ||
          is_symbol(last, "\\degree")) {
        --*end;
        again = true;
        continue;
      }
      size_t unit = *end;
      if (unit >= *begin + 4 && is_symbol(at(unit - 1), "}") && is_symbol(at(unit - 3), "{") &&
          is_symbol(at(unit - 4), "^"))
        unit -= 4;
      else if (unit >= *begin + 2 && is_symbol(at(unit - 2), "^"))
        unit -= 2;
      const size_t word = words_before(*begin, unit);
      if (word < unit && word > *begin) {
        *end = word;
        again = true;
      }
    }
  }

  // Where the unit that ends at `end` begins; `end` when there is none.
  size_t words_before(size_t begin, size_t end) const {
    if (end > begin && at(end - 1).kind == Token::Kind::text) return end - 1;
    size_t word = end;
    std::string letters;
    while (word > begin && at(word - 1).kind == Token::Kind::letter) {
      letters.insert(0, at(--word).text);
      if (at(word).space) break;
    }
    return std::find(kUnits.begin(), kUnits.end(), letters) == kUnits.end() ? end : word;
  }

  template <class Predicate>
  std::vector<Range> split(size_t begin, size_t end, Predicate separates) const {
    std::vector<Range> parts;
    int depth = 0;
    size_t start = begin;
    for (size_t i = begin; i < end; ++i) {
      if (opens(at(i))) ++depth;
      if (closes(at(i))) --depth;
      if (depth == 0 && separates(at(i))) {
        parts.emplace_back(start, i);
        start = i + 1;
      }
    }
    parts.emplace_back(start, end);
    return parts;
  }

  // One bracket pair around everything. \begin and \end carry their {name}.
  bool enclosed(size_t begin, size_t end) const {
    if (!opens(at(begin))) return false;
    int depth = 0;
    for (size_t i = begin; i < end; ++i) {
      if (opens(at(i))) ++depth;
      if (closes(at(i)) && --depth == 0) {
        size_t last = i + 1;
        if (is_symbol(at(i), "\\end"))
          while (last < end && !is_symbol(at(last - 1), "}")) ++last;
        return last == end;
      }
    }
    return false;
  }

  Answer list(const std::vector<Range>& parts) {
    Answer answer;
    answer.kind = Kind::list;
    for (const Range& part : parts)
      if (part.first < part.second) answer.items.push_back(read(part.first, part.second));
    return answer;
  }

  Answer bracketed(size_t begin, size_t end) {
    if (is_symbol(at(begin), "\\begin")) return matrix(begin, end);
    const auto parts = split(begin + 1, end - 1, [](const Token& t) { return is_symbol(t, ","); });
    if (is_symbol(at(begin), "\\{")) return list(parts);
    if (is_symbol(at(begin), "{")) return read(begin + 1, end - 1);
    if (parts.size() > 1) {
      Answer tuple = list(parts);
      tuple.kind = Kind::tuple;
      tuple.text = at(begin).text + at(end - 1).text;
      return tuple;
    }
    return read(begin + 1, end - 1);
  }

  // \begin{pmatrix} a & b \\ c & d \end{pmatrix}; the kind of bracket says nothing, an array's {cc}
  // is skipped.
  Answer matrix(size_t begin, size_t end) {
    const auto skip_group = [&](size_t i) {
      if (i < end && is_symbol(at(i), "{"))
        while (i < end && !is_symbol(at(i++), "}")) {
        }
      return i;
    };
    size_t first = skip_group(begin + 1);
    if (first < end && is_symbol(at(first), "{")) first = skip_group(first);
    size_t last = end;
    while (last > first && !is_symbol(at(last - 1), "\\end")) --last;
    if (last <= first) return text(begin, end);
    Answer answer;
    answer.kind = Kind::matrix;
    for (const Range& row :
         split(first, last - 1, [](const Token& t) { return is_symbol(t, "\\\\"); })) {
      if (row.first == row.second) continue;  // a line break after the last row
      const auto cells =
          split(row.first, row.second, [](const Token& t) { return is_symbol(t, "&"); });
      if (answer.columns != 0 && answer.columns != cells.size()) return text(begin, end);
      answer.columns = cells.size();
      for (const Range& cell : cells) answer.items.push_back(read(cell.first, cell.second));
    }
    return answer;
  }

  // x > a, a < x \leq b and the like, as intervals.
  std::optional<Answer> inequality(size_t begin, size_t end) {
    static const std::map<std::string, std::string> kMirror = {
        {"<", ">"}, {">", "<"}, {"\\leq", "\\geq"}, {"\\geq", "\\leq"}};
    std::vector<size_t> signs;
    for (size_t i = begin; i < end; ++i)
      if (at(i).kind != Token::Kind::text && kMirror.contains(at(i).text)) signs.push_back(i);
    if (signs.empty() || signs.size() > 2) return std::nullopt;
    const auto variable = [&](size_t b, size_t e) {
      const auto expression = Expression::parse(tokens_, b, e);
      return expression && expression->is_variable();
    };
    std::optional<Answer> low, high;
    bool low_closed = false, high_closed = false;
    const auto bound = [&](const std::string& sign, size_t b, size_t e) {  // variable `sign` bound
      const bool closed = sign.size() > 1, upper = sign == "<" || sign == "\\leq";
      (upper ? high : low) = read(b, e);
      (upper ? high_closed : low_closed) = closed;
    };
    if (signs.size() == 2) {
      if (!variable(signs[0] + 1, signs[1])) return std::nullopt;
      bound(kMirror.at(at(signs[0]).text), begin, signs[0]);
      bound(at(signs[1]).text, signs[1] + 1, end);
      if (!low || !high) return std::nullopt;
    } else if (variable(begin, signs[0])) {
      bound(at(signs[0]).text, signs[0] + 1, end);
    } else if (variable(signs[0] + 1, end)) {
      bound(kMirror.at(at(signs[0]).text), begin, signs[0]);
    } else {
      return std::nullopt;
    }
    Answer interval;
    interval.kind = Kind::tuple;
    interval.text = std::string(low_closed ? "[" : "(") + (high_closed ? "]" : ")");
    interval.items = {low ? *low : infinity("-\\infty"), high ? *high : infinity("\\infty")};
    return interval;
  }

  static Answer infinity(std::string_view latex) {
    const Tokens tokens = tokenize(latex);
    Answer answer;
    answer.kind = Kind::scalar;
    answer.readings = {*Expression::parse(tokens, 0, tokens.size())};
    return answer;
  }

  Answer equation(const std::vector<Range>& parts) {
    const Range left = parts.front(), right = parts.back();  // of a chain, the last side
    const auto name = Expression::parse(tokens_, left.first, left.second);
    bool words = left.first < left.second, names = enclosed(left.first, left.second);
    for (size_t i = left.first; i < left.second; ++i) words &= at(i).kind == Token::Kind::text;
    for (size_t i = left.first + 1; i + 1 < left.second; ++i)  // (x, y) = ...
      names &= at(i).kind == Token::Kind::letter || is_symbol(at(i), ",");
    const bool applied = left.second == left.first + 4 &&
                         at(left.first).kind == Token::Kind::letter &&
                         is_symbol(at(left.first + 1), "(");  // f(x)
    if (words || names || applied) return read(right.first, right.second);
    Answer answer;
    answer.kind = Kind::equation;
    if (name && name->is_variable())
      answer.text =
          canonical_text(Tokens(tokens_.begin() + left.first, tokens_.begin() + left.second));
    answer.items = {read(left.first, left.second), read(right.first, right.second)};
    return answer;
  }

  // A run of three letters is a word, not a product.
  bool has_word(size_t begin, size_t end) const {
    size_t run = 0;
    for (size_t i = begin; i < end; ++i) {
      if (at(i).kind == Token::Kind::text) return true;
      run = at(i).kind == Token::Kind::letter ? (at(i).space ? 1 : run + 1) : 0;
      if (run == 3) return true;
    }
    return false;
  }

  Answer scalar(size_t begin, size_t end) {
    const auto expression =
        has_word(begin, end) ? std::nullopt : Expression::parse(tokens_, begin, end);
    if (!expression) return text(begin, end);
    Answer answer = text(begin, end);
    answer.kind = Kind::scalar;
    answer.readings = {*expression};
    if (is_symbol(at(end - 1), "%")) {
      if (const auto bare = Expression::parse(tokens_, begin, end - 1))
        answer.readings.push_back(*bare);
    }
    return answer;
  }

  const Tokens& tokens_;
  int depth_ = 0;
};

// Three points: equality at one could be an accident of signs (sqrt(x^2) against x).
constexpr std::array<Point, 3> points(bool minus) {
  return {Point{11, false, minus}, Point{12, false, minus}, Point{13, true, minus}};
}

// Values of a scalar at the points; a \pm doubles them.
bool expressions_equal(const Expression& a, const Expression& b, bool a_minus, bool b_minus) {
  const auto pa = points(a_minus), pb = points(b_minus);
  for (size_t i = 0; i < pa.size(); ++i) {
    const auto x = a.evaluate(pa[i]), y = b.evaluate(pb[i]);
    if (!x || !y || !same(*x, *y)) return false;
  }
  return true;
}

bool scalars_equal(const Answer& a, const Answer& b) {
  for (const Expression& x : a.readings) {
    for (const Expression& y : b.readings) {
      if (x.has_plus_minus() != y.has_plus_minus()) continue;
      if (!x.has_plus_minus()) {
        if (expressions_equal(x, y, false, false)) return true;
      } else if ((expressions_equal(x, y, false, false) && expressions_equal(x, y, true, true)) ||
                 (expressions_equal(x, y, false, true) && expressions_equal(x, y, true, false))) {
        return true;
      }
    }
  }
  return false;
}

bool equal(const Answer& a, const Answer& b);

// \pm x against {x, -x}.
bool plus_minus_equals_list(const Answer& scalar, const Answer& list) {
  if (scalar.readings.empty() || !scalar.readings[0].has_plus_minus() || list.items.size() != 2)
    return false;
  const Answer& first = list.items[0];
  const Answer& second = list.items[1];
  if (first.readings.empty() || second.readings.empty()) return false;
  const Expression& pm = scalar.readings[0];
  for (const bool swap : {false, true}) {
    if (expressions_equal(pm, first.readings[0], swap, false) &&
        expressions_equal(pm, second.readings[0], !swap, false))
      return true;
  }
  return false;
}

bool lists_equal(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  if (a.size() != b.size() || a.size() > kMaxItems) return false;
  std::vector<bool> used(b.size());
  for (const Answer& x : a) {
    bool found = false;
    for (size_t i = 0; i < b.size() && !found; ++i) {
      if (used[i] || !equal(x, b[i])) continue;
      used[i] = found = true;
    }
    if (!found) return false;
  }
  return true;
}

bool sequences_equal(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  return a.size() <= kMaxItems && std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

// left = right and the other: the differences of the sides are proportional.
bool equations_equal(const Answer& a, const Answer& b) {
  if (!a.text.empty() && a.text == b.text) return equal(a.items[1], b.items[1]);
  std::optional<Value> ratio;
  for (const Point& point : points(false)) {
    Value difference[2];
    for (int k = 0; k < 2; ++k) {
      const Answer& e = k == 0 ? a : b;
      if (e.items[0].readings.empty() || e.items[1].readings.empty()) return false;
      const auto left = e.items[0].readings[0].evaluate(point),
                 right = e.items[1].readings[0].evaluate(point);
      if (!left || !right) return false;
      difference[k] = subtract(*left, *right);
    }
    const Value r = divide(difference[0], difference[1]);
    if (ratio && !same(r, *ratio)) return false;
    ratio = r;
  }
  return ratio && ratio->number != std::complex<long double>(0);
}

bool equal(const Answer& a, const Answer& b) {
  using Kind = Answer::Kind;
  if (a.kind == Kind::list && a.items.size() == 1 && b.kind != Kind::list)
    return equal(a.items[0], b);
  if (b.kind == Kind::list && b.items.size() == 1 && a.kind != Kind::list)
    return equal(a, b.items[0]);
  if (a.kind == Kind::equation && b.kind != Kind::equation)
    return !a.text.empty() && equal(a.items[1], b);
  if (b.kind == Kind::equation && a.kind != Kind::equation)
    return !b.text.empty() && equal(a, b.items[1]);
  if (a.kind == Kind::scalar && b.kind == Kind::list) return plus_minus_equals_list(a, b);
  if (b.kind == Kind::scalar && a.kind == Kind::list) return plus_minus_equals_list(b, a);
  if (a.kind != b.kind) {  // \text{(A)} against A
    const bool words = std::max(a.kind, b.kind) == Kind::scalar;
    return words && !a.text.empty() && a.text == b.text;
  }
  switch (a.kind) {
    case Kind::text:
      return !a.text.empty() && a.text == b.text;
    case Kind::scalar:
      return scalars_equal(a, b);
    case Kind::list:
      return lists_equal(a.items, b.items);
    case Kind::tuple:
      return a.text == b.text && sequences_equal(a.items, b.items);
    case Kind::matrix:
      return a.columns == b.columns && sequences_equal(a.items, b.items);
    case Kind::equation:
      return equations_equal(a, b);
  }
  return false;
}

// 1,234,567 read as one number; the same tokens when there is nothing to join.
Tokens join_thousands(const Tokens& tokens) {
  Tokens out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    out.push_back(tokens[i]);
    if (tokens[i].kind != Token::Kind::number || tokens[i].text.size() > 3) continue;
    while (i + 2 < tokens.size() && tokens[i + 1].text == "," && !tokens[i + 2].space &&
           tokens[i + 2].kind == Token::Kind::number && tokens[i + 2].text.find('.') != 1 &&
           tokens[i + 2].text.find('.') != 2 && tokens[i + 2].text.substr(0, 3).size() == 3 &&
           (tokens[i + 2].text.size() == 3 || tokens[i + 2].text[3] == '.')) {
      out.back().text += tokens[i + 2].text;
      i += 2;
      if (out.back().text.find('.') != std::string::npos) break;
    }
  }
  return out;
}

}  // namespace

std::optional<std::string> boxed_answer(std::string_view response) {
  constexpr std::string_view kThink = "<think>", kEndThink = "</think>", kBoxed = "\\boxed";
  if (const size_t end = response.rfind(kEndThink); end != std::string_view::npos) {
    response.remove_prefix(end + kEndThink.size());
  } else if (response.find(kThink) != std::string_view::npos) {
    return std::nullopt;
  }
  size_t at = response.rfind(kBoxed);
  if (at == std::string_view::npos) return std::nullopt;
  at += kBoxed.size();
  while (at < response.size() && response[at] == ' ') ++at;
  if (at == response.size()) return std::nullopt;
  if (response[at] != '{') {  // \boxed 5
    const size_t end = std::min(response.find_first_of(" $\n", at), response.size());
    return std::string(response.substr(at, end - at));
  }
  int depth = 0;
  for (size_t i = at; i < response.size(); ++i) {
    if (response[i] == '\\') {
      ++i;  // \{ and \} are no braces
    } else if (response[i] == '{') {
      ++depth;
    } else if (response[i] == '}' && --depth == 0) {
      return std::string(response.substr(at + 1, i - at - 1));
    }
  }
  return std::nullopt;
}

bool math_equal(std::string_view answer, std::string_view label) {
  const Tokens a = tokenize(answer.substr(0, kMaxAnswer)),
               b = tokenize(label.substr(0, kMaxAnswer));
  if (std::max(answer.size(), label.size()) > kMaxAnswer) return answer == label;
  const std::string text = canonical_text(a);
  if (!text.empty() && text == canonical_text(b)) return true;
  const Tokens joined_a = join_thousands(a), joined_b = join_thousands(b);
  for (const Tokens* x : {&a, &joined_a}) {
    if (x == &joined_a && joined_a.size() == a.size()) continue;
    for (const Tokens* y : {&b, &joined_b}) {
      if (y == &joined_b && joined_b.size() == b.size()) continue;
      if (equal(Reader(*x).read(0, x->size()), Reader(*y).read(0, y->size()))) return true;
    }
  }
  return false;
}

}  // namespace rlk
