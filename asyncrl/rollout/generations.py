"""
Trajectories of one rollout, from the lease until they are on disk.

    start ─▶ running: encode, pictures ─▶ engine.generate ─▶ unsettled ─▶ settled: forgotten
               │             ▲      │                 ▲
               │  users idle │      │ make_way: users' requests begin
               │             outside the engine, with the tokens so far
               └── hand_over ───────│─────────────────┘
                                    └─▶ failures ─▶ `Failed` to the broker

They outlive the link to the broker: sampling continues while the broker is away, and `begin_session` lists for the next
session all that is still running or unsettled.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct, structs

from asyncrl.actor.failpoints import reach
from asyncrl.actor.occupancy import Occupancy
from asyncrl.checks.vocabulary import vocab_size_of
from asyncrl.client.images import ImageCache
from asyncrl.errors import DecodeError, EngineError, PromptTooLong
from asyncrl.log import get_logger
from asyncrl.messages import Failed, Held, Lease, Leased, PutItem, Sampling, Unit
from asyncrl.rollout.engine import Completion, Engine, Request
from asyncrl.rollout.prompt_truncation import fit
from asyncrl.rollout.results import UnsettledResults, check_extends, to_put_item
from asyncrl.rollout.user_requests import UserRequests

log = get_logger()

FETCH_IMAGES_S = 60.0
"""Seconds to wait for the pictures of a prompt."""
PRIORITY = 1
"""`Request.priority` of rollouts, behind requests of users."""

FetchPrefix = Callable[[], Awaitable[Completion]]
"""Fetches the unfinished completion to resume from. Raises `EngineError`."""


class Generation(Struct, eq=False):
    unit: Unit
    lease: Lease
    task: asyncio.Task[None]
    is_resumed: bool
    request: Request | None = None
    """None until the prompt is encoded, and its prefix and pictures have arrived."""
    is_in_engine: bool = False
    is_interrupted: bool = False
    """Taken out of the engine for users' requests."""
    num_put: int = 0
    """Tokens put into the spool so far."""


