"""
Trajectories that wait to be settled, finished or handed over, and their encoding for the spool.

    add ─▶ fresh ─▶ put ─▶ settled: forgotten
                     └─ not settled within `RESEND_S`, or a new session ─▶ put again

Pure bookkeeping: callers pass the time in and send what is returned.
"""

import array
import math
import struct
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from asyncrl.engine import Completion
from asyncrl.episodes.record import EpisodeLimits, SampledTrajectory
from asyncrl.errors import EngineError
from asyncrl.messages.rollout import Lease, Leased
from asyncrl.messages.sound import problem_of, summary_of
from asyncrl.messages.spool import PutItem
from asyncrl.messages.token_ids import UNKNOWN, TokenIds
from asyncrl.messages.trajectory import Trajectory, TrajectoryLimits, Unit
from asyncrl.wire.files import MAX_PAYLOAD_BYTES

COLLECT_S = 0.005
"""Seconds to collect results before a `Put`: handling a message costs as much as handling a trajectory."""
RESEND_S = 5.0
"""Seconds after which an unsettled result is put again. Spool and broker recognise repeats."""

NOT_PUT = math.inf


class UnsettledResults:
    """Results that were sampled, by unit, each kept until the broker settles it."""

    def __init__(self) -> None:
        self._items: dict[Unit, tuple[PutItem, float]] = {}
        """Results, each with the time at which it was put; `NOT_PUT` while the actor has it in hand."""
        self._fresh: list[PutItem] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: PutItem) -> None:
        self._items[item.unit] = (item, NOT_PUT)
        self._fresh.append(item)

    def __iter__(self) -> Iterator[PutItem]:
        return (item for item, _ in self._items.values())

    def settle(self, unit: Unit) -> None:
        """Forget a result that is on disk or no longer wanted."""
        self._items.pop(unit, None)

    def settle_unfinished(self, item: Leased) -> None:
        """Forget an unfinished result of this lease; a finished one, or one of a later lease, stays."""
        found, _ = self._items.get(item.unit, (None, 0.0))
        if found and found.lease_id == item.lease_id and found.summary.finish_reason == "unfinished":
            del self._items[item.unit]

    def mark_all_fresh(self) -> None:
        """Have `take_fresh` return everything again."""
        self._items = {unit: (item, NOT_PUT) for unit, (item, _) in self._items.items()}
        self._fresh = list(self)

    def take_fresh(self) -> list[PutItem]:
        """Results that were not put into the spool yet, which counts as done with this call."""
        fresh, self._fresh = self._fresh, []
        return [item for item in fresh if item.unit in self._items]

    def take_overdue(self, now_s: float) -> list[PutItem]:
        """Results last put at least `RESEND_S` ago."""
        late = [item for item, put_s in self._items.values() if now_s - put_s >= RESEND_S]
        for item in late:
            self._items[item.unit] = (item, NOT_PUT)
        return late

    def mark_put(self, items: list[PutItem], now_s: float) -> None:
        """Note that these were put, if they still wait: a put may itself wait, for longer than `RESEND_S`."""
        for item in items:
            if self._items.get(item.unit, (None, NOT_PUT))[0] is item:
                self._items[item.unit] = (item, now_s)


def to_put_item(
    lease: Lease,
    unit: Unit,
    sampled: SampledTrajectory,
    *,
    node: str,
    token_ids: TokenIds = UNKNOWN,
    episode: EpisodeLimits | None = None,
) -> PutItem:
    """
    Encode a sampled trajectory as an item of a `Put`.

    Raises:
        EngineError: It is damaged, which may succeed at another try, or too large to be stored.
    """
    completion = sampled.completion
    try:
        trajectory = Trajectory(
            unit=unit,
            prompt_ids=_little_endian(array.array("i", sampled.prompt_ids)),
            completion_ids=_little_endian(array.array("i", completion.completion_ids)),
            behavior_logprobs=_little_endian(array.array("f", completion.behavior_logprobs)),
            spans=completion.spans,
            finish_reason=completion.finish_reason,
            text=sampled.text,
            node=node,
            generate_s=completion.generate_s,
            mask_counts=_little_endian(array.array("i", completion.mask_counts)),
            mask_ids=_little_endian(array.array("i", completion.mask_ids)),
            routing=completion.routing,
            images=sampled.images if sampled.turns else lease.prompt.images,
            image_files=[memoryview(file) for file in sampled.image_files],
            grids=completion.grids,
            processor=completion.processor,
            turns=sampled.turns,
            context_ids=_little_endian(array.array("i", sampled.context_ids)),
            scores=sampled.scores,
            snapshot=memoryview(sampled.snapshot),
            opened=sampled.opened,
        )
        if problem := problem_of(trajectory, unit, None, limits_of(lease, unit.index, token_ids, episode)):
            raise EngineError(f"the engine returned a damaged completion: {problem}")  # None leaves this node.
        payload = memoryview(_encoder.encode(trajectory))
    except (TypeError, ValueError, OverflowError) as error:  # A host's engine may return anything.
        raise EngineError(f"the engine's completion cannot be encoded: {error}") from error
    _refuse_large(payload, lease, shows_pictures=bool(sampled.image_files))
    return PutItem(unit, lease.lease_id, summary_of(trajectory), payload, lease.permit)


