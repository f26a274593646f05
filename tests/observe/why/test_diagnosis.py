"""Planted bottlenecks are named."""

from typing import Any

import pytest

from tests.observe.why.planted import diagnosis_of, flapping, played, times_of

EVALUATION = {"evaluation": {"every_versions": 1}}
PLANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "a step takes long": ("trainer", {"train_s": 1.0}),
    "few rollouts": ("sampling", {"num_rollouts": 1, "token_s": 0.3}),
    "a slow reward": ("grading", {"verdict_s": 1.0}),
    "a verifier that hangs": ("hanging verifier", {"verdict_s": 0.2, "hung": 0.2}),
    "one slow rollout": ("slow rollout", {"token_s": 0.1, "slow_rollout": 8.0}),
    "a tiny window": ("window", {"token_s": 0.2, "train_s": 0.4, "settings": {"schedule": {"staleness": 0.0}}}),
    "a long tail": ("long completions", {"token_s": 0.05, "tail": 80.0, "num_rollouts": 3}),
    "a publish over a slow link": ("publishing", {"transfer_s": 3.0}),
    "evaluation in the way": (
        "evaluation", {"num_rollouts": 1, "token_s": 0.1, "num_held_out": 100, "settings": EVALUATION}
    ),
    "refused prompts": ("refused data", {"token_s": 0.3, "refused": 0.4}),
    "a slow disk": ("disk", {"sync_s": 2.0}),
    "a node that comes and goes": ("flapping node", {"token_s": 0.3, "faults": flapping}),
    "too little memory": ("memory", {"token_s": 0.3, "memory_stall": 0.6}),
    "busy cores": ("processor", {"token_s": 0.3, "cores_busy": 0.98}),
    "busy cores, and a step that takes long": ("processor", {"train_s": 1.0, "cores_busy": 0.98}),
}  # fmt: skip


@pytest.mark.slow("a run in virtual time for each of many causes")
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bottleneck_is_named(planted: str) -> None:
    bottleneck, options = PLANTED[planted]
    world = played(**options)

    for role in ("trainer", "rollout", "reward"):
        assert sum(times_of(world).shares(role).values()) == pytest.approx(1.0)
    found = diagnosis_of(world)
    assert found.bottleneck == bottleneck, found
    assert found.setting