class Generations:
    """Running and unsettled trajectories of one engine, which is borrowed. They make way for requests of ``users``."""

    def __init__(
        self,
        engine: Engine,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        users: UserRequests | None = None,
        on_failure: Callable[[EngineError], None] | None = None,
    ) -> None:
        self.users = users or UserRequests()
        self.images = ImageCache()
        """Pictures of the prompts, for all sessions; each connects it to its links."""
        self._engine = engine
        self._on_failure = on_failure
        self._node = node
        self._clock = clock
        self.vocab_size = vocab_size_of(engine)
        self.occupancy = Occupancy(clock)
        self.unsettled = UnsettledResults()
        self.failures: list[Failed] = []
        self.has_news = asyncio.Event()
        """Set when ``unsettled``, ``failures`` or ``fatal_error`` has something new; the reader clears it."""
        self.policy_version = -1
        """Version the engine decodes with; -1 before the first weights."""
        self.num_tokens = 0  # without resumed ones
        self.fatal_error: BaseException | None = None
        """An error other than `EngineError`: the engine cannot be used any more."""
        self._running: dict[Unit, Generation] = {}
        self._lease_ids: dict[Unit, int] = {}
        """Every running or unsettled trajectory; each uses one credit."""
        self._encoded: tuple[Lease, list[int]] | None = None
        """Lease and prompt ids of the last encoding: the indices of a lease share a prompt and start together."""
        self._num_generating = 0
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._changed = asyncio.Event()
        """Set when a generation ends or is settled: `_until` checks its condition again."""

    @property
    def num_in_hand(self) -> int:
        """Number of trajectories that are running or unsettled."""
        return len(self._lease_ids)

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
        self._changed.set()
        return self._lease_ids.pop(unit, None) is not None

    def holds(self, item: Leased) -> bool:
        """True if the trajectory is running or unsettled under exactly this lease."""
        return self._lease_ids.get(item.unit) == item.lease_id

    def settle_unfinished(self, item: Leased) -> None:
        self.unsettled.settle_unfinished(item)
        self._changed.set()

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
        self.users.watch(self.make_way)

    def make_way(self) -> None:
        """
        Take every request out of the engine with its tokens so far; it continues when the users are idle.

        One without new tokens may have ended just before: it is taken out in the next turn of the loop, if it has not.
        """
        self._interrupt(only_with_tokens=True)
        asyncio.get_running_loop().call_soon(self._interrupt)

    def _interrupt(self, *, only_with_tokens: bool = False) -> None:
        for generation in self._running.values():
            request = generation.request
            if request is None or not generation.is_in_engine or generation.is_interrupted or self.users.is_idle:
                continue
            try:
                written = self._engine.written(request)
            except Exception as error:  # noqa: BLE001  a host's engine may raise anything, here amid a user's request
                self.end_with(error)
                return
            if written and written is not request.resume_from:
                generation.request = structs.replace(request, resume_from=written)
            elif only_with_tokens:
                continue
            generation.is_interrupted = True
            generation.task.cancel()

    # ── change of session, node or weights ──────────────────────────────────────────────────────

    def begin_session(self) -> list[Held]:
        """
        Prepare for a new session with the broker, and list what is running or unsettled for its `Hello`.

        Failures are dropped: the broker leases every trajectory that is not listed anew. So are generations that still
        wait for their prefix, because the answer belongs to the session that has ended.
        """
        self.failures.clear()
        self.unsettled.mark_all_fresh()
        self.has_news.set()
        for generation in [g for g in self._running.values() if g.is_resumed and g.request is None]:
            self.forget(generation.unit)
        oldest = {unit: self._oldest_version(generation) for unit, generation in self._running.items()}
        oldest |= {item.unit: item.summary.oldest_version for item in self.unsettled}
        self._lease_ids = {unit: lease_id for unit, lease_id in self._lease_ids.items() if unit in oldest}
        return [Held(unit, lease_id, oldest[unit]) for unit, lease_id in self._lease_ids.items()]

    def progress(self) -> list[PutItem]:
        """Unfinished completions that have new tokens since the last call."""
        return [item for generation in self._running.values() if (item := self._progress(generation))]

    async def hand_over(self) -> None:
        """Stop sampling and move unfinished completions to ``unsettled``, for another node to resume."""
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
            await self._engine.resume()  # Also after an error: the engine belongs to the host.
        self._changed.set()

    async def finish_running(self) -> None:
        """Hold back new requests until `allow_starts`, and wait until the engine has finished the running ones."""
        self._may_start.clear()
        await self._until(lambda: not self._num_generating)

    async def wait_until_outside(self) -> None:
        """Wait until no request is in the engine, after `make_way`."""
        await self._until(lambda: not any(generation.is_in_engine for generation in self._running.values()))

    def allow_starts(self) -> None:
        self._may_start.set()

    async def wait_until_settled(self) -> None:
        await self._until(lambda: not self._running and not self.unsettled)

    # ── one trajectory ──────────────────────────────────────────────────────────────────────────

    async def _generate(self, lease: Lease, unit: Unit, fetch_prefix: FetchPrefix | None) -> None:
        self.occupancy.begin()
        try:
            item = await self._sample(lease, unit, fetch_prefix)
        except EngineError as error:
            if self._on_failure:
                self._on_failure(error)
            log.warning("generation.failed", group_id=unit.group_id, index=unit.index, reason=str(error))
            is_overlong = isinstance(error, PromptTooLong)
            self.failures.append(Failed(unit, lease.lease_id, "rollout", str(error), error.retryable, is_overlong))
        else:
            reach("rollout.generated")
            self.unsettled.add(item)
        finally:
            if (generation := self._running.get(unit)) and generation.task is asyncio.current_task():
                del self._running[unit]
            self.occupancy.end()
            self.has_news.set()
            self._changed.set()

    async def _sample(self, lease: Lease, unit: Unit, fetch_prefix: FetchPrefix | None) -> PutItem:
        prefix = await fetch_prefix() if fetch_prefix else None
        prompt_ids = self._encode(lease)
        images = await self._fetch_images(lease)
        generation = self._running[unit]
        generation.request = Request(
            prompt_ids=prompt_ids,
            sampling=_sampling(lease, unit.index),
            seed=None if lease.seed is None else lease.seed + unit.index,
            resume_from=prefix,
            priority=PRIORITY,
            images=images,
        )
        await self._until_idle()
        await self._may_start.wait()
        self._num_generating += 1
        try:
            request, completion = await self._complete(generation, generation.request)
        finally:
            self._num_generating -= 1
        if completion.finish_reason == "unfinished":  # It would be kept to be continued, which nobody does.
            raise EngineError("the engine ended a completion as unfinished")
        self.num_tokens += len(completion.completion_ids)
        if request.resume_from:
            check_extends(completion, request.resume_from)
        if prefix:
            self.num_tokens -= len(prefix.completion_ids)
        text = self._engine.decode(completion.completion_ids)
        return self._put_item(lease, unit, request, completion, text=text)

    async def _complete(self, generation: Generation, request: Request) -> tuple[Request, Completion]:
        """Completion of a request, and the request that continued it after the last interruption."""
        while True:
            await self._until_idle()
            generation.is_in_engine, generation.is_interrupted = True, False
            try:
                return request, await self._engine.generate(request)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                # Both may have happened: the interruption, and the end of the generation.
                if not generation.is_interrupted or task is None or task.uncancel():
                    raise
            finally:
                generation.is_in_engine = False
                self._changed.set()
            request = generation.request or request

    async def _until_idle(self) -> None:
        """Wait while users' requests are in hand, which does not count as work."""
        if not self.users.is_idle:
            self.occupancy.end()
            try:
                await self.users.until_idle()
            finally:
                self.occupancy.begin()

    def _put_item(self, lease: Lease, unit: Unit, request: Request, completion: Completion, *, text: str) -> PutItem:
        return to_put_item(
            lease, unit, request.prompt_ids, completion, text=text, node=self._node, vocab_size=self.vocab_size
        )

    def _encode(self, lease: Lease) -> list[int]:
        if self._encoded is None or self._encoded[0] is not lease:
            prompt_ids = self._engine.encode(lease.prompt)
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
        unit, request, written = generation.unit, generation.request, self._written(generation)
        if request is None or written is None:
            return None
        num_tokens = len(written.completion_ids)
        if num_tokens <= generation.num_put:
            return None
        try:
            item = self._put_item(generation.lease, unit, request, written, text="")
        except EngineError as error:  # Skip it: the finished completion is checked on its own.
            log.warning("progress.unusable", group_id=unit.group_id, reason=str(error))
            return None
        generation.num_put = num_tokens
        return item

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.end_with(error)

    def _written(self, generation: Generation) -> Completion | None:
        """Tokens so far, in the engine or outside; None if there are none."""
        request = generation.request
        return (self._engine.written(request) or request.resume_from) if request else None

    def _oldest_version(self, generation: Generation) -> int:
        written = self._written(generation)
        return min((span.policy_version for span in written.spans), default=0) if written else self.policy_version

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def _sampling(lease: Lease, index: int) -> Sampling:
    if index not in lease.greedy:
        return lease.sampling
    plain = {"top_p": 1.0, "top_k": 0, "replay_mask": False, "replay_routes": False}
    return structs.replace(lease.sampling, temperature=0.0, **plain)
