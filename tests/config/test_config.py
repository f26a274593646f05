"""Sections are immutable and strict, and derived values are exact."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.config import from_json, to_json
from asyncrl.config.sections.broker import Broker
from asyncrl.config.sections.evaluation import Checkpoint, Evaluation
from asyncrl.config.sections.schedule import Schedule
from asyncrl.config.sections.section import Section
from tests.config.configs import made, refused


def test_config_is_immutable() -> None:
    with pytest.raises(AttributeError):
        made().run.steps = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("staleness", "groups", "steps", "window"),
    [(0.0, 16, 1, 16), (1.0, 16, 1, 32), (0.5, 5, 1, 7), (0.1, 10, 3, 33), (2.0, 4, 4, 48)],
)
def test_the_window_by_hand(staleness: float, groups: int, steps: int, window: int) -> None:
    schedule = Schedule(staleness=staleness, groups_per_step=groups, steps_per_publish=steps)
    assert schedule.window == window


@given(st.integers(0, 400), st.integers(1, 1000), st.integers(1, 20))
def test_the_window_is_exact_where_floating_point_is_not(hundredths: int, groups: int, steps: int) -> None:
    schedule = Schedule(staleness=hundredths / 100, groups_per_step=groups, steps_per_publish=steps)
    assert schedule.window == (100 + hundredths) * groups * steps // 100
    assert schedule.window >= groups * steps


def test_sampling_travels_as_it_was_set() -> None:
    given = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "replay_mask": True, "stop": ["x"]}
    sampling = made(sampling=given).sampling
    travels = msgspec.structs.asdict(sampling.sampling())
    assert not travels.pop("replay_routes"), "that is a setting of rollouts"
    assert travels | {"seeded": True} == msgspec.structs.asdict(sampling), "whether it has a seed, the lease says"


def test_every_section_refuses_unknown_keys() -> None:
    sections = Section.__subclasses__()
    assert len(sections) > 10
    assert all(section.__struct_config__.forbid_unknown_fields for section in sections)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("sampling", "top_k"),
        ("evaluation", "top_k"),
        ("evaluation", "max_prompts"),
        ("evaluation", "every_versions"),
        ("checkpoint", "every_steps"),
        ("data", "max_rows"),
        ("trainer", "shard_size"),
    ],
)
def test_minus_one_is_read_as_zero_wherever_that_means_all_or_never(section: str, key: str) -> None:
    config = made(**{section: {key: -1}})

    assert getattr(getattr(config, section), key) == 0
    assert config == made(**{section: {key: 0}})
    assert from_json(to_json(config)) == config
    assert refused(**{section: {key: -2}}) == f"{section}.{key}: expected a whole number >= -1, got -2"


def test_a_section_made_in_code_holds_no_minus_one() -> None:
    assert Evaluation(max_prompts=-1, every_versions=3) == Evaluation(max_prompts=0, every_versions=3)
    assert msgspec.structs.replace(Checkpoint(every_steps=5), every_steps=-1).every_steps == 0


def test_minus_one_stays_where_it_is_a_value() -> None:
    assert made(algorithm={"loss": "clip_cov", "cov_low": -1.0}).algorithm.cov_low == -1.0
    assert refused(run={"steps": -1}) == "run.steps: expected a whole number >= 1, got -1"


def test_evaluation_takes_unset_sampling_from_training() -> None:
    config = made(sampling={"max_tokens": 9, "stop": ["x"]}, evaluation={"temperature": 0.5, "top_k": 3})
    sampling = config.evaluation.sampling(config.sampling)
    assert (sampling.max_tokens, sampling.stop, sampling.temperature, sampling.top_k) == (9, ["x"], 0.5, 3)
    assert made(evaluation={"max_tokens": 200}).longest_request == 512 + 200


def test_only_an_estimator_with_a_greedy_baseline_decodes_greedily() -> None:
    names = ("grpo", "remax", "my.py:mine")
    assert [made(algorithm={"advantage": name}).greedy_per_group for name in names] == [0, 1, 0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"bind": "ipc:///run/broker"}, []),
        ({"bind": "tcp://127.0.0.1:5570", "advertise": "gpu-7"}, ["tcp://127.0.0.1:0"]),
        ({"bind": "tcp://*:5570"}, ["tcp://*:0"]),
        ({"bind": ["tcp://10.0.0.1:5570", "tcp://[fd00::1]:5570"]}, ["tcp://10.0.0.1:0", "tcp://[fd00::1]:0"]),
        ({"bind": "tcp://*:5570", "spool_bind": "tcp://*:5571"}, ["tcp://*:5571"]),
        ({"spool_bind": ["tcp://127.0.0.1:1", "tcp://[::1]:1"]}, ["tcp://127.0.0.1:1", "tcp://[::1]:1"]),
    ],
)
def test_the_spool_listens_where_nodes_reach_the_broker(settings: dict[str, Any], expected: list[str]) -> None:
    assert Broker(**settings).spool_binds == expected
