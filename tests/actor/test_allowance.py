from asyncrl.actor.allowance import Allowance


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
