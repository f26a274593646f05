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
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from asyncrl.log import get_logger

# ── sampling mask ─────────────────────────────────────────────────────────────────────────────
# Sampling masks: the token ids that were left in the distribution when each token was drawn.
#
#     sampler    softmax ─ top-k, top-p ─▶ renormalised over the mask ─▶ token, log-prob
#     trainer    logits  ─ the same mask ─▶ renormalised over it       ─▶ log-prob of the token
#
# Top-p under the policy in training would leave other ids than top-p in the sampler, and the ratio would compare
# distributions over different sets. With the sampler's mask both policies are renormalised over one set, so two equal
# policies have a ratio of 1 and a KL of 0.
#
# Source:
#     DeepSeek-AI 2025, arXiv:2512.02556 ("keep sampling mask").

REMOVED = -1e30
"""Logit of an id outside the mask: its probability is exactly 0. Minus infinity would make 0 * logit a NaN."""


class SamplingMask(NamedTuple):
    """Masks of N tokens with M ids in total."""

    counts: Tensor
    """Number of ids in the mask of each token, [N] int64; 0 leaves the whole vocabulary."""
    ids: Tensor
    """Token ids of all masks, [M] int64, mask after mask."""
    ends: list[int]
    """N + 1 boundaries of the masks in ``ids``, starting with 0; on the host, so that slicing waits for no device."""

    def apply(self, logits: Tensor, rows: slice) -> Tensor:
        """Set the logits [n, V] of the tokens ``rows`` to `REMOVED` outside their masks, in place."""
        start, end = self.ends[rows.start], self.ends[min(rows.stop, len(self.ends) - 1)]
        if start == end:
            return logits
        counts = self.counts[rows]
        row = torch.arange(len(logits), device=logits.device).repeat_interleave(counts, output_size=end - start)
        left = row * logits.shape[1] + self.ids[start:end]
        flat = logits.view(-1)
        values = flat[left]
        logits.masked_fill_((counts > 0)[:, None], REMOVED)
        flat[left] = values
        return logits


# ── products ──────────────────────────────────────────────────────────────────────────────────
# Matrix products of 16-bit tensors that are summed and returned in float32.
#
#     CUDA          one kernel: 16-bit factors, float32 sums and result, or sums that are added to it
#     elsewhere     some columns of the right factor at a time, as float32
#
# The product of two bfloat16 numbers is exact in float32, so only the order of a sum makes a difference. Logits of
# the trainer and of the built-in engine come from here: rounded to bfloat16, a logit of 20 would be wrong by up to
# 0.06.

log = get_logger()

HALVES = (torch.bfloat16, torch.float16)
CHUNK = 1 << 25
"""Elements of the right factor in memory as float32 at a time: 128 MiB."""


