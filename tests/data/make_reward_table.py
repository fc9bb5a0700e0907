#!/usr/bin/env python3
r"""Writes reward_table.json: answer pairs with what the deepscaler rule must say and what Math-Verify and sympy say.

usage: make_reward_table.py > tests/data/reward_table.json
Needs `pip install math-verify sympy`. math_verify: Math-Verify's verdict. sympy: whether sympy.simplify of the difference of both is 0;
null where one is no expression to it (words, tuples, sets, intervals, equations). Every row where one of them differs from the
expectation must have a reason, in DIFFERENCES or SYMPY_DIFFERENCES.
"""
import json
import logging
import signal
import sys

import sympy
from latex2sympy2_extended import latex2sympy
from math_verify import parse, verify

# (label, answers that are equal to it, answers that are not)
GROUPS = [
    # integers and signs
    ("42", ["42", "42.", "42.0", " 42 ", "$42$", "{42}", "+42", "\\text{42}", "42.00", "4.2*10"], ["41", "-42", "4.2", "420", "42x", "\\text{forty}"]),
    ("-7", ["-7", "- 7", "\u22127", "-7.0", "-\\frac{14}{2}", "(-7)"], ["7", "-0.7", "--7"]),
    ("0", ["0", "0.0", "-0", "\\frac{0}{5}", "1-1"], ["1", "\\emptyset", "0.1"]),
    ("1000000", ["1,000,000", "1{,}000{,}000", "10^6", "1000000.0", "1,\\!000,\\!000", "10^{6}", "\\$1,000,000"], ["100000", "10^5", "1,000,00", "1"]),
    ("12345", ["12,345", "12\\,345", "12345"], ["12", "345", "12.345"]),
    ("1{,}234.5", ["1234.5", "1,234.5"], ["1234", "12345"]),
    # fractions
    ("\\frac{1}{2}", ["1/2", "0.5", "\\dfrac{1}{2}", "\\tfrac12", "\\frac12", "\\frac{2}{4}", ".5", "0.50", "2^{-1}", "\\frac{1}{2}.", "50\\%"],
     ["\\frac{1}{3}", "2", "0.51", "\\frac{2}{1}", "0.05"]),
    ("-\\frac{3}{4}", ["-3/4", "\\frac{-3}{4}", "\\frac{3}{-4}", "-0.75", "-\\frac{6}{8}"], ["3/4", "-4/3", "-0.7"]),
    ("\\frac{1}{3}", ["1/3", "\\frac{2}{6}", "\\frac{1/2}{3/2}", "3^{-1}"], ["0.33", "0.3333", "0.333333333333", "3"]),
    ("3\\frac{1}{2}", ["\\frac{7}{2}", "3.5", "3 1/2", "3\\dfrac{1}{2}", "7/2"], ["\\frac{3}{2}", "1.5", "3\\frac{1}{3}"]),
    ("\\frac{22}{7}", ["22/7", "3\\frac{1}{7}"], ["\\pi", "3.14", "3.142857"]),
    ("\\frac{a}{b}", ["a/b", "\\dfrac{a}{b}", "a b^{-1}"], ["b/a", "ab"]),
    ("\\frac{\\sqrt{3}}{2}", ["\\sqrt{3}/2", "\\frac{1}{2}\\sqrt{3}", "\\frac{3}{2\\sqrt{3}}", "\\sqrt{\\frac{3}{4}}", "\\frac{\\sqrt3}2"],
     ["\\frac{\\sqrt{2}}{2}", "0.866", "\\frac{3}{2}"]),
    # decimals
    ("3.14", ["3.14", "3.140", "\\frac{157}{50}", "314/100"], ["\\pi", "3.1", "3.141"]),
    ("0.125", ["1/8", ".125", "12.5\\%", "2^{-3}"], ["0.12", "0.13", "8"]),
    ("1.5\\times10^{3}", ["1500", "1.5 \\cdot 10^3", "15*10^2"], ["150", "1.5"]),
    ("6.02\\times 10^{23}", ["602000000000000000000000", "602\\cdot 10^{21}"], ["6.02\\times 10^{22}", "6.02"]),
    # percent
    ("50\\%", ["50%", "0.5", "\\frac12", "50", "50\\%", "50 \\%"], ["5", "0.05", "5\\%"]),
    ("12.5\\%", ["0.125", "\\frac{1}{8}", "12.5"], ["1.25", "0.0125"]),
    # units
    ("5", ["5\\text{ cm}", "5 \\text{ meters}", "5\\text{ cm}^2", "5 cm", "5\\,\\text{km/h}", "5\\mathrm{~kg}", "\\$5", "5 \\text{ dollars}", "5^\\circ", "5^{\\circ}", "5°",
           "5 inches"], ["6\\text{ cm}", "50 cm", "5.5 \\text{ m}"]),
    ("90^\\circ", ["90", "90^{\\circ}", "90\\text{ degrees}", "90°"], ["80", "9"]),
    ("12\\text{ cm}^2", ["12", "12\\text{ cm}^{2}", "12 \\text{ square cm}"], ["144", "12^2"]),
    # pi and e
    ("2\\pi", ["2 \\pi", "2*\\pi", "\\pi*2", "2\u03c0", "\\pi+\\pi", "\\frac{4\\pi}{2}"], ["6.28", "\\pi", "2", "\\pi^2"]),
    ("\\frac{\\pi}{4}", ["\\pi/4", "0.25\\pi", "\\frac{1}{4}\\pi"], ["0.785", "4\\pi", "\\frac{4}{\\pi}"]),
    ("16\\pi\\text{ cm}^3", ["16\\pi", "\\pi \\cdot 16"], ["16", "50.27"]),
    ("e^2", ["e^{2}", "e*e"], ["2e", "7.389"]),
    ("\\pi^2-1", ["(\\pi-1)(\\pi+1)", "-1+\\pi^2"], ["\\pi^2+1", "8.87"]),
    # roots
    ("\\sqrt{8}", ["2\\sqrt{2}", "\\sqrt8", "2\\sqrt2", "8^{1/2}", "\\sqrt{2}\\cdot 2", "\u221a{8}"], ["2.828", "4", "\\sqrt{2}", "8"]),
    ("\\sqrt{16}", ["4", "2^2", "\\sqrt{4}^2"], ["-4", "16", "8"]),
    ("\\sqrt[3]{27}", ["3", "27^{1/3}"], ["9", "\\sqrt{27}"]),
    ("\\sqrt[3]{-8}", ["-2"], ["2", "8"]),
    ("\\frac{1}{\\sqrt{2}}", ["\\frac{\\sqrt{2}}{2}", "2^{-1/2}", "\\sqrt{0.5}", "\\sqrt{\\frac{1}{2}}"], ["\\frac{1}{2}", "0.707", "\\sqrt{2}"]),
    ("1+\\sqrt{2}", ["\\sqrt{2}+1", "\\frac{1}{\\sqrt{2}-1}", "1 + \\sqrt 2"], ["1-\\sqrt{2}", "2.414", "\\sqrt{3}"]),
    ("\\sqrt{3+2\\sqrt{2}}", ["1+\\sqrt{2}"], ["\\sqrt{5}", "1-\\sqrt{2}"]),
    ("3\\sqrt[4]{2}", ["3*2^{1/4}", "\\sqrt[4]{162}"], ["3\\sqrt{2}", "\\sqrt[4]{6}"]),
    # powers and large numbers
    ("2^{10}", ["1024", "4^5", "32^2"], ["1000", "2^9", "20"]),
    ("2^{100}", ["1267650600228229401496703205376", "4^{50}", "1024^{10}"], ["1267650600228229401496703205377", "2^{99}", "1.2676506\\times10^{30}"]),
    ("10^{40}+1", ["10000000000000000000000000000000000000001", "1+10^{40}"], ["10^{40}", "10000000000000000000000000000000000000002"]),
    ("5!", ["120", "5\\cdot 4!", "5*4*3*2"], ["5", "720"]),
    ("\\binom{5}{2}", ["10", "\\dbinom{5}{3}", "\\frac{5!}{2!3!}"], ["20", "5/2"]),
    ("-1", ["(-1)^3", "-1^2", "i^2"], ["1", "(-1)^2"]),
    # polynomials and variables
    ("x^2+2x+1", ["(x+1)^2", "1+2x+x^2", "x^{2}+2*x+1", "(1+x)(x+1)", "x(x+2)+1"], ["x^2+1", "(x-1)^2", "x^2+2x", "x^2+2y+1"]),
    ("\\frac{x}{x+1}", ["x/(x+1)", "1-\\frac{1}{x+1}", "\\frac{2x}{2x+2}"], ["\\frac{x+1}{x}", "\\frac{1}{x+1}"]),
    ("3ab", ["3 a b", "ab\\cdot 3", "3ba"], ["3a+b", "ab", "3a"]),
    ("\\sqrt{x^2}", ["|x|"], ["x", "-x"]),
    ("x_1+x_2", ["x_2+x_1", "x_{1}+x_{2}"], ["x_1-x_2", "x_1"]),
    ("\\alpha\\beta", ["\\beta\\alpha", "\\alpha \\cdot \\beta"], ["\\alpha+\\beta", "\\alpha"]),
    ("2^n-1", ["2^{n}-1", "-1+2^n"], ["2^{n-1}", "2n-1"]),
    ("n(n+1)/2", ["\\frac{n(n+1)}{2}", "\\frac{n^2+n}{2}"], ["n(n-1)/2", "n^2"]),
    # assignments and equations
    ("5", ["x=5", "x = 5", "f(x)=5", "y_1 = 5", "\\text{Area}=5", "x=2+3=5"], ["x=6", "5=6"]),
    ("x=5", ["5", "x = 5.0", "x=\\frac{10}{2}"], ["x=4", "6"]),
    ("y=2x+3", ["y = 3+2x", "2x-y+3=0", "y-2x=3"], ["y=2x-3", "y=3x+2", "2x+y+3=0"]),
    ("x^2+y^2=4", ["y^2+x^2=4", "x^2+y^2-4=0", "2x^2+2y^2=8"], ["x^2+y^2=2", "x^2-y^2=4"]),
    # tuples, intervals
    ("(1,2)", ["(1, 2)", "\\left(1,2\\right)", "(1.0,\\frac{4}{2})", "(x,y)=(1,2)"], ["(2,1)", "[1,2]", "(1,2,3)", "(1,2]", "1"]),
    ("(\\frac{1}{2},\\sqrt{8})", ["(0.5,2\\sqrt{2})", "\\left(\\dfrac12, \\sqrt 8\\right)"], ["(2\\sqrt2,0.5)", "(0.5,2.83)"]),
    ("[0,1)", ["[0, 1)", "\\left[0,1\\right)", "0\\leq x<1", "0 \\le x < 1", "x\\in[0,1)"], ["(0,1)", "[0,1]", "0<x<1"]),
    ("(2,\\infty)", ["(2, \\infty)", "(2,+\\infty)", "x>2", "2<x", "x \\in (2,\\infty)"], ["[2,\\infty)", "x\\geq 2", "(-\\infty,2)"]),
    ("(-\\infty,3]", ["x\\leq 3", "x \\le 3", "(-\\infty, 3]"], ["(-\\infty,3)", "x<3", "[3,\\infty)"]),
    ("(-\\infty,-1)\\cup(1,\\infty)", ["(1,\\infty)\\cup(-\\infty,-1)", "(-\\infty, -1) \\cup (1, \\infty)"], ["(-1,1)", "(-\\infty,1)\\cup(1,\\infty)"]),
    ("(3,-\\frac{\\pi}{2})", ["(3,-\\pi/2)", "\\left( 3, -\\frac{1}{2}\\pi \\right)"], ["(3,\\frac{\\pi}{2})"]),
    # sets and lists
    ("\\{1,2,3\\}", ["\\{3,2,1\\}", "\\{1, 2, 3\\}", "\\left\\{1,2,3\\right\\}", "1,2,3", "\\{1,2,\\frac{6}{2}\\}"], ["\\{1,2\\}", "\\{1,2,4\\}", "(1,2,3)"]),
    ("1,-2", ["-2,1", "1, -2", "1 \\text{ and } -2", "1\\text{ or }-2", "x=1,x=-2", "\\{1,-2\\}"], ["1", "-1,2", "1,2"]),
    ("\\pm 3", ["3,-3", "-3, 3", "\\pm\\sqrt{9}", "\\{-3,3\\}"], ["3", "-3", "\\pm 2"]),
    ("1\\pm\\sqrt{2}", ["1+\\sqrt{2},1-\\sqrt{2}", "1 \\pm \\sqrt 2", "\\{1-\\sqrt{2},1+\\sqrt{2}\\}", "1\\mp\\sqrt{2}"], ["1+\\sqrt{2}", "-1\\pm\\sqrt{2}"]),
    ("\\{1,2\\}", ["\\{2,1\\}", "\\{1.0, \\frac{4}{2}\\}"], ["\\{1,1,2\\}", "\\{1\\}"]),
    ("1:2", ["1:2", "1 : 2"], ["2:1", "\\frac{1}{2}"]),
    ("\\emptyset", ["\\varnothing", "\u2205"], ["0", "\\{0\\}"]),
    # matrices
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", ["\\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}", "\\begin{pmatrix} 1 & \\frac{4}{2} \\\\ 3 & 4 \\\\ \\end{pmatrix}"],
     ["\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1&2&3&4\\end{pmatrix}"]),
    ("\\begin{pmatrix} -1/2 \\\\ \\sqrt{4} \\end{pmatrix}", ["\\begin{pmatrix} -0.5 \\\\ 2 \\end{pmatrix}"], ["\\begin{pmatrix} 2 \\\\ -0.5 \\end{pmatrix}", "(-0.5,2)"]),
    # complex numbers
    ("3+4i", ["4i+3", "3 + 4 i", "-(-3-4i)"], ["3-4i", "3+4", "5"]),
    ("\\frac{1}{i}", ["-i", "i^3"], ["i", "1"]),
    # functions
    ("\\log_2 8", ["3", "\\log_{2}{8}", "\\log_2(8)"], ["8", "\\log 8", "4"]),
    ("\\sin\\frac{\\pi}{6}", ["\\frac12", "0.5", "\\cos\\frac{\\pi}{3}"], ["\\frac{\\sqrt3}{2}", "\\frac{\\pi}{6}"]),
    ("\\ln 2", ["\\ln(2)", "\\frac{1}{2}\\ln 4", "-\\ln\\frac{1}{2}"], ["0.693", "2", "\\log 2"]),
    ("\\tan^2 x+1", ["\\sec^2 x", "\\frac{1}{\\cos^2 x}"], ["\\tan x+1", "\\cos^2 x"]),
    ("|{-3}|", ["3", "|3|"], ["-3"]),
    # words
    ("\\text{Friday}", ["Friday", "\\text{friday}", "\\textbf{Friday}", "\\mathrm{Friday}"], ["Monday", "5", "\\text{Fri}"]),
    ("A", ["\\text{A}", "(A)", "\\text{(A)}", "\\mathrm{A}", "A."], ["B", "\\text{(B)}", "AB"]),
    ("\\text{no solution}", ["no solution", "\\text{No solution}"], ["0", "\\text{solution}"]),
    ("1010_2", ["1010_{2}"], ["1010_3", "1010", "10"]),
]

