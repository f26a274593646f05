"""A loss that computes for longer than any time limit of the run, once: ``algorithm.loss = "slow_loss.py:loss"``."""

import os
import time

from asyncrl.algo.loss_tokens import PolicyLoss, Tokens
from asyncrl.algo.losses import clipped

COMPUTES_S = float(os.environ.get("COMPUTES_S", "8"))
"""Seconds of pure computation."""
done: list[float] = []


def compute(seconds: float) -> None:
    """Keep a core busy, and the interpreter too, which other threads get only when it is taken from this one."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(range(1000))


def loss(tokens: Tokens) -> PolicyLoss:
    if not done:
        done.append(COMPUTES_S)
        compute(COMPUTES_S)
    return clipped(tokens)
