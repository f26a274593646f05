"""
Faults of nodes: one that fails what its peers do not gets no more work for a while.

    attempts of a node ─▶ its share of faults beside the others' ─stands out─▶ barred for 30 s, 60 s, ... 30 min
             ▲                                                                       │ or let in by an operator
             └──────────────── on trial: its faults so far are forgotten ◀───────────┘

A fault of the run (a reward function that raises, prompts that are too long) is every node's, so no share stands out;
and the last node of a role that can work is never barred. A share is compared with that which a quarter of the others
stay below: several bad nodes do not hide each other. Nodes are known by name: a new process is the same node.

Who blames others falsely is found where the work is settled: `asyncrl.broker.leases.trajectories`.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from asyncrl.messages.words import Role

RECENT = 32
"""Attempts of a node that its share is of: few enough to see within seconds that it has begun to fail."""
ALL = (1 << RECENT) - 1
LEAST_FAULTS = 4
"""Least number of recent faults that bar a node, half as many of one on trial: fewer may be chance."""
LEAST_SHARE = 0.25
"""Least share of recent attempts that are faults: a node that fails more rarely gives more than it costs."""
TIMES_OTHERS = 3.0
"""A share stands out from one that is this many times smaller."""
LEAST_OTHERS = 8
"""Attempts of another node to be compared with it. Before any has so many, all `RECENT` of a node must be faults."""
QUARTER = 0.25
FEW_NODES, KEPT_S = 64, 1.0
"""Nodes from which on the share to compare with is worked out for all of them, and how often at most."""
PAUSE_S, LONGEST_PAUSE_S = 30.0, 1800.0
"""First and longest pause. It doubles each time, until `RECENT` attempts of which few fail."""
MAX_NODES = 10_000
"""Nodes that are remembered, those barred last longest."""


class BarredNode(Struct, frozen=True):
    """A node that gets no more work, and why."""

    name: str
    role: Role
    cause: str
    """Reason in a sentence: the node's share of faults, that of the others, and its last fault."""
    pause_s: float


class _Conduct(Struct):
    role: Role
    recent: int = 0
    """Bit field of recent attempts, the newest in the lowest bit; 1 is a fault."""
    number: int = 0
    """Recent attempts."""
    cause: str = ""
    """Last fault."""
    times: int = 0
    """Pauses lately."""

    @property
    def num_faults(self) -> int:
        return self.recent.bit_count()


