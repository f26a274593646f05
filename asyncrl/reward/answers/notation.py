"""
Normalisation of answers that differ only in their typesetting.

    \\mathbf{42}, \\text{42}, \\boxed{42}        42
    90\\degree, 90^{\\degree}, 90°              90^\\circ
    1{,}024                                    1,024
    −5 (U+2212)                                -5

Every rule takes linear time, so no completion can stall the verifier.
"""

import re

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


def plain(text: str, *, keep_words: bool = False) -> str:
    """
    Rewrite an answer in one notation.

    Args:
        keep_words: Leave fonts around words, such as the unit in ``5 \\text{ cm}``, to a reader that knows them.
    """
    text = DEGREE.sub(r"^\\circ", text.replace("−", "-"))
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
