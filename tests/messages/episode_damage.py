"""Sound episodes of any shape, and every way in which their turns can be damaged."""

from collections.abc import Callable
from math import inf, nan
from random import Random
from typing import Any

from msgspec.structs import replace

from asyncrl.messages import sound as check
from asyncrl.messages.sound import BAD_SCORES, BAD_TURNS, MAX_CHARS
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Trajectory, Turn
from asyncrl.messages.verdict_limits import MAX_METRICS, MAX_NAME_CHARS
from tests.messages.damage import (
    BAD_IDS,
    LIMITS,
    MAX_TOKENS,
    VOCAB_SIZE,
    Damage,
    Stored,
    as_bytes,
    sound,
    through_the_wire,
    with_value,
)

MAX_TURNS = 12
SEATS = 2
EPISODE_LIMITS = replace(LIMITS, max_turns=MAX_TURNS, seats=SEATS, replay_routes=False)
"""Experts are recorded along one sequence of tokens, so an episode has none."""


def sound_episode(dice: Random) -> Trajectory:
    """A finished episode as an honest node stores it, decoded: at least one turn has context."""
    made = sound(dice)
    while (num_tokens := made.completion_ids.nbytes // 4) > MAX_TOKENS - 2 * MAX_TURNS:
        made = sound(dice)
    written = _parts(num_tokens, dice.randint(1, min(MAX_TURNS, num_tokens)), dice)
    turns = _seated([_turn(place, num_written, dice) for place, num_written in enumerate(written)], dice)
    if not any(turn.num_context for turn in turns):
        turns[-1] = replace(turns[-1], num_context=1)
    context = [dice.randrange(VOCAB_SIZE) for turn in turns for _ in range(turn.num_context)]
    scores = {name: dice.gauss(0, 9) for name in ("solved", "moves", "漢")[: dice.randrange(4)]}
    return through_the_wire(
        replace(made, routing=None, turns=turns, context_ids=as_bytes("i", context), scores=scores, text=turns[-1].text)
    )


def _seated(turns: list[Turn], dice: Random) -> list[Turn]:
    """The turns with seats: the prompt is seat 0's, and a turn follows one of its own seat."""
    seated: list[Turn] = []
    for turn in turns:
        roots = {FROM_PROMPT: 0, FROM_NOTHING: dice.randrange(SEATS)}
        seated.append(replace(turn, seat=roots[turn.parent] if turn.parent < 0 else seated[turn.parent].seat))
    return seated


def _parts(total: int, count: int, dice: Random) -> list[int]:
    """``count`` numbers of at least 1 that add up to ``total``."""
    ends = [*sorted(dice.sample(range(1, total), count - 1)), total]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _turn(place: int, num_written: int, dice: Random) -> Turn:
    parent = dice.choice([FROM_PROMPT, FROM_NOTHING, place - 1, place - 1, dice.randrange(-1, place)])
    num_context = dice.randint(int(parent == FROM_NOTHING), 2)
    return Turn(
        parent=parent,
        num_context=num_context,
        num_written=num_written,
        reward=dice.choice([0.0, -1.0, dice.random()]),
        is_trained=dice.random() < 0.9,
        call_s=dice.choice([0.0, dice.expovariate(1.0)]),
        observation="漢" * dice.randint(0, num_context),
        text="a" * dice.randint(0, num_written),
    )


def _episode(**changes: Callable[[Trajectory, Random], object]) -> Damage:
    def damaged(stored: Stored, dice: Random) -> Stored:
        return replace(stored[0], **{name: change(stored[0], dice) for name, change in changes.items()}), stored[1]

    return damaged


def _of_a_turn(change: Callable[[Turn, int, Random], dict[str, Any]]) -> Damage:
    """Change fields of one turn, given its place."""

    def damaged(trajectory: Trajectory, dice: Random) -> list[Turn]:
        turns = list(trajectory.turns)
        place = dice.randrange(len(turns))
        turns[place] = replace(turns[place], **change(turns[place], place, dice))
        return turns

    return _episode(turns=damaged)


def _long_context(stored: Stored, _dice: Random) -> Stored:
    trajectory = stored[0]
    more = MAX_TOKENS + 1 - trajectory.completion_ids.nbytes // 4
    last = trajectory.turns[-1]
    num_context = last.num_context + more - trajectory.context_ids.nbytes // 4
    turns = [*trajectory.turns[:-1], replace(last, num_context=num_context)]
    long = replace(trajectory, turns=turns, context_ids=as_bytes("i", [1] * more))
    return long, check.summary_of(long)


OF_EPISODES: dict[str, tuple[str, Damage]] = {
    "no turns": (BAD_TURNS, _episode(turns=lambda t, dice: [])),
    "no turns, and nothing that misses them": (
        BAD_TURNS,
        _episode(
            turns=lambda t, dice: [],
            context_ids=lambda t, dice: memoryview(b""),
            scores=lambda t, dice: dict[str, float](),
        ),
    ),
    "a turn lost": (BAD_TURNS, _episode(turns=lambda t, dice: t.turns[:-1])),
    "a turn twice": (BAD_TURNS, _episode(turns=lambda t, dice: [*t.turns, t.turns[-1]])),
    "more turns than allowed": (BAD_TURNS, _episode(turns=lambda t, dice: [*t.turns, *t.turns[:1] * MAX_TURNS])),
    "parent that comes later": (
        BAD_TURNS,
        _of_a_turn(lambda _, place, dice: {"parent": place + dice.choice([0, 1, 2**40])}),
    ),
    "parent of no kind": (BAD_TURNS, _of_a_turn(lambda _, place, dice: {"parent": dice.choice([-3, -(2**40)])})),
    "a root that read nothing": (
        BAD_TURNS,
        _of_a_turn(lambda _, __, dice: {"parent": FROM_NOTHING, "num_context": 0}),
    ),
    "length of context": (
        BAD_TURNS,
        _of_a_turn(lambda turn, _, dice: {"num_context": turn.num_context + dice.choice([-3, -1, 1, 2**62])}),
    ),
    "length of what was written": (
        BAD_TURNS,
        _of_a_turn(lambda turn, _, dice: {"num_written": turn.num_written + dice.choice([-1, 1, -(2**40)])}),
    ),
    "nothing written": (BAD_TURNS, _of_a_turn(lambda _, __, dice: {"num_written": 0})),
    "reward": (BAD_TURNS, _of_a_turn(lambda _, __, dice: {"reward": dice.choice([nan, inf, -inf, 1e7, -1e300])})),
    "seat that there is not": (BAD_TURNS, _of_a_turn(lambda _, __, dice: {"seat": dice.choice([-1, SEATS, 2**40])})),
    "turn that follows another seat's": (
        BAD_TURNS,
        _of_a_turn(lambda turn, _, __: {"seat": SEATS if turn.parent == FROM_NOTHING else 1 - turn.seat}),
    ),
    "time of a call": (BAD_TURNS, _of_a_turn(lambda _, __, dice: {"call_s": dice.choice([nan, inf, -inf, -1e-9])})),
    "observation": (
        BAD_TURNS,
        _of_a_turn(lambda turn, _, dice: {"observation": "x" * (turn.num_context * MAX_CHARS + dice.randint(1, 9))}),
    ),
    "text of a turn": (
        BAD_TURNS,
        _of_a_turn(lambda turn, _, dice: {"text": "x" * (turn.num_written * MAX_CHARS + dice.randint(1, 9))}),
    ),
    "context cut": (
        BAD_TURNS,
        _episode(context_ids=lambda t, dice: t.context_ids[: dice.randrange(len(t.context_ids))]),
    ),
    "context grown": (
        BAD_TURNS,
        _episode(context_ids=lambda t, dice: memoryview(bytes(t.context_ids) + bytes(dice.randint(1, 9)))),
    ),
    "context too long": (check.TOO_LONG, _long_context),
    "context id": (
        check.BAD_ID,
        _episode(context_ids=lambda t, dice: with_value(t.context_ids, "i", dice.choice(BAD_IDS), dice)),
    ),
    "snapshot of a finished episode": (BAD_TURNS, _episode(snapshot=lambda t, dice: memoryview(dice.randbytes(7)))),
    "metric": (
        BAD_SCORES,
        _episode(scores=lambda t, dice: {**t.scores, "moves": dice.choice([nan, inf, -inf, 1e13])}),
    ),
    "name of a metric": (
        BAD_SCORES,
        _episode(scores=lambda t, dice: {**t.scores, "x" * (MAX_NAME_CHARS + dice.randint(1, 9)): 1.0}),
    ),
    "too many metrics": (
        BAD_SCORES,
        _episode(scores=lambda t, dice: {str(number): 1.0 for number in range(MAX_METRICS + dice.randint(1, 9))}),
    ),
}
"""Cause and function of each damage of a finished episode, by its name."""
