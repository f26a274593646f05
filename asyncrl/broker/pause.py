"""
The pause of sampling: whether an operator has paused it, and who.

    asyncrl pause RUN ─▶ no new leases, of training prompts or of an evaluation's ─▶ asyncrl resume-sampling RUN

Everything in hand goes on: rollouts finish their leases, rewards are graded, the trainer trains on the steps that this
completes and publishes their versions. Then rollouts and trainer wait, for as long as it takes: no deadline runs
meanwhile. The pause is in the ledger, so that a restarted broker keeps it.
"""


class PauseBook:
    def __init__(self) -> None:
        self.by = ""
        """Operator that paused the run; empty while it is not paused."""

    @property
    def is_set(self) -> bool:
        return bool(self.by)

    def set(self, *, is_paused: bool, by: str) -> None:
        self.by = (by or "an operator") if is_paused else ""
