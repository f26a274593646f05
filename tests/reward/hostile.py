"""Hostile completions, meant to crash, hang or fool a verifier."""

import random
from collections.abc import Iterator

COUNT = 300

LONG = 60_000
"""Characters: longer than any real completion here, short enough for 300 of them."""

NUMBERS = (
    "9" * 5_000,
    "-" * 400 + "1",
    "1" + ",000" * 2_000,
    "0." + "0" * 5_000 + "1",
    "1e999999999",
    "1e-999999999",
    "NaN",
    "inf",
    "\u0661\u0668",  # 18 in Arabic-Indic digits
    "\uff11\uff18",  # 18, full width
    "1\u0338" * 200,
    "\u00b2\u00b3\u2460",
    "0x" + "f" * 3_000,
    "1_000_000",
    "--1",
    "1/0",
    "$" * 3_000,
)
EXPRESSIONS = (
    "9**9**9",
    "9^{9^{9^{9}}}",
    "9^9^9^9",
    "2^{1000000000}",
    "10^{-1000000000}",
    "((((9^{99})^{99})^{99})^{99})^{99}",
    "99999!",
    "(((9!)!)!)!",
    "9!!!!!!",
    "\\binom{99999999}{4999999}",
    "\\sum_{n=1}^{999999999} n^{n}",
    "\\int_0^{\\infty} \\frac{\\sin^{99} x}{x^{99}} e^{-x^{9}} dx",
    "\\lim_{x \\to 0} \\sin^{50}(x^{50})/x^{50}",
    "\\sqrt[99999]{2}",
    "(x+1)^{9999}",
    "(a+b+c+d+e+f+g)^{99}",
    "(1+\\sqrt{2}+\\sqrt{3}+\\sqrt{5}+\\sqrt{7}+\\sqrt{11})^{40}",
    "\\prod_{k=1}^{99999} k",
    "1" + "+1" * 140,
    "\\sin(" * 15 + "x" + ")" * 15,
    "\\frac{1}{" * 15 + "x" + "}" * 15,
    "x^{" * 15 + "x" + "}" * 15,
    "\\left(" * 2_000,
    "\\begin{pmatrix}" + "1&" * 70 + "\\end{pmatrix}",
    "\\begin{pmatrix}1\\\\" * 50,
    "__import__('os').system('touch owned')",
    "().__class__.__bases__[0].__subclasses__()",
    "\\input{/etc/passwd}",
    "\\def\\x{\\x\\x}\\x",
    "\\newcommand{\\a}{\\a\\a}\\a",
    "[" * 200 + "]" * 200,
    "\\{" * 100 + "\\}" * 100,
    "|" * 99,
    "=" * 99,
    "1=1=1=1=1=1=18",
    "x=" * 80 + "18",
    "\\text{" * 10 + "18" + "}" * 10,
    "17 \\text{ or } 18",
    "18, 19, 20",
    "(-\\infty, \\infty)",
    "\\mathbb{R}",
)
MARKS = ("#### {}", "\\boxed{{{}}}", "Answer: {}", "**Answer:** ${}$", "\\boxed {}", "<think>x</think> \\boxed{{{}}}")
UNITS = (
    "{", "}", "\\boxed{", "\\boxed", "\\fbox{", "\\", "\\\\", "#", "#### ", "Answer:", "answer ", "Answer" + "*" * 8,
    "<think>", "</think>", "<think></think>", "```", "```python\n", "$", "-", "-$", "1,", "1.", "1e", ".", ",", "=",
    "((", "\x00", "\n", "\r", "\t ", " ", "\u2028", "\ufeff", "\u202e", "a\u0301", "\U0001f600", "aaaaaaaaaa!",
    "\\frac{1}", "^", "_", "a ", "the ",
)  # fmt: skip
CODE = (
    "while True: pass",
    "import time; time.sleep(99)",
    "x = 'a' * (4 << 30)",
    "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "print('5' * (9 << 20))",
    "import os; os.kill(os.getppid(), 9)",
    "import os; os.kill(0, 9)",
    "import os; os._exit(0)",
    "def (",
    "\x00",
)  # fmt: skip


def corpus(seed: int = 0) -> list[str]:
    """``COUNT`` different strings, the same for a seed; none has the answer 18.5 where it would count."""
    strings: dict[str, None] = {}
    for string in _strings(random.Random(seed)):
        strings[string] = None
        if len(strings) == COUNT:
            break
    return list(strings)


def _strings(rng: random.Random) -> Iterator[str]:
    yield ""
    for inside in (*EXPRESSIONS, *NUMBERS):
        yield rng.choice(MARKS[:3]).format(inside)
        yield f"\\boxed{{{inside}}}"
    for unit in UNITS:
        yield unit * (LONG // len(unit))
        yield "\\boxed{" + unit * 100 + "}"
    for program in CODE:
        yield f"```python\n{program}\n```"
    alphabet = [*UNITS, *EXPRESSIONS, *NUMBERS, "\\boxed{18", "7"]
    while True:
        parts = rng.choices(alphabet, k=rng.randrange(1, 12))
        yield rng.choice(MARKS).format("".join(part[:200] for part in parts))
