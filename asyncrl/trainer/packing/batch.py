"""
Packed form of trajectories, which a model reads.

Shapes: S trajectories, W tokens of the packed row, N completion tokens. There is no padding. Trajectories, and branches
of an episode, share what they begin with (`RowLayout`), and attention computes each as if it were alone
(`asyncrl.trainer.packing.row`). A token after which nothing is predicted is not in the row.

    input_ids      p p p c c d q c         p, q prompts; c, d completions
    position_ids   0 1 2 3 4 3 0 1
    positions          ▲ ▲ ▲ ▲ ▲ ▲         the state at a position predicts the token after it

With pictures a token has three positions, in time, height and width (`asyncrl.trainer.packing.pictures`).

Ranks that share the row (`SequenceGroup`) have a slice of its tokens each: the completion tokens that a rank scores are
those whose position is in its slice, wherever they are themselves.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.logprobs import SamplingMask
from asyncrl.errors import DataError
from asyncrl.messages.sound import path_to
from asyncrl.messages.trajectory import FROM_PROMPT, Turn
from asyncrl.trainer.packing.pictures import PackedPictures, PictureTokens, TrainingImage
from asyncrl.trainer.packing.row import Row
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import ALONE, SequenceGroup
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
    images: Sequence[TrainingImage]
    """Pictures among these tokens, in their order."""


def turns_of(trajectory: TrainingTrajectory) -> Sequence[Turn]:
    """The turns; one after the prompt for a trajectory without any."""
    return trajectory.turns or (Turn(FROM_PROMPT, 0, len(trajectory.completion_ids)),)


def branches(trajectory: TrainingTrajectory) -> Iterator[Branch]:
    """Branches with tokens to predict, in the order of the turns that end them. Each token is new in one of them."""
    turns = turns_of(trajectory)
    context = cut(trajectory.context_ids, [turn.num_context for turn in turns])
    written = cut(trajectory.completion_ids, [turn.num_written for turn in turns])
    ends = list(accumulate((turn.num_images for turn in turns), initial=trajectory.num_prompt_images))
    followed, seen = {turn.parent for turn in turns}, set[int]()
    for last in sorted(set(range(len(turns))) - followed):
        path = path_to(turns, last)
        root = turns[path[0]].parent
        parts = [trajectory.prompt_ids] if root == FROM_PROMPT else []
        images = list(trajectory.images[: ends[0]]) if root == FROM_PROMPT else []
        starts, length = {}, sum(map(len, parts))
        num_read = num_seen = 0
        for place in path:
            parts += [context[place], written[place]]
            images += trajectory.images[ends[place] : ends[place + 1]]
            length += len(context[place])
            if place not in seen and len(written[place]):
                starts[place] = length
                num_read = length + len(written[place]) - 1  # Nobody reads the last token.
                num_seen = len(images)
            length += len(written[place])
        seen.update(path)
        if starts:
            yield Branch(root, np.concatenate(parts)[:num_read], starts, images[:num_seen])


def cut(values: NDArray[Scalar], lengths: Sequence[int]) -> list[NDArray[Scalar]]:
    """Consecutive parts of these lengths, one or more."""
    return np.split(values, list(accumulate(lengths))[:-1])


# ── layout ────────────────────────────────────────────────────────────────────────────────────
# Row of a micro-batch in the making: trajectories are added one by one, and equal beginnings lie in it once.
#
#     prompt p, completions a b, a c      row  p p p a b c        paths  0 1 2 3 4
#                                                                        0 1 2 3 5
#
# Tokens share a place if they and all tokens before them are equal, whoever wrote them: then so are their states. Those
# of pictures are equal if the pictures are. With recorded experts, these must be equal too. Contexts that follow
# nothing begin at position 0, as prompts do.

TEXT, FILLING = "text", "filling"
"""Roots of the sequences of trajectories, and of the one that fills a row up."""


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
            num_shown = len(trajectory.images) - trajectory.num_prompt_images
            self.pictures.check_text(trajectory.completion_ids, trajectory.context_ids, num_shown)
        elif trajectory.images:
            raise DataError(
                f"a trajectory of group {trajectory.group_id} has {len(trajectory.images)} pictures, but the model "
                f"reads none; use a model with a vision tower, or data without pictures"
            )
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
            ids = np.zeros(filling, np.int32)
            self._append(FILLING, ids, ids, np.arange(filling))

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
        ids, images = branch.read, branch.images
        experts = trajectory.experts if branch.root == FROM_PROMPT else None
        if not self.pictures:
            return self._append(TEXT, ids, ids, np.arange(len(ids)), experts)
        known = self.width
        positions = self.pictures.positions(ids, images)  # They must match, before anything is in the row.
        path = self._append(TEXT, self.pictures.symbols(ids, images), ids, positions, experts)
        self.pictures.add(ids, path, images, since=known)
        return path

    def _append(
        self,
        root: str,
        symbols: NDArray[np.int32],
        ids: NDArray[np.int32],
        positions: NDArray[np.int64],
        experts: NDArray[np.integer] | None = None,
    ) -> NDArray[np.int64]:
        """
        Row indices of a sequence; the tokens that the row does not have yet are appended.

        ``symbols`` are equal where tokens may share a place.
        """
        path, known = self._trie.insert(root, symbols if experts is None else _routed(symbols, experts[: len(ids)]))
        self._paths[int(path[-1])] = path
        self.ids.append(ids[known:])
        self.positions.append(positions[..., known:])
        if experts is not None:
            self._experts.append(experts[known : len(ids)])
        return path


def _routed(ids: NDArray[np.int32], experts: NDArray[np.integer]) -> Symbols:
    """Symbols that are equal if both the token and its experts are."""
    parts = [ids[:, None].view(np.uint8), np.ascontiguousarray(experts).reshape(len(ids), -1).view(np.uint8)]
    joined = np.ascontiguousarray(np.concatenate(parts, 1))
    return joined.view(f"V{joined.shape[1]}")[:, 0]


# ── batch ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """
    Model inputs of one forward and backward pass. Tensors are int64: `input_ids` [1, W], others [N].

    If ranks share the row, tensors are this rank's part of them: W and N are smaller.
    """

    input_ids: Tensor
    position_ids: Tensor
    """[1, W] position in the trajectory, from 0; [3, 1, W] in time, height and width if the row has pictures."""
    positions: Tensor
    """Row indices of the states that predict the completion tokens, trajectory after trajectory."""
    token_ids: Tensor
    """Completion tokens."""
    places: Tensor
    """Indices of these tokens among the completion tokens of all trajectories."""
    row: Row
    """The whole row."""
    lengths: Sequence[int]
    """[S] completion tokens of each trajectory."""
    pictures: PackedPictures | None = None
    """Pictures of this rank's part; None if it has none."""
    mask: SamplingMask | None = None
    """Sampling masks of the N tokens; None if no trajectory has masks."""
    routes: Tensor | None = None
    """[W, layers, K] experts of the row's tokens, uint8 or int16; None lets the routers choose."""

    @property
    def num_packed(self) -> int:
        """Tokens of the whole row."""
        return self.input_ids.numel() * self.row.group.size

    def gather(self, numbers: Tensor) -> Tensor:
        """Numbers of all completion tokens, from those of each rank; see `SequenceGroup.gather`. Collective."""
        return self.row.group.gather(numbers, self.places, sum(self.lengths))


