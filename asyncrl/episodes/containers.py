"""
Containers of a rollout's episodes: leased one by one, some of them kept warm, and none outlives its episode.

    start ─▶ warm ─▶ leased by an episode ─▶ removed            a container is never used twice
                          │ after a turn
                          └─▶ snapshot: an image ─▶ leased from it, by another attempt on this machine

A lease belongs to one attempt at an episode, not to the worker that runs it: a killed worker takes nothing with it. Of
a killed node the reaper removes everything (`asyncrl.workers.reaper`), and whoever comes next on this machine.
"""

import asyncio
import os
import re
import secrets
import time
from collections.abc import Coroutine
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl import plug_in
from asyncrl.config.sections.environment import ROW, ContainerSettings
from asyncrl.episodes.environment import EnvironmentDiverged, TaskInput
from asyncrl.errors import ConfigError, ContainerFailed, EnvironmentFailed
from asyncrl.log import get_logger
from asyncrl.messages.session import ContainerCounts
from asyncrl.workers.child import module_command
from asyncrl.workers.containers import (
    EPISODE,
    LINGER_S,
    NODE,
    OWNER,
    RUN,
    SAVED,
    SETTING,
    Containers,
    Owned,
    chosen,
    is_dead,
    is_left,
    owner_of,
    reap,
    runtime_of,
)

log = get_logger()

AT_ONCE = 8
"""Calls of the runtime at a time: each is a process of its own, and more only wait in the runtime."""
TRIES = 3
"""Attempts to start a container, and to remove one."""
PAUSE_S = 1.0
"""Seconds between them, and after a warm container could not be started."""
CLOSE_S = 60.0
"""Seconds to remove all containers at the end; the reaper removes what is left."""
KEPT = 3
"""Snapshots of an episode that are kept: the last turns may not be stored yet when their node is killed."""


WARM = "warm"
"""Stands for the episode in the name of a container that has none yet."""


class ContainerState(Struct, frozen=True):
    """State of an episode with a container, as it is stored with its turns."""

    image: str
    """Snapshot of the container; empty without one."""
    state: bytes
    """The environment's own."""


class ContainerLease(Struct):
    """A container that one attempt at an episode has for itself."""

    name: str
    episode: str
    since_s: float
    images: list[str] = []
    """Names of its snapshots, the newest last."""


