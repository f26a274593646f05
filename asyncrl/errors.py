"""
Every error asyncrl raises on purpose.

    AsyncrlError
    ├── ConfigError          a person must edit something; exit code 78, so that nobody restarts a typo
    │   └── DataError        a dataset lacks a column, or a row cannot be used
    ├── LinkError            the other end is gone, or was never there
    │   ├── LinkClosed       this end was closed, or the peer said goodbye
    │   ├── LinkReset        the peer has forgotten this session: say Hello again
    │   └── LinkRefused      the peer answered, and the answer is no
    ├── DecodeError          bytes that are not a message; the frame is dropped and counted
    ├── EngineError          an engine could not generate
    │   └── PromptTooLong    the prompt has more tokens than the run allows
    ├── EngineDied           an engine's own process ended: only a new start of the node helps
    ├── RankDied             another process of a sharded trainer ended, or is stuck: all of them start again
    ├── VerifierError        a verifier could not give a verdict: raised, hung, or returned no finite number
    ├── TransferError        weights did not arrive; names who
    ├── TrackerError         a tracker raised or hung; the run goes on without it
    ├── LedgerError          a ledger or segment is damaged; names the offset
    ├── BrokenInvariant      a promise of ours does not hold: a bug, stop rather than go on wrongly
    └── RunFailed            the run stopped before its end; the message is the cause

A message says what, which one, expected and got, and what to do. Across the wire an error is a value
(`messages.Failed`), never an exception.
"""


class AsyncrlError(Exception):
    """Base of all errors here: catch it to catch everything asyncrl raises on purpose."""

    exit_code = 70
    """sysexits.h EX_SOFTWARE, unless a subclass knows better."""


class ConfigError(AsyncrlError):
    """The configuration cannot work. Edit it; restarting will not help."""

    exit_code = 78


class DataError(ConfigError):
    """A dataset cannot be used as it is."""


class LinkError(AsyncrlError):
    """A connection failed. Usually temporary: reconnect."""

    exit_code = 69


class LinkClosed(LinkError):
    """The link is closed for good."""


class LinkReset(LinkError):
    """The peer restarted and does not know this session. Open a new link and say Hello again."""


class LinkRefused(LinkError):
    """The peer refused us: another protocol, a duplicate, or no such role here."""

    exit_code = 78


class DecodeError(AsyncrlError):
    """Received bytes are not one of our messages."""


class EngineError(AsyncrlError):
    """Generation failed. ``retryable`` says whether another node, or a later try, may succeed."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class PromptTooLong(EngineError):
    """The prompt has more tokens than the run allows. No engine could do better."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class EngineDied(AsyncrlError):
    """The engine's own process is gone. No fault of any trajectory: the node ends, and is started again."""


class RankDied(AsyncrlError):
    """A process of a trainer that is several is gone. The others end too, and all are started again together."""


class VerifierError(AsyncrlError):
    """There is no verdict. Never to be read as a reward of zero."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class TransferError(AsyncrlError):
    """Weights were not sent or received in time."""


class TrackerError(AsyncrlError):
    """Somebody else's record of the run could not be written. Only its own process ends."""


class LedgerError(AsyncrlError):
    """What is on disk is damaged, or not ours: the next process would find the same."""

    exit_code = 74


class BrokenInvariant(AsyncrlError):
    """One of our own promises does not hold. Never caught: going on would make it worse."""


class RunFailed(AsyncrlError):
    """The run ended early; the message names the cause."""

    exit_code = 1