ROUNDED = "Math-Verify rounds decimals to 6 digits; the rule is exact"
RANGE = "Math-Verify compares such large numbers as floats of different precision"
SPELLING = "Math-Verify does not read this spelling"
PERCENT = "the rule also accepts the number before a percent sign, as deepscaler does"
IMAGINARY = "Math-Verify takes i for a variable here"
ORDER = "Math-Verify splits letters and digits differently here"
INTERVAL = "Math-Verify keeps an inequality and an interval apart when the label is the interval"
TUPLE = "Math-Verify equates a set and a tuple of the same elements"
BASE = "Math-Verify drops the base of a numeral"
REPEATED = "Math-Verify drops repeated elements; the rule counts them, since roots may be listed so"
RATIO = "the rule keeps a ratio and a quotient apart"
# (label, answer) -> why the expectation is not Math-Verify's verdict
DIFFERENCES = {
    ("42", "42."): SPELLING, ("12345", "12\\,345"): SPELLING, ("\\frac{1}{3}", "0.333333333333"): ROUNDED,
    ("3\\frac{1}{2}", "3 1/2"): SPELLING, ("\\frac{22}{7}", "3.142857"): ROUNDED,
    ("6.02\\times 10^{23}", "602000000000000000000000"): RANGE, ("6.02\\times 10^{23}", "602\\cdot 10^{21}"): RANGE,
    ("12.5\\%", "12.5"): PERCENT, ("5", "5\u00b0"): SPELLING, ("90^\\circ", "90\u00b0"): SPELLING, ("\\sqrt{8}", "\u221a{8}"): SPELLING,
    ("\\sqrt[3]{-8}", "-2"): "sympy takes the principal complex root; the rule takes the real one", ("-1", "i^2"): IMAGINARY,
    ("3ab", "ab\\cdot 3"): ORDER, ("3ab", "3ba"): ORDER, ("[0,1)", "0\\leq x<1"): INTERVAL, ("[0,1)", "0 \\le x < 1"): INTERVAL,
    ("(2,\\infty)", "x>2"): INTERVAL, ("(2,\\infty)", "2<x"): INTERVAL, ("(-\\infty,3]", "x\\leq 3"): INTERVAL,
    ("(-\\infty,3]", "x \\le 3"): INTERVAL, ("\\{1,2,3\\}", "(1,2,3)"): TUPLE, ("\\emptyset", "\\varnothing"): SPELLING,
    ("3+4i", "3 + 4 i"): IMAGINARY, ("\\frac{1}{i}", "-i"): IMAGINARY, ("\\frac{1}{i}", "i^3"): IMAGINARY, ("A", "A."): SPELLING,
    ("1010_2", "1010_3"): BASE, ("1010_2", "1010"): BASE,
    ("\\{1,2\\}", "\\{1,1,2\\}"): REPEATED, ("1:2", "\\frac{1}{2}"): RATIO,
}


