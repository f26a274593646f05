"""
``python -m asyncrl.reward.workers.worker``: a process that runs a verifier, and may be killed while it does.

It talks over the pipes it was started with (see `pipe`); the function's own prints go to stderr. It ends
when its stdin ends, and on Linux also when the process that started it dies while the function hangs.
"""

import asyncio
import ctypes
import inspect
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Raw

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.plug_in import describe
from asyncrl.reward import blend
from asyncrl.reward.verifier import Verifier, VerifierInput, is_async, verdict_of
from asyncrl.reward.workers.pipe import Judge, Judged, Load, Loaded, Refused, Said, encode, hung, read

PR_SET_PDEATHSIG = 1
"""``prctl(2)``."""

OURS = (__file__, blend.__file__, str(Path(asyncio.__file__).parent))
"""Frames of a traceback that are not the function's."""


def main() -> None:
    """Serve the process at the other end of the pipes until it is gone."""
    _die_with_parent()
    inbox, outbox = _take_pipes()
    load = read(inbox)
    if not isinstance(load, Load):
        return
    try:
        function = blend.verifier_of(load.reward)
    except ConfigError as error:
        _write(outbox, Refused(str(error)))
        return
    _write(outbox, Loaded(is_async(function)))
    with asyncio.Runner() as runner:
        Worker(function, load.reward.timeout_s, outbox, runner).serve(inbox)


class Worker:
    """Samples in, verdicts out, and an exception is a value."""

    def __init__(self, function: Verifier, timeout_s: float, outbox: BinaryIO, runner: asyncio.Runner) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._outbox = outbox
        self._runner = runner
        self._concurrent = is_async(function)
        self._decoder = msgspec.msgpack.Decoder(VerifierInput)

    def serve(self, inbox: BinaryIO) -> None:
        """Judge until the pipe ends."""
        while isinstance(request := read(inbox), Judge):
            if self._concurrent:
                self._runner.run(self._judge_together(request.samples))
            else:
                for index, sample in enumerate(request.samples):
                    _write(self._outbox, self._judge(index, self._decoder.decode(sample)))

    def _judge(self, index: int, sample: VerifierInput) -> Judged:
        try:
            value = self._function(sample)
            if inspect.isawaitable(value):
                value = self._runner.run(_awaited(value))
            return Judged(index, verdict_of(value))
        except BaseException as error:  # noqa: BLE001  a person's function may raise anything, SystemExit included
            return _fault(index, error)

    async def _judge_together(self, samples: list[Raw]) -> None:
        async def judge(index: int, sample: VerifierInput) -> None:
            _write(self._outbox, await self._judge_async(index, sample))

        await asyncio.gather(*(judge(index, self._decoder.decode(sample)) for index, sample in enumerate(samples)))

    async def _judge_async(self, index: int, sample: VerifierInput) -> Judged:
        """Like `_judge`; one that waits too long is cancelled here, which spares the rest of its batch a new start."""
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return Judged(index, verdict_of(await self._function(sample)))
        except BaseException as error:  # noqa: BLE001  as above
            if deadline.expired():
                return Judged(index, None, hung(self._timeout_s), retryable=True)
            return _fault(index, error)


async def _awaited(value: Any) -> Any:
    return await value


def _fault(index: int, error: BaseException) -> Judged:
    """An exception as a value. What was raised may not be raised next time: a service may be back by then."""
    if isinstance(error, VerifierError):
        return Judged(index, None, str(error), error.retryable)
    return Judged(index, None, f"the function raised {describe(error, *OURS)}", retryable=True)


def _write(outbox: BinaryIO, message: Said) -> None:
    outbox.write(encode(message))
    outbox.flush()


def _die_with_parent() -> None:
    """Ask the kernel to kill us with our parent; elsewhere than on Linux the end of stdin must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes, out of the function's reach: stdin becomes empty, stdout becomes stderr, children inherit neither."""
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(inbox, "rb"), os.fdopen(outbox, "wb")


if __name__ == "__main__":
    main()
