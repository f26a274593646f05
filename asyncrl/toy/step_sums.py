"""
Step sums: an arithmetic task with no end of problems, small enough that a model learns it in minutes on one core.

    prompt       Tom a+5 b-3 c+4 How many now?
    clean chain   a+5=5 b-3=2 c+4=6 #### 6
    wrong guess   #### 9
    noisy chain   a+5=5 b-3=3 c+4=7 #### 7

A chain names each change and the running total; a guess answers at once. Whoever writes the chain can hardly fail, so a
policy that mostly guesses has something to find, and the lengths of its completions have a real tail.

Invariants:
* A running total is never negative, and at most 14 x 5 = 70.
* A problem is held out if and only if its sequence of changes is: the name does not count, so nothing leaks.
* Every text here is a sequence of `WORDS`, and a change reads the same in prompt and chain.
"""

import random
import zlib
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import DataError
from asyncrl.files.atomic import replacing
from asyncrl.messages import Split

NAMES = ("Tom", "Ann", "Sam", "Mia", "Leo", "Eva", "Max", "Zoe")
LABELS = tuple(f" {letter}" for letter in "abcdefghijklmn")
MIN_STEPS, MAX_STEPS = 2, len(LABELS)
MAX_CHANGE = 5
QUESTION = " How many now?"
ANSWER = " #### "
WORDS = (*NAMES, *LABELS, *"0123456789", "+", "-", "=", QUESTION, ANSWER)
"""Everything a prompt or a demonstration is made of; spaces belong to the word they introduce."""

HELD_OUT_STEPS = 4
"""Held-out problems have at least so many steps: shorter ones are few, and known by heart."""
CONTINUE = 0.75
"""Chance of one more step: a geometric tail, cut at `MAX_STEPS`."""

DATA_SOURCE = "step_sums"
NUM_ROWS: dict[Split, int] = {"train": 4096, "held_out": 256}


class Problem(Struct, frozen=True):
    """Somebody's count, starting from nothing, and how it changes."""

    name: str
    changes: tuple[int, ...]
    """Positive or negative, never zero."""

    @property
    def totals(self) -> list[int]:
        """Running total after each change."""
        return list(accumulate(self.changes))

    @property
    def prompt(self) -> str:
        """What the policy is asked."""
        return self.name + "".join(self._steps()) + QUESTION

    @property
    def answer(self) -> str:
        """The last total, as the verifier compares it."""
        return str(self.totals[-1])

    @property
    def split(self) -> Split:
        """Decided by a checksum of the changes, the same on every machine: one sequence in ten is held out."""
        sequence = "".join(f"{change:+d}" for change in self.changes)
        return "held_out" if zlib.crc32(sequence.encode()) % 10 == 0 else "train"

    def chain(self, totals: list[int] | None = None) -> str:
        """The changes one by one, each with its running total, then the answer; ``totals`` replaces the right ones."""
        totals = totals or self.totals
        lines = (f"{step}={total}" for step, total in zip(self._steps(), totals, strict=True))
        return "".join(lines) + f"{ANSWER}{totals[-1]}"

    def _steps(self) -> list[str]:
        return [f"{label}{change:+d}" for label, change in zip(LABELS, self.changes, strict=False)]


Demonstration = Callable[[Problem, random.Random], str]


def clean_chain(problem: Problem, rng: random.Random) -> str:
    """The skill: always right. ``rng`` is for the signature all demonstrations share."""
    return problem.chain()


def wrong_guess(problem: Problem, rng: random.Random) -> str:
    """The habit: a plausible total without a chain, never right, or guessing would pay and be reinforced."""
    plausible = {total + shift for total in problem.totals for shift in range(-MAX_CHANGE, MAX_CHANGE + 1)}
    wrong = sorted(total for total in plausible - {problem.totals[-1]} if total >= 0)
    return f"{ANSWER}{rng.choice(wrong)}"


def noisy_chain(problem: Problem, rng: random.Random) -> str:
    """A chain with one slip that is carried to the end: chains alone do not always pay either."""
    totals = problem.totals
    start = rng.randrange(len(totals))
    slips = [by for by in (-2, -1, 1, 2) if all(total + by >= 0 for total in totals[start:])]
    by = rng.choice(slips)
    return problem.chain(totals[:start] + [total + by for total in totals[start:]])


def problems(seed: int, split: Split, *, min_steps: int = MIN_STEPS, more: float = CONTINUE) -> Iterator[Problem]:
    """
    Problems of one split without end, a function of the arguments alone.

    Args:
        min_steps: Least number of changes.
        more: Chance of one change more, up to `MAX_STEPS`.
    """
    rng = random.Random(f"step sums {split} {seed}")
    while True:
        problem = _draw(rng, min_steps, more)
        if problem.split == split:
            yield problem


def write(path: Path, split: Split, seed: int, *, num_rows: int | None = None) -> None:
    """
    Write problems of one split as parquet, with the columns ``prompt``, ``answer`` and ``data_source``.

    Args:
        path: Replaced at once.
        split: Held-out problems have `HELD_OUT_STEPS` or more.
        num_rows: `NUM_ROWS` of the split, unless given.
    """
    min_steps = HELD_OUT_STEPS if split == "held_out" else MIN_STEPS
    drawn = islice(problems(seed, split, min_steps=min_steps), num_rows or NUM_ROWS[split])
    rows = [{"prompt": problem.prompt, "answer": problem.answer, "data_source": DATA_SOURCE} for problem in drawn]
    _write(rows, path)


def _draw(rng: random.Random, min_steps: int, more: float) -> Problem:
    num_steps = min_steps
    while num_steps < MAX_STEPS and rng.random() < more:
        num_steps += 1
    changes: list[int] = []
    total = 0
    for _ in range(num_steps):
        possible = [c for c in range(-MAX_CHANGE, MAX_CHANGE + 1) if c and total + c >= 0]
        changes.append(rng.choice(possible))
        total += changes[-1]
    return Problem(rng.choice(NAMES), tuple(changes))


def _write(rows: list[dict[str, str]], path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - a tenth of a second that `asyncrl --help` need not wait for
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with replacing(path) as unfinished:
            pq.write_table(pa.Table.from_pylist(rows), unfinished)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error
