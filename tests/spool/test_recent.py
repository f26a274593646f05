"""A bounded memory of what came last."""

from asyncrl.spool.recent import Recent


def test_the_oldest_leave_when_the_bytes_are_used_up() -> None:
    recent = Recent(max_bytes=10)

    for offset, size in enumerate((4, 4, 4)):
        recent.add(0, offset, memoryview(bytes(size)))

    assert recent.get(0, 0) is None
    assert recent.get(0, 1) == bytes(4)
    assert recent.get(0, 2) == bytes(4)


def test_a_payload_larger_than_everything_drives_nothing_out() -> None:
    recent = Recent(max_bytes=10)
    recent.add(0, 0, memoryview(b"small"))

    recent.add(0, 5, memoryview(bytes(11)))

    assert recent.get(0, 0) == b"small"
    assert recent.get(0, 5) is None


def test_bytes_of_forgotten_segments_are_free_again() -> None:
    recent = Recent(max_bytes=10)
    recent.add(0, 0, memoryview(bytes(10)))
    recent.drop_below(1)

    recent.add(1, 0, memoryview(b"a" * 5))
    recent.add(1, 5, memoryview(b"b" * 5))

    assert recent.get(0, 0) is None
    assert (recent.get(1, 0), recent.get(1, 5)) == (b"a" * 5, b"b" * 5)
