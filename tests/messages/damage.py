"""Sound trajectories of any shape, and every way in which one field of a stored one can be damaged."""

import array
import itertools
from collections.abc import Callable
from math import inf, nan
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncrl.messages import sound as check
from asyncrl.messages.sound import BAD_FILES, BAD_GRIDS, BAD_TURNS, MAX_CHARS
from asyncrl.messages.trajectory import (
    RouteShape,
    Routing,
    Span,
    Trajectory,
    TrajectoryLimits,
    TrajectorySummary,
    Turn,
    Unit,
)
from asyncrl.messages.words import FinishReason

VOCAB_SIZE, MAX_TOKENS, MAX_PROMPT_TOKENS, NEWEST_VERSION = 1000, 400, 60, 9
NEVER = (6, 500)
ROUTES = RouteShape(layers=3, top_k=2, num_experts=5)
LIMITS = TrajectoryLimits(
    VOCAB_SIZE,
    MAX_TOKENS,
    MAX_PROMPT_TOKENS,
    NEWEST_VERSION,
    replay_mask=True,
    replay_routes=True,
    routes=ROUTES,
    max_turns=0,
    never=NEVER,
)

Stored = tuple[Trajectory, TrajectorySummary]
Damage = Callable[[Stored, Random], Stored]


def sound(dice: Random) -> Trajectory:
    """A trajectory as an honest node stores it, decoded."""
    num_tokens = dice.choice([1, 2, 3, dice.randint(1, MAX_TOKENS), MAX_TOKENS])
    logprobs = [
        -dice.expovariate(1.0) if value is None else value
        for value in dice.choices([0.0, -0.0, -1e-30, None, -103.0, 1e-6], k=num_tokens)
    ]
    edges = dice.choices([0, VOCAB_SIZE - 1, None], k=num_tokens)
    ids = [other if edge is None else edge for edge, other in zip(edges, _ids(num_tokens, dice), strict=True)]
    finish_reason: FinishReason = dice.choice(["stop", "length"])
    made = Trajectory(
        unit=Unit(dice.randrange(2**40), dice.randrange(64), dice.choice(["train", "held_out"])),
        prompt_ids=as_bytes("i", _ids(dice.randint(1, MAX_PROMPT_TOKENS), dice)),
        completion_ids=as_bytes("i", ids),
        behavior_logprobs=as_bytes("f", logprobs),
        spans=_spans(num_tokens, dice),
        finish_reason=finish_reason,
        text="".join(dice.choices("a é漢\n", k=dice.randint(0, 4 * num_tokens))),
        node=f"rollout-{dice.randrange(9)}",
        generate_s=dice.choice([0.0, dice.expovariate(0.1)]),
        **_masks(ids, dice),
    )
    num_tokens = (made.prompt_ids.nbytes + made.completion_ids.nbytes) // 4 - 1
    return through_the_wire(replace(made, routing=_routing(num_tokens, dice)))


def _routing(num_tokens: int, dice: Random) -> Routing:
    num_ids = num_tokens * ROUTES.layers * ROUTES.top_k
    experts = [byte % ROUTES.num_experts for byte in dice.randbytes(num_ids)]
    width = dice.choice([1, 2])
    return Routing(as_bytes("B" if width == 1 else "h", experts), ROUTES.layers, ROUTES.top_k, width)


def _masks(ids: list[int], dice: Random) -> dict[str, Any]:
    """A sampling mask of each token, of one to twenty ids."""
    sizes = [byte % 20 for byte in dice.randbytes(len(ids))]
    others = iter(_ids(sum(sizes), dice))
    masks = [sorted({token, *itertools.islice(others, size)}) for token, size in zip(ids, sizes, strict=True)]
    return {
        "mask_counts": as_bytes("i", [len(mask) for mask in masks]),
        "mask_ids": as_bytes("i", [token for mask in masks for token in mask]),
    }


def _ids(num: int, dice: Random) -> list[int]:
    """Drawn together: one by one they would take most of the time of these tests."""
    ids = (value % VOCAB_SIZE for value in array.array("H", dice.randbytes(2 * num)))
    return [value + (value in NEVER) for value in ids]


