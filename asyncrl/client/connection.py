"""The two links of a node that was welcomed to a run."""

from msgspec import Struct

from asyncrl.actor.link import Link
from asyncrl.client.handshake import Identity


class Connection(Struct, frozen=True, eq=False):
    """A node's place in a run: its identity and its links. Whoever made the links closes them."""

    identity: Identity
    broker: Link
    """Control messages; small, never behind bulk data."""
    spool: Link
    """Payloads: trajectories to and from the spool."""
