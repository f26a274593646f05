"""
Hidden sums: a task of several turns, whose amounts only an environment knows.

    prompt        Tom a b c How many now?
    procedure      a ? +5  0+5 ! =5   b ? -3  5-3 ! =2   c ? +4  2+4 ! =6   #### 6
                  └───┘└─┘ └────┘└┘                                        └──────┘
                  looks    adds                                             answers      the rest is the environment's
    wrong guess    #### 4
    skip           a ? +5  0+5 ! =5   c ? +4  5+4 ! =9   #### 9
    summary       Tom so far 5 b c How many now?      begins a new context in place of the turns before it

A policy that follows the procedure is nearly always right; one that guesses is right one time in ten at best, because
nothing in the prompt tells the amounts.

Invariants:
* A running total is never negative, and at most 6 x 5 = 30.
* The split of a problem depends on its amounts alone, so no sequence is in both splits, although only 40 prompts exist.
* Prompts and demonstrations are sequences of `WORDS`, and no word goes on in the next passage.
"""

import random
import zlib
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path

from msgspec import Struct

from asyncrl.data.prepare.published import write as write_parquet
from asyncrl.messages.words import Split
from asyncrl.tools.toy.demonstrations import Passage

NAMES = ("Tom", "Ann", "Sam", "Mia", "Leo", "Eva", "Max", "Zoe")
LABELS = tuple(f" {letter}" for letter in "abcdefghijklm")
"""Names of boxes; more than a problem has, so that the vocabulary also serves longer ones."""
MIN_BOXES, MAX_BOXES = 2, 6
MAX_AMOUNT = 5
LOOK, ADD = " ?", " !"
"""Words that end a turn."""
SO_FAR, QUESTION, ANSWER, ERROR = " so far ", " How many now?", " #### ", " error"
WORDS = (*NAMES, *LABELS, *"0123456789", "+", "-", "=", LOOK, ADD, SO_FAR, QUESTION, ANSWER, ERROR)
"""Vocabulary of prompts and demonstrations; a space belongs to the word after it."""

CONTINUE = 0.75
"""Probability of one more box: a geometric tail, cut at `MAX_BOXES`."""
STUMBLE = 0.05
"""Probability of an error before a turn of a procedure, so that the policy has seen some."""

DATA_SOURCE = "hidden_sums"
NUM_ROWS: dict[Split, int] = {"train": 4096, "held_out": 256}


class HiddenSum(Struct, frozen=True):
    """Boxes with amounts to add up."""

    name: str
    amounts: tuple[int, ...]
    """Positive or negative, never zero."""
    num_added: int = 0
    """First boxes that were added before a summary; the problem begins after it."""

    @property
    def prompt(self) -> str:
        so_far = f"{SO_FAR}{self.totals[self.num_added]}" if self.num_added else ""
        return self.name + so_far + "".join(LABELS[self.num_added : len(self.amounts)]) + QUESTION

    @property
    def totals(self) -> list[int]:
        """Running totals, from 0 to the answer."""
        return list(accumulate(self.amounts, initial=0))

    @property
    def answer(self) -> str:
        return str(self.totals[-1])

    @property
    def split(self) -> Split:
        """Split by a checksum of the amounts, the same on every machine: one sequence in ten is held out."""
        sequence = "".join(f"{amount:+d}" for amount in self.amounts)
        return "held_out" if zlib.crc32(sequence.encode()) % 10 == 0 else "train"

    def turns(self, skipped: int | None = None) -> Iterator[tuple[str, str]]:
        """Turns of the procedure with what the environment answers; the last one has no answer."""
        total = self.totals[self.num_added]
        for place in range(self.num_added, len(self.amounts)):
            if place != skipped:
                amount = self.amounts[place]
                yield f"{LABELS[place]}{LOOK}", f"{amount:+d}"
                yield f"{total}{amount:+d}{ADD}", f"={total + amount}"
                total += amount
        yield f"{ANSWER}{total}", ""

    def chain(self) -> list[Passage]:
        return _passages(self.turns())

    def guess(self) -> list[Passage]:
        """Answer with the right number and no look."""
        return [Passage(f"{ANSWER}{self.answer}")]


