"""
Every correction against formulas written out for padded rectangles with masks, in NumPy and float64.

Rows are sequences; a column with mask 0 is padding, or a token that a tool wrote. Ours never sees those.
"""

from itertools import product

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.correction import Correct
from asyncrl.config.sections.algorithm import Correction

Rectangle = NDArray[np.float64]

WEIGHTS = list(product(("token", "sequence"), ("1.2", "2.0", "0.5_5.0", "0.9_1.1"), (False, True)))
BANDS, BOUNDS = ("0.999_1.001", "0.5_2.0", "0.6_1.6", "1.5", "1e-9_1e9"), ("0.01", "0.5", "30", "1e12")
K1 = ("token_k1", "seq_sum_k1", "seq_mean_k1")
K2_K3 = tuple(f"{scope}_{k}" for scope in ("token", "seq_sum", "seq_mean", "seq_max") for k in ("k2", "k3"))
REJECTIONS = [*product(K1, BANDS), *product(K2_K3, BOUNDS), ("token_k1,seq_mean_k1,seq_max_k2", "0.5_2,0.9_1.1,3")]


class Step:
    """Random sequences: long and short, without any token, all masked, mixed with a tool's, and far off."""

    def __init__(self, seed: int, *, extreme: bool) -> None:
        random = np.random.default_rng(seed)
        lengths = [0, 1, 1, 2, 24, *random.integers(0, 24, size=15)]
        self.mask = np.array([[float(column < length) for column in range(24)] for length in lengths])
        self.mask[6:12] *= random.random((6, 24)) < 0.6  # a tool has spoken in between
        self.mask[12] = 0.0
        self.behavior = -random.exponential(size=self.mask.shape)
        self.d = random.normal(size=self.mask.shape) * random.choice([1e-4, 0.05, 0.5], size=(len(lengths), 1))
        self.d[13] = 0.0
        if extreme:
            self.d[[3, 4, 7, 9], 0] = 50.0
            self.d[[4, 8, 10], 1] = -50.0
            self.d[1, 0], self.d[2, 0] = 50.0, -50.0
        self.logprobs = self.behavior + self.d
        self.d = self.logprobs - self.behavior
        is_ours = self.mask > 0
        self.ours = torch.from_numpy(self.logprobs[is_ours])
        self.theirs = torch.from_numpy(self.behavior[is_ours])
        self.sequences = Ragged(is_ours.sum(axis=1).tolist())


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split("_")]


def over(values: Rectangle, m: Rectangle) -> float:
    """Mean over tokens."""
    return float((values * m).sum() / m.sum())


def per_row(values: Rectangle, m: Rectangle) -> Rectangle:
    """Mean of each row; 0 without tokens."""
    return (values * m).sum(1) / np.maximum(m.sum(1), 1)


def ratios(d: Rectangle, m: Rectangle, level: str) -> Rectangle:
    log_weights = d if level == "token" else np.broadcast_to((d * m).sum(1, keepdims=True), d.shape)
    return np.exp(np.clip(log_weights, -20, 20)) * m


def weights(d: Rectangle, m: Rectangle, level: str, threshold: str) -> Rectangle:
    raw, bounds = ratios(d, m, level), numbers(threshold)
    if len(bounds) == 1:
        return np.minimum(raw, bounds[0])
    return np.where((raw >= bounds[0]) & (raw <= bounds[1]), raw, 0.0)


def norm(w: Rectangle, m: Rectangle, level: str) -> float:
    if level == "token":
        return over(w, m)
    return float(per_row(w, m)[m.sum(1) > 0].mean())


def measured(d: Rectangle, m: Rectangle, option: str) -> Rectangle:
    """Divergence of each token, or of its row spread over the tokens."""
    scope, _, k = option.rpartition("_")
    c = np.clip(d, -20, 20)
    value = {"k1": -c, "k2": c * c / 2, "k3": np.exp(c) - 1 - c}[k]
    if scope == "token":
        return value
    of_row = {
        "seq_sum": (value * m).sum(1),
        "seq_mean": per_row(value, m),
        "seq_max": np.where(m > 0, value, -np.inf).max(1),
    }[scope]
    return np.broadcast_to(of_row[:, None], d.shape)