UNIT = "sympy takes the unit for a product of variables"
WORDS = "sympy takes words for products of variables"
FLOAT = "sympy compares a float with an exact number"
SYMPY_DIFFERENCES = {
    ("1:2", "\\frac{1}{2}"): RATIO,
    ("42", "\\text{42}"): WORDS, ("12345", "12\\,345"): "sympy takes the thin space for a product", ("3\\frac{1}{2}", "3 1/2"): "sympy takes the space for a product",
    ("6.02\\times 10^{23}", "602000000000000000000000"): FLOAT, ("6.02\\times 10^{23}", "602\\cdot 10^{21}"): FLOAT,
    ("\\frac{1}{\\sqrt{2}}", "\\sqrt{0.5}"): FLOAT, ("50\\%", "50"): PERCENT, ("12.5\\%", "12.5"): PERCENT,
    ("90^\\circ", "90\\text{ degrees}"): UNIT, ("\\sqrt[3]{-8}", "-2"): "sympy takes the principal complex root; the rule takes the real one",
    ("-1", "i^2"): "sympy takes i for a variable here", ("\\frac{1}{i}", "-i"): "sympy takes i for a variable here",
    ("\\frac{1}{i}", "i^3"): "sympy takes i for a variable here", ("\\sqrt{x^2}", "|x|"): "sympy allows complex variables; the rule takes real ones",
    ("\\text{Friday}", "Friday"): WORDS, ("\\text{no solution}", "no solution"): WORDS,
    ("1010_2", "1010_3"): "sympy drops the base of a numeral", ("1010_2", "1010"): "sympy drops the base of a numeral",
    **{("5", "5" + unit): UNIT for unit in ["\\text{ cm}", " \\text{ meters}", "\\text{ cm}^2", " cm", "\\,\\text{km/h}", "\\mathrm{~kg}", " \\text{ dollars}", " inches"]},
    **{("12\\text{ cm}^2", answer): UNIT for answer in ["12", "12 \\text{ square cm}"]},
    **{("16\\pi\\text{ cm}^3", answer): UNIT for answer in ["16\\pi", "\\pi \\cdot 16"]},
}


