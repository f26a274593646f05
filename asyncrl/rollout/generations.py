"""
Trajectories of one rollout, from the lease until they are on disk: prompts cut to length, completions, episodes.

    start ─▶ running: encode, pictures ─▶ one completion, or an episode ─▶ unsettled ─▶ settled: forgotten
               │                                  │      │                    ▲   ▲
               │                                  │      └─ after each turn ──┘   │
               └── hand_over ─────────────────────│───────────────────────────────┘
                                                  └─▶ reports ─▶ `Failed`, `StartedOver` to the broker

They outlive the link to the broker: sampling continues while the broker is away, and `begin_session` lists for the next
session all that is still running or unsettled.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Literal

from msgspec import Struct, structs

from asyncrl.engine import Completion, Engine, Request
from asyncrl.episodes.episode import Episode
from asyncrl.episodes.episodes import Episodes
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.episodes.tool_calls import opened_by
from asyncrl.errors import DecodeError, EngineError, EnvironmentFailed, PromptTooLong
from asyncrl.failpoints import failpoint
from asyncrl.log import get_logger
from asyncrl.messages.rollout import Failed, Lease, Leased, StartedOver
from asyncrl.messages.session import ContainerCounts, Held
from asyncrl.messages.spool import PutItem
from asyncrl.messages.token_ids import token_ids_of
from asyncrl.messages.trajectory import Sampling, TrajectoryLimits, Unit
from asyncrl.messages.words import ROLLOUT_ACTIVITIES, Activity, Stage, Truncation
from asyncrl.rollout.engine_calls import EngineCalls
from asyncrl.rollout.results import UnsettledResults, limits_of, to_put_item
from asyncrl.rollout.user_requests import UserRequests
from asyncrl.wire.occupancy import Occupancy
from asyncrl.wire.spools import ImageCache

# ── single ────────────────────────────────────────────────────────────────────────────────────
# One completion after its prompt: a trajectory without an environment.


class SingleCompletion:
    def __init__(self, engine: Engine, calls: EngineCalls, request: Request) -> None:
        self._engine = engine
        self.calls = calls
        self._request = request

    async def run(self) -> SampledTrajectory:
        """Sample the completion. Raises `EngineError`."""
        completion = await self.calls.complete(self._request)
        opened = opened_by(self._request.prompt_ids, self._engine.decode)
        return self._sampled(completion, self._engine.decode(completion.completion_ids), opened)

    def written(self) -> SampledTrajectory | None:
        """Tokens so far; None if there are none."""
        written = self.calls.written(self._request) or self._request.resume_from
        return self._sampled(written, "") if written else None

    def _sampled(self, completion: Completion, text: str, opened: str = "") -> SampledTrajectory:
        return SampledTrajectory(prompt_ids=self._request.prompt_ids, completion=completion, text=text, opened=opened)


# ── start gate ────────────────────────────────────────────────────────────────────────────────
# Gate that holds new work back while work in hand ends, before the weights change.


class StartGate:
    """Counts work in hand, and lets new work begin only while it is open."""

    def __init__(self) -> None:
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._num_inside = 0

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Wait until the gate is open, and count the block as work in hand."""
        await self._is_open.wait()
        self._num_inside += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._is_empty.set()

    async def empty(self) -> None:
        """Close the gate, and wait until no work is in hand."""
        self._is_open.clear()
        await self._is_empty.wait()

    def open(self) -> None:
        self._is_open.set()


# ── prompt truncation ─────────────────────────────────────────────────────────────────────────
# Truncation of prompts that have too many tokens.
#
#     10 tokens, at most 5    left    ·····56789        keeps the end
#                             right   01234·····        keeps the beginning
#                             middle  01·····789        keeps both ends


def fit(prompt_ids: Sequence[int], max_tokens: int, truncation: Truncation, *, has_images: bool = False) -> list[int]:
    """
    Truncate [L] token ids to ``max_tokens``.

    Raises `PromptTooLong` instead if ``truncation`` is ``error``, or if a part of a picture might be cut out.
    """
    if len(prompt_ids) <= max_tokens:
        return list(prompt_ids)
    if has_images:
        raise PromptTooLong(
            f"the prompt has {len(prompt_ids)} tokens with its pictures, more than data.max_prompt_tokens = "
            f"{max_tokens}, and pictures cannot be truncated: raise it, make them smaller, or remove the row"
        )
    match truncation:
        case "left":
            return list(prompt_ids[-max_tokens:])
        case "right":
            return list(prompt_ids[:max_tokens])
        case "middle":
            head = max_tokens // 2
            return [*prompt_ids[:head], *prompt_ids[head - max_tokens :]]
        case "error":
            raise PromptTooLong(
                f"the prompt has {len(prompt_ids)} tokens, more than data.max_prompt_tokens = {max_tokens}: raise it, "
                f"set data.truncation, or remove the row"
            )


