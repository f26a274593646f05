"""Messages name the option that was given."""

from asyncrl.cli.plan import first_given


def test_the_first_option_that_is_given_is_named() -> None:
    assert first_given("80GB") == "--device-memory"
    assert first_given("") == "--host-memory"
