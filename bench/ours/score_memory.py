"""
Peak memory of scoring tokens with entropy, forward and backward. Each measurement needs a new process.

    PYTHONPATH=bench python -m ours.score_memory TOKENS VOCABULARY ours|whole

``whole`` computes log_softmax of all logits at once. Prints the increase of the peak memory in megabytes, including
states, head and their gradients, and the seconds.
"""

import resource
import sys
import time

import torch
from torch import Tensor

from asyncrl.algo.logprobs import score_states

HIDDEN = 64
"""Small, so that logits dominate the memory."""


def whole(states: Tensor, head: Tensor, ids: Tensor) -> Tensor:
    """[N] log-prob plus entropy of each token, from all logits at once."""
    log_p = (states @ head.T).log_softmax(-1)
    return log_p.gather(1, ids[:, None])[:, 0] - (log_p.exp() * log_p).sum(-1)


def ours(states: Tensor, head: Tensor, ids: Tensor) -> Tensor:
    """[N] log-prob plus entropy of each token, with `score_states`."""
    scores = score_states(states, head, None, ids, temperature=1.0, entropy=True)
    assert scores.entropy is not None
    return scores.logprobs + scores.entropy


def peak_mb() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(num_tokens: int, vocabulary: int, way: str) -> None:
    torch.set_num_threads(1)
    before, started_s = peak_mb(), time.perf_counter()
    states = torch.randn(num_tokens, HIDDEN, requires_grad=True)
    head = torch.randn(vocabulary, HIDDEN, requires_grad=True)
    score = {"ours": ours, "whole": whole}[way]
    score(states, head, torch.randint(vocabulary, (num_tokens,))).sum().backward()  # type: ignore[no-untyped-call]
    sys.stdout.write(f"{peak_mb() - before:.0f} {time.perf_counter() - started_s:.2f}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
