"""
Decode steps as CUDA graphs: all kernels of a step in one launch.

    37 rows, length 208 ──▶ graph of 40 rows, length 224 ──▶ logits of 37 rows
                            captured when this shape comes for the second time

A step of a small model launches hundreds of kernels, each of which takes less time than its launch. Few shapes serve
all steps: rows and lengths are rounded up to one of four sizes between two powers of two. A row without a completion
reads a free slot, and writes to its last position, which is nobody's: the last token of a completion is never fed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from asyncrl.log import get_logger
from asyncrl.rollout.engines.transformers.forward import Forward

log = get_logger()

Run = Callable[[], Tensor]
Capture = Callable[[Run], Run]
"""Function of a computation on fixed memory, which returns a faster one that does the same."""
MOST_GRAPHS = 512
"""Graphs that are kept at most, because each takes some memory of the device."""


def rounded_up(number: int, most: int) -> int:
    """The least of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... that is not below a number, and at most ``most``."""
    step = 1 << max((number - 1).bit_length() - 3, 0)
    return min(-(-number // step) * step, most)


class StepGraphs:
    """The steps of a `Forward` whose kernels depend on shapes alone. ``new_capture`` is in place of CUDA's."""

    def __init__(self, forward: Forward, new_capture: Callable[[], Capture] | None = None) -> None:
        cache = forward.cache
        _, self._slots, self._positions = cache.storage.shape[:3]
        self._forward = forward
        self._new_capture = new_capture or _Captured
        self._capture = self._new_capture()
        last = torch.arange(self._slots, device=cache.storage.device) * self._positions + self._positions - 1
        zeros = torch.zeros_like(last)
        self._idle = torch.stack((zeros, zeros, last, zeros))
        """Inputs of rows without a completion."""
        self._inputs = self._idle.clone()
        """[4, slots] ids, positions, cells and rotary positions; rows from `_rows` on are idle."""
        self._rows, self._most = 0, MOST_GRAPHS
        self._logits: Tensor | None = None
        """[slots, V]; one for all graphs, which would each keep their own."""
        self._seen = set[tuple[int, int]]()
        self._graphs: dict[tuple[int, int], Run] = {}

    def step(
        self, ids: Tensor, positions: Tensor, cells: Tensor, length: int, rotary: Tensor | None = None, /
    ) -> Tensor:
        """See `Forward.step`. The logits are overwritten by the next step."""
        rows = len(ids)
        shape = rounded_up(rows, self._slots), rounded_up(length, self._positions)
        if shape not in self._graphs and not self._may_capture(shape):
            logits = self._forward.step(ids, positions, cells, length, rotary)
            if self._logits is None:
                self._logits = logits.new_empty(self._slots, logits.shape[-1])
            return logits
        if rows < self._rows:
            self._inputs.copy_(self._idle)
        self._rows = rows
        given = (ids, positions, cells, positions if rotary is None else rotary)
        for own, values in zip(self._inputs, given, strict=True):
            own[:rows] = values
        if shape not in self._graphs:
            self._graphs[shape] = self._captured(*shape)
        return self._graphs[shape]()[:rows]

    def clear(self) -> None:
        """Forget all graphs and free their memory, because weights or cache will be elsewhere."""
        self._graphs.clear()
        self._capture = self._new_capture()
        self._seen.clear()
        self._logits = None

    def _may_capture(self, shape: tuple[int, int]) -> bool:
        """True if a shape was seen before, and there is room for its graph."""
        is_known = shape in self._seen
        self._seen.add(shape)
        return is_known and len(self._graphs) < self._most

    def _captured(self, rows: int, length: int) -> Run:
        ids, positions, cells, rotary = self._inputs[:, :rows]
        assert self._logits is not None  # the shape was seen before
        logits = self._logits[:rows]

        def run() -> Tensor:
            return logits.copy_(self._forward.step(ids, positions, cells, length, rotary))

        try:
            return self._capture(run)
        except RuntimeError as error:  # of a driver, or of a kernel that cannot be captured
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("engine.slower", device=str(self._inputs.device), torch=torch.__version__, reason=reason)
            self._most = 0
            return run


class _Captured:
    """Captures CUDA graphs that share the memory for what they compute in between. It is gone with the last of them."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run: Run) -> Run:
        run()  # Triton compiles for new shapes, which a capture forbids.
        graph, stream, current = torch.cuda.CUDAGraph(), self._stream, torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            # Other threads of the process may use the device meanwhile. `torch.cuda.graph` would collect garbage, too.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                out = run()
            finally:
                graph.capture_end()
        current.wait_stream(stream)
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay
