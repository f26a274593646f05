"""
``python -m asyncrl.workers.reaper RUNTIME OWNER LINGER_S``: outlives a node, and removes the containers that it leaves.

    node ── stdin ─▶ reaper          "." ends it, if nothing is left; the end of the stream, or of the owner, begins it

Containers, volumes and networks go at once; again and again, because a client of the runtime that was cut off may
still finish what it began. Images of unfinished episodes are kept for LINGER_S, in which another node of this machine
may continue from them.
"""

import asyncio
import os
import select
import sys
import time

from asyncrl.errors import ContainerFailed
from asyncrl.workers.containers import EPISODE, OWNER, SAVED, Containers, Owned, is_dead, reap, runtime_of

LOOK_S = 0.5
"""Seconds between two looks at the owner."""
EVERY_S = 2.0
"""Seconds between two rounds of removal."""
GIVE_UP_S = 15.0
"""Seconds after LINGER_S for what a stuck runtime, or a container of another node, still holds."""


def main() -> None:
    runtime, owner, linger_s = sys.argv[1:]
    if os.fork():  # it is nobody's child: the node may end before it
        return
    is_over = wait_for_end(owner)
    asyncio.run(Reaper(runtime_of(runtime), owner, float(linger_s)).reap(is_over=is_over))


def wait_for_end(owner: str) -> bool:
    """Wait for the end of the owner; True if it has said that it is over."""
    while not is_dead(owner):
        if select.select([0], [], [], LOOK_S)[0]:
            return os.read(0, 1) == b"."
    return False


class Reaper:
    """Removes what one dead process owns."""

    def __init__(self, runtime: Containers, owner: str, linger_s: float) -> None:
        self._runtime = runtime
        self._owner = owner
        self._linger_s = linger_s
        self._said = ""
        self._ended_at = time.time()
        self._episodes: set[str] = set()
        """Episodes that the owner played. One that it continued may have an older image, of another dead owner."""

    async def reap(self, *, is_over: bool) -> None:
        """Remove all, within a minute; ``is_over``: nothing can be on its way any more."""
        lingers_until = time.monotonic() + self._linger_s
        while (now := time.monotonic()) < lingers_until + GIVE_UP_S:
            left = await self._round(with_images=now >= lingers_until)
            if not left and (is_over or now >= lingers_until):
                return
            await asyncio.sleep(EVERY_S)

    async def _round(self, *, with_images: bool) -> bool:
        """Remove once; True if something may be left."""
        held: list[Owned] = []

        def is_wanted(one: Owned) -> bool:
            owner, episode = one.labels[OWNER], one.labels.get(EPISODE, "")
            if owner == self._owner and episode:
                self._episodes.add(episode)
            if one.kind != "image":
                return owner == self._owner
            is_older = float(one.labels.get(SAVED, self._ended_at)) < self._ended_at
            is_ours = owner == self._owner or (episode in self._episodes and is_older and is_dead(owner))
            if is_ours and not with_images:
                held.append(one)
            return is_ours and with_images

        try:
            left = await reap(self._runtime, is_wanted)
        except ContainerFailed as error:
            left = [str(error)]
        if left and left[0] != self._said:
            self._said = left[0]
            sys.stderr.write(f"containers: {self._said}; it is tried again\n")
        return bool(left or held)


if __name__ == "__main__":
    main()
