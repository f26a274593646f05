"""
``python -m asyncrl.reward.workers.worker``: a process that runs a verifier, and may be killed while it does.

It exchanges the messages of `messages` over stdin and stdout; what the verifier prints goes to stderr. It exits when
stdin ends, and on Linux also when the process that started it dies, even if the verifier hangs. A `keeper` starts it
with its limits, and ends what its verifier leaves behind. It imports little, because lost workers are started again.
"""

import asyncio
import errno
import inspect
import os
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Raw

from asyncrl.environment import ModelFailed
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.messages.verdict_limits import MAX_REASON_CHARS
from asyncrl.plug_in import describe
from asyncrl.reward import catalogue, routing
from asyncrl.reward.verifier import (
    Abstained,
    GroupFunction,
    Verdict,
    Verifier,
    VerifierInput,
    is_async,
    verdict_of,
    verdicts_of,
)
from asyncrl.reward.workers.messages import (
    Judge,
    Judgeable,
    Judged,
    Loaded,
    UnusableVerifier,
    WorkerLoad,
    encode,
    hung_message,
    read,
)
from asyncrl.workers.frames import take_pipes

OURS = (__file__, routing.__file__, catalogue.__file__, str(Path(asyncio.__file__).parent))
"""Files whose traceback frames are left out of messages: they are not the verifier's."""


def main() -> None:
    from_pool, to_pool = take_pipes()
    inbox, outbox = os.fdopen(from_pool, "rb"), os.fdopen(to_pool, "wb")
    load = read(inbox)
    if not isinstance(load, WorkerLoad):
        return
    try:
        functions = Functions(routing.make_verifier(load.reward), routing.make_group_function(load.reward))
    except ConfigError as error:
        _write(outbox, encode(UnusableVerifier(_clean(str(error)))))
        return
    _write(outbox, encode(Loaded(functions.are_async)))
    with asyncio.Runner() as runner:
        RewardWorker(functions, load.reward.timeout_s, outbox, runner).serve(inbox)


class Functions:
    """The verifier of single inputs and, if there is one, the function of groups."""

    def __init__(self, verifier: Verifier, group: GroupFunction | None = None) -> None:
        self._verifier = verifier
        self._group = group
        self.are_async = is_async(verifier) or (group is not None and is_async(group))
        """Inputs are judged concurrently; what is plain then holds up the others until it returns."""

    def call(self, inputs: Judgeable) -> Any:
        if not isinstance(inputs, list):
            return self._verifier(inputs)
        if self._group is None:
            raise VerifierError("a group is to be judged, and there is no reward.group")
        return self._group(inputs)


class RewardWorker:
    """Judges inputs; an exception of a function becomes a `Judged` with a reason. Judgements are encoded."""

    def __init__(self, functions: Functions, timeout_s: float, outbox: BinaryIO, runner: asyncio.Runner) -> None:
        self._functions = functions
        self._timeout_s = timeout_s
        self._outbox = outbox
        self._runner = runner
        self._decoder: msgspec.msgpack.Decoder[Judgeable] = msgspec.msgpack.Decoder(Judgeable)
        self._pid = os.getpid()

    def serve(self, inbox: BinaryIO) -> None:
        while isinstance(request := read(inbox), Judge):
            if self._functions.are_async:
                self._runner.run(self._judge_concurrently(request))
            else:
                for number, encoded in enumerate(request.inputs, request.first):
                    self._answer(self._judge(number, self._decoder.decode(encoded)))

    def _answer(self, judged: bytes) -> None:
        if os.getpid() != self._pid:  # the verifier forked, and this is the copy
            os._exit(1)
        _write(self._outbox, judged)

    def _judge(self, number: int, inputs: Judgeable) -> bytes:
        try:
            value = self._functions.call(inputs)
            if inspect.isawaitable(value):
                value = self._runner.run(_awaited(value))
            return encode(Judged(number, _verdicts(inputs, value)))
        except BaseException as error:  # noqa: BLE001  user code may raise anything, SystemExit included
            return _failed(number, error, inputs)

    async def _judge_concurrently(self, request: Judge) -> None:
        async def judge(number: int, encoded: Raw) -> None:
            self._answer(await self._judge_async(number, self._decoder.decode(encoded)))

        await asyncio.gather(*(judge(*numbered) for numbered in enumerate(request.inputs, request.first)))

    async def _judge_async(self, number: int, inputs: Judgeable) -> bytes:
        """Like `_judge`, but cancel a slow function here, so that the rest of its batch need not be judged again."""
        limit_s = self._timeout_s * (len(inputs) if isinstance(inputs, list) else 1)
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                value = self._functions.call(inputs)
                if inspect.isawaitable(value):
                    value = await value
                return encode(Judged(number, _verdicts(inputs, value)))
        except BaseException as error:  # noqa: BLE001  as above
            if deadline.expired():
                return encode(Judged(number, [], hung_message(limit_s), retryable=True))
            return _failed(number, error, inputs)


def _verdicts(inputs: Judgeable, value: object) -> list[Verdict]:
    return verdicts_of(value, inputs) if isinstance(inputs, list) else [verdict_of(value)]


async def _awaited(value: Any) -> Any:
    return await value


def _failed(number: int, error: BaseException, inputs: Judgeable) -> bytes:
    """Convert an exception. It is retryable unless the verifier says otherwise: a service may be back later."""
    if isinstance(error, ModelFailed):
        return encode(Judged(number, [], _clean(str(error)), error.retryable))
    if isinstance(error, VerifierError):
        is_ours = type(error) in (VerifierError, Abstained)  # and no subclass that a verifier made
        text = str(error) if is_ours else describe(error, *OURS)
        return encode(Judged(number, [], _clean(text), bool(error.retryable)))
    if type(error) is KeyError and isinstance(inputs, VerifierInput) and not any(k in error.args for k in inputs.extra):
        error.add_note(f"extra of the row has {', '.join(inputs.extra) or 'nothing'}")
    reason = f"the function raised {describe(error, *OURS)}"
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        reason += "; reward.file_bytes limits the size of a file"
    return encode(Judged(number, [], _clean(reason), retryable=True))


def _clean(reason: str) -> str:
    return reason[:MAX_REASON_CHARS].encode("utf-8", "replace").decode()


def _write(outbox: BinaryIO, frame: bytes) -> None:
    outbox.write(frame)
    outbox.flush()


if __name__ == "__main__":
    main()
