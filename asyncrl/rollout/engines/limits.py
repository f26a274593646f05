"""Validation of requests before they wait for a slot."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.engine import Completion, Request
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.names import are_views, checkpoint_specs, checkpoint_tensors


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


# ── masks ─────────────────────────────────────────────────────────────────────────────────────
# Sampling mask of every token of one completion, recorded while the completion is decoded.


class Masks:
    """Masks of a completion that is being decoded, preceded by those of the completion that it resumes."""

    def __init__(self, resumed: Completion | None = None) -> None:
        self.counts = list(resumed.mask_counts) if resumed else []
        """Number of ids in each mask, [T]; becomes `Completion.mask_counts`."""
        self.ids = list(resumed.mask_ids) if resumed else []
        """Ids of all masks; becomes `Completion.mask_ids`."""

    def add(self, token_ids: Sequence[int]) -> None:
        """Record the ids, in ascending order, from which the next token was drawn."""
        self.counts.append(len(token_ids))
        self.ids.extend(token_ids)


# ── spans ─────────────────────────────────────────────────────────────────────────────────────
# Policy version of every token of one completion, recorded while the completion is decoded.


class Spans:
    """Spans of a completion that is being decoded, after those of the completion it resumes from."""

    def __init__(self, resumed: Iterable[Span] = ()) -> None:
        self._starts = [(span.policy_version, span.start) for span in resumed]

    def set_version(self, policy_version: int, num_tokens: int) -> None:
        """Credit the tokens from index ``num_tokens`` on to ``policy_version``."""
        if self._starts and self._starts[-1][1] == num_tokens:
            self._starts.pop()
        if not self._starts or self._starts[-1][0] != policy_version:
            self._starts.append((policy_version, num_tokens))

    def until(self, num_tokens: int) -> list[Span]:
        """Contiguous spans that cover 0 .. ``num_tokens``."""
        ends = [start for _, start in self._starts[1:]] + [num_tokens]
        bounds = zip(self._starts, ends, strict=True)
        return [Span(version, start, min(end, num_tokens)) for (version, start), end in bounds if start < num_tokens]


# ── parameters ────────────────────────────────────────────────────────────────────────────────
# A model's parameters under their checkpoint names: specs for the transfer, and loading of received weights.


def specs(model: PreTrainedModel) -> list[TensorSpec]:
    """Name, shape and dtype of every tensor; tied tensors once."""
    return checkpoint_specs(model, str(model.dtype).removeprefix("torch."))


def check_loadable(model: PreTrainedModel) -> None:
    """Raise `ConfigError` unless every checkpoint tensor is a view of a parameter, so that `load` can write to it."""
    if not are_views(model):
        raise ConfigError(
            f"{type(model).__name__} stores weights in another order than its checkpoints, so they cannot be replaced "
            f"in place; use another model, or another rollout.engine"
        )


@torch.inference_mode()
def load(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy ``weights`` in place: views stay valid. A wrong name or shape is a final `EngineError` before any copy."""
    parts = dict(checkpoint_tensors(model))
    if missing := sorted(parts.keys() - weights.keys()):
        raise EngineError(f"the weights lack {_first(missing)}; send every tensor of specs()", retryable=False)
    if unknown := sorted(weights.keys() - parts.keys()):
        raise EngineError(f"the weights have {_first(unknown)}, unknown to the model", retryable=False)
    for name, part in parts.items():
        if weights[name].shape != part.shape:
            raise EngineError(
                f"weight {name!r} has shape {tuple(weights[name].shape)}, but the model's has {tuple(part.shape)}",
                retryable=False,
            )
    for name, part in parts.items():
        part.copy_(weights[name])


def _first(names: list[str]) -> str:
    return f"{names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