# ── generations ───────────────────────────────────────────────────────────────────────────────

log = get_logger()

FETCH_IMAGES_S = 60.0
"""Seconds to wait for the pictures of a prompt."""
PRIORITY = 1
"""`Request.priority` of rollouts, behind requests of users."""

FetchPrefix = Callable[[], Awaitable[SampledTrajectory]]
"""Fetches the unfinished trajectory to resume from. Raises `EngineError`."""


class Generation(Struct, eq=False):
    unit: Unit
    lease: Lease
    task: asyncio.Task[None]
    is_resumed: bool
    work: SingleCompletion | Episode | None = None
    """None until the prompt is encoded, and its prefix and pictures have arrived."""
    num_put: int = 0
    """Tokens put into the spool so far."""
    has_turn: bool = False
    """A turn was finished since the last put."""


class Generations:
    """Running and unsettled trajectories of one engine, which is borrowed. They make way for requests of ``users``."""

    def __init__(
        self,
        engine: Engine,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        users: UserRequests | None = None,
        on_failure: Callable[[EngineError], None] | None = None,
        episodes: Episodes | None = None,
        hold: Literal["trajectory", "turn"] = "trajectory",
    ) -> None:
        self.users = users or UserRequests()
        self.images = ImageCache()
        """Pictures of the prompts, for all sessions; each connects it to its links."""
        self._engine = engine
        self._on_failure = on_failure
        self._node = node
        self._episodes = episodes
        self._hold = hold
        self.token_ids = token_ids_of(engine)
        self.occupancy = Occupancy[Activity](ROLLOUT_ACTIVITIES, clock)
        self.unsettled = UnsettledResults()
        self.reports: list[Failed | StartedOver] = []
        self.num_failed: Counter[Stage] = Counter({"rollout": 0, "environment": 0})
        """Failed trajectories by stage."""
        self.has_news = asyncio.Event()
        """Set when ``unsettled``, ``reports``, a turn or ``fatal_error`` is new; the reader clears it."""
        self.policy_version = -1
        """Version the engine decodes with; -1 before the first weights."""
        self.fatal_error: BaseException | None = None
        """An error other than `EngineError`: the engine cannot be used any more."""
        self._running: dict[Unit, Generation] = {}
        self._lease_ids: dict[Unit, int] = {}
        """Every running or unsettled trajectory; each uses one credit."""
        self._encoded: tuple[Lease, list[int]] | None = None
        """Lease and prompt ids of the last encoding: the indices of a lease share a prompt and start together."""
        self._gate = StartGate()
        self._changed = asyncio.Event()
        """Set when a generation ends or is settled: `_until` checks its condition again."""
        self.calls = EngineCalls(
            engine, self.users, self.occupancy, end_with=self.end_with, changed=self._has_changed, clock=clock
        )

    @property
    def num_in_hand(self) -> int:
        """Number of trajectories that are running or unsettled."""
        return len(self._lease_ids)

    @property
    def containers(self) -> ContainerCounts | None:
        """Containers of the episodes; None without any."""
        return self._episodes.containers if self._episodes else None

    # ── leases and results ──────────────────────────────────────────────────────────────────────

    def start(self, lease: Lease, index: int, fetch_prefix: FetchPrefix | None = None) -> None:
        """Sample one trajectory of a lease, from its prompt or from the prefix that ``fetch_prefix`` gives."""
        unit = Unit(lease.group_id, index, lease.split)
        self._lease_ids[unit] = lease.lease_id
        task = asyncio.create_task(self._generate(lease, unit, fetch_prefix), name=f"generate {unit.group_id}.{index}")
        task.add_done_callback(self._report)
        self._running[unit] = Generation(unit, lease, task, is_resumed=fetch_prefix is not None)

    def forget(self, unit: Unit) -> bool:
        """Drop a settled or cancelled trajectory and cancel its task. True if it was running or unsettled."""
        if generation := self._running.pop(unit, None):
            generation.task.cancel()
        self.unsettled.settle(unit)
        self._has_changed()
        return self._lease_ids.pop(unit, None) is not None

    def holds(self, item: Leased) -> bool:
        """True if the trajectory is running or unsettled under exactly this lease."""
        return self._lease_ids.get(item.unit) == item.lease_id

    def settle_unfinished(self, item: Leased) -> None:
        self.unsettled.settle_unfinished(item)
        self._has_changed()

    def units_of(self, lease_ids: set[int]) -> list[Unit]:
        """Running and unsettled trajectories of these leases."""
        return [unit for unit, lease_id in self._lease_ids.items() if lease_id in lease_ids]

    def end_with(self, error: BaseException) -> None:
        """Make this session, or the next one, end with ``error``: the engine cannot be used any more."""
        self.fatal_error = error
        self.has_news.set()

    async def aclose(self) -> None:
        """Stop sampling and drop everything unsettled."""
        self.users.unwatch()
        tasks = [generation.task for generation in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ── users of the host ───────────────────────────────────────────────────────────────────────

    def watch_users(self) -> None:
        """Make way for requests of users from here on, until `aclose`."""
        self.users.watch(self.calls.make_way)

    # ── change of session, node or weights ──────────────────────────────────────────────────────

    def begin_session(self) -> list[Held]:
        """
        Prepare for a new session with the broker, and list what is running or unsettled for its `Hello`.

        Failures are dropped: the broker leases every trajectory that is not listed anew. So are generations that still
        wait for their prefix, because the answer belongs to the session that has ended.
        """
        self.reports.clear()
        self.unsettled.mark_all_fresh()
        self.has_news.set()
        for generation in [g for g in self._running.values() if g.is_resumed and g.work is None]:
            self.forget(generation.unit)
        oldest = {unit: self._oldest_version(generation) for unit, generation in self._running.items()}
        oldest |= {item.unit: item.summary.oldest_version for item in self.unsettled}
        self._lease_ids = {unit: lease_id for unit, lease_id in self._lease_ids.items() if unit in oldest}
        permits = {unit: generation.lease.permit for unit, generation in self._running.items()}
        permits |= {item.unit: item.permit for item in self.unsettled}
        return [Held(unit, lease_id, oldest[unit], permits[unit]) for unit, lease_id in self._lease_ids.items()]

    def progress(self, *, only_turns: bool = False) -> list[PutItem]:
        """Unfinished trajectories that have new tokens since the last call; or only those with a new turn."""
        generations = [g for g in self._running.values() if g.has_turn or not only_turns]
        return [item for generation in generations if (item := self._progress(generation))]

    async def hand_over(self, *, is_swapping: Callable[[], bool] = lambda: False) -> None:
        """
        Stop sampling and move unfinished completions to ``unsettled``, for another node to resume.

        Args:
            is_swapping: True while new weights come to the engine, which is paused for them, and resumed after them.
        """
        try:
            await self._engine.pause()
            await asyncio.sleep(0)  # Completions that the engine has finished reach their tasks.
            for generation in list(self._running.values()):
                generation.num_put = 0
                if item := self._progress(generation):
                    self.unsettled.add(item)
                    self.has_news.set()
                del self._running[generation.unit]
                generation.task.cancel()
        finally:
            if not is_swapping():
                await self._engine.resume()  # Also after an error: the engine belongs to the host.
        self._has_changed()

    async def finish_running(self) -> None:
        """Hold back new work until `allow_starts`, and wait until the engine has finished what is running."""
        await self._gate.empty()

    async def wait_until_outside(self) -> None:
        """Wait until no request is in the engine, after users' requests have begun."""
        await self._until(lambda: self.calls.is_outside)

    def allow_starts(self) -> None:
        self._gate.open()

    def _has_changed(self) -> None:
        self.occupancy.mark("storing", is_active=bool(self.unsettled))
        self._changed.set()

    async def wait_until_settled(self) -> None:
        await self._until(lambda: not self._running and not self.unsettled)

    # ── one trajectory ──────────────────────────────────────────────────────────────────────────

    async def _generate(self, lease: Lease, unit: Unit, fetch_prefix: FetchPrefix | None) -> None:
        try:
            item = await self._sample(lease, unit, fetch_prefix)
        except EngineError as error:
            if self._on_failure:
                self._on_failure(error)
            at = {"group_id": unit.group_id, "index": unit.index, "lease_id": lease.lease_id}
            log.warning("generation.failed", **at, policy_version=self.policy_version, reason=str(error))
            is_overlong = isinstance(error, PromptTooLong)
            stage: Stage = "environment" if isinstance(error, EnvironmentFailed) else "rollout"
            self.num_failed[stage] += 1
            self.reports.append(Failed(unit, lease.lease_id, stage, str(error), error.retryable, is_overlong))
        else:
            failpoint("rollout.generated")
            self.unsettled.add(item)
        finally:
            if (generation := self._running.get(unit)) and generation.task is asyncio.current_task():
                del self._running[unit]
            self.has_news.set()
            self._has_changed()

    async def _sample(self, lease: Lease, unit: Unit, fetch_prefix: FetchPrefix | None) -> PutItem:
        prefix = await fetch_prefix() if fetch_prefix else None
        prompt_ids = self._encode(lease)
        images = await self._fetch_images(lease)
        generation = self._running[unit]
        generation.work = self._work(generation, prompt_ids, images, prefix)
        await self.users.until_idle()
        # A new turn need not pass the gate if whole trajectories do: the swap waits for those.
        async with self._gate.passing() if self._hold == "trajectory" else nullcontext():
            with self.occupancy.doing("environment") if self._episodes else nullcontext():
                return self._put_item(generation, await generation.work.run())

    def _work(
        self, generation: Generation, prompt_ids: list[int], images: tuple[bytes, ...], prefix: SampledTrajectory | None
    ) -> SingleCompletion | Episode:
        lease, unit = generation.lease, generation.unit
        sampling = _sampling(lease, unit.index)
        seed = None if lease.seed is None else lease.seed + unit.index
        if self._episodes is None:
            request = Request(
                prompt_ids=prompt_ids,
                sampling=sampling,
                seed=seed,
                resume_from=prefix.completion if prefix else None,
                priority=PRIORITY,
                images=images,
            )
            return SingleCompletion(self._engine, self.calls, request)
        return self._episodes.begin(
            unit,
            lease.prompt,
            prompt_ids,
            sample=self._sample_turn,
            written=self.calls.written,
            sampling=sampling,
            seed=seed,
            priority=PRIORITY,
            images=images,
            prefix=prefix,
            on_turn=partial(self._has_turn, generation),
            on_started_over=partial(self._started_over, generation),
        )

    async def _sample_turn(self, request: Request) -> Completion:
        async with self._gate.passing() if self._hold == "turn" else nullcontext():
            return await self.calls.complete(request)

    def _has_turn(self, generation: Generation) -> None:
        generation.has_turn = True
        self.has_news.set()

    def _started_over(self, generation: Generation, num_tokens: int, reason: str) -> None:
        generation.num_put = 0
        self.reports.append(StartedOver(generation.unit, generation.lease.lease_id, num_tokens, reason))
        self.has_news.set()

    def limits(self, lease: Lease, index: int) -> TrajectoryLimits:
        """Limits of a trajectory of a lease."""
        return limits_of(lease, index, self.token_ids, self._episodes.limits if self._episodes else None)

    def _put_item(self, generation: Generation, sampled: SampledTrajectory) -> PutItem:
        lease, unit = generation.lease, generation.unit
        episode = self._episodes.limits if self._episodes else None
        return to_put_item(lease, unit, sampled, node=self._node, token_ids=self.token_ids, episode=episode)

    def _encode(self, lease: Lease) -> list[int]:
        if self._encoded is None or self._encoded[0] is not lease:
            prompt = self._episodes.shown(lease.prompt) if self._episodes else lease.prompt
            prompt_ids = self._engine.encode(prompt)
            has_images = bool(lease.prompt.images)
            fitting = fit(prompt_ids, lease.max_prompt_tokens, lease.truncation, has_images=has_images)
            self._encoded = lease, fitting
        return self._encoded[1]

    async def _fetch_images(self, lease: Lease) -> tuple[bytes, ...]:
        if not lease.prompt.images:
            return ()
        try:
            return tuple(await self.images.fetch(lease.prompt.images, FETCH_IMAGES_S))
        except (DecodeError, TimeoutError) as error:
            reason = str(error) or f"no answer within {FETCH_IMAGES_S:g} s"
            raise EngineError(f"cannot fetch the pictures of the prompt: {reason}") from error

    def _progress(self, generation: Generation) -> PutItem | None:
        unit, written = generation.unit, self._written(generation)
        if written is None:
            return None
        num_tokens = len(written.completion.completion_ids)
        if num_tokens <= generation.num_put:
            return None
        try:
            item = self._put_item(generation, written)
        except EngineError as error:  # Skip it: the finished completion is checked on its own.
            log.warning("progress.unusable", group_id=unit.group_id, reason=str(error))
            return None
        generation.num_put, generation.has_turn = num_tokens, False
        return item

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.end_with(error)

    def _written(self, generation: Generation) -> SampledTrajectory | None:
        return generation.work.written() if generation.work else None

    def _oldest_version(self, generation: Generation) -> int:
        written = self._written(generation)
        spans = written.completion.spans if written else []
        return min((span.policy_version for span in spans), default=0 if written else self.policy_version)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def _sampling(lease: Lease, index: int) -> Sampling:
    if index not in lease.greedy:
        return lease.sampling
    plain = {"top_p": 1.0, "top_k": 0, "replay_mask": False, "replay_routes": False}
    return structs.replace(lease.sampling, temperature=0.0, **plain)
