"""
Extraction of the final answer from a completion, by the two conventions that mark it.

    ... so \\boxed{\\frac{1}{2}} it is.        last_boxed       \\frac{1}{2}
    ... **Answer:** 42.                      after_answer     42

Each takes one pass over the text, whatever the text is.
"""

import re

BOXES = ("\\boxed", "\\fbox")

MARK = re.compile(r"(?i:answer)[ *_]{0,8}:[ \t*_]*")
"""``Answer:`` and its Markdown emphasis. No two parts match the same character, so it cannot backtrack."""


def last_boxed(text: str) -> str | None:
    """
    Content of the last box, with balanced braces; None if there is no box, or the text ends inside it.

    An escaped brace is part of the answer: ``\\boxed{\\{1, 2\\}}`` is the set ``\\{1, 2\\}``.
    """
    start, box = max((text.rfind(box), box) for box in BOXES)
    if start < 0:
        return None
    rest = text[start + len(box) :].lstrip(" ")
    if not rest.startswith("{"):  # the 5 of \boxed 5
        return next(iter(rest[:64].replace("$", " ").split(maxsplit=1)), None)
    end = _closing(rest)
    return None if end is None else rest[1:end].strip()


def after_answer(text: str) -> str | None:
    """Text after the last ``Answer:``, to the end of the line, without emphasis; None if there is none."""
    marks = list(MARK.finditer(text))
    if not marks:
        return None
    line = text[marks[-1].end() :].lstrip().partition("\n")[0]
    return line.strip(" \t\r*_").removesuffix(".").strip() or None


def _closing(text: str) -> int | None:
    """Position of the brace that closes the first character."""
    depth, place = 0, 0
    while place < len(text):
        character = text[place]
        if character == "\\":
            place += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return place
        place += 1
    return None


# ── notation ──────────────────────────────────────────────────────────────────────────────────
# Normalisation of answers that differ only in their typesetting.
#
#     \mathbf{42}, \text{42}, \boxed{42}        42
#     90\degree, 90^{\degree}, 90°              90^\circ
#     1{,}024                                    1,024
#     −5 (U+2212), –5 (U+2013), １２。             -5, -5, 12.
#     √2, 3 × 4, x ≤ 1, ∅                        \sqrt{2}, 3 \times 4, x \le 1, \emptyset
#
# Every rule takes linear time, so no completion can stall the verifier.

FONTS = "|".join(
    (
        *("text", "textbf", "textit", "textmd", "textnormal", "textrm", "textsc", "textsf", "texttt", "textup"),
        *("mathbf", "mathit", "mathnormal", "mathrm", "mathsf", "mathtt", "boldsymbol", "bm", "pmb"),
        *("emph", "mbox", "hbox", "boxed", "fbox"),
    )
)
"""Commands that set their argument in another font or a frame, without ``\\mathbb`` and its like: ℝ is not R."""
ANY_FONT = rf"(?<![\^_])(?<!sqrt)(?<!frac)\\(?:{FONTS})\s{{0,8}}\{{"
"""Pattern of a font with its opening brace, except as the whole argument of another command, which needs braces."""
FONT_OF_NUMBER = rf"{ANY_FONT}(?=[\s~(+-]{{0,8}}(?:\.?[0-9]|\\(?:{FONTS}|[dt]?frac|sqrt|pi|\{{)))"
OTHER_MARKS = r"\\.|[{}]"
"""Pattern of an escaped character, so that an escaped brace does not count, or of a brace."""

DEGREE = re.compile(r"°|\^?\s?(?:\{\s?\\degree\s?\}|\\degree(?![a-zA-Z]))")
THOUSANDS = re.compile(r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))")

DOLLAR = "＄"
"""A dollar that is money; a plain one is a mark of LaTeX."""
FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code) != DOLLAR}
"""Forms of ASCII that are as wide as a Chinese character."""
PUNCTUATION = {
    "\u3000": " ",
    "。": ".",
    "、": ",",
    "−": "-",
    "–": "-",
    "‐": "-",
    "‑": "-",
    "﹣": "-",
    "⁄": "/",
    "∕": "/",
}
ASCII = str.maketrans({chr(code): form for code, form in FULL_WIDTH.items()} | PUNCTUATION)
"""Characters of other typesettings that are one of ASCII."""
SIGNS = str.maketrans(
    {
        "×": r"\times ",
        "⋅": r"\cdot ",
        "·": r"\cdot ",
        "∙": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "⩽": r"\le ",
        "≥": r"\ge ",
        "⩾": r"\ge ",
        "≠": r"\ne ",
        "±": r"\pm ",
        "∪": r"\cup ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "²": "^2",
        "³": "^3",
        "℃": r"^\circ C",
        "℉": r"^\circ F",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
    }
)
ROOT = re.compile(r"√\s?(?:\(([^()]{1,60})\)|\{([^{}]{1,60})\}|([0-9]+(?:\.[0-9]+)?|[a-zA-Z]))")
SAME = (
    (re.compile(r"\\(?:varnothing|empty)(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\(?:leq|leqslant)(?![a-zA-Z])|<="), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant)(?![a-zA-Z])|>="), r"\\ge "),
    (re.compile(r"\\(?:neq)(?![a-zA-Z])|!="), r"\\ne "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<![a-zA-Z\\])sqrt\s?\(([^()]{1,60})\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![a-zA-Z\\])sqrt\s?([0-9]+)"), r"\\sqrt{\1}"),
)
"""Names of one thing; the last is the one that is kept."""


