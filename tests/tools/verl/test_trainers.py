"""A module tells the trainer; module and options tell verl's release, by which options keep or change their meaning."""

import pytest

from asyncrl.tools.verl.launch import find_launch
from asyncrl.tools.verl.trainers import RELEASES, TRAINERS, Mode, Release, trainer_of
from asyncrl.tools.verl.translate import Translation, applied, translate
from tests.tools.verl.launches import NEEDED, checked, fates, raw

R, ASYNC = "actor_rollout_ref.rollout", "async_training"
FULLY, FORMER_FULLY = (
    "verl.experimental.fully_async_policy.fully_async_main",
    "recipe.fully_async_policy.fully_async_main",
)
ONE_STEP = "verl.experimental.one_step_off_policy.main_ppo"


def translated(module: str, *options: str) -> Translation:
    return translate(find_launch([["python3", "-m", module, *NEEDED, f"{R}.n=4", *options]]))


def settings(module: str, *options: str) -> dict[str, object]:
    return applied(find_launch([["python3", "-m", module, *NEEDED, f"{R}.n=4", *options]])).settings


@pytest.mark.parametrize(
    ("module", "name", "mode"),
    [
        ("verl.trainer.main_ppo", "main_ppo", "synchronous"),
        ("recipe.async.async_main_ppo", "one_step_off_policy as its pull request 2231 proposed it", "one_step_off"),
        ("recipe.one_step_off_policy.async_main_ppo", "one_step_off_policy", "one_step_off"),
        (ONE_STEP, "one_step_off_policy", "one_step_off"),
        (FORMER_FULLY, "fully_async_policy", "fully_async"),
        (FULLY, "fully_async_policy", "fully_async"),
        ("recipe.dapo.main_dapo", "main_dapo", "synchronous"),
        ("recipe.dapo.src.main_dapo", "main_dapo", "synchronous"),
        ("recipe.entropy.main_entropy", "main_entropy", "synchronous"),
        ("verl.trainer.main_ppo_sync", "main_ppo", "synchronous"),
    ],
)
def test_a_module_tells_the_trainer(module: str, name: str, mode: Mode) -> None:
    trainer = trainer_of(module)
    assert trainer
    assert (trainer.name, trainer.mode) == (name, mode)


@pytest.mark.parametrize("module", ["main_prime", "main_flowrl", "main_spin", "main_sppo"])
def test_a_trainer_with_code_of_its_own_gives_a_file_and_says_what_it_lacks(module: str) -> None:
    translation = translated(f"recipe.x.{module}")
    assert translation.verdict == "cannot"
    assert fates(translation)[f"python3 -m recipe.x.{module}"].fate == "not supported"
    checked(translation)


def test_an_unknown_module_has_its_options_translated_and_is_named() -> None:
    translation = translated("mine.train", "async_training.staleness_threshold=0.5")
    account = fates(translation)["python3 -m mine.train"]
    assert account.fate == "unknown"
    assert "mine.train is none of verl's trainers known here" in account.detail
    assert raw(translation)["schedule"]["staleness"] == 0.5


def test_every_trainer_has_known_releases() -> None:
    assert all(trainer.releases and set(trainer.releases) <= set(RELEASES) for trainer in TRAINERS)


# ── release ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("module", "options", "release"),
    [
        ("verl.trainer.main_ppo", (), "August 2026"),
        ("verl.trainer.main_ppo", ("reward_model.launch_reward_fn_async=True",), "January 2026"),
        ("verl.trainer.main_ppo", ("reward.num_workers=8",), "August 2026"),
        ("verl.trainer.main_ppo", ("algorithm.rollout_correction.use_policy_gradient=True",), "November 2025"),
        (FULLY, ("rollout.test_freq=5",), "January 2026"),
        (FULLY, ("async_training.concurrent_samples_per_replica=8",), "August 2026"),
        (FORMER_FULLY, (), "November 2025"),
        ("recipe.async.async_main_ppo", (), "June 2025"),
    ],
)
def test_module_and_options_tell_the_release(module: str, options: tuple[str, ...], release: Release) -> None:
    assert find_launch([["python3", "-m", module, *NEEDED, *options]]).release == release
    assert f"read as verl of {release}" in translated(module, *options).toml.replace("\n# ", " ")


def test_the_proposal_of_one_step_off_splits_the_devices_of_the_trainer() -> None:
    options = (
        "actor_rollout_ref.hybrid_engine=False",
        "trainer.n_gpus_per_node=8",
        f"{R}.tensor_model_parallel_size=2",
    )
    for key in ("rollout.n_gpus", f"{R}.n_gpus"):
        found = settings("recipe.async.async_main_ppo", *options, f"{key}=4")
        assert (found["trainer.ranks"], found["rollout.replicas"]) == (4, 2)
        assert (found["schedule.staleness"], found["algorithm.correction.mode"]) == (1.0, "decoupled")
        assert "rollout.colocated" not in found


def test_a_share_of_devices_that_leaves_none_is_refused() -> None:
    found = fates(translated("recipe.async.async_main_ppo", "trainer.n_gpus_per_node=8", "rollout.n_gpus=8"))
    assert found["rollout.n_gpus=8"].fate == "not supported"


@pytest.mark.parametrize(
    ("options", "every"),
    [
        (("rollout.test_freq=5", "trainer.test_freq=9"), 5),
        (("trainer.test_freq=9", "async_training.concurrent_samples_per_replica=8"), 9),
    ],
)
def test_evaluations_follow_the_option_that_the_release_reads(options: tuple[str, ...], every: int) -> None:
    found = translated(FULLY, "data.val_files=test.parquet", *options)
    assert raw(found)["evaluation"]["every_versions"] == every


