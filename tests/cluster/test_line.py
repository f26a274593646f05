"""Frames cross a line late, in order and at its rate; some are lost."""

import pytest

from tests.cluster.line import Conditions, Line

FRAME = bytes(1250)  # 10,000 bits


def test_a_frame_arrives_after_its_transmission_and_the_delay() -> None:
    line = Line(Conditions(delay_s=0.05, rate_bits_s=1e6), seed=0)
    line.push(FRAME, now_s=1.0)

    assert line.next_s == pytest.approx(1.06)
    assert line.pop(1.0599) == []
    assert line.pop(1.0601) == [FRAME]
    assert line.next_s is None


def test_frames_keep_their_order() -> None:
    line = Line(Conditions(delay_s=0.05), seed=0)
    frames = [bytes([i]) * (1 + 100 * (i % 3)) for i in range(50)]
    for i, frame in enumerate(frames):
        line.push(frame, now_s=i * 1e-4)

    assert line.pop(now_s=1.0) == frames


def test_frames_cross_at_the_rate_however_fast_they_are_pushed() -> None:
    line = Line(Conditions(rate_bits_s=1e6), seed=0)
    for _ in range(100):
        line.push(FRAME, now_s=0.0)

    assert len(line.pop(now_s=0.5)) == pytest.approx(50, abs=1)
    assert len(line.pop(now_s=1.001)) == pytest.approx(50, abs=1)


def test_an_idle_line_saves_no_rate_for_later() -> None:
    line = Line(Conditions(rate_bits_s=1e6), seed=0)
    for _ in range(100):
        line.push(FRAME, now_s=60.0)

    assert len(line.pop(now_s=60.5)) == pytest.approx(50, abs=1)


def test_frames_beyond_the_queue_are_dropped_until_it_has_room() -> None:
    line = Line(Conditions(rate_bits_s=1e6, queue_bytes=10 * len(FRAME)), seed=0)
    for _ in range(30):
        line.push(FRAME, now_s=0.0)
    assert line.overflowed == pytest.approx(19, abs=1)

    line.push(FRAME, now_s=0.1)
    line.pop(now_s=10.0)
    assert line.carried + line.overflowed == 31


def test_the_share_of_lost_frames_is_that_of_the_conditions_and_the_same_for_a_seed() -> None:
    def lost(seed: int) -> int:
        line = Line(Conditions(loss=0.01), seed)
        for i in range(100_000):
            line.push(b"x", now_s=float(i))
        return line.lost

    assert lost(0) == pytest.approx(1000, rel=0.15)
    assert lost(0) == lost(0) != lost(1)
