"""
Inspection of a started worker: settings that only it knows, and under which its log-probs or weights would be
wrong; and ids that it must not draw.

vLLM's own model runners give the engine's ``logprobs_mode`` to their sampler. vllm-ascend's does not (0.23): its
sampler reports log-probs before temperature and filters, whatever the engine was told. It also has settings of its
own, which it reads from environment variables and from ``additional_config``.
"""

from importlib import import_module
from math import inf
from typing import Any

import torch
from torch import Tensor

from asyncrl.rollout.engines.vllm.arguments import LOGPROBS_MODE

ASCEND = "vllm_ascend"

UNUSABLE_ON_ASCEND = {
    "weight_nz_mode": "keeps weights in the layout FRACTAL_NZ, into which new weights cannot be loaded",
    "enable_fused_mc2": "keeps experts in the layout FRACTAL_NZ, into which new weights cannot be loaded",
    "enable_reduce_sample": "samples from a part of the vocabulary on each device, so log-probs belong to other tokens",
}
"""vllm-ascend's setting that must be off, and what it does otherwise."""


def use_processed_logprobs(model_runner: Any) -> None:
    """Set the mode of vllm-ascend's sampler, which reads it at every step. Other samplers are left as they are."""
    for sampler in _samplers(model_runner):
        if type(sampler).__module__.partition(".")[0] == ASCEND:
            sampler.logprobs_mode = LOGPROBS_MODE


def never_sample(model: Any, token_ids: list[int], device: torch.device) -> None:
    """
    Have a model on ``device`` give these token ids no probability, in all requests, in place of those given before.

    vLLM's own means are a bias in each request, of a thousand ids at most, and none beside draft tokens.
    """
    vars(model).pop("compute_logits", None)
    compute, never = model.compute_logits, torch.tensor(token_ids, device=device)

    def compute_logits(*args: Any, **kwargs: Any) -> Tensor | None:
        logits: Tensor | None = compute(*args, **kwargs)
        return logits if logits is None else logits.index_fill_(-1, never, -inf)  # tensor parallel workers have none

    if token_ids:
        model.compute_logits = compute_logits


def refusal(model_runner: Any, *, kind: str) -> str:
    """
    Reason for which asyncrl cannot use this worker; empty if there is none.

    ``kind`` is the type of its device: vllm-ascend's settings are read on an ``npu``.
    """
    for sampler in _samplers(model_runner):
        if (mode := getattr(sampler, "logprobs_mode", None)) != LOGPROBS_MODE:
            return (
                f"a worker's {type(sampler).__name__} reports {mode!r} instead of {LOGPROBS_MODE!r}, so log-probs "
                f"would not be those of the distribution sampled from; install a tested version of vLLM"
            )
    if getattr(model_runner, "batch_sharder", None) is not None:
        return (
            "vLLM samples parts of a batch on each device, past the logits from which asyncrl takes ids without a "
            "text; remove enable_batch_sharded_sampling from rollout.vllm.engine_args"
        )
    if not getattr(getattr(model_runner, "rejection_sampler", None), "is_processed_logprobs_mode", True):
        return (
            "a worker verifies draft tokens with log-probs that are not those of the distribution sampled from; remove "
            "rollout.vllm.engine_args.speculative_config"
        )
    return _refusal_on_ascend() if kind == "npu" else ""


def _samplers(model_runner: Any) -> list[Any]:
    """The sampler, and the part of it that applies top-k and top-p, if it is apart."""
    sampler = model_runner.sampler
    filters = getattr(sampler, "topk_topp_sampler", None)
    return [sampler] if filters is None else [sampler, filters]


def _refusal_on_ascend() -> str:
    config = import_module(f"{ASCEND}.ascend_config").get_ascend_config()
    for name, effect in UNUSABLE_ON_ASCEND.items():
        if value := getattr(config, name, 0):
            return (
                f"vllm-ascend {effect} ({name} is {value!r}); set {name} = 0 in "
                f"rollout.vllm.engine_args.additional_config"
            )
    if config.eplb_config.dynamic_eplb:
        return (
            "vllm-ascend moves experts between devices, so new weights would reach the wrong ones "
            "(eplb_config.dynamic_eplb is True); remove eplb_config from rollout.vllm.engine_args.additional_config"
        )
    return ""
