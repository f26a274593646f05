"""Key-value store through which the members of a transfer group find each other; early requests are answered later."""


class Rendezvous:
    """Keeps the keys of the newest ``keep_groups`` groups."""

    def __init__(self, keep_groups: int = 8) -> None:
        self._keep_groups = keep_groups
        self._values: dict[str, dict[str, bytes]] = {}
        self._waiting: dict[tuple[str, str], list[str]] = {}

    def set(self, group: str, key: str, value: bytes) -> list[str]:
        """Store a value. Returns the peers that asked for it before."""
        self._values.setdefault(group, {})[key] = value
        while len(self._values) > self._keep_groups:
            oldest = next(iter(self._values))
            del self._values[oldest]
            self._waiting = {asked: peers for asked, peers in self._waiting.items() if asked[0] != oldest}
        return self._waiting.pop((group, key), [])

    def get(self, group: str, key: str, peer: str) -> bytes | None:
        """Value of a key; None if it is not set yet, and then ``peer`` is among those that `set` returns."""
        value = self._values.get(group, {}).get(key)
        if value is None:
            self._waiting.setdefault((group, key), []).append(peer)
        return value
