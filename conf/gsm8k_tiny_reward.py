"""
A reward that a model with random weights can move: the right answer, or else a little credit for looking like one.

Correctness alone gives no gradient when nothing is ever correct. Accuracy still counts only right answers.
"""

import re

from asyncrl.reward.verifier import VerifierInput
from asyncrl.reward.verifiers.gsm8k import Gsm8k

judge = Gsm8k(method="strict")


def score(sample: VerifierInput) -> dict[str, float]:
    """1 if correct; else up to 0.2: half for digits, half for a final answer after ``####``."""
    correct = float(judge(sample)["score"])
    digits = min(len(re.findall(r"[0-9]", sample.completion)) / 50, 1.0)
    marked = float("####" in sample.completion)
    return {"score": correct or 0.1 * digits + 0.1 * marked, "correct": correct, "digits": digits}
