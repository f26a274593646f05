"""A run file has its sections in order, comments above settings, and reads back."""

import re
import tomllib

import pytest
from msgspec.structs import replace

from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.files.json_lines import toml_value
from asyncrl.tools.verl.launch import Launch
from asyncrl.tools.verl.options import TABLE
from asyncrl.tools.verl.trainers import Mode
from asyncrl.tools.verl.translate import to_toml, translate
from tests.tools.verl.launches import checked, fate, fates, launch, raw, settings, translated


def test_settings_read_back_in_the_order_of_the_reference() -> None:
    text = to_toml({"trainer.lr": 1e-6, "rollout.vllm.engine_args.a": [1], "rollout.slots": 2, "run.steps": 3}, {})
    assert tomllib.loads(text) == {
        "run": {"steps": 3},
        "rollout": {"slots": 2, "vllm": {"engine_args": {"a": [1]}}},
        "trainer": {"lr": 1e-6},
    }
    assert text.index("[run]") < text.index("[rollout]") < text.index("[rollout.vllm.engine_args]")


def test_a_long_comment_is_wrapped_above_its_setting() -> None:
    text = to_toml({"run.steps": 3}, {"run.steps": "word " * 40}, ["head"])
    assert text.startswith("# head\n\n[run]\n# word word")
    assert max(map(len, text.splitlines())) <= 120
    assert tomllib.loads(text) == {"run": {"steps": 3}}


def test_a_list_of_tables_is_written_as_tables() -> None:
    parts = [{"name": "a", "options": {"x": 1}}, {"name": "b"}]
    text = to_toml({"reward.parts": parts}, {"reward.parts": "two"})
    assert text.count("[[reward.parts]]") == 2
    assert tomllib.loads(text) == {"reward": {"parts": parts}}


# ── test translate ────────────────────────────────────────────────────────────────────────────
# A launch becomes a run file that the check of a run accepts, and every option is accounted for.

MODES: tuple[Mode, ...] = ("fully_async", "one_step_off", "synchronous")


@pytest.mark.parametrize("mode", MODES)
def test_a_launch_of_every_trainer_becomes_a_valid_run_file(mode: Mode) -> None:
    config = checked(translated(mode, num_rows=10_000))
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


def test_an_unknown_option_names_the_one_that_is_nearly_the_same() -> None:
    mistyped = "actor_rollout_ref.actor.optim.lr_warmup_stps=10"
    assert fate("synchronous", mistyped)[1].endswith("did you mean actor_rollout_ref.actor.optim.lr_warmup_steps?")
    assert "did you mean" not in fate("synchronous", "data.nonsense=1")[1]


def test_an_open_reference_is_not_supported_and_not_used() -> None:
    assert fate("synchronous", "trainer.nnodes=${oc.env:NODES}")[0] == "not supported"


def test_a_mapped_option_names_its_settings_with_their_values() -> None:
    option = "actor_rollout_ref.rollout.max_num_batched_tokens=8192"
    detail = "rollout.vllm.engine_args.max_num_batched_tokens = 8192"
    assert fate("synchronous", option, "actor_rollout_ref.rollout.scheduling_policy=priority") == ("mapped", detail)


def test_a_default_of_verl_that_differs_is_written_with_a_comment() -> None:
    assert "# verl's default\nclip_high = 0.2\n" in translated("synchronous").toml


PROBES = ("7", "0.5", "True", "text")
KEYS = [key for key in TABLE if "*" not in key]
VALUE = re.compile(r"(?:^|; )([a-z]+(?:\.[a-z_]\w*)+) = (.+?)(?=; [a-z]| \(|$)")


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("mode", ["fully_async", "synchronous"])
def test_no_account_contradicts_the_file(mode: Mode, probe: str) -> None:
    """A value that is named is that of the file, and an option that is not needed can be left out."""
    seen = 0
    for key in KEYS:
        options = ("data.val_files=test.parquet", f"{key}={probe}")
        try:
            translation = translated(mode, *options)
        except ConfigError:
            continue  # of a wrong type, as the next test shows
        account = fates(translation)[options[1]]
        settings_with = settings(mode, *options)
        if account.fate == "mapped":
            named = VALUE.findall(account.detail)
            assert named, account
            assert all(toml_value(settings_with[name]) == value for name, value in named), account
            seen += 1
        elif account.fate == "not needed":
            assert settings_with == settings(mode, options[0]), account
    assert seen > 20


