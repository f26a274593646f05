r"""
Tokens of an answer: what differs in typesetting alone is one token, and no character that means something is in none.

    \dfrac12   \tfrac{1}{2}            frac 1 2        \left( 1,\; 2 \right)        ( 1 , 2 )
    1{,}024   1\,024   1 024           1024            −5 (U+2212)   –5   －5         - 5
    \text{5 cm}   5\,\mathrm{cm}       5 cm            90\degree   90^{\circ}   90°   90 °
    a \\[4pt] b                        a \\ b          √2   3 × 4   x ≤ 1            root 2   3 * 4   x <= 1

One pass from left to right, so that of ``\\`` no backslash begins anything else. Linear in time.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from asyncrl.reward.answers.final_answer import ASCII, closing

Kind = Literal["number", "based", "run", "symbol", "sign", "begin", "end"]


class Token(NamedTuple):
    kind: Kind
    text: str
    """Digits of a number, letters of a run, name of a matrix, or the one name of a sign."""
    has_gap: bool = False
    """True if space stands before it."""
    is_roman: bool = False
    r"""True in a font of words: ``cm`` in ``\text{cm}``."""


OF_WORDS = "text|textbf|textit|textmd|textnormal|textrm|textsc|textsf|texttt|textup|emph|mathrm|mbox|hbox|operatorname"
OF_MATH = "underline|mathbf|mathit|mathnormal|mathsf|mathtt|boldsymbol|bm|pmb|boxed|fbox"
r"""Fonts and frames, without ``\mathbb`` and its like: ℝ is not R."""
OVER = "vec|overline|bar|hat|widehat|tilde|overrightarrow|mathbb|mathcal|mathfrak"
"""Commands that make another letter of a letter."""
DIGITS = r"(?: [A-F]{0,20}[0-9][0-9A-F]{0,60} | [A-F]{2,20}(?=\s*\)?_(?:\{\s*1[1-6]|\{?\s*\\text)) )"
"""Digits of a number whose base follows; letters alone are such only in a base above ten."""
TOKEN = re.compile(
    rf"""
    (?P<row> \\\\ \*? (?: \s* \[ \s* -? [0-9.]+ \s* (?:pt|em|ex|mm|cm|in) \s* \] )? )
  | (?P<gap> \s+ | ~ | \\[,;:>\ ] | \\q?quad(?![a-zA-Z]) | \\[()\[\]] )
  | (?P<nothing> \$ | \\! | [\u200b-\u200d\u2060\ufeff] | \\(?:text)?color\s*\{{\s*\w+\s*\}}
        | \\(?:scriptstyle|small|large|Large|LARGE|huge|Huge|bf|rm|it|mathop|ensuremath)(?![a-zA-Z])
        | \\hspace\*?\s*\{{[^{{}}]{{0,12}}\}} | \{{\s*\}} | \\(?:left|right)\s*\. | \\[bB]igg?[lrm]?(?![a-zA-Z])
        | \\(?:left|right|middle|displaystyle|textstyle|limits)(?![a-zA-Z]) )
  | (?P<degree> \^? \s* (?: \{{\s* (?: \\circ | \\degree | ° ) \s*\}} | (?: \\circ | \\degree | ° ) (?![a-zA-Z]) ) )
  | (?P<money> \\\$ | ＄ | [€£¥₹] )
  | (?P<font> \\(?P<name>{OF_WORDS}|{OF_MATH}) \*? \s* \{{ )
  | (?P<begin> \\begin \s* \{{\s* [a-zA-Z]{{1,12}} \*? \s*\}} (?: \s* \{{[lcr|\s]{{1,20}}\}} )? )
  | (?P<end> \\end \s* \{{\s* [a-zA-Z]{{1,12}} \*? \s*\}} )
  | (?P<based> (?: {DIGITS} | \(\s*{DIGITS}\s*\) ) _
        (?: [0-9] | \{{\s*[0-9]{{1,2}}\s*\}} | (?: \{{\s* )? \\(?:text|mathrm)\s*\{{\s*[a-z]{{3,9}}\s*\}} (?: \s*\}} )?
        | \{{\s*[a-z]{{3,9}}\s*\}} ) )
  | (?P<repeating> [0-9]*\.[0-9]* \s? \\(?:overline|bar|dot) \s? (?: \{{\s*[0-9]{{1,40}}\s*\}} | [0-9] ) )
  | (?P<over> \\(?:{OVER}) \s* (?: \{{\s*[A-Za-z0-9]{{1,9}}\s*\}} | [A-Za-z0-9] ) )
  | (?P<grouped> [1-9][0-9]{{0,2}} (?P<between> \{{,\}} | ,\\! | \\[,\ ] | \  | , ) [0-9]{{3}}
        (?: (?P=between)[0-9]{{3}} )* (?! ,?[0-9] | \ [0-9] ) (?: \.[0-9]+ )? )
  | (?P<number> (?: [0-9]+(?:\.[0-9]+)? | \.[0-9]+ ) (?: [eE][-+]?[0-9]{{1,4}} (?![0-9A-Za-z]|\.[0-9]) )? )
  | (?P<command> \\[a-zA-Z]+ | \\[{{}}%|&\#] )
  | (?P<noon> [aApP] (?: \.\s?[mM]\. | [mM] ) (?![A-Za-z]) )
  | (?P<run> [A-Za-z]+ | [一-鿿]+ )
  | (?P<sign> <= | >= | != | \*\* | . )
    """,
    re.VERBOSE | re.DOTALL,
)
FROM_UNICODE = str.maketrans(
    {
        **dict.fromkeys("×⋅·∙", "*"),
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": "<=",
        "⩽": "<=",
        "≥": ">=",
        "⩾": ">=",
        "≠": "!=",
        "±": r"\pm ",
        "∓": r"\mp ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "√": r"\root ",
        "²": "^2 ",
        "³": "^3 ",
        "℃": "°C",
        "º": "°",
        "≦": "<=",
        "≧": ">=",
        "…": r"\ldots ",
        "℉": "°F",
        "θ": r"\theta ",
        "α": r"\alpha ",
        "β": r"\beta ",
        "’": "'",
        "½": r"\frac12 ",
        "¼": r"\frac14 ",
        "¾": r"\frac34 ",
        "⅓": r"\frac13 ",
        "⅔": r"\frac23 ",
        "∠": r"\angle ",
        "μ": r"\mu ",
        "µ": r"\mu ",
        "ℝ": r"\mathbb{R}",
        "ℤ": r"\mathbb{Z}",
        "ℕ": r"\mathbb{N}",
        "ℚ": r"\mathbb{Q}",
        "′": "'",
        "˚": "°",
    }
)
SAME = {
    **dict.fromkeys(("times", "cdot", "ast"), "*"),
    **dict.fromkeys(("frac", "dfrac", "tfrac", "cfrac"), "frac"),
    **dict.fromkeys(("binom", "dbinom", "tbinom"), "binom"),
    **dict.fromkeys(("le", "leq", "leqslant"), "<="),
    **dict.fromkeys(("ge", "geq", "geqslant"), ">="),
    **dict.fromkeys(("ne", "neq"), "!="),
    **dict.fromkeys(("{", "lbrace"), r"\{"),
    **dict.fromkeys(("}", "rbrace"), r"\}"),
    **dict.fromkeys(("|", "vert", "lvert", "rvert", "mid"), "|"),
    **dict.fromkeys(("emptyset", "varnothing", "empty"), "emptyset"),
    **dict.fromkeys(("setminus", "backslash", "smallsetminus"), "setminus"),
    **dict.fromkeys(("ldots", "dots", "cdots", "dotsc"), "..."),
    "langle": "(",
    "rangle": ")",
    "leqq": "<=",
    "geqq": ">=",
    "div": "/",
    "lt": "<",
    "gt": ">",
    "lbrack": "[",
    "rbrack": "]",
    "colon": ":",
    "%": "%",
    "prime": "'",
    "&": "&",
    **{name: name for name in ("sqrt", "root", "pm", "mp", "cup", "cap", "in", "choose", "angle", "triangle")},
    **{name: name for name in ("lfloor", "rfloor", "lceil", "rceil")},
}
"""Names of commands that are signs; the others are letters, functions, or nothing that is read here."""
GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda"}
GREEK |= {"mu", "nu", "xi", "pi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi", "omega", "ell", "infty"}
GREEK |= {"Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega"}
WORDS = {"lor": "or", "vee": "or", "land": "and", "wedge": "and"}
MONEY = {r"\$": "dollar", "＄": "dollar", "€": "euro", "£": "£", "¥": "yuan", "₹": "rupee"}
OPENING, CLOSING = frozenset(("(", "[", "{", r"\{")), frozenset((")", "]", "}", r"\}"))
TAKES_ARGUMENT = frozenset(("^", "_", "frac", "sqrt", "binom"))


TEN = re.compile(r"\s*10\s*\^")
RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
ONE_DOLLAR = re.compile(r"(?<!\\)\$(?=[0-9.])")


def tokens(text: str) -> list[Token]:
    """Tokens of a text in its order. A dollar without a second one is money."""
    text = RAISED.sub(lambda found: f"^{{{found[0].translate(LOWERED)}}}", text)
    if text.count("$") - text.count("\\$") == 1:
        text = ONE_DOLLAR.sub(r"\\$", text)
    return _tokens(text.translate(ASCII).translate(FROM_UNICODE), (), 0, is_roman=False)


def _tokens(text: str, before: Sequence[Token], depth: int, *, is_roman: bool) -> list[Token]:
    found: list[Token] = []
    place, has_gap = 0, False
    while piece := TOKEN.match(text, place):
        kind, written, start, place = piece.lastgroup, piece[0], place, piece.end()
        if kind == "gap":
            has_gap = True
            continue
        if kind == "nothing":
            continue
        if kind == "font" and (length := closing(text[place - 1 :])) is not None:
            end = place - 1 + length
            inner = _tokens(text[place:end], found, depth, is_roman=piece["name"] in OF_WORDS.split("|"))
            if found and found[-1].text in TAKES_ARGUMENT:
                inner = [Token("sign", "{"), *inner, Token("sign", "}")]
            found += [inner[0]._replace(has_gap=has_gap or inner[0].has_gap), *inner[1:]] if inner else []
            place, has_gap = end + 1, False
            continue
        if kind == "grouped" and piece["between"] == "," and (depth or (not has_gap and _is_in_list(found))):
            kind, written = "number", written.partition(",")[0]
            place = start + len(written)
        if written == "x" and found and found[-1].kind == "number" and TEN.match(text, place):
            kind, written = "sign", "*"  # 1.5 x 10^3
        if kind == "noon" and not _is_noon([*before, *found], written, is_roman=is_roman):
            kind, written = "run", "".join(filter(str.isalpha, written[: 1 if "." in written else 2]))
            place = start + len(written)
        token = Token(*_named(kind or "sign", written), has_gap, is_roman)
        depth += nesting(token)
        found.append(token)
        has_gap = False
    return found


def nesting(token: Token) -> int:
    """1 for an opening bracket, -1 for a closing one."""
    is_sign = token.kind == "sign"
    is_opening = token.kind == "begin" or (is_sign and token.text in OPENING)
    return is_opening - (token.kind == "end" or (is_sign and token.text in CLOSING))


def _is_in_list(found: list[Token]) -> bool:
    """True after ``1,``: what follows it without a gap is the next member."""
    return len(found) > 1 and found[-1].text == "," and found[-2].kind == "number"


def _is_noon(found: list[Token], written: str, *, is_roman: bool) -> bool:
    """True for a.m. and p.m. of a time; ``2am`` is a product."""
    is_time = len(found) > 1 and found[-2].text == ":"
    return bool(found) and found[-1].kind == "number" and (is_time or is_roman or "." in written or written.isupper())


def _named(kind: str, written: str) -> tuple[Kind, str]:
    """Kind and text of a token."""
    bare = re.sub(r"[\s{}]", "", written)
    match kind:
        case "begin" | "end":
            return ("begin" if kind == "begin" else "end"), written.partition("{")[2].partition("}")[0].strip(" *")
        case "based":
            return "based", re.sub(r"[()]|\\text|\\mathrm", "", bare)
        case "repeating":
            return "number", re.sub(r"\\(?:overline|bar|dot)([0-9]+)", r"(\1)", bare)
        case "grouped":
            return "number", re.sub(r"[^0-9.]", "", written)
        case "number" | "run":
            return ("number" if kind == "number" else "run"), written
        case "over":
            return "symbol", bare
        case "command" if written[1:] in GREEK:
            return "symbol", written
        case "command":
            name = written[1:]
            return ("run", WORDS[name]) if name in WORDS else ("sign", SAME.get(name, written))
    signs = {
        "row": "\\\\",
        "degree": "°",
        "money": MONEY.get(written, ""),
        "noon": f"{written[0].lower()}.m.",
        "sign": written,
    }
    return "sign", "^" if written == "**" else signs.get(kind, written)
