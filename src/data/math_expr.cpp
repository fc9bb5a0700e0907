#include "math_expr.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "rlk/base/philox.h"
#include "rlk/base/trace_hash.h"

namespace rlk::math {
namespace {

using Complex = std::complex<long double>;
__extension__ typedef unsigned __int128 Wide;

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr int kMaxDepth = 60;
constexpr int64_t kMaxFactorial = 1000;
constexpr long double kPi = std::numbers::pi_v<long double>;

uint64_t mul(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<Wide>(a) * b % kPrime);
}
uint64_t power(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent > 0; exponent >>= 1, base = mul(base, base))
    if (exponent & 1) result = mul(result, base);
  return result;
}
uint64_t inverse(uint64_t a) {
  return power(a, kPrime - 2);
}

Value from_integer(int64_t n) {
  const int64_t p = static_cast<int64_t>(kPrime);
  return {static_cast<long double>(n), static_cast<uint64_t>((n % p + p) % p), n};
}

// "12.50" -> 1250 / 100, exactly as a residue.
Value from_digits(const std::string& digits) {
  uint64_t residue = 0, scale = 1;
  int64_t integer = 0;
  bool small = true, fraction = false;
  for (const char c : digits) {
    if (c == '.') {
      fraction = true;
      continue;
    }
    const int d = c - '0';
    residue = (mul(residue, 10) + static_cast<uint64_t>(d)) % kPrime;
    if (fraction) scale = mul(scale, 10);
    small = small && !__builtin_mul_overflow(integer, int64_t{10}, &integer) &&
            !__builtin_add_overflow(integer, int64_t{d}, &integer);
  }
  Value value{std::strtold(digits.c_str(), nullptr), mul(residue, inverse(scale)), {}};
  if (small && !fraction) value.integer = integer;
  return value;
}

// A constant that is independent of all others: a residue by its name, a number as given.
Value independent(const std::string& name, const Point& point, long double number) {
  const uint64_t h = hash_bytes(name.data(), name.size(), point.seed);
  return {number, 1 + h % (kPrime - 1), {}};
}

Value variable(const std::string& name, const Point& point) {
  const uint64_t h = hash_bytes(name.data(), name.size(), mix64(point.seed));
  const long double x = 1.0L + static_cast<long double>(h >> 11) * 0x1p-53L;
  return independent(name, point, point.negative ? -x : x);
}

Value add(const Value& a, const Value& b, bool negative) {
  Value v{negative ? a.number - b.number : a.number + b.number, {}, {}};
  if (a.residue && b.residue)
    v.residue = (*a.residue + (negative ? kPrime - *b.residue : *b.residue)) % kPrime;
  int64_t n = 0;
  if (a.integer && b.integer &&
      !(negative ? __builtin_sub_overflow(*a.integer, *b.integer, &n)
                 : __builtin_add_overflow(*a.integer, *b.integer, &n)))
    v.integer = n;
  return v;
}

Value multiply(const Value& a, const Value& b) {
  Value v{a.number * b.number, {}, {}};
  if (a.residue && b.residue) v.residue = mul(*a.residue, *b.residue);
  int64_t n = 0;
  if (a.integer && b.integer && !__builtin_mul_overflow(*a.integer, *b.integer, &n)) v.integer = n;
  return v;
}

Value raise(const Value& a, const Value& b) {
  Value v{std::pow(a.number, b.number), {}, {}};
  if (!b.integer) return v;
  const int64_t n = *b.integer;
  if (std::abs(n) <= 64) {  // exact where the complex power is not, as for (-1)^2
    Complex product = 1;
    for (int64_t k = 0; k < std::abs(n); ++k) product *= a.number;
    v.number = n < 0 ? Complex(1) / product : product;
  }
  if (a.residue && (n >= 0 || *a.residue != 0)) {
    const uint64_t magnitude =
        n < 0 ? uint64_t{0} - static_cast<uint64_t>(n) : static_cast<uint64_t>(n);
    const uint64_t r = power(*a.residue, magnitude % (kPrime - 1));
    v.residue = n < 0 ? inverse(r) : r;
  }
  if (a.integer && n >= 0 && n <= 62) {
    int64_t product = 1;
    bool fits = true;
    for (int64_t k = 0; k < n && fits; ++k)
      fits = !__builtin_mul_overflow(product, *a.integer, &product);
    if (fits) v.integer = product;
  }
  return v;
}

