"""The newest payloads, kept in memory up to a number of bytes, so that a fetch right after a put reads no disk."""

from collections import deque


class Recent:
    """
    First in, first out: payloads are fetched soon after they come (reward) or much later (trainer).

    A payload is a view into the message it came in, and keeps all of that message alive. Payloads of one message come
    and go together, so the bytes counted here are nearly the bytes held.

    One thread may `add` and `drop_below` while others `get`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._payloads: dict[tuple[int, int], memoryview] = {}
        self._order: deque[tuple[int, int]] = deque()

    def add(self, segment: int, offset: int, payload: memoryview) -> None:
        """Keep ``payload``, borrowed from here on, in place of the oldest ones."""
        if payload.nbytes > self._max_bytes:
            return
        self._payloads[segment, offset] = payload
        self._order.append((segment, offset))
        self._bytes += payload.nbytes
        while self._bytes > self._max_bytes:
            self._forget_oldest()

    def get(self, segment: int, offset: int) -> memoryview | None:
        """The payload at this place, if it is still here."""
        return self._payloads.get((segment, offset))

    def drop_below(self, segment: int) -> None:
        """Forget the payloads of older segments."""
        while self._order and self._order[0][0] < segment:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        self._bytes -= self._payloads.pop(self._order.popleft()).nbytes
