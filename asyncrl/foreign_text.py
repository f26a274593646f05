r"""
Texts that come from elsewhere, made fit for a terminal, a log line or a page.

    a reward's exception   "\x1b[2J \u202e 17"  ─▶ shown       ─▶ the same on one line, escapes in place of what acts
    a policy's completion  "17\x9b31m\n18"      ─▶ shown_lines ─▶ the same on its own lines

A terminal obeys control characters, a reader is deceived by characters that turn, join or hide others. Both stay in the
text, as the escapes that Python writes for them; what is left out of a long text is counted.
"""

import codecs
from typing import Any
from unicodedata import category

MAX_CHARS = 1000
"""Length of a text in a record or a line: a cause with its place and a value or two. Nobody reads more of it there."""
NOTE_CHARS = 40
"""Room for the number of characters that were left out."""
_ENCODER = codecs.getencoder("unicode_escape")
"""Looked up now: in a process whose modules or files a plug-in has taken away it could not be found later."""
_ACTING = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))
"""Categories of controls, of marks without a width, of separators of lines, and of what no font knows."""
_BLANK = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters that are drawn as nothing: the fillers of Hangul."""


def shown(text: str, max_chars: int = MAX_CHARS) -> str:
    """
    The text on one line, with escapes in place of all characters that are obeyed or hidden rather than shown.

    Returns:
        At most ``max_chars`` characters; of a longer text the first ones, and how many more there are. A text that was
        made so is left as it is.
    """
    if len(text) <= max_chars and not acting(text):
        return text
    fitting = escaped(text[: max_chars + 1])
    if len(text) <= max_chars and len(fitting) <= max_chars:
        return fitting
    parts, room, number = list[str](), max_chars - NOTE_CHARS, 0
    for number, letter in enumerate(text):  # noqa: B007  the number of the first one left out
        part = escaped(letter)
        if len(part) > room:
            break
        parts.append(part)
        room -= len(part)
    return f"{''.join(parts)}… ({len(text) - number:,} more characters)"


def shown_lines(text: str, max_chars: int = 0) -> str:
    """The text with the lines that it has, each made fit as by `shown`; with a ``max_chars`` of 0, of any length."""
    if not max_chars and not acting(text):
        return text
    return "\n".join(_shown_line(line.removesuffix("\r"), max_chars) for line in text.split("\n"))


def shown_values(value: Any, max_chars: int = MAX_CHARS) -> Any:
    """The same structure of lists, tuples and dicts, with each text in it made fit as by `shown`, keys too."""
    if isinstance(value, str):
        return shown(value, max_chars)
    if isinstance(value, dict):
        return {shown_values(key, max_chars): shown_values(item, max_chars) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_values(item, max_chars) for item in value]
    return value


def whole(text: str) -> str:
    r"""The text with U+FFFD for each half of a character, as Python has in names of files that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def acting(text: str) -> str:
    """The first character that is obeyed or hidden rather than shown; empty if there is none."""
    if text.isprintable() and _BLANK.isdisjoint(text):
        return ""
    return next((letter for letter in text if _is_acting(letter)), "")


def escaped(text: str) -> str:
    r"""The text with ``\x1b`` for an escape, ``\u202e`` for an override of direction, and so on; of any length."""
    if not acting(text):
        return text
    return "".join(_ENCODER(letter)[0].decode("ascii") if _is_acting(letter) else letter for letter in text)


def _shown_line(line: str, max_chars: int) -> str:
    spaced = "\t".join(map(escaped, line.split("\t"))).expandtabs()
    return shown(spaced, max_chars) if max_chars else spaced


def _is_acting(letter: str) -> bool:
    return letter in _BLANK or (not letter.isprintable() and category(letter) in _ACTING)