def through_the_wire(trajectory: Trajectory) -> Trajectory:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(trajectory), type=Trajectory)


def as_bytes(kind: str, values: list[int] | list[float]) -> memoryview:
    return memoryview(array.array(kind, values)).cast("B")


def with_value(raw: memoryview, kind: str, value: float, dice: Random) -> memoryview:
    """The array with one value replaced."""
    values: Any = array.array(kind, bytes(raw))
    values[dice.randrange(len(values))] = value
    return as_bytes(kind, values.tolist())


def _spans(num_tokens: int, dice: Random) -> list[Span]:
    """Versions may go back: a node that lags may resume what a newer policy began."""
    ends = sorted({*(dice.randint(1, num_tokens) for _ in range(dice.randrange(4))), num_tokens})
    return [Span(dice.randint(0, NEWEST_VERSION), start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _mask(change: Callable[[list[int], int, Random], list[int]]) -> Damage:
    """Change the ids of one mask, given its token; sizes are adapted."""

    def damaged(stored: Stored, dice: Random) -> Stored:
        counts, ids, tokens = (
            array.array("i", bytes(getattr(stored[0], name))).tolist()
            for name in ("mask_counts", "mask_ids", "completion_ids")
        )
        place = dice.randrange(len(counts))
        start = sum(counts[:place])
        changed = change(ids[start : start + counts[place]], tokens[place], dice)
        ids[start : start + counts[place]] = changed
        counts[place] = len(changed)
        raw = {"mask_counts": as_bytes("i", counts), "mask_ids": as_bytes("i", ids)}
        return replace(stored[0], **raw), stored[1]

    return damaged


def _routes(change: Callable[[Routing, Random], Routing]) -> Damage:
    def damaged(trajectory: Trajectory, dice: Random) -> Routing:
        assert trajectory.routing
        return change(trajectory.routing, dice)

    return _field("routing", damaged)


def _field(name: str, change: Callable[[Trajectory, Random], object]) -> Damage:
    return lambda stored, dice: (replace(stored[0], **{name: change(stored[0], dice)}), stored[1])


def _span(change: Callable[[Span, Random], Span]) -> Damage:
    def damaged(trajectory: Trajectory, dice: Random) -> list[Span]:
        spans = list(trajectory.spans)
        place = dice.randrange(len(spans))
        spans[place] = change(spans[place], dice)
        return spans

    return _field("spans", damaged)


def _summary(name: str) -> Damage:
    def damaged(stored: Stored, dice: Random) -> Stored:
        trajectory, summary = stored
        value = getattr(summary, name)
        other = "unfinished" if isinstance(value, str) else value + dice.choice([-1, 1, 2**31])
        return trajectory, replace(summary, **{name: other})

    return damaged


def _cut(raw: memoryview, dice: Random) -> memoryview:
    return raw[: dice.randrange(len(raw))]


def _grown(raw: memoryview, dice: Random) -> memoryview:
    return memoryview(bytes(raw) + bytes(dice.randint(1, 9)))


def _too_long(stored: Stored, _dice: Random) -> Stored:
    more = MAX_TOKENS + 1
    long = replace(
        stored[0],
        completion_ids=as_bytes("i", [1] * more),
        behavior_logprobs=as_bytes("f", [-1.0] * more),
        spans=[Span(0, 0, more)],
        mask_counts=as_bytes("i", [1] * more),
        mask_ids=as_bytes("i", [1] * more),
    )
    return long, check.summary_of(long)


def _long_prompt(stored: Stored, _dice: Random) -> Stored:
    long = replace(stored[0], prompt_ids=as_bytes("i", [1] * (MAX_PROMPT_TOKENS + 1)))
    return long, check.summary_of(long)


BAD_IDS = (-1, -(2**31), VOCAB_SIZE, VOCAB_SIZE + 1, 2**31 - 1)
BAD_LOGPROBS = (nan, -nan, inf, -inf, 0.5, 1e30, -1e30, -1001.0)

OF_REPLAY: dict[str, tuple[str, Damage]] = {
    "no masks": (
        check.BAD_MASK,
        lambda stored, _dice: (replace(stored[0], mask_counts=memoryview(b""), mask_ids=memoryview(b"")), stored[1]),
    ),
    "mask sizes cut": (check.BAD_MASK, _field("mask_counts", lambda t, dice: _cut(t.mask_counts, dice))),
    "mask sizes grown": (check.BAD_MASK, _field("mask_counts", lambda t, dice: _grown(t.mask_counts, dice))),
    "mask size": (
        check.BAD_MASK,
        _field(
            "mask_counts", lambda t, dice: with_value(t.mask_counts, "i", dice.choice([0, -1, 21, 2**31 - 1]), dice)
        ),
    ),
    "mask ids cut": (check.BAD_MASK, _field("mask_ids", lambda t, dice: _cut(t.mask_ids, dice))),
    "mask ids grown": (check.BAD_MASK, _field("mask_ids", lambda t, dice: _grown(t.mask_ids, dice))),
    "empty mask": (check.BAD_MASK, _mask(lambda _ids, _token, _dice: [])),
    "mask without its token": (
        check.BAD_MASK,
        _mask(lambda ids, token, _dice: [one for one in ids if one != token] or [(token + 1) % VOCAB_SIZE]),
    ),
    "mask with an id twice": (check.BAD_MASK, _mask(lambda ids, _token, _dice: [*ids, ids[-1]])),
    "mask backwards": (check.BAD_MASK, _mask(lambda ids, _token, _dice: [*ids, ids[0]])),
    "mask id": (check.BAD_ID, _mask(lambda ids, _token, dice: [*ids[:-1], dice.choice(BAD_IDS)])),
    "no experts": (check.BAD_ROUTES, _field("routing", lambda _t, _dice: None)),
    "experts cut": (check.BAD_ROUTES, _routes(lambda r, dice: replace(r, experts=_cut(r.experts, dice)))),
    "experts grown": (check.BAD_ROUTES, _routes(lambda r, dice: replace(r, experts=_grown(r.experts, dice)))),
    "layers with experts": (
        check.BAD_ROUTES,
        _routes(lambda r, dice: replace(r, layers=dice.choice([-3, 0, 1, 2, 4, 6, 2**40]))),
    ),
    "layers for experts": (check.BAD_ROUTES, _routes(lambda r, _dice: replace(r, layers=r.top_k, top_k=r.layers))),
    "experts of a token": (check.BAD_ROUTES, _routes(lambda r, dice: replace(r, top_k=dice.choice([-2, 0, 1, 3, 6])))),
    "width of an expert": (check.BAD_ROUTES, _routes(lambda r, dice: replace(r, width=dice.choice([-1, 0, 3, 4])))),
    "other width": (check.BAD_ROUTES, _routes(lambda r, _dice: replace(r, width=3 - r.width))),
    "expert": (
        check.BAD_ROUTES,
        _routes(
            lambda r, dice: replace(
                r, experts=with_value(r.experts, "B" if r.width == 1 else "h", dice.choice([5, 100]), dice)
            )
        ),
    ),
}
"""Damages of masks and experts, which only trajectories of runs that replay them have."""

DAMAGES: dict[str, tuple[str, Damage]] = {
    **OF_REPLAY,
    "completion id": (
        check.BAD_ID,
        _field("completion_ids", lambda t, dice: with_value(t.completion_ids, "i", dice.choice(BAD_IDS), dice)),
    ),
    "completion id without a probability": (
        check.NEVER_SAMPLED,
        _field("completion_ids", lambda t, dice: with_value(t.completion_ids, "i", dice.choice(NEVER), dice)),
    ),
    "prompt id": (
        check.BAD_ID,
        _field("prompt_ids", lambda t, dice: with_value(t.prompt_ids, "i", dice.choice(BAD_IDS), dice)),
    ),
    "log-prob": (
        check.BAD_LOGPROB,
        _field(
            "behavior_logprobs", lambda t, dice: with_value(t.behavior_logprobs, "f", dice.choice(BAD_LOGPROBS), dice)
        ),
    ),
    "completion cut": (check.BAD_LENGTHS, _field("completion_ids", lambda t, dice: _cut(t.completion_ids, dice))),
    "completion grown": (check.BAD_LENGTHS, _field("completion_ids", lambda t, dice: _grown(t.completion_ids, dice))),
    "log-probs cut": (check.BAD_LENGTHS, _field("behavior_logprobs", lambda t, dice: _cut(t.behavior_logprobs, dice))),
    "log-probs grown": (
        check.BAD_LENGTHS,
        _field("behavior_logprobs", lambda t, dice: _grown(t.behavior_logprobs, dice)),
    ),
    "no prompt": (check.BAD_LENGTHS, _field("prompt_ids", lambda t, dice: memoryview(b""))),
    "prompt cut within an id": (
        check.BAD_LENGTHS,
        _field("prompt_ids", lambda t, dice: t.prompt_ids[: -dice.randint(1, 3)]),
    ),
    "completion too long": (check.TOO_LONG, _too_long),
    "prompt too long": (check.TOO_LONG, _long_prompt),
    "no spans": (check.BAD_SPANS, _field("spans", lambda t, dice: [])),
    "span start": (
        check.BAD_SPANS,
        _span(lambda span, dice: replace(span, start=span.start + dice.choice([-1, 1, 2**62]))),
    ),
    "span end": (check.BAD_SPANS, _span(lambda span, dice: replace(span, end=span.end + dice.choice([-1, 1, 2**62])))),
    "span twice": (check.BAD_SPANS, _field("spans", lambda t, dice: [*t.spans, t.spans[-1]])),
    "empty span": (check.BAD_SPANS, _field("spans", lambda t, dice: [Span(0, 0, 0), *t.spans])),
    "span version": (
        check.BAD_VERSION,
        _span(lambda span, dice: replace(span, policy_version=dice.choice([-1, NEWEST_VERSION + 1, 10**7, -(2**62)]))),
    ),
    "group of unit": (
        check.WRONG_UNIT,
        _field("unit", lambda t, dice: replace(t.unit, group_id=t.unit.group_id + dice.choice([-1, 1]))),
    ),
    "index of unit": (check.WRONG_UNIT, _field("unit", lambda t, dice: replace(t.unit, index=t.unit.index + 1))),
    "split of unit": (
        check.WRONG_UNIT,
        _field("unit", lambda t, dice: replace(t.unit, split={"train": "held_out"}.get(t.unit.split, "train"))),
    ),
    "generation time": (
        check.BAD_TIME,
        _field("generate_s", lambda t, dice: dice.choice([nan, inf, -inf, -1e-9, -5.0])),
    ),
    "text": (
        check.BAD_TEXT,
        _field("text", lambda t, dice: "x" * (len(t.completion_ids) // 4 * MAX_CHARS + dice.randint(1, 9))),
    ),
    "grid of no picture": (BAD_GRIDS, _field("grids", lambda t, dice: [(1, 2, 2)])),
    "file of no picture": (BAD_FILES, _field("image_files", lambda t, dice: [memoryview(dice.randbytes(5))])),
    "opened": (
        check.BAD_TEXT,
        _field("opened", lambda _, dice: "<" * (check.MAX_OPENED + dice.randint(1, 9))),
    ),
    "context without turns": (
        BAD_TURNS,
        _field("context_ids", lambda t, dice: as_bytes("i", [1] * dice.randint(1, 9))),
    ),
    "metrics without turns": (BAD_TURNS, _field("scores", lambda t, dice: {"solved": dice.random()})),
    "snapshot without turns": (BAD_TURNS, _field("snapshot", lambda t, dice: memoryview(dice.randbytes(5)))),
    "a turn without an environment": (
        BAD_TURNS,
        _field("turns", lambda t, dice: [Turn(-1, 0, t.completion_ids.nbytes // 4)]),
    ),
    "finish reason": (
        check.BAD_SUMMARY,
        _field("finish_reason", lambda t, dice: "unfinished"),
    ),
    **{f"summary: {name}": (check.BAD_SUMMARY, _summary(name)) for name in TrajectorySummary.__struct_fields__},
}
"""Cause and function of each damage, by its name."""
