"""The links of a node that was welcomed to a run."""

from msgspec import Struct

from asyncrl.actor.link import Link
from asyncrl.client.handshake import Identity
from asyncrl.client.spools import SpoolLinks


class Connection(Struct, frozen=True, eq=False):
    """A node's place in a run: its identity and its links. Whoever made the link to the broker closes it."""

    identity: Identity
    broker: Link
    """Control messages; small, never behind bulk data."""
    spools: SpoolLinks
    """Payloads: trajectories to and from the spools. The actor runs it."""