@pytest.mark.parametrize(
    "option", ["critic.optim.lr=text", "algorithm.adv_estimator=[a]", "actor_rollout_ref.actor.optim.betas=7"]
)
def test_a_value_of_a_wrong_type_is_refused_by_its_option(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(option)}: the value has a wrong type: .*correct it"):
        translated("synchronous", "algorithm.adv_estimator=gae", option)


SWITCHES = [(key, option.switch) for key, option in TABLE.items() if option.switch]


@pytest.mark.parametrize(("key", "switch"), SWITCHES, ids=[key for key, _ in SWITCHES])
def test_an_option_under_a_switch_shares_its_fate_if_it_is_on(key: str, switch: str) -> None:
    option = f"{key.replace('*', 'something')}=7"
    assert fate("synchronous", option) == ("not needed", f"verl reads it only with {switch}")
    on = fates(translated("synchronous", f"{switch}=True", option))
    assert on[option].fate == on[f"{switch}=True"].fate
    assert on[option].fate in ("substituted", "not supported")


A, R, F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
CRITICAL = (
    ("critic.grad_clip=0.5", "mapped"),
    ("critic.optim.lr_warmup_steps=10", "substituted"),
    ("critic.optim.betas=[0.8,0.9]", "substituted"),
    ("critic.model.lora_rank=8", "substituted"),
    ("critic.ppo_epochs=2", "substituted"),
    ("critic.strategy=fsdp2", "not needed"),
)


@pytest.mark.parametrize(("option", "wanted"), CRITICAL)
def test_a_critic_has_its_own_options_or_it_is_said_that_it_has_the_policys(option: str, wanted: str) -> None:
    assert fate("synchronous", option, "algorithm.adv_estimator=gae")[0] == wanted
    assert fate("synchronous", option) == ("not needed", "only the advantage 'gae' has a critic")


def test_a_critic_with_the_warm_up_of_the_policy_needs_nothing() -> None:
    options = ("algorithm.adv_estimator=gae", f"{A}.optim.lr_warmup_steps=10")
    assert fate("synchronous", "critic.optim.lr_warmup_steps=10", *options)[0] == "not needed"


def test_an_adapter_of_megatron_is_one_here() -> None:
    options = ("actor_rollout_ref.model.lora.rank=16", "actor_rollout_ref.model.lora.target_modules=[linear_qkv]")
    found = settings("synchronous", *options, is_megatron=True)
    assert (found["trainer.lora.rank"], found["trainer.lora.alpha"]) == (16, 32.0)
    assert found["trainer.lora.targets"] == ["q_proj", "k_proj", "v_proj"]
    assert "trainer.lora.rank" not in settings("synchronous", *options)


def test_weights_travel_as_changes_if_verls_do() -> None:
    assert settings("one_step_off", f"{R}.checkpoint_engine.backend=delta_sharded")["weights.delta"]
    assert "weights.delta" not in settings("one_step_off", f"{R}.checkpoint_engine.backend=nccl")


def test_routes_of_the_trainer_have_no_counterpart() -> None:
    assert fate("synchronous", f"{A}.router_replay.mode=R2")[0] == "substituted"
    assert fate("synchronous", f"{A}.router_replay.mode=R3")[0] == "mapped"


def test_an_empty_value_is_named_with_its_variable() -> None:
    line = launch("synchronous", "trainer.nnodes=", "actor_rollout_ref.actor.optim.lr=")
    translation = translate(replace(line, variables={"trainer.nnodes": "NODES"}))
    assert fates(translation)["trainer.nnodes="].detail.endswith("--env NODES=VALUE")
    assert fates(translation)["actor_rollout_ref.actor.optim.lr="].fate == "not supported"
    assert translation.verdict == "cannot"


