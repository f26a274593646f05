"""Whatever is one number is the same number at every door through which programs of users return some."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.episodes.worker.load import SkyRLGym, TextArena
from asyncrl.episodes.worker.values import score_of, step_of
from asyncrl.errors import VerifierError
from asyncrl.messages.number import number
from asyncrl.reward.catalogue import adapt
from asyncrl.reward.verifier import VerifierInput, verdict_of

MAKERS = {
    "int": int,
    "float": float,
    "Decimal": Decimal,
    "Fraction": Fraction,
    **{f"np.{kind}": getattr(np, kind) for kind in ("float16", "float32", "float64", "int8", "int64", "uint32")},
    "np.longdouble": np.longdouble,
    "np 0-d": lambda value: np.array(float(value)),
    "np of one": lambda value: np.array([float(value)]),
    "torch 0-d": lambda value: torch.tensor(float(value)),
    "torch bfloat16": lambda value: torch.tensor(float(value), dtype=torch.bfloat16),
    "torch of one, with a gradient": lambda value: torch.tensor([float(value)], requires_grad=True),
}
BOOLS = {"bool": bool, "np.bool": np.bool_, "np.bool 0-d": lambda value: np.array(bool(value))}
BOOLS["torch bool"] = lambda value: torch.tensor(bool(value))
ONES = [pytest.param(make, id=name) for name, make in (MAKERS | BOOLS).items()]
NO_NUMBERS = [None, "1", b"1", [1.0], {"a": 1}, 1j, np.array([1.0, 2.0]), torch.zeros(2), np.array("1"), np.array([])]


@pytest.mark.parametrize("make", ONES)
def test_one_and_zero_of_every_type_arrive_at_every_door(make: Any) -> None:
    for value in (0.0, 1.0):
        given = make(int(value))
        assert number(given) == value
        assert verdict_of(given).reward == value
        named = verdict_of({"score": 0.25, "correct": given, "length": given})
        assert (named.metrics["correct"], named.metrics["length"]) == (value, value)
        assert verdict_of({"score": given}).metrics["correct"] == value
        assert score_of({"score": given, "length": given}, "score") == {"reward": value, "metrics": {"length": value}}
        assert step_of({"reward": given}, "step")["reward"] == value

        def compute_score(solution_str: str, ground_truth: str, given: Any = given) -> dict[str, Any]:
            return {"score": 0.25, "acc": given}

        judge = adapt(compute_score, {}, path="own.py:compute_score", setting="reward.function")
        assert verdict_of(judge(VerifierInput(completion=""))).metrics["correct"] == value
        assert SkyRLGym(Sky(given)).score() == {"length": value}
        assert score_of(TextArena(Arena(given)).score(), "score")["reward"] == [value]


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in BOOLS.items()])
def test_a_flag_may_be_of_any_type_of_bool(make: Any) -> None:
    assert step_of({"done": make(True), "restart": make(False)}, "step")["done"] is True


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number_is_refused_where_one_is_due_and_left_out_elsewhere(value: Any) -> None:
    assert number(value) is None
    for returned in (value, {"score": value}, {"score": 1.0, "correct": value}):
        if isinstance(returned, dict) and returned == {"a": 1}:
            continue
        with pytest.raises(VerifierError, match="expected a"):
            verdict_of(returned)
    assert set(verdict_of({"score": 1.0, "note": value}).metrics) == {"correct"}


def test_what_no_float_can_hold_is_infinite() -> None:
    found = [number(value) for value in (10**400, -(10**400), Decimal("1e400"), Fraction(10**400))]
    assert found == [math.inf, -math.inf, math.inf, math.inf]
    assert math.isnan(number(Decimal("sNaN")) or 0.0)


class Sky:
    def __init__(self, value: Any) -> None:
        self.value = value

    def get_metrics(self) -> dict[str, Any]:
        return {"length": self.value, "note": "text"}


class Arena:
    def __init__(self, value: Any) -> None:
        self.value = value

    def close(self) -> tuple[dict[int, Any], dict[str, Any]]:
        return {0: self.value}, {}
