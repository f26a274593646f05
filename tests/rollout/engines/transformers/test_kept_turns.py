from asyncrl.rollout.engines.transformers.kept_turns import KeptTurns


def test_the_slot_with_the_longest_beginning_is_found() -> None:
    kept = KeptTurns()
    kept.keep(3, (1, 2))
    kept.keep(5, (1, 2, 3))
    kept.keep(6, (1, 2, 4, 4))
    assert kept.longest((1, 2, 3, 4, 5)) == (5, 3)
    assert kept.longest((1, 2, 9)) == (3, 2)


def test_the_last_token_of_a_prefix_is_always_fed() -> None:
    kept = KeptTurns()
    kept.keep(3, (1, 2))
    assert kept.longest((1, 2)) == (-1, 0)


def test_a_forgotten_slot_is_not_found() -> None:
    kept = KeptTurns()
    kept.keep(3, (1, 2))
    kept.forget(3)
    kept.forget(4)
    assert 3 not in kept
    kept.keep(3, (1, 2))
    kept.clear()
    assert kept.longest((1, 2, 3)) == (-1, 0)
