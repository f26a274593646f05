"""
The path that somebody probably meant by one that does not exist.

    data/trian.jsonl  ─▶ ; did you mean data/train.jsonl?
    model/mine        ─▶ ; did you mean models/mine?
    nope.jsonl        ─▶ nothing, although there is broken.jsonl

Names are compared without their suffix, which unrelated files share. This module needs the standard library of Python
3.9 alone, as plug_in.py does.
"""

import difflib
from collections.abc import Callable
from pathlib import Path


def did_you_mean(path: Path, fits: Callable[[Path], bool] = Path.is_file) -> str:
    """
    End of a sentence with the path that fits and has the most similar name; empty without one.

    It is beside ``path``, or, where that folder does not exist, in the one with the most similar name.
    """
    found = _similar(path, fits)
    return f"; did you mean {found}?" if found else ""


def _similar(path: Path, fits: Callable[[Path], bool]) -> "Path | None":
    folder = path.parent if path.parent.is_dir() else _similar(path.parent, Path.is_dir)
    try:
        beside = sorted(each for each in folder.iterdir() if fits(each)) if folder else []
    except OSError:
        return None
    named = {each.stem: each for each in sorted(beside, key=lambda each: each.suffix == path.suffix)}
    close = difflib.get_close_matches(path.stem, named, n=1)
    return named[close[0]] if close else None
