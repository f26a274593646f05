"""A process tells its supervisor by its exit code whether starting it again can help."""

import inspect

import pytest

from asyncrl import errors
from asyncrl.errors import AsyncrlError, ConfigError, EngineError, LinkError, VerifierError

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind)]


def test_everything_raised_on_purpose_can_be_caught_at_once() -> None:
    assert all(issubclass(kind, AsyncrlError) for kind in KINDS)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (errors.ConfigError, 78),  # EX_CONFIG: a typo is not repaired by a restart
        (errors.DataError, 78),
        (errors.LinkRefused, 78),
        (errors.LinkError, 69),  # EX_UNAVAILABLE: the broker may be back later
        (errors.LinkClosed, 69),
        (errors.LinkReset, 69),
        (errors.LedgerError, 74),  # EX_IOERR: what is damaged stays so
        (errors.RunFailed, 1),
        (errors.EngineError, 70),  # EX_SOFTWARE
        (errors.EngineDied, 70),
        (errors.BrokenInvariant, 70),
    ],
)
def test_the_exit_code_says_whether_a_restart_may_help(kind: type[AsyncrlError], exit_code: int) -> None:
    assert kind.exit_code == exit_code


def test_data_that_cannot_be_used_is_a_mistake_in_the_configuration() -> None:
    assert issubclass(errors.DataError, ConfigError)


def test_a_link_may_be_reset_closed_or_refused() -> None:
    assert set(LinkError.__subclasses__()) == {errors.LinkClosed, errors.LinkReset, errors.LinkRefused}


def test_generation_is_tried_again_unless_told_otherwise_and_a_verdict_is_not() -> None:
    assert (EngineError("out of memory").retryable, VerifierError("raised").retryable) == (True, False)
    assert (EngineError("too long", retryable=False).retryable, VerifierError("hung", retryable=True).retryable) == (
        False,
        True,
    )
