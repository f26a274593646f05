"""An unknown key is answered with the setting that was meant; verl's names are those in docstrings of settings."""

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

import pytest

from asyncrl.config import sections
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.section import Section
from asyncrl.config.suggestions import ELSEWHERE, elsewhere, fields, unknown
from asyncrl.config.toml import put, split_override
from asyncrl.errors import ConfigError
from asyncrl.tools.plan.sections import Plan
from asyncrl.tools.verl.lookup import like
from asyncrl.tools.verl.names import answer, verl_names_answered

OTHERS = {("device", "trainer.device"), ("ratio_cap", "clip_ratio_c")}
"""Settings with the same name in verl, or whose verl name is also that of a more frequent setting."""


def from_verl(name: str) -> str | None:
    """Setting of asyncrl for verl's ``name``, whole or shortened; None if there is none."""
    option = like(name)
    return option.settings[0] if option and option.settings else None


def keys(section: type[Section] = Config, where: str = "") -> set[str]:
    """Full key of every setting and section."""
    found = set()
    for key, kind in get_type_hints(section).items():
        found.add(where + key)
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= keys(kind, f"{where}{key}.")
    return found


def documented() -> set[tuple[str, str]]:
    """Pairs of a setting's last name and the verl name that its docstring has in brackets."""
    found = set()
    texts = [path.read_text(encoding="utf-8") for path in Path(*sections.__path__).glob("*.py")]
    for section in (node for text in texts for node in ast.walk(ast.parse(text))):
        if not isinstance(section, ast.ClassDef):
            continue
        for field, said in pairwise(section.body):
            if isinstance(field, ast.AnnAssign) and isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant):
                brackets = re.search(r"\[([\w., ]+)\]\.?\s*$", str(said.value.value))
                names = brackets.group(1).split(", ") if brackets else []
                found |= {(ast.unparse(field.target), name) for name in names}
    return found


def test_the_name_in_the_brackets_of_a_docstring_leads_to_that_setting() -> None:
    named = {(key, name) for key, name in documented() if re.fullmatch(r"[\w.]+", name)} - OTHERS
    assert len(named) > 40
    assert {(key, name) for key, name in named if (from_verl(name) or "").rpartition(".")[2] != key} == set()


@pytest.mark.parametrize(
    ("override", "setting", "note"),
    [
        ("actor_rollout_ref.rollout.n=8", "schedule.group_size", ""),
        ("algorithm.adv_estimator=grpo", "algorithm.advantage", ""),
        ("algorithm.rollout_correction.rollout_is=token", "algorithm.correction.importance", ""),
        ("data.train_files=a.parquet", "data.train", ""),
        ("max_response_length=512", "sampling.max_tokens", ""),
        ("fsdp_size=8", "trainer.shard_size", ""),
        ("optim.clip_grad=1.0", "trainer.grad_clip", ""),
        ("val_kwargs.top_p=0.7", "evaluation.top_p", ""),
        ("val_kwargs.top_k=20", "evaluation.top_k", ""),
        ("max_num_batched_tokens=8192", "rollout.vllm.engine_args", ""),
        ("reward.custom_reward_function.path=reward.py", "reward.function", "called with verl's arguments"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=32", "schedule.groups_per_step", "x require_batches"),
        ("require_batches=4", "trainer.mini_batches", "ppo_mini_batch_size x it"),
        ("rollout.n_gpus_per_node=8", "rollout.replicas", "/ rollout.vllm.tensor_parallel_size"),
        ("use_kl_loss=False", "algorithm.kl_in", "False is kl_coef = 0"),
        ("actor.megatron.tensor_model_parallel_size=4", "trainer.sequence_parallel", "FSDP2 shards the weights"),
        ("project_name=gsm8k", "trackers.options", "wandb.project"),
    ],
)
def test_verls_name_is_answered_with_that_of_asyncrl_and_the_difference(override: str, setting: str, note: str) -> None:
    answered = refusal(override)
    assert f": that is verl's name; here it is {setting!r}" in answered
    assert note in answered
    assert answered.endswith("'") or note


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("data.gen_batch_size=1", "leave it out"),
        ("trainer.resume_mode=auto", "asyncrl resume RUN"),
        ("pipeline_model_parallel_size=2", "devices are tensor parallel"),
        ("use_remove_padding=True", "without padding"),
        ("algorithm.use_pf_ppo=True", "groups are trained on as they are"),
    ],
)
def test_a_name_of_verl_without_a_setting_is_answered_with_the_reason(override: str, reason: str) -> None:
    answered = refusal(override)
    assert "that is verl's name" in answered
    assert reason in answered


