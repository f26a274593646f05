from structlog.testing import capture_logs

from asyncrl.wire.refusals import BURST_LINES, LINES_PER_S, Allowance, Refusals


def taken(allowance: Allowance, key: str, now_s: float, asked: int) -> int:
    return sum(allowance.take(key, now_s) for _ in range(asked))


def test_a_burst_is_allowed_and_no_more_until_time_has_passed() -> None:
    allowance = Allowance(per_s=10, burst=50)
    assert taken(allowance, "a", 0.0, 1000) == 50
    assert taken(allowance, "a", 0.1, 1000) == 1


def test_the_rate_holds_for_ever_and_not_more() -> None:
    allowance = Allowance(per_s=10, burst=50)
    assert sum(taken(allowance, "a", second / 10, 5) for second in range(1000)) == 50 + 999


def test_a_rest_saves_no_more_than_a_burst() -> None:
    allowance = Allowance(per_s=10, burst=50)
    assert taken(allowance, "a", 0.0, 1000) == 50
    assert taken(allowance, "a", 1e6, 1000) == 50


def test_keys_have_allowances_of_their_own() -> None:
    allowance = Allowance(per_s=10, burst=50)
    assert taken(allowance, "a", 0.0, 1000) == 50
    assert taken(allowance, "b", 0.0, 20) == 20


# ── test refusals ─────────────────────────────────────────────────────────────────────────────


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
