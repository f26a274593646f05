"""
An engine on devices that it shares with a trainer.

    sleep   running requests end, or leave the engine with their tokens ─▶ pause ─▶ the devices are free
    wake    the engine's memory comes back ─▶ resume ─▶ requests continue where they were
"""

from contextlib import ExitStack

from asyncrl.engine import Engine, SleepingEngine
from asyncrl.errors import ConfigError
from asyncrl.rollout.generations import Generations


class Sleeper:
    """Lets an engine sleep and wake. Both are borrowed; while it sleeps, it has no requests of ``generations``."""

    def __init__(self, engine: Engine, generations: Generations) -> None:
        self._engine = engine
        self._generations = generations
        self._others_turn = ExitStack()
        self.is_asleep = False

    async def sleep(self, *, finish: bool = False) -> int:
        """
        Free the devices, and return the number of bytes moved to host memory.

        Args:
            finish: Let running requests end first; otherwise they continue after `wake`.

        Raises:
            ConfigError: The engine cannot sleep.
        """
        engine = require_sleeping(self._engine)
        if self.is_asleep:
            return 0
        if finish:
            await self._generations.finish_running()
        self._others_turn.enter_context(self._generations.users.request())
        await self._generations.wait_until_outside()
        await self._engine.pause()
        num_bytes = await engine.sleep()
        self.is_asleep = True
        self._generations.occupancy.mark("asleep", is_active=True)
        return num_bytes

    async def wake(self) -> None:
        """Wake the engine on its devices, and let sampling continue."""
        await require_sleeping(self._engine).wake()
        await self._engine.resume()
        self.is_asleep = False
        self._generations.occupancy.mark("asleep", is_active=False)
        self._generations.allow_starts()
        self._others_turn.close()


def require_sleeping(engine: Engine) -> SleepingEngine:
    """Return the engine as one that can sleep; raises `ConfigError` if it cannot."""
    if not isinstance(engine, SleepingEngine):
        raise ConfigError(
            f"rollout.colocated needs an engine with the methods of asyncrl.engine.SleepingEngine, but "
            f"{type(engine).__name__} has no sleep and wake"
        )
    return engine
