"""
Row of a micro-batch in the making: trajectories are added one by one, and equal beginnings lie in it once.

    prompt p, completions a b, a c      row  p p p a b c        paths  0 1 2 3 4
                                                                       0 1 2 3 5

Tokens share a place if they and all tokens before them are equal, whoever wrote them: then so are their states. With
recorded experts, these must be equal too; with pictures, the pictures of the prompts. Contexts that follow nothing
begin at position 0, as prompts do, and have no pictures.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.errors import DataError
from asyncrl.messages.sound import path_to
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Span, Turn
from asyncrl.trainer.packing.pictures import PictureTokens
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.vision.processor import ImageProcessor

# ── trie ──────────────────────────────────────────────────────────────────────────────────────
# Radix trie of sequences: equal beginnings have the same places.
#
#     a b c d      a b ─┬─ c d          places  0 1 2 3
#     a b e             └─ e                    0 1 4
#     a b c d f              └─ f               0 1 2 3 5
#
# The places of a sequence's new symbols follow those given out before, so the symbols of all sequences, each once,
# lie in the order of their places. Pure numpy.

Symbols = NDArray[Any]
"""[n] of any dtype that compares element by element, such as token ids."""


class Trie:
    """Places of the symbols of all sequences that were inserted."""

    def __init__(self) -> None:
        self.size = 0
        """Number of places given out."""
        self._roots: dict[Hashable, _Edge] = {}

    def insert(self, root: Hashable, symbols: Symbols) -> tuple[NDArray[np.int64], int]:
        """
        [n] places of a sequence, and the number of its symbols that had their places before.

        Args:
            root: What the sequence begins with; sequences with other roots share nothing.
            symbols: [n], borrowed.
        """
        edge = self._roots.setdefault(root, _Edge(symbols[:0], 0))
        runs, known = [np.zeros(0, np.int64)], 0
        while known < len(symbols) and (following := edge.following.get(symbols[known].tobytes())) is not None:
            common = _num_equal(following.symbols, symbols[known:])
            following.split(common)
            runs.append(np.arange(following.first, following.first + common))
            known += common
            edge = following
        if new := len(symbols) - known:
            edge.following[symbols[known].tobytes()] = _Edge(symbols[known:], self.size)
            runs.append(np.arange(self.size, self.size + new))
            self.size += new
        return np.concatenate(runs), known


@dataclass(slots=True)
class _Edge:
    """Symbols between two branchings, at adjacent places."""

    symbols: Symbols
    first: int
    """Place of the first symbol."""
    following: "dict[bytes, _Edge]" = field(default_factory=dict)
    """Edges after the last symbol, by their first."""

    def split(self, length: int) -> None:
        """Leave ``length`` symbols, at least 1, and move the others to an edge that follows."""
        if length < len(self.symbols):
            rest = _Edge(self.symbols[length:], self.first + length, self.following)
            self.symbols, self.following = self.symbols[:length], {rest.symbols[0].tobytes(): rest}


def _num_equal(first: Symbols, second: Symbols) -> int:
    """Symbols of the common beginning."""
    length = min(len(first), len(second))
    different = first[:length] != second[:length]
    return int(different.argmax()) if different.any() else length


# ── branches ──────────────────────────────────────────────────────────────────────────────────
# Branches of a trajectory: what the policy read on each, and where it wrote.
#
#     turns           prompt ── 0 ─┬─ 1           branch to 1   prompt, 0, 1      new: 0 and 1
#                                  └─ 2           branch to 2   prompt, 0, 2      new: 2
#                     nothing ── 3                branch to 3   3                 new: 3
#
# A trajectory without turns is one branch, of its prompt and its completion.

Scalar = TypeVar("Scalar", bound=np.generic)


class Branch(NamedTuple):
    """One path through the turns of a trajectory, up to the last token that was read to write one."""

    root: int
    """`FROM_PROMPT` or `FROM_NOTHING`."""
    read: NDArray[np.int32]
    """Tokens that the policy read, the prompt included."""
    starts: Mapping[int, int]
    """Turns that no branch before has: number of tokens read before the first that each wrote."""


def turns_of(trajectory: TrainingTrajectory) -> Sequence[Turn]:
    """The turns; one after the prompt for a trajectory without any."""
    return trajectory.turns or (Turn(FROM_PROMPT, 0, len(trajectory.completion_ids)),)


def branches(trajectory: TrainingTrajectory) -> Iterator[Branch]:
    """Branches with tokens to predict, in the order of the turns that end them. Each token is new in one of them."""
    turns = turns_of(trajectory)
    context = cut(trajectory.context_ids, [turn.num_context for turn in turns])
    written = cut(trajectory.completion_ids, [turn.num_written for turn in turns])
    followed, seen = {turn.parent for turn in turns}, set[int]()
    for last in sorted(set(range(len(turns))) - followed):
        path = path_to(turns, last)
        root = turns[path[0]].parent
        parts = [trajectory.prompt_ids] if root == FROM_PROMPT else []
        starts, length = {}, sum(map(len, parts))
        num_read = 0
        for place in path:
            parts += [context[place], written[place]]
            length += len(context[place])
            if place not in seen and len(written[place]):
                starts[place] = length
                num_read = length + len(written[place]) - 1  # Nobody reads the last token.
            length += len(written[place])
        seen.update(path)
        if starts:
            yield Branch(root, np.concatenate(parts)[:num_read], starts)


def cut(values: NDArray[Scalar], lengths: Sequence[int]) -> list[NDArray[Scalar]]:
    """Consecutive parts of these lengths, one or more."""
    return np.split(values, list(accumulate(lengths))[:-1])


# ── layout ────────────────────────────────────────────────────────────────────────────────────

FILLING = "filling"
"""Root of the sequence that fills a row up."""
Root = tuple[object, ...] | str
"""Pictures of a prompt, or `FILLING`."""


class RowLayout:
    """
    Row of W tokens.

    Args:
        processor: Reads the pictures; None for a model that reads none.
    """

    def __init__(self, processor: ImageProcessor | None) -> None:
        self.pictures = PictureTokens(processor) if processor else None
        self.ids: list[NDArray[np.int32]] = []
        """Parts of the row."""
        self.positions: list[NDArray[np.int64]] = []
        """[n], or [3, n] with pictures, for each part of the row."""
        self.predicting: list[NDArray[np.int64]] = []
        """[T] row indices before the completion tokens of each trajectory."""
        self._trie = Trie()
        self._paths: dict[int, NDArray[np.int64]] = {}
        """Row indices of each branch, by the last."""
        self._prompts: dict[tuple[object, ...], tuple[NDArray[np.int64], int]] = {}
        self._experts: list[NDArray[np.integer]] = []
        """[n, layers, K] for each part of the row but the filling, or nothing."""

    @property
    def width(self) -> int:
        return self._trie.size

    @property
    def sequences(self) -> list[NDArray[np.int64]]:
        """Row indices of each branch that no other continues, so that every index is in at least one."""
        is_followed = np.zeros(self.width, np.bool_)
        for path in self._paths.values():
            is_followed[path[:-1]] = True
        return [path for last, path in self._paths.items() if not is_followed[last]]

    def add(self, trajectory: TrainingTrajectory) -> None:
        """
        Append what the row does not have yet of a trajectory.

        Raises:
            DataError: Pictures and tokens do not match, or there is no tower to read them.
        """
        if self.pictures:
            self.pictures.check_text(trajectory.completion_ids, trajectory.context_ids)
        written = [turn.num_written for turn in turns_of(trajectory)]
        predicting = [np.zeros(0, np.int64)] * len(written)
        for branch in branches(trajectory):
            path = self._place(trajectory, branch)
            for turn, start in branch.starts.items():
                predicting[turn] = path[start - 1 : start - 1 + written[turn]]
        self.predicting.append(np.concatenate(predicting))

    def fill(self, size: int) -> None:
        """Make the width a multiple of ``size``, and not zero."""
        if filling := -self.width % size if self.width else size:
            self._append(FILLING, np.zeros(filling, np.int32), np.arange(filling))

    def routes(self, own: slice, device: torch.device) -> Tensor | None:
        """[W, layers, K] experts of a part of the row; its filling takes the first experts. None without any."""
        if not self._experts:
            return None
        _, layers, top_k = self._experts[0].shape
        filling = self.width - sum(map(len, self._experts))
        first = np.broadcast_to(np.arange(top_k, dtype=self._experts[0].dtype), (filling, layers, top_k))
        return torch.from_numpy(np.concatenate([*self._experts, first])[own]).to(device)

    def _place(self, trajectory: TrainingTrajectory, branch: Branch) -> NDArray[np.int64]:
        """Row indices of a branch's tokens."""
        ids, experts = branch.read, trajectory.experts
        if branch.root == FROM_NOTHING:
            return self._append((), ids, np.arange(len(ids)))
        prompt, images = len(trajectory.prompt_ids), trajectory.images
        root = tuple((image.digest, tuple(image.grid)) for image in images)
        known = self.width
        path = self._append(root, ids, self._positions(trajectory, len(ids)), experts)
        if self.pictures:
            self.pictures.add(trajectory.prompt_ids, path[:prompt], images, since=known)
        return path

    def _append(
        self,
        root: Root,
        ids: NDArray[np.int32],
        positions: NDArray[np.int64],
        experts: NDArray[np.integer] | None = None,
    ) -> NDArray[np.int64]:
        """Row indices of a sequence; the tokens that the row does not have yet are appended."""
        path, known = self._trie.insert(root, ids if experts is None else _routed(ids, experts[: len(ids)]))
        self._paths[int(path[-1])] = path
        self.ids.append(ids[known:])
        self.positions.append(positions[..., known:])
        if experts is not None:
            self._experts.append(experts[known : len(ids)])
        return path

    def _positions(self, trajectory: TrainingTrajectory, length: int) -> NDArray[np.int64]:
        """Positions of ``length`` tokens that begin with the prompt; a picture takes fewer positions than tokens."""
        ids, images = trajectory.prompt_ids, trajectory.images
        if not self.pictures:
            if images:
                raise DataError(
                    f"the prompt of group {trajectory.group_id} has {len(images)} pictures, but the model reads none; "
                    f"use a model with a vision tower, or data without pictures"
                )
            return np.arange(length)
        key = (ids.tobytes(), *((image.digest, tuple(image.grid)) for image in images))
        if key not in self._prompts:
            self._prompts[key] = self.pictures.positions(ids, images)
        of_prompt, after = self._prompts[key]
        later = np.broadcast_to(after + np.arange(length - len(ids)), (*of_prompt.shape[:-1], length - len(ids)))
        return np.concatenate((of_prompt, later), -1)


def _routed(ids: NDArray[np.int32], experts: NDArray[np.integer]) -> Symbols:
    """Symbols that are equal if both the token and its experts are."""
    parts = [ids[:, None].view(np.uint8), np.ascontiguousarray(experts).reshape(len(ids), -1).view(np.uint8)]
    joined = np.ascontiguousarray(np.concatenate(parts, 1))
    return joined.view(f"V{joined.shape[1]}")[:, 0]


# ── tokens that are not trained ────────────────────────────────────────────────────────────────
# Policy tokens that are not trained become context: they are read, and are in no loss and in no mean.
#
#     one turn    context p   written a b c d e        becomes   context p a b   written c
#     untrained                       x x · x ·                  context d       written e
#
# A trajectory without turns gets some. The reward of a turn stays at its end.

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
