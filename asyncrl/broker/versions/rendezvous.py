"""Where the members of a weight group find each other: a key-value store that answers early askers later."""


class Rendezvous:
    """Keys of the newest groups; older groups are forgotten."""

    def __init__(self, keep_groups: int = 8) -> None:
        self._keep_groups = keep_groups
        self._values: dict[str, dict[str, bytes]] = {}
        self._waiting: dict[tuple[str, str], list[str]] = {}

    def set(self, group: str, key: str, value: bytes) -> list[str]:
        """Keep a value. Returns the peers who were waiting for it."""
        self._values.setdefault(group, {})[key] = value
        while len(self._values) > self._keep_groups:
            self._forget(next(iter(self._values)))
        return self._waiting.pop((group, key), [])

    def get(self, group: str, key: str, peer: str) -> bytes | None:
        """The value; None if it is not there yet, and then ``peer`` is remembered."""
        value = self._values.get(group, {}).get(key)
        if value is None:
            self._waiting.setdefault((group, key), []).append(peer)
        return value

    def _forget(self, group: str) -> None:
        del self._values[group]
        for waited in [waited for waited in self._waiting if waited[0] == group]:
            del self._waiting[waited]
