"""
Writes trajectories from the spool to samples files for people to read: those of each finished step, and some of each
evaluation.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.errors import DecodeError
from asyncrl.files.checkpoints import file_entry
from asyncrl.log import get_logger
from asyncrl.messages.sound import problem_of
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import Prompt, Trajectory, TrajectoryLimits
from asyncrl.records.samples import SampleRow, SamplesWriter, prompt_text
from asyncrl.wire.spools import ImageCache, PayloadClient

log = get_logger()

FETCH_S = 30.0
NO_STEP = -1
"""Step number of a samples file that belongs to no step, such as that of an evaluation."""


class SampleFiles:
    """
    Writes one samples file per step, and one per evaluation.

    Args:
        payloads: Borrowed, and running.
        images: Pictures of the prompts, borrowed.
        patience_s: Time that a spool may be away while its payloads are waited for.
        lost: Called with a step, and the number of its trajectories whose spool was given up.
        written: Called with each file that was written, and its SHA-256.
    """

    def __init__(
        self,
        payloads: PayloadClient,
        images: ImageCache,
        writer: SamplesWriter,
        patience_s: float = 0.0,
        lost: Callable[[int, int], None] = lambda _step, _num: None,
        *,
        written: Callable[[Path, str], None] = lambda _path, _sha256: None,
    ) -> None:
        self._payloads = payloads
        self._images = images
        self._writer = writer
        self._deadline_s = FETCH_S + patience_s
        self._lost = lost
        self._written = written
        self._writing: dict[Path, tuple[int, asyncio.Task[None]]] = {}
        """Files that are being written, each with its step."""

    def begin(self, tasks: asyncio.TaskGroup, stepped: Stepped, groups: Sequence[Group]) -> None:
        """Write the file of a step in a task of ``tasks``, unless it is written or being written."""
        path = self._writer.path(stepped.step)
        if groups and not path.exists():
            self._begin(tasks, path, stepped.step, self.write(stepped, groups))

    def begin_answers(
        self, tasks: asyncio.TaskGroup, steps: int, policy_version: int, stored: Sequence[tuple[Prompt, Slot]]
    ) -> None:
        """
        Write held-out completions of an evaluation in a task of ``tasks``.

        Args:
            steps: Optimizer steps before ``policy_version``.
        """
        path, stepped = self._writer.answers_path(policy_version), Stepped(steps, policy_version, {})
        self._begin(tasks, path, NO_STEP, self._write(path, stepped, stored))

    def being_written(self, step: int) -> list[asyncio.Task[None]]:
        """Tasks that write the files of the steps up to ``step``, and of evaluations."""
        return [task for number, task in self._writing.values() if number <= step]

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until no file is being written, for at most ``timeout_s``."""
        if self._writing:
            await asyncio.wait([task for _, task in self._writing.values()], timeout=timeout_s)

    async def write(self, stepped: Stepped, groups: Sequence[Group]) -> None:
        """
        Write the trajectories that ``stepped`` consumed, the first of each group with the files of its pictures.

        If the payloads cannot be read or the file cannot be written, the step is skipped with a warning. A damaged
        trajectory that no node has noticed, because nothing was computed from it, is left out, and so is one that was
        lost with its spool.
        """
        stored = [(group.prompt, slot) for group in groups for slot in group.slots]
        await self._write(self._writer.path(stepped.step), stepped, stored)

    def _begin(self, tasks: asyncio.TaskGroup, path: Path, step: int, writing: Coroutine[Any, Any, None]) -> None:
        if path in self._writing:
            writing.close()
            return
        task = tasks.create_task(writing)
        self._writing[path] = step, task
        task.add_done_callback(lambda _: self._writing.pop(path, None))

    async def _write(self, path: Path, stepped: Stepped, slots: Sequence[tuple[Prompt, Slot]]) -> None:
        stored = [(prompt, slot) for prompt, slot in slots if slot.ref]
        refs = [slot.ref for _, slot in stored if slot.ref]
        try:
            trajectories = await self._payloads.fetch_all(refs, self._deadline_s)
        except (DecodeError, TimeoutError) as error:
            log.warning("samples.skipped", step=stepped.step, reason=str(error))
            return
        if num_lost := trajectories.count(None):
            self._lost(stepped.step, num_lost)
        prompts = {slot.unit.group_id: prompt for prompt, slot in stored}
        files = {group_id: await self._files(prompt) for group_id, prompt in prompts.items() if prompt.images}
        rows = [
            _row(stepped, prompt, slot, trajectory, files.pop(slot.unit.group_id, []))
            for (prompt, slot), trajectory in zip(stored, trajectories, strict=True)
            if trajectory and not problem_of(trajectory, slot.unit, slot.summary, TrajectoryLimits())
        ]
        if num_damaged := len(stored) - num_lost - len(rows):
            log.warning("samples.damaged", step=stepped.step, left_out=num_damaged)
        try:
            self._written(path, await asyncio.to_thread(lambda: file_entry(self._writer.write(path, rows)).sha256))
        except OSError as error:
            log.warning("samples.skipped", step=stepped.step, reason=str(error))

    async def _files(self, prompt: Prompt) -> list[bytes]:
        """Pictures of a prompt; empty if they cannot be read, because a samples file must not stop the run."""
        try:
            return await self._images.fetch(prompt.images, self._deadline_s)
        except (DecodeError, TimeoutError) as error:
            log.warning("samples.images_missing", reason=str(error) or f"no answer within {self._deadline_s:g} s")
            return []


def _row(stepped: Stepped, prompt: Prompt, slot: Slot, trajectory: Trajectory, files: Sequence[bytes]) -> SampleRow:
    oldest = min((span.policy_version for span in trajectory.spans), default=stepped.policy_version)
    return SampleRow(
        step=stepped.step,
        group_id=trajectory.unit.group_id,
        index=trajectory.unit.index,
        prompt=prompt_text(prompt),
        completion=trajectory.text,
        answer=prompt.answer,
        data_source=prompt.data_source,
        reward=slot.reward,
        metrics=slot.metrics,
        finish_reason=trajectory.finish_reason,
        spans=trajectory.spans,
        oldest_version=oldest,
        staleness=stepped.policy_version - oldest,
        node=trajectory.node,
        completion_ids=trajectory.completion_ids,
        behavior_logprobs=trajectory.behavior_logprobs,
        images=prompt.images,
        image_files=files,
        turns=trajectory.turns,
        context_ids=trajectory.context_ids,
    )
