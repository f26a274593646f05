"""
The run's spools: where they serve, which rollout stores with which, and which are away.

    joined ─▶ reachable ─ departed ─▶ away ── joined ─▶ reachable
                                    └─ after ``ttl_s``: lost, nobody waits for its payloads ── joined ─▶ reachable

A rollout gets the spool with the fewest rollouts, and keeps it while it is reachable; a spool that joins takes some
from the others. One that is barred serves what it has, and rollouts store with the others.
"""

from collections import defaultdict
from collections.abc import Iterable

from asyncrl.messages.spool import SpoolAddress, SpoolRef, SpoolSet


class SpoolBook:
    """Spools by name. One that never joined this broker is away only if `expect` names it."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._reachable: dict[str, SpoolAddress] = {}
        self._away_s: dict[str, float | None] = {}
        """Time since which each spool is away; None until the first `overdue`."""
        self._lost: dict[str, None] = {}
        self._barred: set[str] = set()
        self._own: dict[str, str] = {}
        """Spool of each rollout, by its peer; empty while there is none."""
        self._users: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """Rollouts of each spool, the newest last: no change may cost a look at all rollouts."""
        self.revision = 0
        """Number of changes that nodes are told."""

    @property
    def are_all_reachable(self) -> bool:
        """True if no spool is away or lost."""
        return not self._away_s and not self._lost

    def is_reachable(self, ref: SpoolRef) -> bool:
        """False if the spool of this payload is away or lost."""
        return ref.spool not in self._away_s and ref.spool not in self._lost

    def away(self, now_s: float) -> dict[str, float]:
        """Seconds for which each spool has been away, by name; those that are lost are left out."""
        return {name: 0.0 if since is None else now_s - since for name, since in self._away_s.items()}

    def expect(self, names: Iterable[str]) -> None:
        """Payloads of these spools are needed since an earlier life of the broker: each is away until it joins."""
        self._away_s.update({name: None for name in names if name not in self._reachable})

    def joined(self, spool: SpoolAddress) -> bool:
        """Note that a spool serves. True if it was away or lost."""
        was_away = spool.name in self._away_s or spool.name in self._lost
        self._away_s.pop(spool.name, None)
        self._lost.pop(spool.name, None)
        self._reachable[spool.name] = spool
        self._place()
        return was_away

    def departed(self, name: str, now_s: float) -> None:
        """Note that a spool is gone: its rollouts store with others."""
        if self._reachable.pop(name, None):
            self._away_s[name] = now_s
            self._place()

    def bar(self, name: str) -> None:
        """Let rollouts store with other spools, until `admit`."""
        self._barred.add(name)
        self._place()

    def admit(self, name: str) -> None:
        if name in self._barred:
            self._barred.remove(name)
            self._place()

    def overdue(self, now_s: float) -> list[str]:
        """Spools that have been away for ``ttl_s``. They are lost from now on."""
        if not self._away_s:
            return []
        self._away_s = {name: now_s if since is None else since for name, since in self._away_s.items()}
        late = [name for name, since in self._away_s.items() if since is not None and now_s - since >= self._ttl_s]
        for name in late:
            del self._away_s[name]
            self._lost[name] = None
            self.revision += 1
        return late

    def extend(self, seconds: float) -> None:
        """Wait longer, after ``seconds`` in which the broker could hear no spool."""
        self._away_s = {name: None if since is None else since + seconds for name, since in self._away_s.items()}

    def assign(self, peer: str) -> None:
        """Give a rollout that joined a spool to store with."""
        self._move(peer, self._least_used())

    def release(self, peer: str) -> None:
        """Forget the spool of a rollout that left."""
        if (name := self._own.pop(peer, None)) is not None:
            del self._users[name][peer]

    def told_to(self, peer: str) -> SpoolSet:
        """Spools to tell a node: where each serves, and which one it stores with."""
        return SpoolSet(list(self._reachable.values()), self._own.get(peer, ""), list(self._lost))

    def _place(self) -> None:
        """Give rollouts without a reachable spool another one, then even out the numbers."""
        self.revision += 1
        usable = self._usable
        for name in [name for name in self._users if name not in usable]:
            for peer in list(self._users[name]):
                self._move(peer, self._least_used())
        self._even_out()

    def _even_out(self) -> None:
        """Move as few rollouts as possible, the newest of a spool first, until no spool has two more than another."""
        while usable := self._usable:
            fewest, most = self._least_used(), max(usable, key=self._num_users)
            if self._num_users(most) - self._num_users(fewest) < 2:
                return
            self._move(next(reversed(self._users[most])), fewest)

    def _move(self, peer: str, name: str) -> None:
        self.release(peer)
        self._own[peer] = name
        self._users[name][peer] = None

    def _least_used(self) -> str:
        return min(self._usable, key=self._num_users, default="")

    @property
    def _usable(self) -> list[str]:
        """Spools to store with."""
        return [name for name in self._reachable if name not in self._barred] or list(self._reachable)

    def _num_users(self, name: str) -> int:
        return len(self._users[name])