std::optional<Value> factorial(const Value& a) {
  if (!a.integer || *a.integer < 0 || *a.integer > kMaxFactorial) return std::nullopt;
  Value v = from_integer(1);
  for (int64_t k = 2; k <= *a.integer; ++k) v = multiply(v, from_integer(k));
  return v;
}

std::optional<Value> binomial(const Value& n, const Value& k) {
  if (!n.integer || !k.integer || *k.integer < 0 || *k.integer > *n.integer) return std::nullopt;
  const int64_t steps = std::min(*k.integer, *n.integer - *k.integer);
  if (steps > kMaxFactorial) return std::nullopt;
  Value v = from_integer(1);
  for (int64_t i = 1; i <= steps; ++i)
    v = divide(multiply(v, from_integer(*n.integer - steps + i)), from_integer(i));
  return v;
}

// The real root where there is one: (-8)^(1/3) is -2 here.
Value root(const Value& a, const Value& degree) {
  if (degree.integer && *degree.integer % 2 != 0 && a.number.imag() == 0 && a.number.real() < 0)
    return {-std::pow(-a.number.real(), 1.0L / static_cast<long double>(*degree.integer)), {}, {}};
  if (degree.integer && *degree.integer == 2) return {std::sqrt(a.number), {}, {}};
  return {std::pow(a.number, Complex(1) / degree.number), {}, {}};
}

struct Function {
  std::string_view name;
  Complex (*apply)(Complex);
};
constexpr Function kFunctions[] = {
    {"\\sin", [](Complex x) { return std::sin(x); }},
    {"\\cos", [](Complex x) { return std::cos(x); }},
    {"\\tan", [](Complex x) { return std::tan(x); }},
    {"\\cot", [](Complex x) { return Complex(1) / std::tan(x); }},
    {"\\sec", [](Complex x) { return Complex(1) / std::cos(x); }},
    {"\\csc", [](Complex x) { return Complex(1) / std::sin(x); }},
    {"\\arcsin", [](Complex x) { return std::asin(x); }},
    {"\\arccos", [](Complex x) { return std::acos(x); }},
    {"\\arctan", [](Complex x) { return std::atan(x); }},
    {"\\ln", [](Complex x) { return std::log(x); }},
    {"\\log", [](Complex x) { return std::log10(x); }},
    {"\\exp", [](Complex x) { return std::exp(x); }},
    {"\\lfloor", [](Complex x) { return Complex(std::floor(x.real())); }},
    {"\\lceil", [](Complex x) { return Complex(std::ceil(x.real())); }},
};
const Function* function_named(std::string_view name) {
  for (const Function& f : kFunctions)
    if (f.name == name) return &f;
  return nullptr;
}

constexpr std::array<std::string_view, 26> kGreek = {
    "\\alpha", "\\beta",  "\\gamma", "\\delta", "\\epsilon", "\\varepsilon", "\\zeta",
    "\\eta",   "\\theta", "\\iota",  "\\kappa", "\\lambda",  "\\mu",         "\\nu",
    "\\xi",    "\\rho",   "\\sigma", "\\tau",   "\\phi",     "\\varphi",     "\\chi",
    "\\psi",   "\\omega", "\\Delta", "\\Omega", "\\Gamma"};

}  // namespace

bool same(const Value& a, const Value& b) {
  if (a.residue && b.residue) return *a.residue == *b.residue;
  const long double scale = std::max({1.0L, std::abs(a.number), std::abs(b.number)});
  // Also false for NaN; infinities are equal to themselves.
  return a.number == b.number ||
         (std::isfinite(scale) && std::abs(a.number - b.number) <= 1e-12L * scale);
}

Value subtract(const Value& a, const Value& b) {
  return add(a, b, true);
}

