"""Batches of a trainer: the next one is asked for while a step trains, and turned into this rank's step."""

import asyncio
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from asyncrl.algo.outcomes import Outcome
from asyncrl.algo.routing import from_routing
from asyncrl.config.config import Config
from asyncrl.errors import BrokenInvariant, DecodeError, LinkError
from asyncrl.log import get_logger
from asyncrl.messages.sound import problem_of, shown_images, summary_problem_of
from asyncrl.messages.token_ids import TokenIds
from asyncrl.messages.trainer import Batch, Refusal, ScoredTrajectory, Take
from asyncrl.messages.trajectory import RouteShape, Trajectory, TrajectoryLimits
from asyncrl.messages.words import Activity
from asyncrl.records.formatting import nth
from asyncrl.trainer.loop.publications import OF_OTHERS
from asyncrl.trainer.packing.pictures import TrainingImage
from asyncrl.trainer.packing.step import TrainingStep, TrainingTrajectory, TrajectoryInfo, first_sharing
from asyncrl.trainer.ranks.rank_hub import OtherRanks
from asyncrl.trainer.trainable import Trainable
from asyncrl.wire.link import Link
from asyncrl.wire.occupancy import Occupancy
from asyncrl.wire.spools import ImageCache, PayloadClient, at_fault, read_trajectory

# ── step ──────────────────────────────────────────────────────────────────────────────────────
# Turn a batch of the broker into this rank's step: assign trajectories to ranks, fetch and check this rank's tokens.
#
#   Batch ─▶ summaries checked ─▶ assignment ─▶ fetch ─▶ check ─▶ pictures ─▶ Step of this rank, and what it refuses
#                                                           │        │
#   every rank's refusals ──────────────────────────────────┴────────┴─▶ the groups to leave out, the same on every rank
#
# A payload that was damaged when it was stored, or that names a picture that the run does not have, is the fault of its
# rollout; one that was lost or damaged afterwards is its spool's. Either costs its group alone, and so does a payload
# whose spool was given up.


FETCH_S = 120.0
"""Time limit for the spools to send all trajectories of a rank, once they are there."""


class FetchedStep(Struct, frozen=True):
    """A step as one rank fetched it. It may be trained on only without the groups of every rank's refusals."""

    step: TrainingStep
    """The step, without the tokens of refused trajectories."""
    refused: list[Refusal]
    """Trajectories of this rank that are damaged."""
    lr: float | None = None
    """Learning rate that the batch names; None takes the one of the configuration."""


def limits_of(config: Config, token_ids: TokenIds, step: int, routes: RouteShape | None = None) -> TrajectoryLimits:
    """
    Limits of a trajectory in the batch of ``step``: no version after the one that the step trains has written it.

    ``routes`` are the experts of the model; None if they are not replayed.
    """
    return TrajectoryLimits(
        vocab_size=token_ids.vocab_size,
        max_tokens=config.longest_written("train"),
        max_turns=config.max_turns,
        seats=config.environment.seats,
        max_prompt_tokens=config.data.max_prompt_tokens,
        newest_version=step // config.schedule.steps_per_publish,
        replay_mask=config.sampling.replay_mask,
        replay_routes=config.rollout.replay_routes,
        routes=routes,
        never=token_ids.never,
    )


async def fetch_step(
    batch: Batch,
    learner: Trainable,
    payloads: PayloadClient,
    *,
    images: ImageCache,
    rank: int,
    config: Config,
    limits: TrajectoryLimits,
) -> FetchedStep:
    """
    Fetch the trajectories of a batch that ``rank`` trains, alone or with those that share its rows; wait for spools
    that are away.

    A trajectory with an index of ``group_size`` or more is greedy: not trained on, its reward is the baseline of its
    group.

    Raises:
        LinkError: A spool did not answer in time.
    """
    group_size, patience_s = config.schedule.group_size, FETCH_S + config.broker.spool_ttl_s
    greedy = {scored.unit.group_id: scored.reward for scored in batch.trajectories if scored.unit.index >= group_size}
    # Refused before, or with a summary that no sound trajectory has: every rank finds the same, and the first reports
    # them. Arrays are as long as the summaries say, so these are checked first.
    problems = ((s.unit, s.refused or summary_problem_of(s.summary, limits)) for s in batch.trajectories)
    impossible = [Refusal(unit, problem) for unit, problem in problems if problem]
    left_out = {refusal.unit.group_id for refusal in impossible}
    sampled = [s for s in batch.trajectories if s.unit.index < group_size and s.unit.group_id not in left_out]
    infos = [_info(scored, greedy.get(scored.unit.group_id), config) for scored in sampled]
    owners = learner.assign_ranks(infos) if infos else []
    first = first_sharing(rank, config.trainer.sequence_parallel)
    own = {place: sampled[place] for place, owner in enumerate(owners) if owner == first}
    try:
        fetched = await payloads.fetch_payloads([scored.ref for scored in own.values()], patience_s)
        sound, refused = _checked(own, fetched, limits)
        contents, missing = await _fetch_images(sound, images, patience_s)
    except TimeoutError:
        raise LinkError(
            f"the spools did not send the batch of step {nth(batch.step)} within {patience_s:g} s"
        ) from None
    trajectories = {
        place: training_trajectory(trajectory, own[place], limits, contents[place])
        for place, trajectory in sound.items()
        if place in contents
    }
    refused += [Refusal(own[place].unit, reason) for place, reason in missing.items()]
    return FetchedStep(TrainingStep(infos, trajectories, owners), (impossible if rank == 0 else []) + refused)


