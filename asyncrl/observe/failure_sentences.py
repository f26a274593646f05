"""
Failures counted by cause, in words.

    {"reward: the function raised KeyError: 'answer' (score.py:12)": 41}, {"reward": 88}
        ─▶ KeyError in 41 of 88 verdicts: 'answer' (score.py:12)
"""

import re
from collections.abc import Mapping

SHOWN = 3
"""Causes that have a sentence of their own; the others are summed."""
ATTEMPTS = {"reward": "verdicts", "rollout": "completions", "payload": "payloads", "trainer": "batches"}
"""Nouns for the attempts of a stage."""

_RAISED = re.compile(r"(?:the function raised )?(\w*(?:Error|Exception|Exit|Interrupt)|[A-Z]\w+(?=: ))(?:: (.*))?$")


def sentences(counts: Mapping[str, int], attempts: Mapping[str, int]) -> list[str]:
    """
    A sentence for each of the most frequent causes, and one for the others.

    Args:
        counts: Failures by cause, ``stage: reason``.
        attempts: Attempts by stage, the failed ones included; a stage may be missing.
    """
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    said = [_sentence(name, count, attempts) for name, count in ordered[:SHOWN]]
    if rest := ordered[SHOWN:]:
        said.append(f"{sum(count for _, count in rest):,} more for {len(rest)} other causes")
    return said


def _sentence(name: str, count: int, attempts: Mapping[str, int]) -> str:
    stage, _, reason = name.partition(": ")
    of_all = f" of {attempts[stage]:,}" if attempts.get(stage, 0) >= count else ""
    what = ATTEMPTS.get(stage, f"attempts ({stage})")
    if count == 1 and not of_all:
        what = what.replace("batches", "batch").removesuffix("s")
    where = f"{count:,}{of_all} {what}"
    if raised := _RAISED.match(reason):
        kind, text = raised.groups()
        return f"{kind} in {where}{f': {text}' if text else ''}"
    return f"{where} failed: {reason}"