def limits(option: str, threshold: str) -> tuple[float, float]:
    bounds = numbers(threshold)
    if not option.endswith("k1"):
        return -np.inf, bounds[0]
    low, high = bounds if len(bounds) == 2 else (1 / bounds[0], bounds[0])
    return np.log(low), np.log(high)


def passes(d: Rectangle, m: Rectangle, option: str, threshold: str) -> NDArray[np.bool_]:
    low, high = limits(option, threshold)
    value = measured(d, m, option)
    return (value >= low) & (value <= high)


def close(ours: float, theirs: float) -> bool:
    return ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)


def weighing(level: str, threshold: str, normalize: bool) -> Correction:
    settings = {"importance": level, "importance_threshold": threshold, "importance_normalize": normalize}
    return msgspec.convert({"mode": "decoupled", **settings}, Correction)


STEPS = [Step(seed, extreme=extreme) for seed in range(3) for extreme in (False, True)]


@pytest.mark.parametrize(("level", "threshold", "normalize"), WEIGHTS)
def test_importance_weights(level: str, threshold: str, normalize: bool) -> None:
    correct = Correct(weighing(level, threshold, normalize))
    for step in STEPS:
        expected = weights(step.d, step.mask, level, threshold)
        if normalize:
            expected = expected / norm(expected, step.mask, level)
        found, keep = correct(step.ours, step.theirs, step.sequences)
        assert keep is None
        assert found is not None
        np.testing.assert_allclose(found, expected[step.mask > 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("options", "texts"), REJECTIONS)
def test_rejections(options: str, texts: str) -> None:
    correct = Correct(Correction(rejection=options, rejection_threshold=texts))
    for step in STEPS:
        expected = np.ones_like(step.mask, dtype=bool)
        for option, text in zip(options.split(","), texts.split(","), strict=True):
            expected &= passes(step.d, step.mask, option, text)
        found, keep = correct(step.ours, step.theirs, step.sequences)
        assert found is None
        assert keep is not None
        assert keep.tolist() == expected[step.mask > 0].tolist()


def mismatch(step: Step) -> dict[str, float]:
    m, d = step.mask, step.d
    rows = m.sum(1) > 0
    training, rollout = -per_row(step.logprobs, m)[rows], -per_row(step.behavior, m)[rows]
    gap = training - rollout
    return {
        "training_ppl": np.exp(training).mean(),
        "training_log_ppl": training.mean(),
        "rollout_ppl": np.exp(rollout).mean(),
        "rollout_log_ppl": rollout.mean(),
        "log_ppl_diff": gap.mean(),
        "log_ppl_abs_diff": abs(gap).mean(),
        "log_ppl_diff_max": gap.max(),
        "log_ppl_diff_min": gap.min(),
        "ppl_ratio": np.exp(gap).mean(),
        "kl": over(-d, m),
        "k3_kl": over(np.exp(d) - d - 1, m),
        "chi2_token": over(np.exp(np.clip(d, -20, 20)) ** 2, m) - 1,
        "chi2_seq": (np.exp(np.clip((d * m).sum(1)[rows], -20, 20)) ** 2).mean() - 1,
    }


def of_rows(values: Rectangle, ideal: float) -> dict[str, float]:
    return {
        "mean": values.mean(),
        "std": values.std(ddof=1),
        "max": values.max(),
        "min": values.min(),
        "max_deviation": abs(values - ideal).max(),
    }


def of_weights(step: Step, level: str, threshold: str, normalize: bool) -> dict[str, float]:
    m = step.mask
    raw, used, bounds = ratios(step.d, m, level), weights(step.d, m, level, threshold), numbers(threshold)
    high, low = bounds[-1], bounds[0] if len(bounds) == 2 else 1 / bounds[0]
    rows, tokens = m.sum(1) > 0, m > 0
    raw_rows = per_row(raw, m)[rows]
    compared = raw[tokens] if level == "token" else raw_rows
    extreme = used[tokens] if level == "token" else raw_rows
    mean = over(used, m)
    found = {
        "mean": mean,
        "std": np.sqrt(max(over(used**2, m) - mean**2, 0)),
        "max": extreme.max(),
        "min": extreme.min(),
        "eff_sample_size": 1 / over((used / mean) ** 2, m),
        "ratio_fraction_high": (compared > high).mean(),
        "ratio_fraction_low": (compared < low).mean(),
        "seq_fraction_high": (raw_rows > high).mean(),
        "seq_fraction_low": (raw_rows < low).mean(),
        **{f"seq_{key}": value for key, value in of_rows(per_row(used, m)[rows], 1.0).items()},
    }
    if len(bounds) == 2:
        found["oob_ratio"] = ((raw[tokens] < low) | (raw[tokens] > high)).mean()
    if normalize:
        found["batch_norm_factor"] = norm(used, m, level)
    return {f"rollout_is_{key}": value for key, value in found.items()}


def of_rejection(step: Step, option: str, threshold: str) -> dict[str, float]:
    m, value, (low, high) = step.mask, measured(step.d, step.mask, option), limits(option, threshold)
    rows, tokens = m.sum(1) > 0, m > 0
    value = np.where(tokens, value, 0.0)
    row_values = per_row(value, m)[rows]
    compared = value[tokens] if option.startswith("token") else row_values
    dropped = tokens & ~passes(step.d, m, option, threshold)
    return {
        "mean": over(value, m),
        "std": np.clip(value[tokens], low, high).std(),
        "max": compared.max(),
        "min": compared.min(),
        "fraction_high": (compared > high).mean(),
        "fraction_low": (compared < low).mean(),
        "seq_fraction_high": (row_values > high).mean(),
        "seq_fraction_low": (row_values < low).mean(),
        "masked_fraction": dropped[tokens].mean(),
        "seq_masked_fraction": np.any(dropped, axis=1)[rows].mean(),
        **{f"seq_{key}": number for key, number in of_rows(row_values, 0.0).items()},
    }


@pytest.mark.parametrize(("level", "threshold", "normalize"), WEIGHTS)
def test_metrics_of_weights(level: str, threshold: str, normalize: bool) -> None:
    correct = Correct(weighing(level, threshold, normalize))
    for step in STEPS:
        expected = mismatch(step) | of_weights(step, level, threshold, normalize)
        got = correct.metrics(step.ours, step.theirs, step.sequences)
        assert got.keys() == expected.keys()
        assert [key for key in got if not close(got[key], expected[key])] == []


@pytest.mark.parametrize(("options", "texts"), REJECTIONS)
def test_metrics_of_rejections(options: str, texts: str) -> None:
    correct = Correct(Correction(rejection=options, rejection_threshold=texts))
    for step in STEPS:
        m, tokens = step.mask, step.mask > 0
        expected, dropped = mismatch(step), np.zeros_like(tokens)
        for option, text in zip(options.split(","), texts.split(","), strict=True):
            found = of_rejection(step, option, text)
            expected |= {f"rollout_rs_{option}_{key}": value for key, value in found.items()}
            dropped |= tokens & ~passes(step.d, m, option, text)
        expected["rollout_rs_masked_fraction"] = dropped[tokens].mean()
        expected["rollout_rs_seq_masked_fraction"] = np.any(dropped, axis=1)[m.sum(1) > 0].mean()
        got = correct.metrics(step.ours, step.theirs, step.sequences)
        assert got.keys() == expected.keys()
        assert [key for key in got if not close(got[key], expected[key])] == []
