"""
Keys of a spool on its own machine.

    secret of the run   the keys that all hubs of the run derive from it
    key of the node     its own pair; the broker tells it which other keys may connect, see `broker_keys`
"""

from asyncrl.actor.sockets.curve import HubKeys, Owner, hub_keys_of
from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.client.run_address import RunAddress
from asyncrl.files.secret_file import is_secret, read_secret
from asyncrl.messages.spool import AcceptedKey


class SpoolKeys:
    """
    Keys with which a spool of ``run`` listens.

    Raises:
        ConfigError: The credentials cannot be read.
    """

    def __init__(self, run: RunAddress) -> None:
        self._owners: dict[bytes, Owner] = {}
        self.hub: HubKeys | None = None
        """None for a unix socket."""
        self.public = b""
        """Key that nodes must find at this spool; empty if the secret of the run gives it."""
        if run.credentials_file and is_secret(run.credentials_file):
            self.hub = hub_keys_of(read_secret(run.credentials_file))
        elif own := run.keys():
            self.hub = HubKeys(own.public, own.private, self._owners.get)
            self.public = own.public

    def accept(self, keys: list[AcceptedKey], hub: ZmqHub) -> None:
        """Let these keys connect to ``hub``, and cut the connections of all others."""
        before = dict(self._owners)
        self._owners.clear()
        self._owners.update({key.public: Owner(key.name, frozenset(key.roles)) for key in keys})
        if revoked := [public for public, owner in before.items() if self._owners.get(public) != owner]:
            hub.cut(revoked)
