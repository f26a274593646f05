"""Work that waits for a role nobody plays: said once per episode, so that nothing waits silently."""

from msgspec import Struct

from asyncrl.messages import Role

PATIENCE_S = 60.0


class Wait(Struct, frozen=True):
    """What waits for whom."""

    role: Role
    work: str
    """In words, with a number where there is one."""

    def sentence(self, waited_s: float) -> str:
        """For a person: who is missing, for how long, and what to do."""
        return (
            f"{self.work} wait, but no {self.role} node has been connected for {waited_s:g} s: "
            f"start one, or look at its log if it was started"
        )


class AbsenceBook:
    """Since when each role has been missing."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._since_s: dict[Role, float] = {}
        self._said: set[Role] = set()

    def overdue(self, waits: list[Wait], now_s: float) -> list[tuple[Wait, str]]:
        """
        Those of ``waits``, all there are now, that have lasted too long and were not said yet, each with its sentence.

        A wait that is not among them is over: the next one of that role is a new episode.
        """
        roles = {wait.role for wait in waits}
        self._since_s = {role: self._since_s.get(role, now_s) for role in roles}
        self._said &= roles
        late = [wait for wait in waits if now_s - self._since_s[wait.role] >= self._patience_s]
        fresh = [wait for wait in late if wait.role not in self._said]
        self._said.update(wait.role for wait in fresh)
        return [(wait, wait.sentence(now_s - self._since_s[wait.role])) for wait in fresh]
