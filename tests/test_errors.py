"""The exit code of a process shows its supervisor if a restart can help."""

import inspect

import pytest

from asyncrl import errors
from asyncrl.errors import AsyncrlError, ConfigError, EngineError, LinkError, VerifierError

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__]


def test_every_error_is_an_asyncrl_error() -> None:
    assert all(issubclass(kind, AsyncrlError) for kind in KINDS)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (errors.ConfigError, 78),  # EX_CONFIG: a restart does not repair a typo
        (errors.DataError, 78),
        (errors.LinkRefused, 78),
        (errors.LinkError, 69),  # EX_UNAVAILABLE: the broker may be back later
        (errors.LinkClosed, 69),
        (errors.LinkReset, 69),
        (errors.LinkSilent, 69),
        (errors.LedgerError, 74),  # EX_IOERR: a restart does not repair damage
        (errors.RunFailed, 1),
        (errors.RunInterrupted, 130),
        (errors.EngineError, 70),  # EX_SOFTWARE
        (errors.EngineDied, 70),
        (errors.BrokenInvariant, 70),
    ],
)
def test_each_error_has_its_exit_code(kind: type[AsyncrlError], exit_code: int) -> None:
    assert kind.exit_code == exit_code


def test_a_data_error_is_a_config_error() -> None:
    assert issubclass(errors.DataError, ConfigError)


def test_link_errors_are_closed_reset_silent_unanswered_and_refused() -> None:
    assert set(LinkError.__subclasses__()) == {
        errors.LinkClosed,
        errors.LinkReset,
        errors.LinkSilent,
        errors.Unanswered,
        errors.LinkRefused,
    }


def test_engine_errors_are_retryable_by_default_and_verifier_errors_are_not() -> None:
    assert (EngineError("out of memory").retryable, VerifierError("raised").retryable) == (True, False)
    assert (EngineError("too long", retryable=False).retryable, VerifierError("hung", retryable=True).retryable) == (
        False,
        True,
    )
