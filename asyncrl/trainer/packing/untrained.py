"""
Policy tokens that are not trained become context: they are read, and are in no loss and in no mean.

    one turn    context p   written a b c d e        becomes   context p a b   written c
    untrained                       x x · x ·                  context d       written e

A trajectory without turns gets some. The reward of a turn stays at its end.
"""

from dataclasses import replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from asyncrl.messages.trajectory import Span, Turn
from asyncrl.trainer.packing.layout import cut, turns_of
from asyncrl.trainer.packing.step import TrainingTrajectory

Mask = NDArray[np.bool_]
"""[T] one for each token that the policy wrote."""


def in_untrained_turns(trajectory: TrainingTrajectory) -> Mask:
    """True for the tokens of turns with ``is_trained`` false."""
    turns = turns_of(trajectory)
    return np.repeat([not turn.is_trained for turn in turns], [turn.num_written for turn in turns])


def older_than(trajectory: TrainingTrajectory, policy_version: int) -> Mask:
    """True for the tokens that an older version wrote; none if the versions are unknown."""
    mask = np.zeros(len(trajectory.completion_ids), np.bool_)
    for span in trajectory.spans:
        mask[span.start : span.end] = span.policy_version < policy_version
    return mask


def as_context(trajectory: TrainingTrajectory, untrained: Mask) -> TrainingTrajectory:
    """The trajectory with the ``untrained`` tokens as context, where they were written."""
    if not untrained.any():
        return trajectory
    keep = ~untrained
    turns = turns_of(trajectory)
    written = cut(trajectory.completion_ids, [turn.num_written for turn in turns])
    context = cut(trajectory.context_ids, [turn.num_context for turn in turns])
    marks = cut(keep, [turn.num_written for turn in turns])
    pieces: list[Turn] = []
    context_ids: list[NDArray[np.int32]] = []
    lasts: dict[int, int] = {}
    """Last piece of each turn."""
    for place, turn in enumerate(turns):
        parent = lasts.get(turn.parent, turn.parent)
        is_written = np.concatenate((np.zeros(turn.num_context, np.bool_), marks[place]))
        context_ids.append(np.concatenate((context[place], written[place]))[~is_written])
        for num_context, num_written in _runs(is_written):
            pieces.append(Turn(parent, num_context, num_written))
            parent = len(pieces) - 1
        pieces[-1] = structs.replace(pieces[-1], reward=turn.reward)
        lasts[place] = parent
    return _kept(trajectory, keep, pieces, np.concatenate(context_ids))


def _runs(is_written: Mask) -> list[tuple[int, int]]:
    """Numbers of tokens of context, and of written ones after them, in turns."""
    starts = np.flatnonzero(is_written[:-1] & ~is_written[1:]) + 1
    return [(int((~run).sum()), int(run.sum())) for run in np.split(is_written, starts)]


def _kept(
    trajectory: TrainingTrajectory, keep: Mask, turns: list[Turn], context_ids: NDArray[np.int32]
) -> TrainingTrajectory:
    before = np.concatenate((np.zeros(1, np.int64), keep.cumsum()))
    counts = trajectory.mask_counts
    return replace(
        trajectory,
        completion_ids=trajectory.completion_ids[keep],
        behavior_logprobs=trajectory.behavior_logprobs[keep],
        # A span of which nothing is left stays, because the first one tells with which weights a trajectory began.
        spans=[Span(span.policy_version, int(before[span.start]), int(before[span.end])) for span in trajectory.spans],
        mask_counts=counts[keep] if len(counts) else counts,
        mask_ids=trajectory.mask_ids[np.repeat(keep, counts)] if len(counts) else trajectory.mask_ids,
        turns=turns,
        context_ids=context_ids,
    )
