"""
Errors that asyncrl raises.

A message says what is wrong, which value, what was expected and found, and what to do. Across the wire an error is a
message (`messages.Failed`), never an exception.
"""

from collections.abc import Callable, Iterable


def mistakes(sentences: Iterable[str]) -> str:
    """Message about all mistakes that were found at once: the sentence of a single one, or a list of several."""
    found = list(dict.fromkeys(sentences))
    return found[0] if len(found) == 1 else "\n  ".join([f"{len(found)} mistakes:", *found])


class AsyncrlError(Exception):
    """Base class of all errors that asyncrl raises."""

    exit_code = 70
    """Exit code of the process: EX_SOFTWARE of sysexits.h, unless a subclass overrides it."""


class ConfigError(AsyncrlError):
    """The configuration is invalid and must be edited; the exit code prevents restarts."""

    exit_code = 78


def check_all(checks: Iterable[Callable[[], object]]) -> None:
    """Call every check, and raise one `ConfigError` for all that raised one."""
    refused = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            refused.append(str(error))
    if refused:
        raise ConfigError(mistakes(refused))


class DataError(ConfigError):
    """A dataset lacks a column or has an invalid row."""


class LinkError(AsyncrlError):
    """A connection failed. Usually temporary: reconnect."""

    exit_code = 69


class LinkClosed(LinkError):
    """The link is closed permanently, by this end or by the peer's goodbye."""


class LinkReset(LinkError):
    """The peer does not know this session: it restarted, or gave this end up. Open a new link and say Hello again."""


class LinkSilent(LinkError):
    """The peer has not answered for long: its machine is down, or it hangs. Open a new link and say Hello again."""


class Unanswered(LinkError):
    """The peer did not answer a question in time, on a link that works."""


class LinkRefused(LinkError):
    """The peer refused the connection: another protocol version, a duplicate, or an unknown role."""

    exit_code = 78


class WrongHub(LinkRefused):
    """The peer does not have the key that it should have: it is of another run, or no broker at all."""


class UnknownKey(LinkRefused):
    """The peer does not accept this end's key: it was never added there, or it was revoked."""


class DecodeError(AsyncrlError):
    """Received bytes are not a message. The frame is dropped and counted."""


class NotATrajectory(DecodeError):
    """A payload arrived undamaged, and is not a trajectory: its sender is at fault, and not the spool."""


class SpoolAway(DecodeError):
    """The spool of a payload is away: the payload can be read when it is back."""


class EngineError(AsyncrlError):
    """Generation failed. ``retryable``: another node or a later attempt may succeed."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class PromptTooLong(EngineError):
    """The prompt has more tokens than the run allows, on any engine."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class EnvironmentFailed(EngineError):
    """
    An environment, a tool or an agent program failed, or overran a deadline. Never a reward of zero.

    ``is_lost``: the episode was lost with its worker, and is not to blame: it may be continued on another at once.
    """

    def __init__(self, message: str, *, retryable: bool = True, is_lost: bool = False) -> None:
        super().__init__(message, retryable=retryable)
        self.is_lost = is_lost


class ContainerFailed(AsyncrlError):
    """A container runtime failed or hung, or a container is gone. No episode is to blame: it goes on in another one."""


class EngineDied(AsyncrlError):
    """The engine's own process ended. No trajectory is to blame: the node ends and is restarted."""


class NodeStalled(AsyncrlError):
    """The node lives, and its work has made no progress for too long: it ends, and is restarted."""


class ToldToLeave(AsyncrlError):
    """A signal told the process to leave a run that goes on, and no operator drained it: it is started again."""

    exit_code = 143
    """Exit code of programs that SIGTERM ends."""


class RankDied(AsyncrlError):
    """One process of a sharded trainer ended or hangs. The others end too, and all are restarted together."""

    exit_code = 75


class MachineLost(RankDied):
    """The group of a trainer's machines has ended, because one is lost. The others join again, and wait for it."""


class VerifierError(AsyncrlError):
    """The verifier raised, hung or returned no finite number. Not the same as a reward of zero."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ServiceFailed(AsyncrlError):
    """
    A service over HTTP, such as a model of ``[models]``, gave no answer that can be used. Never a reward of zero.

    ``retryable``: it was away or busy until the deadline, and may be back later.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class SandboxError(AsyncrlError):
    """The sandbox could not start a program, which is no fault of the program."""


class TransferError(AsyncrlError):
    """Weights were not sent or received in time; the message names the receivers."""


class TrackerError(AsyncrlError):
    """An experiment tracker raised or hung. Only its own process ends."""


class LedgerError(AsyncrlError):
    """A ledger or segment is damaged or foreign; the message names the offset. Restarting does not help."""

    exit_code = 74


class BrokenInvariant(AsyncrlError):
    """An internal invariant is violated: a bug. Never caught, because continuing could corrupt the run."""


class RunFailed(AsyncrlError):
    """The run ended early; the message names the cause."""

    exit_code = 1


class RunInterrupted(RunFailed):
    """The run was told to end early, and can be continued; the exit code is that of programs which SIGINT ends."""

    exit_code = 130