DELIMITERS = re.compile(r"\\[()\[\]]|\$|\0")
SPACES = re.compile(r"\\(?:[ ;:>]|quad(?![a-zA-Z])|qquad(?![a-zA-Z]))|~")
THIN = re.compile(r"\\[,!]")
SIZES = re.compile(r"\\(?:left|right|big|Big|bigl|bigr|displaystyle|limits)(?![a-zA-Z])")
PREAMBLE = re.compile(r"(?i:the )?(?i:final )?(?i:answer)(?: is|\s?:|\s?=)\s*|(?:最终)?(?:答案|答)(?:是|为|:)\s*")
NAME = re.compile(
    r"\\?[A-Za-z]+\s?'{0,2}(?:_\{?\s?\w{1,8}\s?\}?)?\s?(?:\([^()=]{0,40}\))?|\\angle\s?[A-Z]{1,3}"
    r"|\\(?:overline|vec|hat|bar|text|mathrm|mathbf)\s?\{[^{}]{1,60}\}|[A-Za-z ]{1,40}|\|?\\?[A-Z]{1,2}\|?"
)
"""Left side of an equality that is no guess."""


def typeset(text: str) -> str:
    """Bring into one notation, without math delimiters, fonts of numbers, line breaks and the final full stop."""
    text = DELIMITERS.sub(" ", text.replace("\\$", DOLLAR))
    text = THIN.sub(lambda found: "" if found[0] == "\\!" else " ", SPACES.sub(" ", SIZES.sub("", text)))
    text = " ".join(plain(text, keep_words=True).split())
    if found := PREAMBLE.match(text):
        text = text[found.end() :]
    return text.removesuffix(".").rstrip().removeprefix("=").lstrip()


def without_name(text: str) -> str:
    """``5`` of ``x = 5``; a chain of more equalities is a list of guesses, and stays."""
    name, sign, value = text.partition("=")
    return value.strip() if sign and "=" not in value and NAME.fullmatch(name.strip()) else text


def plain(text: str, *, keep_words: bool = False) -> str:
    """
    Rewrite an answer in one notation.

    Args:
        keep_words: Leave fonts around words, such as the unit in ``5 \\text{ cm}``, to a reader that knows them.
    """
    text = DEGREE.sub(r"^\\circ", text.translate(ASCII))
    text = ROOT.sub(lambda found: rf"\sqrt{{{next(filter(None, found.groups()))}}}", text.translate(SIGNS))
    for pattern, kept in SAME:
        text = pattern.sub(kept, text)
    return _without(FONT_OF_NUMBER if keep_words else ANY_FONT, THOUSANDS.sub(",", text))


def _without(font: str, text: str) -> str:
    """Remove the commands that match ``font``, with their braces; an unclosed one stays."""
    pieces = re.split(f"({font}|{OTHER_MARKS})", text, flags=re.DOTALL)  # every second one is a mark
    opened: list[int] = []
    for place in range(1, len(pieces), 2):
        mark = pieces[place]
        if mark == "{" or len(mark) > 2:
            opened.append(place)
        elif mark == "}" and opened:
            start = opened.pop()
            if pieces[start] != "{":
                pieces[start] = pieces[place] = ""
    return "".join(pieces)


# ── template ──────────────────────────────────────────────────────────────────────────────────
# Templates: fixed pieces of text with gaps between them.
#
#     <think>...</think>...\boxed{...}...         three dots are a gap, of any length and over any number of lines
#
# Searching for fixed pieces takes time proportional to the text; an equivalent regular expression could take
# exponential time on a hostile text.

GAP = "..."


def fits(template: str, text: str) -> bool:
    """Return True if the text is the template with any text, or none, in each gap."""
    first, *rest = template.split(GAP)
    if not rest:
        return text == template
    *middle, last = rest
    begin, end = len(first), len(text) - len(last)
    if begin > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:  # the leftmost place leaves most room for the next pieces
        found = text.find(piece, begin, end)
        if found < 0:
            return False
        begin = found + len(piece)
    return True


def has_each_once(template: str, text: str) -> bool:
    """Return True if no piece occurs in the text more often than in the template."""
    pieces = {piece for piece in template.split(GAP) if piece}
    return all(text.count(piece) <= template.count(piece) for piece in pieces)
