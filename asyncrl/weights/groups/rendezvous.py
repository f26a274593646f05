"""Key-value store through which the members of a process group find each other; early requests are answered later."""

OVERHEAD_BYTES = 200
"""Added to the size of each value, so that many tiny ones are bounded too."""


class Rendezvous:
    """Keeps the keys of the newest ``keep_groups`` groups, up to ``max_bytes`` in all."""

    def __init__(self, keep_groups: int = 8, max_bytes: int = 64 << 20) -> None:
        self._keep_groups = keep_groups
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: dict[str, dict[str, bytes]] = {}
        self._waiting: dict[tuple[str, str], list[str]] = {}
        self._num_waiting = 0

    def problem_of(self, group: str, key: str, value: bytes) -> str:
        """Reason to refuse a value; empty if there is room for it. Process groups exchange some kilobytes."""
        size = self._bytes + _size(key, value) - self._stored(group, key)
        return f"the values of all groups would have {size} bytes" if size > self._max_bytes else ""

    def set(self, group: str, key: str, value: bytes) -> list[str]:
        """Store a value for which there is room. Returns the peers that asked for it before."""
        self._bytes += _size(key, value) - self._stored(group, key)
        self._values.setdefault(group, {})[key] = value
        while len(self._values) > self._keep_groups:
            self._forget(next(iter(self._values)))
        waiting = self._waiting.pop((group, key), [])
        self._num_waiting -= len(waiting)
        return waiting

    def get(self, group: str, key: str, peer: str) -> bytes | None:
        """
        Value of a key; None if it is not set yet, and then ``peer`` is among those that `set` returns.

        A request beyond the bound on all that wait is forgotten.
        """
        value = self._values.get(group, {}).get(key)
        if value is None and self._num_waiting * OVERHEAD_BYTES < self._max_bytes:
            self._waiting.setdefault((group, key), []).append(peer)
            self._num_waiting += 1
        return value

    def _forget(self, group: str) -> None:
        self._bytes -= sum(_size(key, value) for key, value in self._values.pop(group).items())
        self._waiting = {asked: peers for asked, peers in self._waiting.items() if asked[0] != group}
        self._num_waiting = sum(map(len, self._waiting.values()))

    def _stored(self, group: str, key: str) -> int:
        value = self._values.get(group, {}).get(key)
        return 0 if value is None else _size(key, value)


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value) + OVERHEAD_BYTES
