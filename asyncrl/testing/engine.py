"""
Checks that an engine of your own keeps the contract of `asyncrl.engine.Engine`. In a test of yours:

    from asyncrl.testing.engine import CHECKS, Subject

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_engine(check):
        asyncio.run(check(Subject(make=lambda: MyEngine(...))))

Each check makes an engine, closes it, and raises `NotConforming` with one sentence. They need no pytest and no model
but yours. What an engine cannot do is left out of its `Subject`: the checks of it then pass without looking.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from asyncrl.engine import Completion, Engine, Request
from asyncrl.errors import EngineDied, EngineError
from asyncrl.messages.trajectory import Prompt, Sampling, Span

# ── subject ───────────────────────────────────────────────────────────────────────────────────
# The engine that `asyncrl.testing.engine` checks, and the steps of its checks.

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


# ── engine ────────────────────────────────────────────────────────────────────────────────────

__all__ = ["CHECKS", "Check", "NotConforming", "Subject"]

VERSION = 7
"""Version of the first swap."""

Check = Callable[[Subject], Coroutine[Any, Any, None]]


async def a_prompt_is_encoded_and_a_completion_decoded(subject: Subject) -> None:
    async with engine_of(subject) as engine:
        ids = engine.encode(subject.prompt)
        require(bool(ids) and all(type(token) is int for token in ids), f"encode gave {ids!r:.60}, expected token ids")
        text = engine.decode(ids)
        require(isinstance(text, str), f"decode gave a {type(text).__name__}, expected text")


async def a_completion_has_a_log_prob_and_a_version_for_each_token(subject: Subject) -> None:
    async with engine_of(subject) as engine:
        requests = [request(subject, engine, seed) for seed in range(subject.num_requests)]
        for completion in await completions(subject, engine, requests):
            require_whole(completion, subject.max_tokens)
            require(
                completion.finish_reason in ("stop", "length"),
                f"a completion ended with {completion.finish_reason!r}, expected 'stop' or 'length'",
            )
            is_full = len(completion.completion_ids) == subject.max_tokens
            require(
                is_full or completion.finish_reason == "stop",
                f"a completion of {len(completion.completion_ids)} tokens ended with 'length' before max_tokens",
            )


async def log_probs_are_those_of_the_model(subject: Subject) -> None:
    if subject.score is None:
        return
    async with engine_of(subject) as engine:
        asked = request(subject, engine)
        (completion,) = await completions(subject, engine, [asked])
        expected = subject.score(asked.prompt_ids, completion.completion_ids)
        worst = max(abs(a - b) for a, b in zip(completion.behavior_logprobs, expected, strict=True))
        require(worst <= subject.tolerance, f"a log-prob differs from the model's by {worst:.2g} nats")


async def a_seed_decides_the_tokens_whatever_else_runs(subject: Subject) -> None:
    if not subject.is_seeded:
        return
    async with engine_of(subject) as engine:
        (alone,) = await completions(subject, engine, [request(subject, engine, 1)])
        seeds = [*range(2, subject.num_requests + 1), 1]
        among_others = await completions(subject, engine, [request(subject, engine, seed) for seed in seeds])
        require(
            alone.completion_ids == among_others[-1].completion_ids,
            "a request with the same seed gave other tokens beside other requests",
        )
        if subject.is_sampling:
            kinds = {tuple(completion.completion_ids) for completion in among_others}
            require(len(kinds) > 1, f"{len(seeds)} different seeds gave the same tokens")


async def nothing_is_written_while_it_is_paused(subject: Subject) -> None:
    async with engine_of(subject) as engine, running(subject, engine) as (begun, task):
        await first_tokens(subject, engine, begun, task)
        await soon(subject, engine.pause(), "pause")
        await soon(subject, engine.pause(), "pause while it is paused")
        before, was_done = num_written(engine, begun), task.done()
        await asyncio.sleep(subject.quiet_s)
        written = num_written(engine, begun)
        require(was_done == task.done() and written == before, f"it wrote while it was paused: {before} to {written}")
        await soon(subject, engine.resume(), "resume")
        await soon(subject, engine.resume(), "resume while it runs")
        await soon(subject, task, "a request after resume")


async def tokens_after_a_swap_have_the_new_version(subject: Subject) -> None:
    async with engine_of(subject) as engine, running(subject, engine) as (begun, task):
        await first_tokens(subject, engine, begun, task)
        await soon(subject, engine.pause(), "pause")
        old = num_written(engine, begun)
        await swap(subject, engine, VERSION)
        completion = await soon(subject, task, "a running request after a swap")
        require_whole(completion, subject.max_tokens)
        versions = [span.policy_version for span in completion.spans for _ in range(span.start, span.end)]
        if old is not None:
            require(VERSION not in versions[:old], "tokens written before a swap have its version")
            require(set(versions[old:]) <= {VERSION}, f"after the swap to {VERSION} tokens have {set(versions[old:])}")
        (later,) = await completions(subject, engine, [request(subject, engine)])
        require({span.policy_version for span in later.spans} == {VERSION}, "a request after a swap has old versions")
        await soon(subject, engine.pause(), "pause")
        await swap(subject, engine, VERSION - 3)
        (earlier,) = await completions(subject, engine, [request(subject, engine)])
        require({span.policy_version for span in earlier.spans} == {VERSION - 3}, "versions that decrease are ignored")


async def an_unfinished_completion_is_continued(subject: Subject) -> None:
    async with engine_of(subject) as engine:
        (whole,) = await completions(subject, engine, [request(subject, engine)])
        half = max(1, len(whole.completion_ids) // 2)
        first_half = Completion(
            completion_ids=whole.completion_ids[:half],
            behavior_logprobs=whole.behavior_logprobs[:half],
            spans=[Span(VERSION, 0, half)],
            finish_reason="unfinished",
            generate_s=1.0,
        )
        resumed = request(subject, engine, resume_from=first_half)
        if half == len(whole.completion_ids):
            return
        (completion,) = await completions(subject, engine, [resumed])
        require_whole(completion, subject.max_tokens)
        require(
            completion.completion_ids[:half] == first_half.completion_ids,
            "a continued completion has other tokens at first",
        )
        require(completion.behavior_logprobs[:half] == first_half.behavior_logprobs, "its first log-probs were changed")
        require(completion.spans[0].policy_version == VERSION, "its first tokens have lost their version")
        require(completion.generate_s >= first_half.generate_s, "its seconds do not include those before")
        if subject.is_seeded:
            require(completion.completion_ids == whole.completion_ids, "its seed does not continue the draws")


async def cancelling_a_request_frees_its_slot(subject: Subject) -> None:
    async with engine_of(subject) as engine:
        requests = [request(subject, engine, seed) for seed in range(subject.num_requests)]
        tasks = [asyncio.create_task(engine.generate(one)) for one in requests]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=subject.deadline_s)
        require(all(task.done() for task in tasks), "a cancelled request does not end")
        require(all(engine.written(one) is None for one in requests), "a cancelled request is still running")
        await completions(subject, engine, [request(subject, engine)])


async def closing_fails_running_requests_and_may_be_repeated(subject: Subject) -> None:
    async with engine_of(subject) as engine, running(subject, engine) as (_, task):
        await soon(subject, engine.pause(), "pause")
        is_running = not task.done()
        await soon(subject, engine.aclose(), "aclose")
        await soon(subject, engine.aclose(), "aclose of a closed engine")
        try:
            await soon(subject, task, "a request of a closed engine")
            require(not is_running, "a request that was running completed after aclose")
        except EngineError as error:
            require(error.retryable, "a request of a closed engine failed as if another engine could not sample it")
        except EngineDied as error:
            raise NotConforming("a closed engine must fail its requests with EngineError, not EngineDied") from error


CHECKS: tuple[Check, ...] = (
    a_prompt_is_encoded_and_a_completion_decoded,
    a_completion_has_a_log_prob_and_a_version_for_each_token,
    log_probs_are_those_of_the_model,
    a_seed_decides_the_tokens_whatever_else_runs,
    nothing_is_written_while_it_is_paused,
    tokens_after_a_swap_have_the_new_version,
    an_unfinished_completion_is_continued,
    cancelling_a_request_frees_its_slot,
    closing_fails_running_requests_and_may_be_repeated,
)
