"""
The path that somebody probably meant by one that does not exist.

    data/trian.jsonl  ─▶ ; did you mean data/train.jsonl?
    nope.jsonl        ─▶ nothing, although there is broken.jsonl

Names are compared without their suffix, which unrelated files share. This module needs the standard library of Python
3.9 alone, as plug_in.py does.
"""

import difflib
from collections.abc import Callable
from pathlib import Path


def did_you_mean(path: Path, fits: Callable[[Path], bool] = Path.is_file) -> str:
    """End of a sentence with the path beside ``path`` that fits and has the most similar name; empty without one."""
    try:
        beside = sorted(each for each in path.parent.iterdir() if fits(each))
    except OSError:
        return ""
    stems = {each.stem: each.name for each in sorted(beside, key=lambda each: each.suffix == path.suffix)}
    close = difflib.get_close_matches(path.stem, stems, n=1)
    return f"; did you mean {path.with_name(stems[close[0]])}?" if close else ""
