"""Settings of the broker, the supervisor and trackers."""

from asyncrl.config.addresses import host_of, is_loopback, tcp
from asyncrl.config.sections.section import Count, Natural, Positive, Section


class Trackers(Section, frozen=True, kw_only=True):
    """Experiment trackers. Each runs in its own process and cannot stop the run."""

    use: list[str] = []
    """``tensorboard``, ``wandb``, ``mlflow``, or ``file.py:name``: a function that returns a tracker [logger]."""
    options: dict[str, dict[str, str | int | float | bool | list[str]]] = {}
    """Options of each tracker by its name, such as ``wandb.mode = "offline"``."""
    timeout_s: Positive = 60.0
    """Seconds for one call of a tracker; a longer one ends its process, which is restarted."""


class Broker(Section, frozen=True, kw_only=True):
    """Addresses, heartbeats and storage of the broker."""

    bind: str | list[str] = "tcp://127.0.0.1:0"
    """
    Address of the control socket, or several; ``tcp://*:PORT`` listens on every interface. Port 0 takes a free one, the
    same for all addresses.
    """
    spool: bool = True
    """Host a spool in the broker's process. False needs at least one ``asyncrl-node --role spool``."""
    spool_bind: str | list[str] = ""
    """
    Address of the bulk socket of the spool in the broker's process, or several with one port. Empty takes a free port
    of the hosts in ``bind`` if other machines reach them, and a unix socket otherwise.
    """
    spool_ttl_s: Positive = 600.0
    """
    Seconds without a spool after which nobody waits for its payloads: groups that need them are sampled again, and are
    left out of the steps that took them.
    """
    advertise: str = ""
    """Host name or address at which all nodes reach this machine; empty takes the one at which each node did."""
    beat_s: Positive = 0.5
    """Seconds between two heartbeats of a node. Models compute in threads, so that a long computation delays none."""
    notice_s: Positive = 2.0
    """
    Seconds without a heartbeat after which a node gets no new leases until its next one; logged as an event. Weight
    transfers go on without it, and its leases may go to others while the trainer waits.
    """
    node_ttl_s: Positive = 10.0
    """Seconds without a heartbeat after which a node is lost and its leases go to other nodes."""
    stall_s: Positive = 20.0
    """
    Seconds after which a node is stalled that beats, and neither computes nor makes progress with its work (tokens,
    micro-batches): an event tells what it does, it gets no new leases, and others take over what it holds.
    """
    stall_limit_s: Positive = 600.0
    """
    Seconds without progress after which a node ends itself with that cause, whether it computes or not, so that whoever
    started it starts it again. Longer than the longest decode step or micro-batch.
    """
    segment_bytes: Count = 256 << 20
    """Bytes at which a spool segment is closed."""
    samples: bool = True
    """Write every consumed trajectory to ``samples/``."""

    @property
    def binds(self) -> list[str]:
        """Addresses of the control socket."""
        return _listed(self.bind)

    @property
    def spool_binds(self) -> list[str]:
        """Addresses of the bulk socket; none for a unix socket."""
        if named := _listed(self.spool_bind):
            return named
        return [tcp(host, 0) for host in map(host_of, self.binds) if host] if self.serves_other_machines else []

    @property
    def serves_other_machines(self) -> bool:
        return bool(self.advertise) or not all(map(is_loopback, self.binds))


class Supervisor(Section, frozen=True, kw_only=True):
    """Restarts of child processes by ``asyncrl run``."""

    max_restarts: Natural = 5
    """Restarts of one process within ``window_s``; one more ends the run."""
    window_s: Positive = 300.0
    """Seconds over which restarts are counted."""


def _listed(values: str | list[str]) -> list[str]:
    return [value for value in ([values] if isinstance(values, str) else values) if value]
