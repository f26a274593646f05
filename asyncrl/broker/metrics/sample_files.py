"""Writes the trajectories of each finished step from the spool to a samples file for people to read."""

import asyncio
from collections.abc import Sequence

import structlog

from asyncrl.broker.groups.group import Group, Slot
from asyncrl.client.payloads import PayloadClient
from asyncrl.errors import DecodeError
from asyncrl.messages import Prompt, Stepped, Trajectory
from asyncrl.observe.samples import SampleRow, SamplesWriter, prompt_text

log = structlog.get_logger()

FETCH_S = 30.0


class SampleFiles:
    """Writes one samples file per step. ``payloads`` is borrowed, and running."""

    def __init__(self, payloads: PayloadClient, writer: SamplesWriter) -> None:
        self._payloads = payloads
        self._writer = writer

    async def write(self, stepped: Stepped, groups: Sequence[Group]) -> None:
        """
        Write the trajectories that ``stepped`` consumed.

        If the payloads cannot be read or the file cannot be written, the step is skipped with a warning.
        """
        stored = [(group.prompt, slot) for group in groups for slot in group.slots if slot.ref]
        try:
            trajectories = await self._payloads.fetch_all([slot.ref for _, slot in stored if slot.ref], FETCH_S)
        except (DecodeError, TimeoutError) as error:
            log.warning("samples.skipped", step=stepped.step, reason=str(error))
            return
        rows = [
            _row(stepped, prompt, slot, trajectory)
            for (prompt, slot), trajectory in zip(stored, trajectories, strict=True)
        ]
        try:
            await asyncio.to_thread(self._writer.write, stepped.step, rows)
        except OSError as error:
            log.warning("samples.skipped", step=stepped.step, reason=str(error))


def _row(stepped: Stepped, prompt: Prompt, slot: Slot, trajectory: Trajectory) -> SampleRow:
    oldest = min((span.policy_version for span in trajectory.spans), default=stepped.policy_version)
    return SampleRow(
        step=stepped.step,
        group_id=trajectory.unit.group_id,
        index=trajectory.unit.index,
        prompt=prompt_text(prompt),
        completion=trajectory.text,
        answer=prompt.answer,
        reward=slot.reward,
        metrics=slot.metrics,
        finish_reason=trajectory.finish_reason,
        spans=trajectory.spans,
        oldest_version=oldest,
        staleness=stepped.policy_version - oldest,
        node=trajectory.node,
        completion_ids=trajectory.completion_ids,
        behavior_logprobs=trajectory.behavior_logprobs,
    )
