#pragma once
// The deepscaler rule's parts. Pure functions, total on any bytes, and linear to quadratic in the
// length of their bounded input.

#include <optional>
#include <string>
#include <string_view>

namespace rlk {

// The answer of a response: the contents of the last \boxed{} after the last </think>; nothing when
// there is none, or when the thinking part was opened and never closed.
std::optional<std::string> boxed_answer(std::string_view response);

// Whether two LaTeX answers mean the same: equal after normalisation, or equal values (exact
// rationals, roots, pi; decimals within the written precision of neither: 0.5 = 1/2, but 0.33 !=
// 1/3), elementwise for tuples, intervals, sets and matrices.
bool math_equal(std::string_view answer, std::string_view label);

}  // namespace rlk