Value divide(const Value& a, const Value& b) {
  Value v{a.number / b.number, {}, {}};
  if (a.residue && b.residue && *b.residue != 0) v.residue = mul(*a.residue, inverse(*b.residue));
  if (a.integer && b.integer && *b.integer != 0 && *b.integer != -1 && *a.integer % *b.integer == 0)
    v.integer = *a.integer / *b.integer;
  return v;
}

// ---------------------------------------------------------------------------------------- parser

// Recursive descent: sum, product (with implicit multiplication), unary sign, power, atom. Each
// returns the index of its node, or -1; the depth is bounded, and so is the work: every token is
// read once.
class Parser {
 public:
  using Op = Expression::Op;
  Parser(const Tokens& tokens, size_t begin, size_t end, Expression* out)
      : tokens_(tokens), at_(begin), end_(end), out_(out) {}

  bool run() { return sum() >= 0 && at_ == end_; }

 private:
  using Kind = Token::Kind;

  bool is(std::string_view text) const {
    return at_ < end_ && tokens_[at_].text == text && tokens_[at_].kind != Kind::text;
  }
  bool take(std::string_view text) {
    if (!is(text)) return false;
    ++at_;
    return true;
  }
  int node(Op op, int left = -1, int right = -1, const std::string& text = "") {
    out_->nodes_.push_back({op, left, right, text});
    return static_cast<int>(out_->nodes_.size()) - 1;
  }
  int binary(Op op, int left, int right) {
    return left < 0 || right < 0 ? -1 : node(op, left, right);
  }
  int unary(Op op, int left) { return left < 0 ? -1 : node(op, left); }
  int number(const std::string& digits) { return node(Op::number, -1, -1, digits); }

  int sum() {
    if (++depth_ > kMaxDepth) return -1;
    int left = sign(&Parser::product);
    while (left >= 0 && at_ < end_) {
      if (take("+")) {
        left = binary(Op::add, left, product());
      } else if (take("-")) {
        left = binary(Op::subtract, left, product());
      } else if (take("\\pm")) {
        left = binary(Op::add, left, signed_by(Op::plus_minus, product()));
      } else if (take("\\mp")) {
        left = binary(Op::add, left, signed_by(Op::minus_plus, product()));
      } else {
        break;
      }
    }
    --depth_;
    return left;
  }

  int signed_by(Op op, int left) {
    out_->plus_minus_ = true;
    return unary(op, left);
  }

  int sign(int (Parser::*next)()) {
    bool negative = false;
    for (; is("-") || is("+"); ++at_) negative ^= is("-");
    if (take("\\pm")) return signed_by(Op::plus_minus, (this->*next)());
    if (take("\\mp")) return signed_by(Op::minus_plus, (this->*next)());
    const int value = (this->*next)();
    return negative ? unary(Op::negate, value) : value;
  }

  int product() {
    int left = powered();
    while (left >= 0 && at_ < end_) {
      if (take("*")) {
        left = binary(Op::multiply, left, sign(&Parser::powered));
      } else if (take("/")) {
        left = binary(Op::divide, left, sign(&Parser::powered));
      } else if (take("%")) {
        left = unary(Op::percent, left);
      } else if (starts_atom()) {
        left = implicit(left);
      } else {
        break;
      }
    }
    return left;
  }

  // 2x, 2(3), and mixed numbers: 3\frac{1}{2} and "3 1/2". Two bare numbers do not multiply.
  int implicit(int left) {
    const bool whole = tokens_[at_ - 1].kind == Kind::number &&
                       out_->nodes_[left].op == Op::number &&
                       out_->nodes_[left].text.find('.') == std::string::npos;
    if (tokens_[at_].kind == Kind::number && tokens_[at_ - 1].kind == Kind::number) {
      if (!whole || at_ + 2 >= end_ || tokens_[at_ + 1].text != "/" ||
          tokens_[at_ + 2].kind != Kind::number)
        return -1;
      const int fraction =
          binary(Op::divide, number(tokens_[at_].text), number(tokens_[at_ + 2].text));
      at_ += 3;
      return binary(Op::add, left, fraction);
    }
    if (whole && is("\\frac")) {
      const int fraction = powered();
      if (fraction < 0) return -1;
      const Expression::Node& f = out_->nodes_[fraction];
      const bool numeric = f.op == Op::divide && out_->nodes_[f.left].op == Op::number &&
                           out_->nodes_[f.right].op == Op::number;
      return binary(numeric ? Op::add : Op::multiply, left, fraction);
    }
    return binary(Op::multiply, left, powered());
  }