class ContainerPool:
    """
    All containers of a node.

    Example:
        async with ContainerPool(config.environment.container, "my-run", "rollout-0") as pool:
            lease = await pool.lease(task)
            ...
            pool.release(lease)
    """

    def __init__(self, settings: ContainerSettings, run_id: str, node: str) -> None:
        self._settings = settings
        self._as_dict = msgspec.structs.asdict(settings)
        self._run_id = run_id
        self._node = node
        self._owner = owner_of(os.getpid())
        self._labels = {OWNER: self._owner, RUN: run_id, NODE: node}
        self._free = asyncio.Semaphore(AT_ONCE)
        self._warm: list[str] = []
        self._is_taken = asyncio.Event()
        self._warming: asyncio.Task[None] | None = None
        self._leases: dict[str, ContainerLease] = {}
        self._prepared: dict[str, asyncio.Task[None]] = {}
        """Images that are here or on their way."""
        self._lingering: dict[str, asyncio.Task[None]] = {}
        """Removal of the snapshots of an episode that is played no more, by its name."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaper = -1
        """Pipe to the reaper, which acts when it ends."""
        self._is_closed = False
        self.runtime = ""
        """The runtime as workers are told it; set by `start`."""
        self.num_started = 0
        self.num_failed = 0
        """Containers so far that could not be started."""
        self._seconds = 0.0
        self._containers: Containers

    async def start(self) -> None:
        """
        Find the runtime, remove what dead nodes have left, fetch the image, and start the warm containers.

        Raises:
            ConfigError: There is no runtime, or it has no such image and cannot get it.
        """
        await self.find()
        await self._sweep()
        await self._start_reaper()
        if self._settings.image != ROW:
            try:
                await self._have(self._settings.image, "")
            except ContainerFailed as error:
                raise ConfigError(f"environment.container.image is {self._settings.image!r}: {error}") from error
        if self._settings.warm:
            self._warming = asyncio.create_task(self._keep_warm())

    async def find(self) -> str:
        """Find the runtime and describe it; raises `ConfigError` without one."""
        self.runtime = await chosen(self._settings.runtime)
        self._containers = runtime_of(self.runtime)
        if self._containers.program:
            plug_in.require_program(self._containers.program, setting=SETTING)
        return await self._containers.check()

    @property
    def label(self) -> str:
        """``KEY=VALUE`` of what ends with this node."""
        return f"{OWNER}={self._owner}"

    @property
    def counts(self) -> ContainerCounts:
        """Numbers of this moment."""
        now, leases = time.monotonic(), self._leases.values()
        return ContainerCounts(
            leased=len(leases),
            warm=len(self._warm),
            oldest_s=max((now - lease.since_s for lease in leases), default=0.0),
            started=self.num_started,
            failed=self.num_failed,
            seconds=self._seconds + sum(now - lease.since_s for lease in leases),
        )

    async def lease(self, task: TaskInput, image: str = "") -> ContainerLease:
        """
        Give an episode a container, from a snapshot if ``image`` names one.

        Raises:
            EnvironmentFailed: None could be started, or the row names no image.
            EnvironmentDiverged: The snapshot is not on this machine.
        """
        if self._is_closed:
            raise EnvironmentFailed("the containers of this rollout were closed")
        if lingering := self._lingering.pop(task.name, None):
            lingering.cancel()
        try:
            lease = await (self._restored(task.name, image) if image else self._fresh(task))
        except ContainerFailed as error:
            raise EnvironmentFailed(f"the episode has no container: {error}", is_lost=bool(image)) from error
        self._leases[lease.name] = lease
        return lease

    async def snapshot(self, lease: ContainerLease) -> str:
        """
        Save the files of a container, and return the name of the image.

        Raises:
            EnvironmentFailed: It could not be saved; the episode is lost with its container.
        """
        number = int(lease.images[-1].rpartition(":")[2]) + 1 if lease.images else 1
        image = f"localhost/asyncrl-snapshot-{self._digest(lease.episode)}:{number}"
        try:
            await self._save(lease, image)
        except ContainerFailed as error:
            raise EnvironmentFailed(f"the container was lost: {error}", is_lost=True) from error
        while len(lease.images) > KEPT:
            self._spawn(self._discard("image", lease.images.pop(0)))
        return image

    def release(self, lease: ContainerLease) -> None:
        """Remove a container; its snapshots linger, for an attempt that continues the episode."""
        if self._leases.pop(lease.name, None) is None:
            return
        self._seconds += time.monotonic() - lease.since_s
        self._spawn(self._discard("container", lease.name))
        if lease.images:
            self._lingering[lease.episode] = asyncio.create_task(self._forget(lease.episode))

    async def aclose(self) -> None:
        """Remove all containers; the reaper removes the snapshots, and what is not removed in time. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._warming:
            self._warming.cancel()
            await asyncio.wait([self._warming])
        for lease in list(self._leases.values()):
            self.release(lease)
        for task in (*self._lingering.values(), *self._prepared.values()):
            task.cancel()
        while self._warm:
            self._spawn(self._discard("container", self._warm.pop()))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        for task in self._tasks:
            task.cancel()
        if self._reaper >= 0:
            with suppress(BrokenPipeError):  # it was killed
                os.write(self._reaper, b".")
            os.close(self._reaper)

    async def __aenter__(self) -> "ContainerPool":
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ── containers ──────────────────────────────────────────────────────────────────────────

    async def _fresh(self, task: TaskInput) -> ContainerLease:
        image, build = self._settings.image, ""
        if image == ROW:
            image, build = _image_of(task)
        elif self._warm:
            name = self._warm.pop()
            self._is_taken.set()
            new = self._name(task.name)
            try:
                await self._containers.rename(name, new)
                return ContainerLease(new, task.name, time.monotonic())
            except ContainerFailed:  # it has ended, or is gone
                self._spawn(self._discard("container", name))
                self._spawn(self._discard("container", new))
        await self._have(image, build)
        return ContainerLease(await self._started(task.name, image), task.name, time.monotonic())

    async def _restored(self, episode: str, image: str) -> ContainerLease:
        if not await self._containers.has(image):
            raise _not_here(image)
        try:
            lease = ContainerLease(await self._started(episode, image), episode, time.monotonic(), [image])
        except ContainerFailed:
            if not await self._containers.has(image):  # a reaper took it meanwhile
                raise _not_here(image) from None
            raise
        try:
            await self._save(lease, image)  # by the same name: from now on it belongs to this process
        except BaseException:
            self._spawn(self._discard("container", lease.name))
            raise
        return lease

    async def _started(self, episode: str, image: str) -> str:
        """Start a container, and return its name; `TRIES` times."""
        for _ in range(TRIES - 1):
            try:
                return await self._start_one(episode, image)
            except ContainerFailed as error:
                log.warning("container.not_started", episode=episode, reason=str(error))
            await asyncio.sleep(PAUSE_S)
        return await self._start_one(episode, image)

    async def _start_one(self, episode: str, image: str) -> str:
        name, labels = self._name(episode), self._labels | ({EPISODE: episode} if episode != WARM else {})
        try:
            async with self._free:
                await self._containers.start(name, image, self._as_dict, labels)
        except BaseException as error:
            self.num_failed += isinstance(error, ContainerFailed)
            self._spawn(self._discard("container", name))  # a client that was cut off may have started it
            raise
        self.num_started += 1
        return name

    async def _save(self, lease: ContainerLease, image: str) -> None:
        if image not in lease.images:  # before it is made: a client that is killed in mid-call may have made it
            lease.images.append(image)
        labels = {EPISODE: lease.episode, SAVED: f"{time.time():.3f}"}
        async with self._free:
            await self._containers.snapshot(lease.name, image, labels)

    async def _keep_warm(self) -> None:
        while True:
            while len(self._warm) < self._settings.warm:
                with suppress(ContainerFailed):  # which is logged, and tried again
                    self._warm.append(await self._started(WARM, self._settings.image))
            await self._is_taken.wait()
            self._is_taken.clear()

    async def _have(self, image: str, build: str) -> None:
        """Have an image here; episodes that want the same one wait for one fetch."""
        known = self._prepared.get(image)
        if known is None or (known.done() and (known.cancelled() or known.exception())):
            known = self._prepared[image] = asyncio.create_task(self._containers.prepare(image, build))
        await asyncio.shield(known)

    # ── removal ─────────────────────────────────────────────────────────────────────────────

    async def _start_reaper(self) -> None:
        reader, self._reaper = os.pipe()
        command = module_command("asyncrl.workers.reaper", self.runtime, self._owner, str(LINGER_S))
        try:
            starter = await asyncio.create_subprocess_exec(
                *command, stdin=reader, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
            )
            await starter.wait()
        finally:
            os.close(reader)

    async def _sweep(self) -> None:
        """Remove what dead processes have left on this machine."""
        try:
            left = await reap(self._containers, lambda one: is_left(one, time.time()))
        except ContainerFailed as error:
            left = [str(error)]
        for reason in left:
            log.warning("container.left_behind", reason=reason)

    async def _discard(self, kind: str, id: str) -> None:  # noqa: A002
        """Remove one, or leave it to the reaper."""
        for tried in range(1, TRIES + 1):
            try:
                async with self._free:
                    await self._containers.remove(kind, id)
            except ContainerFailed as error:
                if tried == TRIES and kind != "image":  # one that a container was restored from goes after it
                    log.warning("container.not_removed", kind=kind, id=id, reason=str(error))
                await asyncio.sleep(PAUSE_S)
            else:
                return

    async def _forget(self, episode: str) -> None:
        """Remove the snapshots of an episode, unless it is continued meanwhile."""
        await asyncio.sleep(LINGER_S)
        self._lingering.pop(episode, None)

        def is_ours(one: Owned) -> bool:
            owner = one.labels[OWNER]
            is_its_image = one.kind == "image" and one.labels.get(EPISODE) == episode
            return is_its_image and (owner == self._owner or is_dead(owner))

        with suppress(ContainerFailed):  # what is left is removed after the next episode, or by the reaper
            await reap(self._containers, is_ours)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _digest(self, episode: str) -> str:
        return sha256(f"{self._run_id} {episode}".encode()).hexdigest()[:16]

    def _name(self, episode: str) -> str:
        """A name for people, which no other container has."""
        return f"asyncrl-{re.sub('[^a-zA-Z0-9_.]+', '-', episode)[:80]}-{secrets.token_hex(4)}"


def _not_here(image: str) -> EnvironmentDiverged:
    return EnvironmentDiverged(f"the snapshot {image} of its container is not on this machine")


def _image_of(task: TaskInput) -> tuple[str, str]:
    """Image of a row, and the folder that it is built from if there is one."""
    image, build = task.extra.get("container_image"), task.extra.get("container_build")
    if isinstance(image, str) and image:
        return image, build if isinstance(build, str) else ""
    raise EnvironmentFailed(
        "environment.container.image is 'row', but the row has no extra.container_image, expected the name of an image",
        retryable=False,
    )


async def reap_run(settings: ContainerSettings, run_id: str) -> list[str]:
    """
    Remove everything of a run that is over.

    Returns:
        A sentence for each that is still there.
    """
    try:
        containers = runtime_of(await chosen(settings.runtime))
        return await reap(containers, lambda one: one.labels.get(RUN) == run_id and is_dead(one.labels[OWNER]))
    except (ConfigError, ContainerFailed) as error:
        return [str(error)]