def refusal(override: str) -> str:
    raw: dict[str, object] = {"model": {"path": "m"}, "data": {"train": "t"}}
    key, value = split_override(override, {})
    put(raw, key, value, "--set")
    with pytest.raises(ConfigError) as raised, verl_names_answered():
        decode(raw)
    assert str(raised.value).startswith(f"unknown key {key!r}")
    return str(raised.value)


def test_a_name_that_verl_does_not_have_has_no_answer() -> None:
    assert from_verl("n") is from_verl("learning.rate") is None


def test_a_name_of_a_setting_that_the_file_does_not_have_has_no_answer() -> None:
    assert answer("rollout.n", set()) is elsewhere("run.max_steps", set()) is None


def test_names_in_use_elsewhere_are_none_of_ours_and_none_of_verls() -> None:
    words = [word for names in ELSEWHERE.values() for word in names]
    assert set(ELSEWHERE) <= keys()
    assert {word for word in words if words.count(word) > 1} == set()
    assert set(words) & {key.rpartition(".")[2] for key in keys()} == set()
    assert {word for word in words if from_verl(word)} == set()


@pytest.mark.parametrize(
    ("override", "setting"),
    [
        ("trainer.learning_rate=1e-3", "trainer.lr"),
        ("batch_size=8", "schedule.groups_per_step"),
        ("rollout.num_generations=8", "schedule.group_size"),
        ("sampling.max_new_tokens=8", "sampling.max_tokens"),
        ("run.num_train_epochs=3", "run.epochs"),
        ("algorithm.beta=0.1", "algorithm.kl_coef"),
    ],
)
def test_a_name_in_use_elsewhere_is_answered_in_any_section(override: str, setting: str) -> None:
    assert refusal(override).endswith(f"did you mean {setting!r}?")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("trainer.learning_rate", "did you mean 'trainer.lr'?"),
        ("learning.lr", "did you mean 'trainer.lr'?"),
        ("trainer.leraning_rate", "did you mean 'trainer.lr'?"),
        ("schedule.group_sizes", "did you mean 'schedule.group_size'?"),
        ("run.stepz", "did you mean 'run.steps'?"),
        (
            "run.zzzzzzzzzzzz",
            "expected one of: name, dir, share_with_group, steps, epochs, stop_when, on_hangup, skip_steps, "
            "unresolved, seed",
        ),
        ("trainer.kl_coef", "did you mean 'algorithm.kl_coef'?"),
        ("algorithm.kl_ctrl.kl_coef", "that is verl's name; here it is 'algorithm.kl_reward_coef': "),
    ],
)
def test_the_setting_that_was_meant_is_named(name: str, answer: str) -> None:
    with pytest.raises(ConfigError) as raised, verl_names_answered():
        raise unknown([name], Config)
    assert str(raised.value).startswith(f"unknown key {name!r}: {answer}")


def test_a_plan_is_not_answered_with_settings_of_runs() -> None:
    assert "trainer.lr'" not in str(unknown(["trainer.learning_rate"], Plan))


def test_fields_are_all_settings_and_sections() -> None:
    assert {"run", "run.steps", "rollout.vllm", "rollout.vllm.enforce_eager", "reward.parts.name"} <= dict(
        fields(Config)
    ).keys()
