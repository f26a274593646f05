"""An option that is not honoured is not needed with a value that does nothing."""

import pytest

from asyncrl.verl.option import at_least_zero, derived, missing, not_needed, replaced, setting


@pytest.mark.parametrize("value", [None, False, 0, ""])
def test_an_option_that_is_off_is_not_needed_whatever_it_would_do(value: object) -> None:
    assert replaced("x").fate_of(value) == missing("x").fate_of(value) == "not needed"


def test_an_option_that_is_on_has_the_fate_of_its_row() -> None:
    assert replaced("x").fate_of(True) == "substituted"
    assert missing("x").fate_of("file.py") == "not supported"
    assert not_needed("x").fate_of(True) == "not needed"
    assert setting("a.b").fate_of(0) == derived("a.b").fate_of(0) == "mapped"


def test_a_row_names_the_values_that_do_nothing() -> None:
    assert missing("x", harmless=(True,)).fate_of(True) == "not needed"
    assert missing("x", harmless=(True,)).fate_of(False) == "not supported"


def test_minus_one_means_all_or_never() -> None:
    assert [at_least_zero(value) for value in (-1, None, 0, 7)] == [0, 0, 0, 7]
