"""Eviction of the payload cache."""

from asyncrl.spool.payload_cache import COPIED_BYTES, ENTRY_BYTES, PayloadCache


def cached(cache: PayloadCache, segment: int, offset: int) -> bytes | None:
    payload = cache.get(segment, offset)
    return None if payload is None else bytes(payload)


def test_the_oldest_leave_when_the_bytes_are_used_up() -> None:
    cache = PayloadCache(max_bytes=2 * (4 + ENTRY_BYTES))

    for offset, size in enumerate((4, 4, 4)):
        cache.add(0, offset, memoryview(bytes(size)))

    assert cache.get(0, 0) is None
    assert cached(cache, 0, 1) == bytes(4)
    assert cached(cache, 0, 2) == bytes(4)


def test_a_payload_larger_than_the_cache_evicts_nothing() -> None:
    cache = PayloadCache(max_bytes=10 + ENTRY_BYTES)
    cache.add(0, 0, memoryview(b"small"))

    cache.add(0, 5, memoryview(bytes(11)))

    assert cached(cache, 0, 0) == b"small"
    assert cache.get(0, 5) is None


def test_bytes_of_forgotten_segments_are_free_again() -> None:
    cache = PayloadCache(max_bytes=2 * (5 + ENTRY_BYTES))
    cache.add(0, 0, memoryview(bytes(10)))
    cache.drop_below(1)

    cache.add(1, 0, memoryview(b"a" * 5))
    cache.add(1, 5, memoryview(b"b" * 5))

    assert cache.get(0, 0) is None
    assert (cached(cache, 1, 0), cached(cache, 1, 5)) == (b"a" * 5, b"b" * 5)


def test_a_small_payload_keeps_no_buffer_of_its_message_alive() -> None:
    """libzmq receives many small messages into one buffer, which each view would keep."""
    cache, message = PayloadCache(max_bytes=1 << 20), bytes(2 * COPIED_BYTES)
    cache.add(0, 0, memoryview(message)[:300])
    cache.add(0, 300, memoryview(message)[300 : 300 + COPIED_BYTES])

    small, large = cache.get(0, 0), cache.get(0, 300)
    assert small is not None
    assert large is not None
    assert small.obj is not message
    assert large.obj is message
