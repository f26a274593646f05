"""Validation of requests before they wait for a slot."""

from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engine import Request


def check(request: Request, *, positions: int, vocab_size: int) -> None:
    """Raise `EngineError` unless the request is valid and fits a slot of this many prompt and completion tokens."""
    _check_size(len(request.prompt_ids), request.sampling.max_tokens, positions)
    resumed = request.resume_from.completion_ids if request.resume_from else []
    if len(resumed) >= request.sampling.max_tokens:
        raise EngineError(
            f"the completion to resume from has {len(resumed)} tokens, but max_tokens is {request.sampling.max_tokens}"
        )
    token_ids = [*request.prompt_ids, *resumed]
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= vocab_size:
        raise EngineError(
            f"the request has token ids from {lowest} to {highest}, but the model knows 0 to {vocab_size - 1}; use the "
            f"model's own tokenizer",
            retryable=False,
        )
    _check_sampling(request.sampling)


def _check_size(prompt_tokens: int, max_tokens: int, positions: int) -> None:
    if prompt_tokens < 1 or max_tokens < 1:
        raise EngineError(
            f"expected a prompt of at least 1 token and max_tokens of at least 1, got {prompt_tokens} and {max_tokens}",
            retryable=False,
        )
    if prompt_tokens + max_tokens > positions:
        raise EngineError(
            f"a prompt of {prompt_tokens} tokens and max_tokens={max_tokens} do not fit a slot of {positions} tokens; "
            f"shorten the prompt or make the slots larger",
            retryable=False,
        )


def _check_sampling(sampling: Sampling) -> None:
    is_temperature, is_top_p = sampling.temperature >= 0, 0 < sampling.top_p <= 1
    if not (is_temperature and is_top_p and sampling.top_k >= 0):
        raise EngineError(
            f"expected temperature >= 0, 0 < top_p <= 1 and top_k >= 0, got {sampling.temperature:g}, "
            f"{sampling.top_p:g} and {sampling.top_k}",
            retryable=False,
        )
    if sampling.replay_mask and not sampling.is_truncated:
        raise EngineError(
            "replay_mask records the ids that top_p and top_k leave, but they leave all; set it to false",
            retryable=False,
        )
    if "" in sampling.stop:
        raise EngineError("a stop string is empty and would end every completion; remove it", retryable=False)