  bool starts_atom() const {
    const Token& t = tokens_[at_];
    if (t.kind == Kind::number || t.kind == Kind::letter) return true;
    if (t.kind == Kind::symbol)
      return t.text == "(" || t.text == "{" || (t.text == "|" && !bar_) || t.text == "[";
    return t.kind == Kind::command &&
           (t.text == "\\frac" || t.text == "\\sqrt" || t.text == "\\pi" || t.text == "\\infty" ||
            t.text == "\\binom" || function_named(t.text) != nullptr ||
            std::find(kGreek.begin(), kGreek.end(), t.text) != kGreek.end());
  }

  int powered() {
    int left = atom();
    while (left >= 0 && at_ < end_) {
      if (take("!")) {
        left = unary(Op::factorial, left);
      } else if (take("^")) {
        left = binary(Op::power, left, argument());
      } else {
        break;
      }
    }
    return left;
  }

  // {...}, or one token: \frac12 is 1/2, x^23 is x^2 * 3.
  int argument() {
    if (at_ >= end_) return -1;
    if (take("{")) return closed(sum(), "}");
    if (is("-") || is("+")) return sign(&Parser::argument);
    const Token& t = tokens_[at_];
    if (t.kind == Kind::number && t.text.size() > 1 && t.text.find('.') == std::string::npos) {
      const size_t digit = split_++;
      if (digit + 1 >= t.text.size()) {
        ++at_;
        split_ = 0;
      }
      return number(t.text.substr(digit, 1));
    }
    return atom();
  }

  int closed(int value, std::string_view close) { return value >= 0 && take(close) ? value : -1; }

  int atom() {
    if (at_ >= end_ || ++depth_ > kMaxDepth) return -1;
    const int value = unbounded_atom();
    --depth_;
    return value;
  }

  int unbounded_atom() {
    const Token& t = tokens_[at_];
    if (t.kind == Kind::number) {
      std::string digits = t.text.substr(split_);  // what argument() has left of it
      split_ = 0;
      ++at_;
      return number(digits);
    }
    if (t.kind == Kind::letter) return letter();
    if (take("(")) return closed(sum(), ")");
    if (take("[")) return closed(sum(), "]");
    if (take("{")) return closed(sum(), "}");
    if (is("|") && !bar_) return absolute();
    return t.kind == Kind::command ? command() : -1;
  }

  int absolute() {
    ++at_;
    bar_ = true;
    const int value = sum();
    bar_ = false;
    return take("|") ? unary(Op::absolute, value) : -1;
  }

  int letter() {
    std::string name = tokens_[at_++].text;
    if (name == "e" && !is("_")) return node(Op::e);
    if (name == "i" && !is("_")) return node(Op::i);
    return node(Op::variable, -1, -1, name + subscript());
  }

  std::string subscript() {
    if (!is("_") || at_ + 1 >= end_) return "";
    ++at_;
    std::string text = "_";
    if (!take("{")) return text + tokens_[at_++].text;
    while (at_ < end_ && !is("}")) text += tokens_[at_++].text;
    take("}");
    return text;
  }

  int command() {
    const std::string name = tokens_[at_++].text;
    if (name == "\\pi") return node(Op::pi);
    if (name == "\\infty") return node(Op::infinity);
    if (name == "\\frac" || name == "\\binom") {
      const int top = argument(), bottom = argument();
      return binary(name == "\\frac" ? Op::divide : Op::binomial, top, bottom);
    }
    if (name == "\\sqrt") return square_root();
    if (name == "\\lfloor") return floor_like(name, "\\rfloor");
    if (name == "\\lceil") return floor_like(name, "\\rceil");
    if (function_named(name) != nullptr) return function(name);
    if (std::find(kGreek.begin(), kGreek.end(), name) != kGreek.end())
      return node(Op::variable, -1, -1, name + subscript());
    return -1;
  }