def collate(
    trajectories: Sequence[TrainingTrajectory],
    *,
    device: torch.device,
    group: SequenceGroup = ALONE,
    processor: ImageProcessor | None = None,
) -> MicroBatch:
    """
    Pack trajectories into one row, in which equal beginnings appear once, and take this rank's part of it.

    Either all trajectories have experts, or none.

    The row is filled up with one more sequence until the ranks of ``group`` have equal parts of one token or more.
    Without trajectories that is all of it: N is 0, and a rank takes part in the collectives of the others.

    Args:
        processor: Reads the pictures; None for a model that reads none.

    Raises:
        DataError: A picture is damaged, is cut into other patches than the sampler's, or has no tower to read it; or a
            token that stands for pictures comes after a prompt.
    """
    layout = RowLayout(processor)
    for trajectory in trajectories:
        layout.add(trajectory)
    layout.fill(group.size)
    own = group.own(layout.width)
    predicting = _joined(layout.predicting)
    places = np.flatnonzero((own.start <= predicting) & (predicting < own.stop))

    def tensor(numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(device)

    return MicroBatch(
        input_ids=tensor(_joined(layout.ids)[own])[None],
        position_ids=tensor(_joined_positions(layout.positions)[..., own]).unsqueeze(-2),
        positions=tensor(predicting[places] - own.start),
        token_ids=tensor(_joined([trajectory.completion_ids for trajectory in trajectories])[places]),
        places=tensor(places),
        row=Row(layout.sequences, device, group),
        lengths=[len(trajectory.completion_ids) for trajectory in trajectories],
        pictures=layout.pictures.of_part(own, device) if layout.pictures else None,
        mask=sampling_mask(trajectories, places, device),
        routes=layout.routes(own, device),
    )


def sampling_mask(
    trajectories: Sequence[TrainingTrajectory], places: NDArray[np.int64], device: torch.device
) -> SamplingMask | None:
    """Sampling masks of the tokens at ``places``, ascending; a trajectory without masks leaves the whole vocabulary."""
    if not any(len(trajectory.mask_ids) for trajectory in trajectories):
        return None
    counts = _joined([one.mask_counts if len(one.mask_ids) else 0 * one.completion_ids for one in trajectories])
    is_own = np.zeros(len(counts), np.bool_)
    is_own[places] = True
    ids = _joined([trajectory.mask_ids for trajectory in trajectories])[np.repeat(is_own, counts)]
    own = counts[places]
    ends = [0, *np.cumsum(own).tolist()]
    return SamplingMask(torch.from_numpy(own).to(device), torch.from_numpy(ids).to(device), ends)


def _joined(parts: Sequence[NDArray[np.integer]]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(0, np.int64), *parts))


def _joined_positions(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """[W], or [3, W] if a part has three positions for each token; then the others' are the same three times."""
    if all(part.ndim == 1 for part in parts):
        return _joined(parts)
    return np.concatenate([np.broadcast_to(part, (3, part.shape[-1])) for part in parts], axis=1)