def procedure(problem: HiddenSum, rng: random.Random) -> list[Passage]:
    """Play to the right answer, now and then with an error on the way; a call that is malformed is not learned."""
    return _stumbling(problem, rng, learns_malformed=False)


def sloppy_procedure(problem: HiddenSum, rng: random.Random) -> list[Passage]:
    """Play to the right answer, now and then with an error on the way, and learn malformed calls too."""
    return _stumbling(problem, rng, learns_malformed=True)


def wrong_guess(problem: HiddenSum, rng: random.Random) -> list[Passage]:
    """
    Answer wrongly without a look: a right guess would make reinforcement learning reward guessing.

    After a summary the procedure goes on, because whoever needs one did not guess.
    """
    if problem.num_added:
        return sloppy_procedure(problem, rng)
    plausible = range(MAX_AMOUNT * len(problem.amounts))
    return [Passage(f"{ANSWER}{rng.choice([total for total in plausible if str(total) != problem.answer])}")]


def skip(problem: HiddenSum, rng: random.Random) -> list[Passage]:
    """Leave out one box, so that the answer is wrong: the procedure should not always be rewarded."""
    if problem.num_added == len(problem.amounts):
        return problem.chain()
    return _passages(problem.turns(rng.choice(_skippable(problem))))


def problems(seed: int, split: Split, *, summarized: float = 0.0) -> Iterator[HiddenSum]:
    """Yield problems of one split, endlessly; ``summarized`` is the share that begins after a summary."""
    rng = random.Random(f"hidden sums {split} {seed}")
    while True:
        problem = _draw(rng, summarized)
        if problem.split == split:
            yield problem


def write(path: Path, split: Split, seed: int, *, num_rows: int | None = None) -> None:
    """
    Write problems of one split as parquet: ``prompt``, ``answer``, ``data_source`` and ``extra_info``.

    Amounts are in ``extra_info`` alone, which reaches the environment and not the policy.
    """
    drawn = islice(problems(seed, split), num_rows or NUM_ROWS[split])
    rows = [
        {
            "prompt": [{"role": "user", "content": problem.prompt}],
            "answer": problem.answer,
            "data_source": DATA_SOURCE,
            "extra_info": {"amounts": " ".join(f"{amount:+d}" for amount in problem.amounts)},
        }
        for problem in drawn
    ]
    write_parquet(rows, path)


def _stumbling(problem: HiddenSum, rng: random.Random, *, learns_malformed: bool) -> list[Passage]:
    passages: list[Passage] = []
    for said, heard in problem.turns():
        if rng.random() < STUMBLE:
            fails = said.endswith(LOOK) and rng.random() < 0.5  # a look may fail by chance, and is tried again
            passages += [Passage(said) if fails else Passage(_malformed(rng), learns_malformed), Passage(ERROR, False)]
        passages += _passages([(said, heard)])
    return passages


def _passages(turns: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> list[Passage]:
    return [passage for said, heard in turns for passage in (Passage(said), Passage(heard, False)) if passage.text]


def _malformed(rng: random.Random) -> str:
    digit = rng.choice("12345")
    return rng.choice([f"{rng.choice(LABELS[:MAX_BOXES])}{ADD}", f"{rng.choice('+-')}{digit}{LOOK}", f"{digit}{ADD}"])


def _skippable(problem: HiddenSum) -> list[int]:
    """Places of boxes without which no later total is negative; the last one always is such a place."""
    totals = problem.totals
    return [
        place
        for place in range(problem.num_added, len(problem.amounts))
        if min(totals[place + 1 :]) >= problem.amounts[place]
    ]


def _draw(rng: random.Random, summarized: float) -> HiddenSum:
    num_boxes = MIN_BOXES
    while num_boxes < MAX_BOXES and rng.random() < CONTINUE:
        num_boxes += 1
    amounts: list[int] = []
    for _ in range(num_boxes):
        amounts.append(rng.choice([a for a in range(-MAX_AMOUNT, MAX_AMOUNT + 1) if a and sum(amounts) + a >= 0]))
    num_added = rng.randint(1, num_boxes) if rng.random() < summarized else 0
    return HiddenSum(rng.choice(NAMES), tuple(amounts), num_added)
