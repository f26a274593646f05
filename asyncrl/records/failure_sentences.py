"""
Failures counted by cause, in words.

    {"reward: the function raised KeyError: 'answer' (score.py:12)": 41}, {"reward": 88}
        ─▶ KeyError at score.py:12 in 41 of 88 attempts at a verdict (47 %), such as 'answer'
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath

from msgspec import Struct

SHOWN = 3
"""Causes that have a sentence of their own; the others are summed."""
ATTEMPTS = {
    "reward": "attempts at a verdict",
    "rollout": "attempts at a completion",
    "environment": "attempts at an episode",
    "payload": "payloads",
    "trainer": "attempts at a batch",
}
"""Nouns for the attempts of a stage."""
COUNTED_AS = {"environment": "rollout"}
"""Stages whose attempts are those of another one: an episode is a completion."""
AFTER_A_TURN = "after a turn of the policy, "
"""Start of the reason why an episode failed once the policy had written."""
BIAS = (
    "what fails once the policy has written is sampled again: if its text is the cause, bad texts are left out of "
    "training, a bias; give them a reward instead"
)
OTHERS = "other: causes beyond the first ones"
"""Name of the causes that are no longer told apart."""

_RAISED = re.compile(
    rf"((?:{AFTER_A_TURN})?(?:(?:the )?\w+ raised )?)"
    r"(\w*(?:Error|Exception|Exit|Interrupt)|[A-Z]\w+(?=: | \())"
    r"(?:: (.*?))?"
    r"(?: \(([^()]+:\d+)\))?$"
)


class RaisedError(Struct, frozen=True):
    """An exception as `asyncrl.plug_in.describe` writes it, ``ValueError: no number (score.py:12)``."""

    before: str
    """Beginning of the reason, such as ``the function raised ``."""
    kind: str
    text: str
    place: str
    """File and line; empty if the reason has none."""

    @classmethod
    def read(cls, reason: str) -> "RaisedError | None":
        """The exception in a reason; None if the reason is of another form."""
        found = _RAISED.match(reason)
        return cls(*(group or "" for group in found.groups())) if found else None

    @property
    def site(self) -> str:
        """Type and place, which are the same for exceptions that differ in their texts; empty without a place."""
        return f"{self.kind} at {self.place}" if self.place else ""

    @property
    def short_site(self) -> str:
        """Kind and place of the error, with the name of the file alone: ``KeyError at score.py:12``."""
        file, _, line = self.place.rpartition(":")
        return f"{self.kind} at {PurePath(file).name}:{line}" if self.place else ""

    def within(self, chars: int) -> str:
        """The reason in at most ``chars`` characters, if type and place leave room for any of its text."""
        rest = f"{self.before}{self.kind}: … ({self.place})"
        room = max(chars - len(rest), 0)
        text = self.text if len(self.text) <= room + 1 else f"{self.text[:room]}…"
        return f"{self.before}{self.kind}{f': {text}' if text else ''} ({self.place})"


def sentences(counts: Mapping[str, int], attempts: Mapping[str, int]) -> list[str]:
    """
    A sentence for each of the most frequent causes, and one for the others.

    Args:
        counts: Failures by cause, ``stage: reason``.
        attempts: Attempts by stage, the failed ones included; a stage may be missing.
    """
    known = {name: count for name, count in counts.items() if name != OTHERS}
    ordered = sorted(known.items(), key=lambda item: -item[1])
    said = [_sentence(name, count, attempts) for name, count in ordered[:SHOWN]]
    rest, beyond = ordered[SHOWN:], counts.get(OTHERS, 0)
    if rest or beyond:
        number = "" if beyond else f"{len(rest)} "
        said.append(f"{sum(count for _, count in rest) + beyond:,} more for {number}other causes")
    return said


def bias(counts: Mapping[str, int], attempts: Mapping[str, int]) -> list[str]:
    """`BIAS`, if some but not all failed after the policy's text; else nothing. Arguments as for `sentences`."""
    return [BIAS] if any(_is_bias(name, counts, attempts) for name in counts) else []


def attempts_at(stage: str, attempts: Mapping[str, int]) -> int:
    """Attempts of a stage, or of the one that it is counted as; 0 if they are not known."""
    return attempts.get(COUNTED_AS.get(stage, stage), 0)


def _is_bias(name: str, counts: Mapping[str, int], attempts: Mapping[str, int]) -> bool:
    """True for a failure that came after the policy's text, if others of its stage did not fail."""
    stage, _, reason = name.partition(": ")
    failed = sum(count for other, count in counts.items() if other.startswith(f"{stage}: "))
    return (stage == "reward" or reason.startswith(AFTER_A_TURN)) and failed < attempts_at(stage, attempts)


def by_site(counts: Mapping[str, int]) -> dict[str, int]:
    """The same counts with exceptions named by type and place, as in sentences, rather than by the first text."""
    sums: Counter[str] = Counter()
    for name, count in counts.items():
        stage, _, reason = name.partition(": ")
        raised = RaisedError.read(reason)
        sums[f"{stage}: {raised.short_site}" if raised and raised.place else name] += count
    return dict(sums.most_common())


def _sentence(name: str, count: int, attempts: Mapping[str, int]) -> str:
    stage, _, reason = name.partition(": ")
    of = all_of if (all_of := attempts_at(stage, attempts)) >= count else 0
    what = ATTEMPTS.get(stage, f"attempts ({stage})")
    if count == 1 and not of:
        what = re.sub(r"^(?:(batch)es|(\w+)s)\b", r"\1\2", what)
    where = f"{count:,}{f' of {of:,}' if of else ''} {what}{f' ({_percent(count / of)})' if of else ''}"
    raised = RaisedError.read(reason)
    if raised is None:
        return f"{where} failed: {reason}"
    if not raised.place:
        return f"{raised.kind} in {where}{f': {raised.text}' if raised.text else ''}"
    example = f", such as {_quoted(raised.text)}" if raised.text else ""
    return f"{raised.short_site} in {where}{example}"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.005 else "under 1 %"


def _quoted(text: str) -> str:
    return text if text[0] in "'\"" else f"'{text}'"