_encoder = msgspec.msgpack.Encoder()


def limits_of(lease: Lease, index: int, token_ids: TokenIds, episode: EpisodeLimits | None = None) -> TrajectoryLimits:
    """
    Limits of a trajectory of this lease. Its newest version is unknown: another node may have begun it.

    ``episode`` is None if trajectories are single completions.
    """
    return TrajectoryLimits(
        token_ids.vocab_size,
        episode.max_tokens if episode else lease.sampling.max_tokens,
        lease.max_prompt_tokens,
        replay_mask=lease.sampling.replay_mask and index not in lease.greedy,
        replay_routes=lease.sampling.replay_routes and index not in lease.greedy,
        max_turns=episode.max_turns if episode else 0,
        seats=episode.seats if episode else 1,
        never=token_ids.never,
    )


def to_sampled(trajectory: Trajectory, unit: Unit, limits: TrajectoryLimits) -> SampledTrajectory:
    """Decode a stored trajectory of ``unit``, to resume from it. Raises a retryable `EngineError` if it is damaged."""
    if problem := problem_of(trajectory, unit, None, limits):
        raise EngineError(f"the stored part to resume from is damaged: {problem}")
    completion = Completion(
        completion_ids=_unpacked("i", trajectory.completion_ids),
        behavior_logprobs=_unpacked("f", trajectory.behavior_logprobs),
        spans=trajectory.spans,
        finish_reason=trajectory.finish_reason,
        generate_s=trajectory.generate_s,
        mask_counts=_unpacked("i", trajectory.mask_counts),
        mask_ids=_unpacked("i", trajectory.mask_ids),
        routing=trajectory.routing,
        grids=trajectory.grids,
        processor=trajectory.processor,
    )
    return SampledTrajectory(
        prompt_ids=_unpacked("i", trajectory.prompt_ids),
        completion=completion,
        turns=trajectory.turns,
        context_ids=_unpacked("i", trajectory.context_ids),
        scores=trajectory.scores,
        snapshot=bytes(trajectory.snapshot),
        images=trajectory.images,
        image_files=list(map(bytes, trajectory.image_files)),
    )


def _unpacked(kind: str, raw: memoryview) -> list[Any]:
    return list(struct.unpack(f"<{len(raw) // 4}{kind}", raw))


def check_extends(completion: Completion, prefix: Completion) -> None:
    """Raise a retryable `EngineError` unless ``completion`` begins with the tokens of ``prefix``."""
    num_tokens = len(prefix.completion_ids)
    if (
        completion.completion_ids[:num_tokens] != prefix.completion_ids
        or len(completion.behavior_logprobs) < num_tokens
    ):
        raise EngineError(f"the engine's completion does not begin with the {num_tokens} tokens it had to resume from")


def _refuse_large(payload: memoryview, lease: Lease, *, shows_pictures: bool) -> None:
    if payload.nbytes > MAX_PAYLOAD_BYTES:
        lower = f"sampling.max_tokens, which is {lease.sampling.max_tokens} here"
        lower += ", or environment.picture_bytes" if shows_pictures else ""
        raise EngineError(
            f"the trajectory takes {payload.nbytes} bytes, at most {MAX_PAYLOAD_BYTES} can be stored; lower {lower}",
            retryable=False,
        )


def _little_endian(values: "array.array[int] | array.array[float]") -> memoryview:
    if sys.byteorder == "big":
        values.byteswap()
    return memoryview(values).cast("B")
