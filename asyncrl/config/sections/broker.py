"""Settings of the broker, the supervisor and trackers."""

from asyncrl.config.addresses import check_binds, check_host, is_reachable
from asyncrl.config.sections.section import Count, Natural, Positive, Section, listed
from asyncrl.errors import ConfigError
from asyncrl.wire.addresses import host_of, is_loopback, port_of, tcp


class Trackers(Section, frozen=True, kw_only=True):
    """Experiment trackers. Each runs in its own process and cannot stop the run."""

    use: list[str] = []
    """
    ``tensorboard``, ``wandb``, ``mlflow``, ``trackio``, or ``file.py:name``: a function that gives a tracker [logger].
    """
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
        return listed(self.bind)

    @property
    def spool_binds(self) -> list[str]:
        """Addresses of the bulk socket; none for a unix socket."""
        if named := listed(self.spool_bind):
            return named
        return [tcp(host, 0) for host in map(host_of, self.binds) if host] if self.serves_other_machines else []

    @property
    def serves_other_machines(self) -> bool:
        return bool(self.advertise) or not all(map(is_loopback, self.binds))

    def check_addresses(self) -> None:
        """Raise `ConfigError` if nodes could not reach the broker's sockets."""
        if not self.binds:
            raise ConfigError("broker.bind is empty: give an address to listen on, such as tcp://127.0.0.1:0")
        check_binds(self.binds, "broker.bind")
        check_binds(self.spool_binds, "broker.spool_bind")
        if self.spool_bind and not self.spool:
            raise ConfigError("broker.spool_bind is only read with broker.spool=true; remove it")
        if self.advertise:
            check_host(self.advertise, "broker.advertise")
            if not self.binds[0].startswith("tcp://"):
                raise ConfigError(f"broker.advertise is only read if broker.bind is a tcp address, not {self.bind!r}")
        if not self.serves_other_machines:
            return
        if len({port_of(address) for address in self.spool_binds if address.startswith("tcp://")}) > 1:
            raise ConfigError(f"broker.spool_bind is {self.spool_bind!r}: expected one port for all of its addresses")
        if self.spool_bind and not any(is_reachable(address, self.advertise) for address in self.spool_binds):
            raise ConfigError(
                f"broker.spool_bind is {self.spool_bind!r}, which no other machine reaches, but broker.bind is "
                f"{self.bind!r}: give an address like it, or leave spool_bind empty for a free port"
            )

    @property
    def exposed_addresses(self) -> list[str]:
        """Addresses of the broker and its spool that other machines may reach."""
        return [address for address in (*self.binds, *self.spool_binds) if not is_loopback(address)]

    def check_one_machine(self) -> None:
        """Raise `ConfigError` if other machines could reach the broker of `asyncrl run`, which has no keys."""
        if exposed := self.exposed_addresses:
            raise ConfigError(
                f"the broker of this run listens on {exposed[0]}, which needs keys: start and continue a run of "
                f"several machines with its services, or with asyncrl-node --role broker --keys DIR"
            )

    def check_heartbeats(self) -> None:
        """Raise `ConfigError` if a node would be suspected or lost before its next heartbeat."""
        if self.notice_s < 3 * self.beat_s:
            raise ConfigError(f"broker.notice_s is {self.notice_s:g} s, less than three beats of {self.beat_s:g} s")
        if self.node_ttl_s < self.notice_s:
            raise ConfigError(
                f"broker.node_ttl_s is {self.node_ttl_s:g} s, less than broker.notice_s = {self.notice_s:g} s: a node "
                f"would be declared lost before it is suspended"
            )


class Supervisor(Section, frozen=True, kw_only=True):
    """Restarts of child processes by ``asyncrl run``."""

    max_restarts: Natural = 5
    """Restarts of one process within ``window_s``; one more ends the run."""
    window_s: Positive = 300.0
    """Seconds over which restarts are counted."""