def late(*_):
    raise TimeoutError


def sympy_judge(label, answer):
    """Whether the difference simplifies to 0; None where there is none."""
    signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        x, y = latex2sympy(label), latex2sympy(answer)
        if isinstance(x, sympy.Expr) and isinstance(y, sympy.Expr):
            return bool(sympy.simplify(x - y) == 0)
    except Exception:  # its parser raises many kinds
        pass
    finally:
        signal.alarm(0)
    return None


def judge(label, answer):
    """Math-Verify's verdict on two boxed answers."""
    def boxed(text):
        return parse("\\boxed{" + text + "}")
    return bool(verify(boxed(label), boxed(answer)))


def main():
    logging.disable(logging.CRITICAL)
    rows, unexplained = [], 0
    for label, same, different in GROUPS:
        for answer, expected in [(a, True) for a in same] + [(a, False) for a in different]:
            row = {"label": label, "answer": answer, "equal": expected}
            for name, verdict, reasons in [("math_verify", judge(label, answer), DIFFERENCES),
                                           ("sympy", sympy_judge(label, answer), SYMPY_DIFFERENCES)]:
                row[name] = verdict
                if verdict is not None and verdict != expected:
                    row["why" if name == "math_verify" else "why_sympy"] = reason = reasons.get((label, answer), "")
                    unexplained += not reason
            rows.append(row)
    print("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]")
    by_sympy = [r for r in rows if r["sympy"] is not None]
    print(f"{len(rows)} pairs; {sum(r['equal'] != r['math_verify'] for r in rows)} differ from Math-Verify; "
          f"{sum(r['equal'] != r['sympy'] for r in by_sympy)} of {len(by_sympy)} differ from sympy; {unexplained} unexplained",
          file=sys.stderr)


if __name__ == "__main__":
    main()