def _checked(
    own: dict[int, ScoredTrajectory], payloads: Sequence[memoryview | None], limits: TrajectoryLimits
) -> tuple[dict[int, Trajectory], list[Refusal]]:
    trajectories: dict[int, Trajectory] = {}
    refused: list[Refusal] = []
    for (place, scored), payload in zip(own.items(), payloads, strict=True):
        if payload is None:
            refused.append(Refusal(scored.unit, f"the spool {scored.ref.spool} is lost", at_fault=""))
            continue
        try:
            trajectory = read_trajectory(scored.ref, payload)
        except DecodeError as error:
            refused.append(Refusal(scored.unit, str(error), at_fault(error)))
            continue
        if problem := problem_of(trajectory, scored.unit, scored.summary, limits):
            refused.append(Refusal(scored.unit, problem))
        else:
            trajectories[place] = trajectory
    return trajectories, refused


async def _fetch_images(
    trajectories: dict[int, Trajectory], images: ImageCache, deadline_s: float
) -> tuple[dict[int, list[bytes]], dict[int, str]]:
    """Files of the pictures of each trajectory, or the reason for which it has to be refused."""
    contents: dict[int, list[bytes]] = {place: [] for place, t in trajectories.items() if not t.images}
    missing: dict[int, str] = {}
    pictured = {place: t for place, t in trajectories.items() if t.images}
    fetches = [images.fetch(t.images[: t.num_prompt_images], deadline_s) for t in pictured.values()]
    for (place, t), files in zip(pictured.items(), await asyncio.gather(*fetches, return_exceptions=True), strict=True):
        if isinstance(files, DecodeError):
            missing[place] = str(files)
        elif isinstance(files, BaseException):
            raise files
        else:
            contents[place] = contents_of(t, files)
    return contents, missing


def contents_of(trajectory: Trajectory, prompt_files: Sequence[bytes]) -> list[bytes]:
    """Files of all pictures of a sound trajectory, from those of its prompt's."""
    of_prompt = trajectory.images[: trajectory.num_prompt_images]
    files = dict(zip((image.digest for image in of_prompt), prompt_files, strict=True))
    shown = shown_images(trajectory.images, len(of_prompt))
    files |= {image.digest: bytes(file) for image, file in zip(shown, trajectory.image_files, strict=True)}
    return [files[image.digest] for image in trajectory.images]


def _info(scored: ScoredTrajectory, baseline: float | None, config: Config) -> TrajectoryInfo:
    outcome = Outcome(
        group_id=scored.unit.group_id,
        length=scored.summary.num_tokens,
        reward=scored.reward,
        metrics=scored.metrics,
        baseline=baseline,
    )
    return TrajectoryInfo(
        index=scored.unit.index,
        prompt_length=scored.summary.prompt_tokens,
        outcome=outcome,
        shares_prompt=not config.rollout.replay_routes,
        context_length=scored.summary.context_tokens,
    )