@pytest.mark.parametrize(
    ("module", "options", "mode", "anchor"),
    [
        (FULLY, (f"{ASYNC}.compute_prox_log_prob=True",), "decoupled", "publish"),
        (FULLY, (f"{ASYNC}.compute_prox_log_prob=False",), "bypass", None),
        (FULLY, (f"{ASYNC}.use_rollout_log_probs=False",), "decoupled", None),
        (FULLY, ("algorithm.rollout_correction.bypass_mode=False",), "decoupled", "publish"),
        (FULLY, (), "bypass", None),
        (ONE_STEP, (), "bypass", None),
        ("recipe.one_step_off_policy.main_ppo", (), "decoupled", None),
    ],
)
def test_the_ratio_is_that_of_the_release(module: str, options: tuple[str, ...], mode: str, anchor: str | None) -> None:
    found = settings(module, *options)
    assert (found["algorithm.correction.mode"], found.get("algorithm.correction.anchor")) == (mode, anchor)


def test_criteria_of_november_have_their_present_names_and_bounds() -> None:
    section = "algorithm.rollout_correction"
    found = settings(
        FORMER_FULLY, f"{section}.rollout_rs=geometric", f"{section}.rollout_rs_threshold=1.25",
        f"{section}.rollout_rs_threshold_lower=0.9",
    )  # fmt: skip
    assert found["algorithm.correction.rejection"] == "seq_mean_k1"
    assert found["algorithm.correction.rejection_threshold"] == "0.9_1.25"


def test_weights_of_a_geometric_mean_are_refused() -> None:
    option = "algorithm.rollout_correction.rollout_is=geometric"
    found = translated(FORMER_FULLY, option, f"{ASYNC}.compute_prox_log_prob=True")
    assert fates(found)[option].fate == "not supported"
    checked(found)


def test_the_epochs_of_the_former_fully_asynchronous_trainer_end_a_run_too() -> None:
    launch = find_launch(
        [["python3", "-m", FORMER_FULLY, *NEEDED, "rollout.total_epochs=1", "rollout.total_rollout_steps=100000",
          "actor_rollout_ref.actor.ppo_mini_batch_size=10", f"{ASYNC}.trigger_parameter_sync_step=2"]]
    )  # fmt: skip
    assert applied(launch, 1000).settings["run.steps"] == 100


# ── dapo ──────────────────────────────────────────────────────────────────────────────────────

OVERLONG = ("overlong_buffer.enable=True", "overlong_buffer.len=4096", "overlong_buffer.penalty_factor=0.5")


def test_main_dapo_penalises_long_completions_and_filters() -> None:
    options = [f"reward_model.{option}" for option in OVERLONG]
    translation = translated("recipe.dapo.main_dapo", *options, "algorithm.filter_groups.enable=True",
                             "data.max_response_length=8192")  # fmt: skip
    parts = raw(translation)["reward"]["parts"]
    assert parts[1]["options"] == {"max_tokens": 8192, "buffer": 4096, "factor": 0.5}
    assert raw(translation)["schedule"]["filter"] == "zero_variance"
    assert {fates(translation)[option].fate for option in options} == {"mapped"}


CFG = tuple(option.replace("buffer.", "buffer_cfg.") for option in OVERLONG)
NEW = ("reward.reward_manager.name=dapo", *(f"+reward.reward_kwargs.{option}" for option in CFG))
OLD = ("reward_model.reward_manager=dapo", *(f"+reward_model.reward_kwargs.{option}" for option in CFG))
OWN = tuple(f"reward_model.{option}" for option in OVERLONG)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("recipe.dapo.main_dapo", NEW),
        ("recipe.dapo.main_dapo", (*OLD, "reward_model.launch_reward_fn_async=True")),
        ("recipe.entropy.main_entropy", OWN),
        ("verl.trainer.main_ppo", OLD),
        (FULLY, NEW),
    ],
)
def test_a_penalty_that_is_on_is_never_left_out(module: str, options: tuple[str, ...]) -> None:
    translation = translated(module, *options)
    assert raw(translation)["reward"]["parts"][1]["options"]["buffer"] == 4096
    assert {fates(translation)[option].fate for option in options if "overlong" in option} == {"mapped"}


def test_main_ppo_of_before_august_does_not_filter_and_it_is_said() -> None:
    options = ("algorithm.filter_groups.enable=True", "reward_model.launch_reward_fn_async=True")
    assert "filter" not in raw(translated("verl.trainer.main_ppo", *options))["schedule"]
    assert fates(translated("verl.trainer.main_ppo", *options))[options[0]].fate == "not needed"


@pytest.mark.parametrize("prefix", ["reward_model.", "reward."])
def test_a_sandbox_of_verls_is_refused(prefix: str) -> None:
    found = fates(translated("verl.trainer.main_ppo", f"{prefix}sandbox_fusion.url=http://x",
                             f"{prefix}sandbox_fusion.max_concurrent=8"))  # fmt: skip
    assert found[f"{prefix}sandbox_fusion.url=http://x"].fate == "not supported"
    assert found[f"{prefix}sandbox_fusion.max_concurrent=8"].fate == "not supported"


def test_an_engine_of_june_is_greedy_without_do_sample() -> None:
    options = ("data.val_files=test.parquet", f"{R}.val_kwargs.temperature=0.7", "rollout.n_gpus=1")
    launch = ["python3", "-m", "verl.trainer.main_ppo", *NEEDED, *options]
    assert applied(find_launch([launch])).settings["evaluation.temperature"] == 0.0
    sampled = applied(find_launch([[*launch, f"{R}.val_kwargs.do_sample=True"]]))
    assert sampled.settings["evaluation.temperature"] == 0.7
