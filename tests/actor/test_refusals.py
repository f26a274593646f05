from structlog.testing import capture_logs

from asyncrl.actor.refusals import BURST_LINES, LINES_PER_S, Refusals


def test_a_flood_is_counted_in_full_and_fills_no_log() -> None:
    now_s = 0.0
    refusals = Refusals("frame.refused", lambda: now_s)
    with capture_logs() as logs:
        for second in range(10):
            now_s = float(second)
            for number in range(1000):
                refusals.count(peer="a", number=number)

    assert refusals.num == 10_000
    assert len(logs) == BURST_LINES + 9 * LINES_PER_S
    assert logs[0] == {"event": "frame.refused", "log_level": "warning", "peer": "a", "number": 0, "num_refused": 1}
    assert logs[-1]["num_refused"] == 9001