def training_trajectory(
    trajectory: Trajectory, scored: ScoredTrajectory, limits: TrajectoryLimits, contents: Sequence[bytes] = ()
) -> TrainingTrajectory:
    """
    A sound trajectory and its verdict as the trainer's arrays, with what the ``limits`` want to be replayed.

    ``contents`` are the files of its pictures.
    """
    masks = (trajectory.mask_counts, trajectory.mask_ids) if limits.replay_mask else (b"", b"")
    return TrainingTrajectory(
        group_id=trajectory.unit.group_id,
        prompt_ids=np.frombuffer(trajectory.prompt_ids, "<i4"),
        completion_ids=np.frombuffer(trajectory.completion_ids, "<i4"),
        behavior_logprobs=np.frombuffer(trajectory.behavior_logprobs, "<f4"),
        reward=scored.reward,
        spans=trajectory.spans,
        index=scored.unit.index,
        metrics=scored.metrics,
        mask_counts=np.frombuffer(masks[0], "<i4"),
        mask_ids=np.frombuffer(masks[1], "<i4"),
        experts=from_routing(trajectory.routing) if trajectory.routing and limits.replay_routes else None,
        images=[
            TrainingImage(image.digest, content, grid, trajectory.processor)
            for image, content, grid in zip(trajectory.images, contents, trajectory.grids, strict=True)
        ],
        turns=trajectory.turns,
        context_ids=np.frombuffer(trajectory.context_ids, "<i4"),
    )


# ── batches ───────────────────────────────────────────────────────────────────────────────────
# The batch of the next step: asked of the broker and fetched from spools while a step trains.
#
#     Take(k + 1) ─▶ Batch ─▶ all ranks ─▶ payloads fetched and checked ─▶ refusals of all ranks ─▶ step k + 1

log = get_logger()

BATCHES_AHEAD = 2
"""Batches held at once, in training and next: the number of steps that can be trained without a broker."""


class Batches:
    """
    Requests the next batch while a step trains, and fetches it; used by the first rank, which passes batches to the
    ``others``.
    """

    def __init__(
        self,
        link: Link,
        payloads: PayloadClient,
        images: ImageCache,
        *,
        learner: Trainable,
        token_ids: TokenIds,
        config: Config,
        others: OtherRanks,
        occupancy: Occupancy[Activity],
    ) -> None:
        self._link = link
        self._payloads = payloads
        self._images = images
        self._learner = learner
        self._token_ids = token_ids
        self._routes: RouteShape | None = getattr(learner, "route_shape", None)
        self._config = config
        self._others = others
        self._occupancy = occupancy
        self._asked: dict[int, asyncio.Future[Batch]] = {}
        self._upcoming: asyncio.Task[FetchedStep | Exception] | None = None

    @property
    def upcoming(self) -> asyncio.Task[FetchedStep | Exception]:
        """Request and fetch of the next step, or why it is impossible; `BrokenInvariant` if none was begun."""
        if self._upcoming is None:
            raise BrokenInvariant("a step began before its batch was requested")
        return self._upcoming

    def request(self, step: int, tasks: asyncio.TaskGroup) -> None:
        """Ask for the batch of ``step``, and fetch it as a task of the group."""
        self._upcoming = tasks.create_task(self._batch(step))

    async def take(self) -> FetchedStep:
        """
        Wait for the step that was requested, and raise what makes it impossible: only now, when the one before is done.

        It is not kept here: its arrays are freed once it is trained.
        """
        step = await self.upcoming
        self._upcoming = None
        if isinstance(step, Exception):
            raise step
        return step

    def arrived(self, batch: Batch) -> None:
        """The broker has sent a batch; one that nobody waits for changes nothing."""
        if (future := self._asked.get(batch.step)) and not future.done():
            future.set_result(batch)

    def end_at(self, steps: int) -> None:
        """No batch follows ``steps`` steps: wait for none that was asked for."""
        if steps in self._asked:
            self.cancel()

    def cancel(self) -> None:
        if self._upcoming:
            self._upcoming.cancel()

    async def _batch(self, step: int) -> FetchedStep | Exception:
        """Request and fetch a batch, with the refusals of all ranks; an error that is its own is returned."""
        future: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
        self._asked[step] = future
        await self._link.send(Take(step))
        batch = await future
        del self._asked[step]
        self._others.broadcast(batch)
        try:
            with self._occupancy.doing("fetching"):
                own = await fetch_step(
                    batch,
                    self._learner,
                    self._payloads,
                    images=self._images,
                    rank=0,
                    config=self._config,
                    limits=limits_of(self._config, self._token_ids, step, self._routes),
                )
                found = own.refused + await self._others.refused(step)
        except OF_OTHERS:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, `take` raises it
            return error
        refused = list({refusal.unit: refusal for refusal in found}.values())  # ranks that share a row say the same
        for refusal in refused:
            unit = refusal.unit
            at = {"step": step, "group_id": unit.group_id, "index": unit.index}
            log.warning("trajectory.refused", **at, reason=refusal.reason)
        return FetchedStep(own.step, refused, batch.lr)
