"""
Records what each update of the policy computed, in the trainers of a run.

    ASYNCRL_UPDATES=folder, and hook/ on PYTHONPATH ─▶ sitecustomize ─▶ `install` ─▶ folder/<pid>: an update a line

Numbers are by the place of a trajectory in its step: those of a rank's own trajectories, or of all where every rank has
them.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "ASYNCRL_UPDATES"
LEARNER = "asyncrl.trainer.learner"


def install(folder: Path) -> None:
    """Record the updates of this process, if it imports the learner."""
    sys.meta_path.insert(0, _OnImport(folder))


def updates(folder: Path) -> list[dict[str, Any]]:
    """The updates of a run in order, each with the numbers of all ranks."""
    ranks = [
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in sorted(folder.iterdir())
    ]
    merged = []
    for parts in zip(*ranks, strict=True):
        whole: dict[str, Any] = {}
        for part in parts:
            for name, values in part.items():
                whole[name] = whole.get(name, {}) | values if isinstance(values, dict) else values
        merged.append(whole)
    return merged


class _OnImport(MetaPathFinder):
    """Lets the learner be imported as always, and then wraps it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != LEARNER:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            _wrap(module, self._folder)

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap(learner: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / str(os.getpid())).open("a", buffering=1, encoding="utf-8")
    policy, objective, inputs_of = learner.Updates.policy, learner.objective, learner.MiniBatch.loss_inputs
    found: dict[str, Any] = {}
    places: list[int] = []

    def recorded_policy(self: Any, mini_batch: Any, lr: float, policy_version: int | None) -> Any:
        step, estimates = mini_batch.step, mini_batch.estimates
        trajectories = step.trajectories.items()
        found.update(
            places=list(mini_batch.places),
            rewards=[info.outcome.reward for info in step.infos],
            groups=[info.outcome.group_id for info in step.infos],
            lengths=[info.outcome.length for info in step.infos],
            behavior={place: one.behavior_logprobs.tolist() for place, one in trajectories},
            advantages=_by_place(estimates.advantages),
            importance=_by_place(estimates.importance),
            keep=_by_place(estimates.keep),
            old=_by_place(mini_batch.old_logprobs),
            ref=_by_place(mini_batch.ref_logprobs),
            new={},
        )
        metrics = policy(self, mini_batch, lr, policy_version)
        file.write(json.dumps(found | {"metrics": metrics}) + "\n")
        return metrics

    def recorded_inputs(self: Any, of: Sequence[int], *arguments: Any, **options: Any) -> Any:
        places[:] = of
        return inputs_of(self, of, *arguments, **options)

    def recorded_objective(recipe: Any, algorithm: Any, scores: Any, inputs: Any) -> Any:
        parts = scores.logprobs.detach().float().split(inputs.sequences.lengths.tolist())
        found["new"] |= {place: part.tolist() for place, part in zip(places, parts, strict=True)}
        return objective(recipe, algorithm, scores, inputs)

    learner.Updates.policy, learner.objective = recorded_policy, recorded_objective
    learner.MiniBatch.loss_inputs = recorded_inputs


def _by_place(values: Sequence[Any] | None) -> dict[int, list[Any]]:
    return {} if values is None else {place: one.tolist() for place, one in enumerate(values)}
