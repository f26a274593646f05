"""
Step sums: an arithmetic task with unlimited problems, small enough that a model learns it in minutes on one core.

    prompt       Tom a+5 b-3 c+4 How many now?
    clean chain   a+5=5 b-3=2 c+4=6 #### 6
    wrong guess   #### 9
    noisy chain   a+5=5 b-3=3 c+4=7 #### 7

A chain states each change and the running total; a guess gives only the answer. A policy that writes chains is nearly
always right, so a policy that mostly guesses can improve. Completion lengths have a long tail.

Invariants:
* A running total is never negative, and at most 14 x 5 = 70.
* The split of a problem depends on its changes alone, not on its name, so no sequence is in both splits.
* Prompts and demonstrations are sequences of `WORDS`, and a change reads the same in prompt and chain.
"""

import random
import zlib
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path

from msgspec import Struct

from asyncrl.data.prepare.published import write as write_parquet
from asyncrl.messages.words import Split

NAMES = ("Tom", "Ann", "Sam", "Mia", "Leo", "Eva", "Max", "Zoe")
LABELS = tuple(f" {letter}" for letter in "abcdefghijklmn")
MIN_STEPS, MAX_STEPS = 2, len(LABELS)
MAX_CHANGE = 5
QUESTION = " How many now?"
ANSWER = " #### "
WORDS = (*NAMES, *LABELS, *"0123456789", "+", "-", "=", QUESTION, ANSWER)
"""Vocabulary of prompts and demonstrations; a space belongs to the word after it."""

HELD_OUT_STEPS = 4
"""Least number of changes of held-out problems: there are so few shorter ones that a model memorizes them."""
CONTINUE = 0.75
"""Probability of one more change: a geometric tail, cut at `MAX_STEPS`."""

DATA_SOURCE = "step_sums"
NUM_ROWS: dict[Split, int] = {"train": 4096, "held_out": 256}


class StepSum(Struct, frozen=True):
    """A count that starts at zero, and its changes."""

    name: str
    changes: tuple[int, ...]
    """Positive or negative, never zero."""

    @property
    def totals(self) -> list[int]:
        return list(accumulate(self.changes))

    @property
    def prompt(self) -> str:
        return self.name + "".join(self._steps()) + QUESTION

    @property
    def answer(self) -> str:
        return str(self.totals[-1])

    @property
    def split(self) -> Split:
        """Split by a checksum of the changes, the same on every machine: one sequence in ten is held out."""
        sequence = "".join(f"{change:+d}" for change in self.changes)
        return "held_out" if zlib.crc32(sequence.encode()) % 10 == 0 else "train"

    def chain(self, totals: list[int] | None = None) -> str:
        """Each change with its running total, then the answer; ``totals`` replaces the right totals."""
        totals = totals or self.totals
        lines = (f"{step}={total}" for step, total in zip(self._steps(), totals, strict=True))
        return "".join(lines) + f"{ANSWER}{totals[-1]}"

    def guess(self) -> str:
        """Completion with the right answer and no chain."""
        return f"{ANSWER}{self.answer}"

    def _steps(self) -> list[str]:
        return [f"{label}{change:+d}" for label, change in zip(LABELS, self.changes, strict=False)]


def wrong_guess(problem: StepSum, rng: random.Random) -> str:
    """A plausible total without a chain; never the right one, or reinforcement learning would reward guessing."""
    plausible = {total + shift for total in problem.totals for shift in range(-MAX_CHANGE, MAX_CHANGE + 1)}
    wrong = sorted(total for total in plausible - {problem.totals[-1]} if total >= 0)
    return f"{ANSWER}{rng.choice(wrong)}"


def noisy_chain(problem: StepSum, rng: random.Random) -> str:
    """A chain with one mistake that is carried to the end, so that writing a chain is not always rewarded."""
    totals = problem.totals
    start = rng.randrange(len(totals))
    slips = [by for by in (-2, -1, 1, 2) if all(total + by >= 0 for total in totals[start:])]
    by = rng.choice(slips)
    return problem.chain(totals[:start] + [total + by for total in totals[start:]])


def problems(seed: int, split: Split, *, min_steps: int = MIN_STEPS, more: float = CONTINUE) -> Iterator[StepSum]:
    """Yield problems of one split, endlessly; ``more`` is the probability of each change after ``min_steps``."""
    rng = random.Random(f"step sums {split} {seed}")
    while True:
        problem = _draw(rng, min_steps, more)
        if problem.split == split:
            yield problem


def write(path: Path, split: Split, seed: int, *, num_rows: int | None = None) -> None:
    """Write problems of one split as parquet with ``prompt``, ``answer`` and ``data_source``; `NUM_ROWS` by default."""
    min_steps = HELD_OUT_STEPS if split == "held_out" else MIN_STEPS
    drawn = islice(problems(seed, split, min_steps=min_steps), num_rows or NUM_ROWS[split])
    rows = [{"prompt": problem.prompt, "answer": problem.answer, "data_source": DATA_SOURCE} for problem in drawn]
    write_parquet(rows, path)


def _draw(rng: random.Random, min_steps: int, more: float) -> StepSum:
    num_steps = min_steps
    while num_steps < MAX_STEPS and rng.random() < more:
        num_steps += 1
    changes: list[int] = []
    total = 0
    for _ in range(num_steps):
        possible = [c for c in range(-MAX_CHANGE, MAX_CHANGE + 1) if c and total + c >= 0]
        changes.append(rng.choice(possible))
        total += changes[-1]
    return StepSum(rng.choice(NAMES), tuple(changes))