def head_logits(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """
    Logits [..., V] of a linear head, in float32 or the dtype of the inputs if that is wider.

    Args:
        states: [..., H], of the dtype of the head.
        weight: [V, H].
        bias: [V].
    """
    if states.dtype not in HALVES:
        return F.linear(states, weight, bias)
    logits = product(states.flatten(0, -2), weight.T)
    if bias is not None:
        logits += bias
    return logits.view(*states.shape[:-1], len(weight))


def product(left: Tensor, right: Tensor) -> Tensor:
    """[n, m] product of [n, k] and [k, m], which have one dtype; in float32 if that is narrower."""
    if left.dtype not in HALVES:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    result = left.new_empty(len(left), right.shape[1], dtype=torch.float32)
    left = left.float()
    for columns in _columns(right):
        result[:, columns] = left @ right[:, columns].float()
    return result


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the `product` of [n, k] and [k, m] to a contiguous [n, m] total of its dtype, without a tensor for it."""
    if left.dtype not in HALVES:
        total.addmm_(left, right)
    elif left.is_cuda and _adds(left.device, left.dtype):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    elif left.is_cuda:
        total += torch.mm(left, right, out_dtype=torch.float32)
    else:
        left = left.float()
        for columns in _columns(right):
            total[:, columns].addmm_(left, right[:, columns].float())


def _columns(right: Tensor) -> Iterator[slice]:
    """Slices of the columns of a factor that are in memory as float32 together."""
    width = max(1, CHUNK // max(1, len(right)))
    return (slice(start, start + width) for start in range(0, right.shape[1], width))


@cache
def _adds(device: torch.device, dtype: torch.dtype) -> bool:
    """True if the installed torch adds a product of 16-bit factors to a float32 total: it is tried, once."""
    left, right = (torch.linspace(-2, 2, 256, device=device).view(16, 16).to(dtype) for _ in range(2))
    total = torch.full((16, 16), 0.123, device=device)
    expected = total + left.float() @ right.float()
    try:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
        if torch.allclose(total, expected, rtol=1e-4, atol=1e-4):
            return True
        reason = "gives other values"
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
    log.warning("products.slower", device=str(device), torch=torch.__version__, reason=reason)
    return False


# ── logprobs ──────────────────────────────────────────────────────────────────────────────────

MEASURED_EVERY = 8
"""
Tokens to one whose entropy is measured for the mean alone. That of each would read and write as much as a third of all
that scoring does; this costs a step about 1 %.
"""
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
    """[N] entropy of the distribution at the token, nats. Carries the gradient, if it is that of each token."""
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
    entropy: int = 0,
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
        entropy: Tokens in a row that get the entropy of the first of them; 1 measures that of each, 0 of none.
        mask: Ids that were left when the N tokens were drawn; None is the whole vocabulary.
        dtype: Data type of the factors of products with the head; logits and all else are at least float32.
        banned: [B] int64 ids that are never sampled: the others have all of the probability. None of ``token_ids``.
        chunk: Number of logits computed at a time, at least one row; None is `chunk_logits` of the device.
    """
    num_rows = max(1, (chunk or chunk_logits(states.device.type)) // len(weight))
    work = _Work(temperature, dtype, num_rows, int(entropy), sum_pi_squared, banned, mask)
    logprobs, entropies, sums = _Score.apply(states, weight, bias, token_ids, work)  # type: ignore[no-untyped-call]
    return Scores(logprobs, entropies if entropy else None, sums if sum_pi_squared else None)


class _Work(NamedTuple):
    temperature: float
    dtype: torch.dtype
    num_rows: int
    entropy: int
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
            if work.sum_pi_squared:
                sums[rows] = log_p.mul(2).exp_().sum(-1)
            if work.entropy:
                some = log_p[:: work.entropy]
                measured = some.exp().mul_(some).sum(-1).neg_()
                entropy[rows] = measured.repeat_interleave(work.entropy)[: len(log_p)]
        kept = log_p if num_tokens <= work.num_rows else None
        ctx.save_for_backward(states, weight, bias, token_ids, entropy, kept)
        ctx.work = work
        ctx.mark_non_differentiable(sums, *([entropy] if work.entropy > 1 else []))
        ctx.set_materialize_grads(False)  # an entropy that is in no loss costs the backward pass nothing
        return logprobs, entropy, sums

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        states, weight, bias, token_ids, entropy, kept = ctx.saved_tensors
        work: _Work = ctx.work
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(entropy)
        grad_states, grad_weight, grad_bias = (
            torch.zeros_like(tensor, dtype=work.exact) if needed else None
            for tensor, needed in zip((states, weight, bias), ctx.needs_input_grad, strict=False)
        )
        head = _cast(weight, bias, work.dtype)
        for rows in work.chunks(len(states)):
            # d log p_i / d z_j = [i = j] - p_j and dH / d z_j = -p_j (log p_j + H), for z the scaled logits.
            push = grad_logprobs[rows, None]
            if kept is not None or grad_entropy is not None:
                log_p = work.logits(rows, states, *head).log_softmax(-1) if kept is None else kept
                p = log_p.exp()
            else:
                p = work.logits(rows, states, *head).softmax(-1)
            if grad_entropy is not None:
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


# ── attention ─────────────────────────────────────────────────────────────────────────────────
# Kernels of scaled dot-product attention, chosen by a rule instead of for each shape.
#
#     CUDA          flash ─▶ efficient ─▶ math      the first that takes the arguments
#     elsewhere     torch's only one
#
# Left alone, torch prefers cuDNN on newer GPUs, which makes a plan for each new shape and stride and keeps all of
# them. Decoding and packed rows make new shapes all the time.

ORDER = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels that work for every shape without preparation, the fastest first."""


def ready_kernels(device: torch.device) -> AbstractContextManager[None]:
    """Attention of this block takes kernels that need no preparation. Sets switches of the process, until the end."""
    return sdpa_kernel(ORDER, set_priority=True) if device.type == "cuda" else nullcontext()
