"""The engine that `asyncrl.testing.engine` checks, and the steps of its checks."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from asyncrl.messages.trajectory import Prompt, Sampling
from asyncrl.rollout.engine import Completion, Engine, Request

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class NotConforming(AssertionError):
    """The engine breaks its contract."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The engine under test, and what it can do."""

    make: Callable[[], Engine]
    """Make a new engine, which a check closes."""
    prompt: Prompt = field(default_factory=lambda: Prompt(text="How many are two and three?"))
    max_tokens: int = 24
    """Longest completion; long enough that a request is still running after its first tokens."""
    num_requests: int = 6
    """Requests at a time, preferably more than the engine decodes together."""
    weights: Callable[[], "Mapping[str, Tensor]"] = dict
    """The weights that the engine has, by the names of `Engine.specs`; a swap to them changes no token."""
    is_seeded: bool = True
    """``Request.seed`` decides the tokens."""
    is_sampling: bool = True
    """Different seeds give different tokens."""
    score: Callable[[Sequence[int], Sequence[int]], Sequence[float]] | None = None
    """Log-probs of completion ids after prompt ids by another implementation, at temperature 1; None compares none."""
    tolerance: float = 1e-3
    """Largest difference to ``score``, nats."""
    deadline_s: float = 60.0
    """Most seconds for anything awaited."""
    quiet_s: float = 0.05
    """Seconds in which a paused engine must not write."""


@asynccontextmanager
async def engine_of(subject: Subject) -> AsyncIterator[Engine]:
    engine = subject.make()
    try:
        yield engine
    finally:
        await soon(subject, engine.aclose(), "aclose")


@asynccontextmanager
async def running(subject: Subject, engine: Engine) -> AsyncIterator[tuple[Request, "asyncio.Task[Completion]"]]:
    """A request that was started, and is cancelled at the end if it still runs."""
    begun = request(subject, engine)
    task = asyncio.create_task(engine.generate(begun))
    await asyncio.sleep(0)
    try:
        yield begun, task
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=subject.deadline_s)


def request(subject: Subject, engine: Engine, seed: int = 0, resume_from: Completion | None = None) -> Request:
    return Request(
        prompt_ids=engine.encode(subject.prompt),
        sampling=Sampling(max_tokens=subject.max_tokens),
        seed=seed if subject.is_seeded else None,
        resume_from=resume_from,
    )


async def completions(subject: Subject, engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    return list(await soon(subject, asyncio.gather(*map(engine.generate, requests)), f"{len(requests)} requests"))


async def swap(subject: Subject, engine: Engine, version: int) -> None:
    await soon(subject, engine.swap(version, subject.weights()), "swap")
    await soon(subject, engine.resume(), "resume")


async def first_tokens(subject: Subject, engine: Engine, begun: Request, task: "asyncio.Task[Completion]") -> None:
    """Wait until the request has tokens, or is done. An engine has no event for its first token."""
    end = asyncio.get_running_loop().time() + subject.deadline_s
    while not task.done() and engine.written(begun) is None and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
        await asyncio.sleep(0)


def num_written(engine: Engine, begun: Request) -> int | None:
    written = engine.written(begun)
    return len(written.completion_ids) if written else None


async def soon(subject: Subject, awaited: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(subject.deadline_s):
            return await awaited
    except TimeoutError as error:
        raise NotConforming(f"{what} took more than {subject.deadline_s:g} s") from error


def require_whole(completion: Completion, max_tokens: int) -> None:
    ids, logprobs, spans = completion.completion_ids, completion.behavior_logprobs, completion.spans
    require(1 <= len(ids) <= max_tokens, f"a completion has {len(ids)} tokens, expected 1 .. {max_tokens}")
    require(len(logprobs) == len(ids), f"{len(ids)} tokens came with {len(logprobs)} log-probs")
    wrong = [value for value in logprobs if not math.isfinite(value) or value > 1e-6]
    require(not wrong, f"a log-prob is {wrong[0] if wrong else 0}, expected a finite number of at most 0")
    ends = [0, *(span.end for span in spans)]
    require(
        [span.start for span in spans] == ends[:-1] and all(span.end > span.start for span in spans),
        f"spans {spans} are not contiguous",
    )
    require(ends[-1] == len(ids), f"spans end at {ends[-1]} of {len(ids)} tokens")


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise NotConforming(sentence)
