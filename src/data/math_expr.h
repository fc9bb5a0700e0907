#pragma once
// LaTeX tokens and expressions of the answer checker. An expression is evaluated at a point (a
// value for each variable) in two ways at once: modulo the prime 2^61 - 1, which decides equality
// of rational functions (pi, e and variables count as independent) exactly up to a chance of about
// 2^-55, and as a complex number, which decides the rest. Neither can blow up. Values; no shared
// state.

#include <complex>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::math {

struct Token {
  enum class Kind { number, letter, command, text, symbol } kind;
  std::string text;    // digits "1.5"; "x"; "\frac"; contents of \text{}; "+"
  bool space = false;  // white space stood before it
};
using Tokens = std::vector<Token>;

// Tokens of an answer, with spacing commands, delimiter sizes, dollar signs and font commands
// removed and spellings unified
// (\dfrac -> \frac, \cdot -> *, degree signs -> text). Total: unknown bytes become symbols.
Tokens tokenize(std::string_view latex);

// The tokens as one string without spaces, for comparison of texts.
std::string canonical_text(const Tokens& tokens);

struct Point {
  uint64_t seed = 0;
  bool negative = false;  // the variables' real values: in (1, 2), or their negatives
  bool minus = false;     // what \pm means
};

struct Value {
  std::complex<long double> number;
  std::optional<uint64_t> residue;  // absent where a root or a function was taken
  std::optional<int64_t> integer;   // when it is known to be a small one
};

// Whether two values are equal: by residues where both have one, else as numbers to 12 digits.
bool same(const Value& a, const Value& b);
Value subtract(const Value& a, const Value& b);
Value divide(const Value& a, const Value& b);  // residue absent when b's is 0

// A parsed expression. Nodes refer to earlier nodes.
class Expression {
 public:
  // Nothing when the tokens are no expression that we know.
  static std::optional<Expression> parse(const Tokens& tokens, size_t begin, size_t end);
  std::optional<Value> evaluate(
      const Point& point) const;  // nothing on division by zero and the like
  bool has_plus_minus() const { return plus_minus_; }
  bool is_variable() const;

 private:
  friend class Parser;
  enum class Op {
    number,
    variable,
    pi,
    e,
    i,
    infinity,
    add,
    subtract,
    multiply,
    divide,
    negate,
    power,
    root,
    absolute,
    factorial,
    binomial,
    plus_minus,
    minus_plus,
    function,
    percent
  };
  struct Node {
    Op op;
    int left = -1, right = -1;
    std::string text;  // digits, variable or function name
  };
  std::optional<Value> apply(const Node& node, const std::vector<Value>& values,
                             const Point& point) const;
  std::vector<Node> nodes_;
  bool plus_minus_ = false;
};

}  // namespace rlk::math
