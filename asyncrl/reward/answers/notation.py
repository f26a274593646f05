"""
One notation for answers that differ only in how they are typeset.

    \\mathbf{42}, \\text{42}, \\boxed{42}        42
    90\\degree, 90^{\\degree}, 90°              90^\\circ
    1{,}024                                    1,024
    −5 (U+2212)                                -5

Each rule takes one pass over the text, whatever the text is.
"""

import re

FONTS = "|".join(
    (
        *("text", "textbf", "textit", "textmd", "textnormal", "textrm", "textsc", "textsf", "texttt", "textup"),
        *("mathbf", "mathit", "mathnormal", "mathrm", "mathsf", "mathtt", "boldsymbol", "bm", "pmb"),
        *("emph", "mbox", "hbox", "boxed", "fbox"),
    )
)
"""Commands that set their argument in another font or a frame. ``\\mathbb`` and its like are not: ℝ is not R."""
ANY_FONT = rf"(?<![\^_])(?<!sqrt)(?<!frac)\\(?:{FONTS})\s{{0,8}}\{{"
"""A font with its brace, unless it is the whole argument of another command, whose braces it would take away."""
FONT_OF_NUMBER = rf"{ANY_FONT}(?=[\s~(+-]{{0,8}}(?:\.?[0-9]|\\(?:{FONTS}|[dt]?frac|sqrt|pi|\{{)))"
OTHER_MARKS = r"\\.|[{}]"
"""An escaped character, which is no brace; a brace."""

DEGREE = re.compile(r"°|\^?\s?(?:\{\s?\\degree\s?\}|\\degree(?![a-zA-Z]))")
THOUSANDS = re.compile(r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))")


def plain(text: str, *, keep_words: bool = False) -> str:
    """
    Rewrite an answer in one notation.

    Args:
        keep_words: Leave fonts around words, such as the unit in ``5 \\text{ cm}``, to a reader that knows them.
    """
    text = DEGREE.sub(r"^\\circ", text.replace("−", "-"))
    return _without(FONT_OF_NUMBER if keep_words else ANY_FONT, THOUSANDS.sub(",", text))


def _without(font: str, text: str) -> str:
    """Remove each font that is closed, with its braces."""
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
