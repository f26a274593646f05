"""
``python -m asyncrl.reward.workers.worker``: a process that runs a verifier, and may be killed while it does.

It exchanges the messages of `pipe` over stdin and stdout; what the verifier prints goes to stderr. It exits when stdin
ends, and on Linux also when the process that started it dies, even if the verifier hangs.
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
from asyncrl.reward.workers.pipe import Judge, Judged, Load, Loaded, PipeMessage, Refused, encode, hung_message, read

PR_SET_PDEATHSIG = 1
"""``prctl(2)``."""

OURS = (__file__, blend.__file__, str(Path(asyncio.__file__).parent))
"""Files whose traceback frames are left out of messages: they are not the verifier's."""


def main() -> None:
    _die_with_parent()
    inbox, outbox = _take_pipes()
    load = read(inbox)
    if not isinstance(load, Load):
        return
    try:
        function = blend.make_verifier(load.reward)
    except ConfigError as error:
        _write(outbox, Refused(str(error)))
        return
    _write(outbox, Loaded(is_async(function)))
    with asyncio.Runner() as runner:
        Worker(function, load.reward.timeout_s, outbox, runner).serve(inbox)


class Worker:
    """Judges inputs; an exception of the verifier becomes a `Judged` with a reason."""

    def __init__(self, function: Verifier, timeout_s: float, outbox: BinaryIO, runner: asyncio.Runner) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._outbox = outbox
        self._runner = runner
        self._concurrent = is_async(function)
        self._decoder = msgspec.msgpack.Decoder(VerifierInput)

    def serve(self, inbox: BinaryIO) -> None:
        while isinstance(request := read(inbox), Judge):
            if self._concurrent:
                self._runner.run(self._judge_concurrently(request.inputs))
            else:
                for index, encoded in enumerate(request.inputs):
                    _write(self._outbox, self._judge(index, self._decoder.decode(encoded)))

    def _judge(self, index: int, inputs: VerifierInput) -> Judged:
        try:
            value = self._function(inputs)
            if inspect.isawaitable(value):
                value = self._runner.run(_awaited(value))
            return Judged(index, verdict_of(value))
        except BaseException as error:  # noqa: BLE001  user code may raise anything, SystemExit included
            return _failed(index, error)

    async def _judge_concurrently(self, batch: list[Raw]) -> None:
        async def judge(index: int, inputs: VerifierInput) -> None:
            _write(self._outbox, await self._judge_async(index, inputs))

        await asyncio.gather(*(judge(index, self._decoder.decode(encoded)) for index, encoded in enumerate(batch)))

    async def _judge_async(self, index: int, inputs: VerifierInput) -> Judged:
        """Like `_judge`, but cancel a slow verifier here, so that the rest of its batch need not be judged again."""
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return Judged(index, verdict_of(await self._function(inputs)))
        except BaseException as error:  # noqa: BLE001  as above
            if deadline.expired():
                return Judged(index, None, hung_message(self._timeout_s), retryable=True)
            return _failed(index, error)


async def _awaited(value: Any) -> Any:
    return await value


def _failed(index: int, error: BaseException) -> Judged:
    """Convert an exception. It is retryable unless the verifier says otherwise: a service may be back later."""
    if isinstance(error, VerifierError):
        return Judged(index, None, str(error), error.retryable)
    return Judged(index, None, f"the function raised {describe(error, *OURS)}", retryable=True)


def _write(outbox: BinaryIO, message: PipeMessage) -> None:
    outbox.write(encode(message))
    outbox.flush()


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; on other systems only the end of stdin ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Duplicate the pipes from and to the pool; the verifier's stdin becomes empty, its stdout becomes stderr."""
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(inbox, "rb"), os.fdopen(outbox, "wb")


if __name__ == "__main__":
    main()