  int square_root() {
    int degree = -1;
    if (take("[")) {
      degree = closed(sum(), "]");
      if (degree < 0) return -1;
    } else {
      degree = number("2");
    }
    return binary(Op::root, argument(), degree);
  }

  int floor_like(const std::string& name, std::string_view close) {
    const int value = closed(sum(), close);
    return value < 0 ? -1 : node(Op::function, value, -1, name);
  }

  // \sin x, \sin^2 x, \log_2 8, \log_{2}(8). The argument is one power, or a product of number and
  // variable: \sin 2x.
  int function(const std::string& name) {
    if (++depth_ > kMaxDepth) return -1;
    int exponent = -1, base = -1;
    bool powered_name = false;
    if (take("_")) {
      base = argument();
      if (base < 0 || name != "\\log") return -1;
    }
    if (take("^")) {
      powered_name = true;
      exponent = argument();
      if (exponent < 0) return -1;
    }
    const bool bracketed = is("(") || is("{");
    int value = sign(&Parser::powered);
    while (!bracketed && value >= 0 && at_ < end_ &&
           (tokens_[at_].kind == Kind::letter || is("\\pi") || is("\\frac")))
      value = binary(Op::multiply, value, powered());
    --depth_;
    if (value < 0) return -1;
    int result = node(Op::function, value, -1, name);
    if (base >= 0) result = binary(Op::divide, result, node(Op::function, base, -1, name));
    return powered_name ? binary(Op::power, result, exponent) : result;
  }

  const Tokens& tokens_;
  size_t at_, end_;
  Expression* out_;
  size_t split_ = 0;  // digits of the current number that argument() has taken
  int depth_ = 0;
  bool bar_ = false;  // inside |...|
};

std::optional<Expression> Expression::parse(const Tokens& tokens, size_t begin, size_t end) {
  Expression expression;
  if (begin >= end || !Parser(tokens, begin, end, &expression).run()) return std::nullopt;
  return expression;
}

bool Expression::is_variable() const {
  return nodes_.size() == 1 && nodes_[0].op == Op::variable;
}

// ----------------------------------------------------------------------------------------
// evaluation

std::optional<Value> Expression::evaluate(const Point& point) const {
  std::vector<Value> values;
  values.reserve(nodes_.size());
  for (const Node& node : nodes_) {
    std::optional<Value> value = apply(node, values, point);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values.back();
}

std::optional<Value> Expression::apply(const Node& node, const std::vector<Value>& values,
                                       const Point& point) const {
  const auto left = [&]() -> const Value& { return values[node.left]; };
  const auto right = [&]() -> const Value& { return values[node.right]; };
  switch (node.op) {
    case Op::number:
      return from_digits(node.text);
    case Op::variable:
      return variable(node.text, point);
    case Op::pi:
      return independent("\\pi", point, kPi);
    case Op::e:
      return independent("\\e", point, std::numbers::e_v<long double>);
    case Op::i:
      return Value{Complex(0, 1), {}, {}};
    case Op::infinity:
      return Value{HUGE_VALL, {}, {}};
    case Op::add:
      return add(left(), right(), false);
    case Op::subtract:
      return add(left(), right(), true);
    case Op::multiply:
      return multiply(left(), right());
    case Op::divide:
      if (right().number == Complex(0)) return std::nullopt;
      return divide(left(), right());
    case Op::negate:
      return add(from_integer(0), left(), true);
    case Op::power:
      return raise(left(), right());
    case Op::root:
      if (right().number == Complex(0)) return std::nullopt;
      return root(left(), right());
    case Op::absolute:
      return Value{std::abs(left().number), {}, {}};
    case Op::factorial:
      return factorial(left());
    case Op::binomial:
      return binomial(left(), right());
    case Op::plus_minus:
      return point.minus ? add(from_integer(0), left(), true) : left();
    case Op::minus_plus:
      return point.minus ? left() : add(from_integer(0), left(), true);
    case Op::function:
      return Value{function_named(node.text)->apply(left().number), {}, {}};
    case Op::percent:
      return divide(left(), from_integer(100));
  }
  return std::nullopt;
}

}  // namespace rlk::math
