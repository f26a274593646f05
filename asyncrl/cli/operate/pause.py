"""`asyncrl pause` and `asyncrl resume-sampling`: no new leases for rollouts, until they are granted again."""

from asyncrl.cli.operate.session import operator
from asyncrl.client.run_address import RunAddress
from asyncrl.messages.supervisor import Pause, Paused

PAUSED = "paused: rollouts finish what they have and get no new leases; the trainer trains what is complete, then waits"
RESUMED = "sampling goes on: rollouts get leases again"


async def pause(run: RunAddress, *, is_paused: bool) -> str:
    """Pause a run, or let it go on; returns a sentence once that is on disk. Raises `LinkError` without an answer."""
    async with operator(run) as session:
        # A supervisor that joins a paused run is told that first.
        await session.ask(Pause(is_paused), Paused, is_answer=lambda told: told.is_paused == is_paused)
    return PAUSED if is_paused else RESUMED
