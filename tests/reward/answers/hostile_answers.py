"""Hostile text in place of an answer: guesses, terms and words beside the right one, and heaps of notation."""

from collections.abc import Iterator
from random import Random

from tests.reward.answers.made_pairs import made

REFERENCES = (
    ("7", "8"), (r"\frac{3}{5}", r"\frac{5}{3}"), ("x^2+1", "x^2-1"), ("(2,3)", "(3,2)"), ("[1,4)", "(1,4]"),
    ("B", "C"), ("12", "21"),
    (r"2\sqrt{3}", r"3\sqrt{2}"), (r"\{1,2\}", r"\{1,3\}"), ("0.25", "0.52"), ("-5", "5"), (r"\pi", r"2\pi"),
    ("y=2x+1", "y=2x-1"),
    ("Yes", "No"), ("3+4i", "3-4i"), (r"30^\circ", r"60^\circ"), (r"\$18", r"\$81"), (r"5\text{ cm}", r"6\text{ cm}"),
)  # fmt: skip
"""An answer and another one."""
GUESSES = (
    "@, #", "@ or #", r"@ \text{ or } #", "# or @", "@ and #", r"@ \text{ and } #", "@; #", r"\{@, #\}", "@, #, @",
    "@ #", "@ (or #)", "@, maybe #",
    r"@\text{ (or }#)", r"\text{@ or #}", r"\text{either @ or #}", "# = @", "@ = #", "@ = # = @", "# = # = @",
    r"\boxed{@}\boxed{#}", "@ | #",
    r"\boxed{#} \boxed{@}", r"\text{\textbf{@ or #}}", r"\mathbf{@}\mathbf{#}", r"@ \vee #",
    r"@ \text{ if } x > 0, # \text{ otherwise}", "@ - x",
    "@ + x", "@ x y", "@ / x", r"@ \cdot x", "@, @", "@ @", "not @", r"\text{not } @", r"\neq @", "@ or more",
    "at least @", r"@, \ldots", "@, ...",
    "@ to #", r"\pm @ + x", "x", "n", "k", r"\emptyset", r"\{\}", "x=x", "0=0", "x = x = x", "1 = 1", "", " ", "{}",
    "?", "...", r"\boxed{}", r"\text{}",
    r"\mathbb{R}", r"x \in \mathbb{R}", r"(-\infty, \infty)", "any real number", "any number", "all of the above",
    "A, B, C, D, E", "ABCDE",
    "(A) or (B) or (C) or (D)", "your answer", r"\text{answer}", "the final answer", "Answer",
    r"Put your final answer within \boxed{}", "see above",
    "the answer goes here", "unknown", "undefined", r"\text{DNE}", r"\infty", r"\frac{0}{0}", r"\frac{1}{0}", "NaN",
    "nan", "inf", "None", "null",
    "1e9999", "10^{10^{10}}", "9^{9^{9^{9}}}", "99999!", "9" * 300, r"\sum_{n=1}^{\infty} n", r"\int_0^1 x \, dx",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    r"0 \le x \le 1000", "[-1000, 1000]", "@ because # is wrong", r"# \Rightarrow @", r"@ \approx #", "@ != #",
    "answer: @ or answer: #", "@\n#",
    r"@ \quad #", r"@ \\ #", "@. #", "@, #, and others", "@ (#)", "(@)(#)", r"@ \text{ times } x", "@ minus #",
    r"@ \% of #",
)  # fmt: skip
"""How an answer @ is guessed, hidden or exceeded; # is a wrong one."""


def gaming(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Texts of a policy, each with the reference for which it must be wrong."""
    random = Random(seed)
    for number in range(count):
        answer, wrong = random.choice(REFERENCES)
        yield GUESSES[number % len(GUESSES)].replace("@", answer).replace("#", wrong), answer


PIECES = (
    *"0123456789xyzabcinABEPQ+-*/=<>!^_|,.;:()[]{}%$&'~? \\", "12", "3.14", "1,234", "0.333333", "1e400", "10^{100}",
    "-7", "−", "×", "÷", "·", "√", "π",
    "∞", "°", "²", "½", "≤", "∪", "∅", "１２", "（", "）", "，", "。", "万", "答案", "\u200b", "\x00",
    "\ud7ff", "é", "\n",
    r"\frac{", r"\frac", r"\dfrac12",
    r"\sqrt{", r"\sqrt[3]{", r"\sqrt", "}{", "}", r"\left(", r"\right)", r"\left", r"\{", r"\}", r"\text{",
    r"\text{ or }", r"\mathrm{cm}", r"\boxed{",
    r"\pi", r"\infty", r"\pm", r"\cdot", r"\times", r"\cup", r"\in", r"\le", r"\begin{pmatrix}", r"\end{pmatrix}",
    r"\\", r"\binom{5}{2}", r"\sin",
    r"\log_", r"\ln", "^{", "_{", r"^\circ", r"\overline{", r"\sum_{n=1}^{9}", r"\int", r"\lim", r"\%", r"\$", r"\,",
    r"\!", "cm", " and ", " or ", " per ",
    "mod", "x=", "f(x)=", "!", "!!", "9!", "99^99",
)  # fmt: skip
NESTS = (
    ("(", ")"), ("{", "}"), ("[", "]"), (r"\frac{", "}{2}"), (r"\sqrt{", "}"), ("2^{", "}"), (r"\text{", "}"),
    (r"\left(", r"\right)"), ("|", "|"),
    (r"\{", r"\}"), ("-", ""), ("x_{", "}"), (r"\boxed{", "}"), ("1/", ""), (r"\log ", ""), ("", "!"), ("", "^2"),
    ("f(", ")"),
)  # fmt: skip


def fuzz(seed: int, count: int) -> Iterator[str]:
    """Heaps, nests and repeats of pieces, towers and mutilated answers: up to 400 characters, some far longer."""
    random = Random(seed)
    for number, one in enumerate(made(seed, count)):
        text, pieces = one.given, random.choices(PIECES, k=60)
        left, right = random.choice((*NESTS, (pieces[1], pieces[2])))
        match number % 5:
            case 0:
                text = "".join(pieces[: random.randint(1, 60)])[:400]
            case 1:
                for piece, (left, right) in zip(pieces, random.choices(NESTS, k=random.randint(1, 40)), strict=False):
                    text = left + text + piece * random.randint(0, 1) + right
            case 2:
                times = random.choice((9, 40, 90, random.choice((400, 5_000, 50_000))))
                text = left * times + pieces[0] + right * times
            case 3:
                text = "^".join(random.choices(("9", "{99}", "(x+1)", "10", "{-2}", "n", "!"), k=random.randint(3, 30)))
            case _:
                at, end = random.choices(range(len(text) + 1), k=2)
                text = text[:at] + pieces[0] * random.randint(0, 3) + text[end:]
        yield text