class FaultBook:
    """Conduct of nodes by name. ``suspects`` are those whose last attempt was a fault, until they are judged."""

    def __init__(self) -> None:
        self._conduct: dict[str, _Conduct] = {}
        self._number: dict[Role, int] = {}
        """Recent attempts of all nodes of a role."""
        self._faults: dict[Role, int] = {}
        self._kept: dict[Role, tuple[float, float | None]] = {}
        """Time and value of the share to compare with, of many nodes."""
        self._until_s: dict[str, float] = {}
        """End of the pause of each node that is barred."""
        self.suspects: set[str] = set()
        self.total: dict[str, int] = {}
        """Faults of each node since the broker's start."""

    def attempted(self, name: str, role: Role, number: int = 1) -> None:
        """Count ``number`` attempts in which a node did what it was asked."""
        self._add(name, role, number, 0)

    def failed(self, name: str, role: Role, cause: str) -> None:
        """Count a fault: a node failed, or reported something impossible."""
        conduct = self._add(name, role, 1, 1)
        conduct.cause = cause
        self.total[name] = self.total.get(name, 0) + 1
        if name not in self._until_s:
            self.suspects.add(name)

    @property
    def has_barred(self) -> bool:
        return bool(self._until_s)

    def is_barred(self, name: str) -> bool:
        return name in self._until_s

    def cause(self, name: str) -> str:
        """Sentence about a node that is barred; empty if it is not."""
        return self._sentence(name, self._conduct[name]) if self.is_barred(name) else ""

    def judge(self, able: Mapping[str, Role], now_s: float) -> list[BarredNode]:
        """Bar the suspects whose faults stand out. ``able`` are the nodes that can work, by name."""
        suspects, self.suspects = self.suspects, set()
        left, barred = Counter(able.values()), list[BarredNode]()
        for name in sorted(suspects):
            conduct = self._conduct[name]
            if left[conduct.role] - (name in able) > 0 and self._stands_out(conduct, now_s):
                left[conduct.role] -= name in able
                pause_s = min(PAUSE_S * 2**conduct.times, LONGEST_PAUSE_S)
                conduct.times, self._until_s[name] = conduct.times + 1, now_s + pause_s
                barred.append(BarredNode(name, conduct.role, self._sentence(name, conduct), pause_s))
        return barred

    def ended(self, able: Mapping[str, Role], now_s: float) -> list[str]:
        """
        Nodes whose pause ends now: it is over, the others fail as often, or nobody else of the role can work.

        Each is on trial from here on.
        """
        roles = set(able.values())
        ended = [name for name in self._until_s if self._may_return(name, roles, now_s)]
        for name in ended:
            self.admit(name)
        return ended

    def admit(self, name: str) -> None:
        """Let a node in again, on trial."""
        conduct = self._conduct[name]
        self._count(conduct.role, -conduct.number, -conduct.num_faults)
        conduct.recent = conduct.number = 0
        del self._until_s[name]

    def _may_return(self, name: str, able: set[Role], now_s: float) -> bool:
        conduct = self._conduct[name]
        share = self._share_of_others(conduct, now_s)
        return (
            now_s >= self._until_s[name]
            or conduct.role not in able
            or (share is not None and not _is_worse(conduct, share))
        )

    def _stands_out(self, conduct: _Conduct, now_s: float) -> bool:
        share = self._share_of_others(conduct, now_s)
        if share is None:
            return conduct.num_faults == RECENT and not self._others(conduct)[1]
        least = LEAST_FAULTS // 2 if conduct.times else LEAST_FAULTS
        return conduct.num_faults >= least and _is_worse(conduct, share)

    def _share_of_others(self, conduct: _Conduct, now_s: float) -> float | None:
        """Share of faults that a quarter of the other nodes of a role stay below; None before any has tried enough."""
        if len(self._conduct) > FEW_NODES:
            kept_s, share = self._kept.get(conduct.role, (-KEPT_S, None))
            if now_s - kept_s >= KEPT_S:
                share = self._lower_quartile(conduct.role)
                self._kept[conduct.role] = now_s, share
            return share
        return self._lower_quartile(conduct.role, conduct)

    def _lower_quartile(self, role: Role, without: _Conduct | None = None) -> float | None:
        # One more fault, so that a short record without any proves little.
        shares = sorted(
            (other.num_faults + 1) / (other.number + 1)
            for other in self._conduct.values()
            if other.role == role and other is not without and other.number >= LEAST_OTHERS
        )
        return shares[int(QUARTER * (len(shares) - 1))] if shares else None

    def _others(self, conduct: _Conduct) -> tuple[int, int]:
        """Recent attempts of the other nodes of a role, and how many of them failed."""
        number, faults = self._number[conduct.role], self._faults[conduct.role]
        return number - conduct.number, faults - conduct.num_faults

    def _sentence(self, name: str, conduct: _Conduct) -> str:
        others, others_faults = self._others(conduct)
        return (
            f"{conduct.num_faults} of the last {conduct.number} attempts of {name} failed, and {others_faults} of "
            f"{others} of the other {conduct.role} nodes; the last one: {conduct.cause}"
        )

    def _add(self, name: str, role: Role, number: int, fault: int) -> _Conduct:
        if (conduct := self._conduct.get(name)) is None:
            if len(self._conduct) >= MAX_NODES:
                self._forget()
            conduct = self._conduct[name] = _Conduct(role)
        if not (conduct.recent or fault) and conduct.number == RECENT and not conduct.times:
            return conduct  # Nothing but successes, as ever.
        before, had = conduct.number, conduct.num_faults
        conduct.recent = ((conduct.recent << min(number, RECENT)) | fault) & ALL
        conduct.number = min(before + number, RECENT)
        self._count(role, conduct.number - before, conduct.num_faults - had)
        is_on_trial = conduct.times and name not in self._until_s
        if is_on_trial and conduct.number == RECENT and conduct.num_faults < LEAST_SHARE * RECENT:
            conduct.times = 0
        return conduct

    def _count(self, role: Role, number: int, faults: int) -> None:
        self._number[role] = self._number.get(role, 0) + number
        self._faults[role] = self._faults.get(role, 0) + faults

    def _forget(self) -> None:
        """Forget the node that is known longest and is not barred."""
        name = next((one for one in self._conduct if one not in self._until_s), next(iter(self._conduct)))
        conduct = self._conduct.pop(name)
        self._until_s.pop(name, None)
        self._count(conduct.role, -conduct.number, -conduct.num_faults)
        self.total.pop(name, None)
        self.suspects.discard(name)


def _is_worse(conduct: _Conduct, share: float) -> bool:
    """True if a node fails so much more often than ``share`` that this is its own."""
    own = conduct.num_faults / max(conduct.number, 1)
    return own >= LEAST_SHARE and own > TIMES_OTHERS * share
