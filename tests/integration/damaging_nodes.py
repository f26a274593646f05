"""
Nodes with a bug, installed into the processes of a run by a ``sitecustomize`` module that imports this one.

    rollout    its engine damages a completion now and then; it damages a trajectory now and then after checking it
    reward     does not notice some of the damaged trajectories
    trainer    a witness notes what every rank trains on

Each process appends what it did to a file of its own in the folder ``ASYNCRL_TEST_LOG``.
"""

import importlib
import os
import sys
import zlib
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

LOG = "ASYNCRL_TEST_LOG"
IN_ENGINE, IN_PAYLOAD, BLINDNESS = 0.08, 0.3, 0.3
UNSEEN = {"summary: finish_reason", "prompt too long"}
"""Damages left out: the first makes the trajectory unfinished, and the run's prompts may be as long as the second."""
VOCAB_SIZE = 22
UNREACHED = 100_000
"""A policy version that no run of a test reaches: the next one is sound once it is published."""


def note(**fields: Any) -> None:
    with (Path(os.environ[LOG]) / f"{os.getpid()}.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(fields) + b"\n")


def damage_in_engine(dice: Random) -> None:
    from asyncrl.rollout.engines.transformers.engine import TransformersEngine

    generate = TransformersEngine.generate

    async def damaging(self: TransformersEngine, request: Any) -> Any:
        completion = await generate(self, request)
        if dice.random() >= IN_ENGINE:
            return completion
        last = len(completion.completion_ids) - 1
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("id", {"completion_ids": [*completion.completion_ids[:last], VOCAB_SIZE]}),
            ("log-prob", {"behavior_logprobs": [*completion.behavior_logprobs[:last], float("nan")]}),
            ("spans", {"spans": []}),
        ]
        kind, changes = dice.choice(kinds)
        note(event="damaged in the engine", kind=kind)
        return replace(completion, **changes)

    TransformersEngine.generate = damaging  # type: ignore[method-assign]


def damage_payloads(dice: Random) -> None:
    from asyncrl.messages.spool import PutItem
    from asyncrl.messages.trajectory import Trajectory

    generations: Any = importlib.import_module("asyncrl.rollout.generations")
    from tests.messages import damage
    from tests.messages.damage import DAMAGES, OF_REPLAY

    damage.NEWEST_VERSION = UNREACHED
    to_put_item = generations.to_put_item
    names = sorted(DAMAGES.keys() - OF_REPLAY.keys() - UNSEEN)

    def damaging(*arguments: Any, **options: Any) -> PutItem:
        item = to_put_item(*arguments, **options)
        if item.summary.finish_reason == "unfinished" or dice.random() >= IN_PAYLOAD:
            return item
        name = dice.choice(names)
        trajectory = msgspec.msgpack.decode(item.payload, type=Trajectory)
        damaged, summary = DAMAGES[name][1]((trajectory, item.summary), dice)
        payload = memoryview(msgspec.msgpack.encode(damaged))
        note(event="damaged", unit=item.unit, lease_id=item.lease_id, crc32=zlib.crc32(payload), name=name)
        return replace(item, payload=payload, summary=summary)

    generations.to_put_item = damaging


def overlook(dice: Random) -> None:
    actor: Any = importlib.import_module("asyncrl.reward.actor")
    problem_of = actor.problem_of

    def overlooking(*arguments: Any) -> str:
        problem = problem_of(*arguments)
        if problem and dice.random() < BLINDNESS:
            note(event="overlooked", unit=arguments[1], problem=problem)
            return ""
        return problem

    actor.problem_of = overlooking


def witness() -> None:
    import numpy as np

    from asyncrl.trainer.learner import Learner

    train = Learner.train

    def watched(self: Learner, step: Any, policy_version: int | None = None) -> dict[str, float]:
        for one in step.trajectories.values():
            ids, logprobs = np.concatenate([one.prompt_ids, one.completion_ids]), one.behavior_logprobs
            is_sound = ids.min() >= 0 and ids.max() < VOCAB_SIZE and np.isfinite(logprobs).all() and logprobs.max() <= 0
            note(event="trained", step=self.num_steps, group_id=one.group_id, index=one.index, is_sound=bool(is_sound))
        return train(self, step, policy_version)

    Learner.train = watched  # type: ignore[method-assign]


def install() -> None:
    command = sys.orig_argv
    role = command[command.index("--role") + 1] if "--role" in command else ""
    dice = Random(" ".join(command))
    match role:
        case "rollout":
            damage_in_engine(dice)
            damage_payloads(dice)
        case "reward":
            overlook(dice)
        case "trainer":
            witness()
        case _ if "asyncrl.runtime.rank" in command:
            witness()


install()
