"""
The setting that somebody meant by a key that does not exist.

    trainer.learning_rate ─▶ another name of it: other_names.py
    learning.lr           ─▶ the right name in a wrong section
    run.stepz             ─▶ the nearest spelling
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_type_hints

from asyncrl.config.other_names import answer
from asyncrl.config.sections.section import Section


def unknown(name: str, root: type[Section]) -> str:
    """Sentence for a full key that is none of ``root``, with the setting that was probably meant."""
    names = [full for full, _ in fields(root)]
    if answered := answer(name, names):
        return f"unknown key {name!r}: {answered}"
    *where, key = name.split(".")
    while where and ".".join(where) not in names:
        where.pop()
    if close := _meant(key, where, names):
        return f"unknown key {name!r}: did you mean {close!r}?"
    beside = [full.rpartition(".")[2] for full in names if full.rpartition(".")[0] == ".".join(where)]
    return f"unknown key {name!r}: expected one of: {', '.join(beside)}"


def fields(section: type[Section], where: str = "") -> Iterator[tuple[str, Any]]:
    """Full key and type of every setting and section below ``section``."""
    for key, kind in get_type_hints(section).items():
        yield f"{where}{key}", kind
        if inner := section_in(kind):
            yield from fields(inner, f"{where}{key}.")


def section_in(kind: Any) -> type[Section] | None:
    """Section type of a field, or of the items of a list field; None for a plain value."""
    kinds = [kind, *get_args(kind)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def _meant(key: str, where: Sequence[str], names: Sequence[str]) -> str | None:
    """Nearest full key. The right name in a wrong section is preferred: people forget the section more often."""
    elsewhere = {full.rpartition(".")[2]: full for full in reversed(names)}
    if key in elsewhere:
        return elsewhere[key]
    here = [full for full in names if full.startswith("".join(f"{part}." for part in where))]
    if close := difflib.get_close_matches(".".join((*where, key)), here, n=1):
        return close[0]
    return next((elsewhere[close] for close in difflib.get_close_matches(key, elsewhere, n=1)), None)