def test_without_held_out_rows_there_are_no_settings_of_evaluations() -> None:
    checked(translated("synchronous", "trainer.log_val_generations=10", "trainer.test_freq=5"))
    assert fate("synchronous", "trainer.log_val_generations=10")[0] == "not needed"


LONG = ("data.max_prompt_length=2048", "data.max_response_length=6144", f"{R}.n=8")
DAPO = (
    *LONG,
    "data.val_files=test.parquet",
    f"{R}.val_kwargs.temperature=1.0",
    "trainer.log_val_generations=10",
    "data.truncation='left'",
    f"{A}.clip_ratio_high=0.28",
    f"{A}.clip_ratio_c=10.0",
    f"{A}.use_dynamic_bsz=True",
    f"{A}.ppo_max_token_len_per_gpu=16384",
    f"{A}.ulysses_sequence_parallel_size=2",
    f"{A}.fsdp_config.fsdp_size=2",
    f"{A}.optim.lr_warmup_steps=10",
    "reward.reward_manager.name=dapo",
    "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
    "+reward.reward_kwargs.overlong_buffer_cfg.len=4096",
    "+reward.reward_kwargs.max_resp_len=6144",
    "algorithm.rollout_correction.bypass_mode=False",
    "algorithm.rollout_correction.rollout_is=token",
    "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
    "algorithm.rollout_correction.rollout_rs_threshold=0.99_1.01",
    "async_training.require_batches=4",
    "rollout.total_rollout_steps=51200",
)
MIXTURE = (
    *LONG,
    "data.image_key=pictures",
    f"{A}.freeze_vision_tower=True",
    f"{A}.router_replay.mode=R3",
    f"{A}.strategy=megatron",
    f"{A}.megatron.tensor_model_parallel_size=4",
    f"{A}.megatron.pipeline_model_parallel_size=2",
    f"{A}.megatron.expert_model_parallel_size=8",
    f"{A}.megatron.param_offload=True",
    f"{F}.megatron.param_offload=True",
    f"{A}.use_kl_loss=True",
    "algorithm.use_kl_in_reward=True",
    f"{A}.policy_loss.loss_mode=gspo",
    f"{A}.clip_ratio_c=10.0",
    f"{R}.name=sglang",
    f"+{R}.engine_kwargs.sglang.mem_fraction=0.8",
    f"{R}.expert_parallel_size=8",
    f"{R}.tensor_model_parallel_size=8",
    "+actor_rollout_ref.model.override_config.model_config.max_position_embeddings=32768",
    "trainer.nnodes=4",
    "rollout.nnodes=4",
    "actor_rollout_ref.nccl_timeout=7200",
)
CRITIC = (
    "algorithm.adv_estimator=gae",
    "algorithm.lam=0.95",
    "critic.optim.lr=1e-5",
    "critic.cliprange_value=0.2",
    f"{A}.ppo_micro_batch_size_per_gpu=4",
    f"{R}.temperature=0.8",
    f"{R}.top_k=50",
    "actor_rollout_ref.model.lora_rank=32",
    "trainer.logger=[console,wandb]",
    "trainer.project_name=project",
    "trainer.save_freq=20",
    "trainer.max_actor_ckpt_to_keep=3",
)


@pytest.mark.parametrize("options", [DAPO, MIXTURE, CRITIC], ids=["dapo", "mixture", "critic"])
@pytest.mark.parametrize("mode", MODES)
def test_the_options_of_usual_recipes_give_valid_run_files_without_an_unknown_one(
    mode: Mode, options: tuple[str, ...]
) -> None:
    translation = translated(mode, *options)
    checked(translation)
    assert {account.option for account in translation.accounts} >= set(options)
    assert all(account.detail for account in translation.accounts)
    assert translation.verdict in ("runs", "runs with substitutions")
    assert not [account for account in translation.accounts if account.fate == "unknown"]


def test_a_file_of_what_is_not_supported_starts_no_run_until_it_is_decided() -> None:
    translation = translated("synchronous", "trainer.val_only=True")
    with pytest.raises(ConfigError, match=r"run.unresolved: .*trainer.val_only=True"):
        decode(raw(translation))
    assert checked(translation).run.unresolved == []
