"""
Reward that a model with random weights can increase: 1 for a correct answer, else a small reward for its format.

Correctness alone gives no gradient if no completion is correct. Accuracy counts only correct answers.
"""

import re

from asyncrl.reward.verifier import VerifierInput
from asyncrl.reward.verifiers.math import Gsm8k

judge = Gsm8k(method="strict")


def score(sample: VerifierInput) -> dict[str, float]:
    """Score 1 if correct, else up to 0.2: up to 0.1 for digits and 0.1 for a final answer marker ``####``."""
    correct = float(judge(sample)["score"])
    digits = min(len(re.findall(r"[0-9]", sample.completion)) / 50, 1.0)
    marked = float("####" in sample.completion)
    return {"score": correct or 0.1 * digits + 0.1 * marked, "correct": correct, "digits": digits}
