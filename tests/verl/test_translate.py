"""A launch becomes a run file that the check of a run accepts, and every option is accounted for."""

import pytest

from asyncrl.config.run_file import decode
from asyncrl.verl.launch import Launch, Mode
from asyncrl.verl.translate import translate
from tests.verl.launches import fate, raw, translated

MODES: tuple[Mode, ...] = ("fully_async", "one_step_off", "synchronous")


@pytest.mark.parametrize("mode", MODES)
def test_a_launch_of_every_trainer_becomes_a_valid_run_file(mode: Mode) -> None:
    config = decode(raw(translated(mode, num_rows=10_000)))
    assert config.model.path == "models/base"
    assert config.rollout.engine == "vllm"
    assert config.algorithm.clip_high == 0.2


def test_every_option_has_one_account() -> None:
    options = ("data.shuffle=False", "trainer.logger=[console,swanlab]", "data.nonsense=1", "trainer.val_only=True")
    accounts = {account.option: account.fate for account in translated("synchronous", *options).accounts}
    assert {option: accounts[option] for option in options} == {
        "data.shuffle=False": "mapped",
        "trainer.logger=[console,swanlab]": "substituted",
        "data.nonsense=1": "unknown",
        "trainer.val_only=True": "not supported",
    }


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ((), "runs"),
        (("actor_rollout_ref.rollout.name=sglang",), "runs with substitutions"),
        (("actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",), "cannot"),
        (("data.nonsense=1",), "runs"),
    ],
)
def test_the_verdict_is_that_of_the_worst_option(options: tuple[str, ...], verdict: str) -> None:
    assert translated("synchronous", *options).verdict == verdict


def test_a_launch_without_model_and_data_cannot_run() -> None:
    translation = translate(Launch("synchronous", {}))
    assert translation.verdict == "cannot"
    assert [sentence.partition(" ")[0] for sentence in translation.missing] == ["model.path", "data.train"]


def test_what_is_not_honoured_stands_at_the_head_of_the_run_file() -> None:
    head = translated("synchronous", "actor_rollout_ref.rollout.name=sglang").toml.partition("\n\n")[0]
    assert "substituted: actor_rollout_ref.rollout.name=sglang: vLLM takes the place of SGLang" in head


def test_an_open_reference_is_not_supported_and_not_used() -> None:
    assert fate("synchronous", "trainer.nnodes=${oc.env:NODES}")[0] == "not supported"


def test_a_mapped_option_names_its_settings_with_their_values() -> None:
    option = "actor_rollout_ref.rollout.max_num_batched_tokens=8192"
    detail = "rollout.vllm.engine_args.max_num_batched_tokens = 8192"
    assert fate("synchronous", option, "actor_rollout_ref.rollout.scheduling_policy=priority") == ("mapped", detail)


def test_a_default_of_verl_that_differs_is_written_with_a_comment() -> None:
    assert "# verl's default\nclip_high = 0.2\n" in translated("synchronous").toml
