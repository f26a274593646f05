"""
Log-probabilities of sampled tokens without a tensor of all logits.

    forward     some rows of logits at a time  ─▶ log-prob, entropy, Σ p² of each row;             logits are freed
    backward    the same logits recomputed     ─▶ their gradient ─▶ those of states and head;      logits are freed

Shapes: N tokens, H hidden size, V vocabulary. At V = 150,000 one row of logits is 600 kB as float32, and sequences have
thousands of rows, so [N, V] is never materialized. The cost is one more product with the head.

The distribution is softmax(logits / temperature) over the whole vocabulary, or over the ids of a `SamplingMask`,
without the tokens that are never sampled, such as those of pictures. Engines that truncate it (top-p, top-k) record
log-probs of the truncated distribution, which are higher: without the mask the ratio to the policy in training is below
1 from the start.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asyncrl.algo.products import add_product, head_logits, product
from asyncrl.algo.sampling_mask import REMOVED, SamplingMask

HOST_CHUNK, DEVICE_CHUNK = 1 << 25, 1 << 28
"""
Logits in memory at a time: 128 MiB as float32 on a CPU, whose cores are busy with fewer, and 1 GiB on other devices.
Each chunk reads the head again and writes all of its gradient, so on those the chunks must be few.
"""


def chunk_logits(kind: str) -> int:
    """Logits that `score_states` computes at a time on a kind of device."""
    return HOST_CHUNK if kind in {"cpu", "meta"} else DEVICE_CHUNK


class Scores(NamedTuple):
    """Log-probs and related quantities of N tokens under one policy, float32."""

    logprobs: Tensor
    """[N] log-prob of the token, nats. Carries the gradient."""
    entropy: Tensor | None = None
    """[N] entropy of the distribution at the token, nats. Carries the gradient."""
    sum_pi_squared: Tensor | None = None
    """[N] Σ p² of that distribution. No gradient."""


def score_states(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    token_ids: Tensor,
    *,
    temperature: float,
    dtype: torch.dtype = torch.float32,
    entropy: bool = False,
    sum_pi_squared: bool = False,
    banned: Tensor | None = None,
    mask: SamplingMask | None = None,
    chunk: int | None = None,
) -> Scores:
    """
    Score tokens from the last hidden states, with at most ``chunk`` logits in memory.

    Args:
        states: [N, H] at the positions that *predict* the tokens. They, weight and bias carry gradients.
        weight: [V, H] of the head.
        bias: [V] of the head, if it has one.
        token_ids: [N] int64.
        temperature: Temperature of the sampler, above zero.
        mask: Ids that were left when the N tokens were drawn; None is the whole vocabulary.
        dtype: Data type of the factors of products with the head; logits and all else are at least float32.
        banned: [B] int64 ids that are never sampled: the others have all of the probability. None of ``token_ids``.
        chunk: Number of logits computed at a time, at least one row; None is `chunk_logits` of the device.
    """
    num_rows = max(1, (chunk or chunk_logits(states.device.type)) // len(weight))
    work = _Work(temperature, dtype, num_rows, entropy, sum_pi_squared, banned, mask)
    logprobs, entropies, sums = _Score.apply(states, weight, bias, token_ids, work)  # type: ignore[no-untyped-call]
    return Scores(logprobs, entropies if entropy else None, sums if sum_pi_squared else None)


class _Work(NamedTuple):
    temperature: float
    dtype: torch.dtype
    num_rows: int
    entropy: bool
    sum_pi_squared: bool
    banned: Tensor | None
    mask: SamplingMask | None

    @property
    def exact(self) -> torch.dtype:
        """Data type of everything but the products."""
        return torch.promote_types(self.dtype, torch.float32)

    def chunks(self, num_tokens: int) -> Iterator[slice]:
        """Slices of rows that are computed together."""
        return (slice(start, start + self.num_rows) for start in range(0, num_tokens, self.num_rows))

    def logits(self, rows: slice, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[n, V] logits of a chunk, divided by the temperature and masked. The caller may overwrite them."""
        logits = head_logits(states[rows].to(self.dtype), weight, bias)
        if self.temperature != 1:
            logits.div_(self.temperature)
        if self.banned is not None:
            logits.index_fill_(1, self.banned, REMOVED)
        return logits if self.mask is None else self.mask.apply(logits, rows)


class _Score(torch.autograd.Function):
    """[N] log-probs, entropies and sums of squares; the last two are empty unless requested."""

    @staticmethod
    def forward(  # noqa: PLR0917  signature of torch
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, work: _Work
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_tokens = len(states)
        # Separate tensors, not rows of one: a returned view may lose the hooks of a sharded model.
        logprobs = states.new_empty(num_tokens, dtype=work.exact)
        entropy = states.new_empty(num_tokens if work.entropy else 0, dtype=work.exact)
        sums = states.new_empty(num_tokens if work.sum_pi_squared else 0, dtype=work.exact)
        head = _cast(weight, bias, work.dtype)
        log_p = states
        for rows in work.chunks(num_tokens):
            log_p = work.logits(rows, states, *head).log_softmax(-1)
            logprobs[rows] = log_p.gather(1, token_ids[rows, None])[:, 0]
            if work.entropy or work.sum_pi_squared:
                p = log_p.exp()
            if work.entropy:
                entropy[rows] = -torch.linalg.vecdot(p, log_p)
            if work.sum_pi_squared:
                sums[rows] = torch.linalg.vecdot(p, p)
        kept = log_p if num_tokens <= work.num_rows else None
        ctx.save_for_backward(states, weight, bias, token_ids, entropy, kept)
        ctx.work = work
        ctx.mark_non_differentiable(sums)
        return logprobs, entropy, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, token_ids, entropy, kept = ctx.saved_tensors
        work: _Work = ctx.work
        grad_states, grad_weight, grad_bias = (
            torch.zeros_like(tensor, dtype=work.exact) if needed else None
            for tensor, needed in zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        )
        head = _cast(weight, bias, work.dtype)
        for rows in work.chunks(len(states)):
            # d log p_i / d z_j = [i = j] - p_j and dH / d z_j = -p_j (log p_j + H), for z the scaled logits.
            push = grad_logprobs[rows, None]
            if kept is not None or work.entropy:
                log_p = work.logits(rows, states, *head).log_softmax(-1) if kept is None else kept
                p = log_p.exp()
            else:
                p = work.logits(rows, states, *head).softmax(-1)
            if work.entropy:
                p *= (log_p + entropy[rows, None]).mul_(grad_entropy[rows, None]).add_(push)
                p.scatter_add_(1, token_ids[rows, None], -push)
                scale = torch.full_like(push, -1 / work.temperature)
            else:
                p.scatter_add_(1, token_ids[rows, None], torch.full_like(push, -1))
                scale = push / -work.temperature
            grad = torch.mul(p, scale, out=p if p.dtype == work.dtype else torch.empty_like(p, dtype=work.dtype))
            del p
            if grad_states is not None:
                grad_states[rows] = product(grad, head[0])
            if grad_weight is not None:
                add_product(grad_weight, grad.T, states[rows].to(work.dtype))
            if grad_bias is not None:
                grad_bias += grad.sum(0, dtype=work.exact)
        return grad_states, grad_weight, grad_bias, None, None


def _cast(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return weight.to(dtype), None if bias is None else bias.to(dtype)
