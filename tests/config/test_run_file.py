"""A run file is read, overridden, explained, resolved and written back; a mistake in it is one sentence."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncrl.config.config import Config, from_json, to_json
from asyncrl.config.run_file import (
    SHORTHANDS,
    changes,
    decode,
    explain,
    load_config,
    to_toml,
    with_absolute_paths,
    with_backend,
    with_steps,
)
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import ConfigError
from tests.config.configs import made, refused

LEAST = """
[model]
path = "models/tiny"
[data]
train = "train.parquet"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(LEAST)
    return path


# ── where a value comes from ────────────────────────────────────────────────────────────────


def test_a_run_needs_a_model_and_prompts_and_nothing_else(file: Path) -> None:
    config = load_config(file)
    assert (config.model.path, config.data.train) == ("models/tiny", "train.parquet")
    assert config.schedule == Schedule()


def test_the_file_goes_before_defaults_and_set_before_the_file(file: Path) -> None:
    file.write_text(LEAST + "[run]\nsteps = 7\nseed = 8")
    config = load_config(file, ["run.seed=9"])
    assert (config.run.name, config.run.steps, config.run.seed) == ("", 7, 9)


def test_the_last_set_of_a_key_counts(file: Path) -> None:
    assert load_config(file, ["run.seed=1", "run.seed=2"]).run.seed == 2


def test_a_set_value_is_toml_and_a_bare_word_is_a_string(file: Path) -> None:
    overrides = [
        'run.name="quoted"',
        "run.dir = a/b",
        'sampling.stop=["\\n", "x"]',
        "data.shuffle=false",
        "trainer.lr=3e-5",
    ]
    config = load_config(file, overrides)
    assert (config.run.name, config.run.dir, config.sampling.stop) == ("quoted", "a/b", ["\n", "x"])
    assert (config.data.shuffle, config.trainer.lr) == (False, 3e-5)


@pytest.mark.parametrize("short", SHORTHANDS)
def test_a_shorthand_is_the_key_it_stands_for(file: Path, short: str) -> None:
    assert load_config(file, [f"{short}=3"] if short != "name" else ["name=x"]) == load_config(
        file, [f"{SHORTHANDS[short]}=3"] if short != "name" else ["run.name=x"]
    )


def test_explain_says_where_each_value_comes_from(file: Path) -> None:
    file.write_text(LEAST + '[run]\nsteps = 7\n[reward.options]\nflexible = true\nmarker = "a"')
    origins = {origin.key: origin for origin in explain(file, ["steps=5", "reward.options.marker=b"])}
    assert (origins["run.steps"].value, origins["run.steps"].source) == (5, "--set")
    assert (origins["reward.options.marker"].value, origins["reward.options.marker"].source) == ("b", "--set")
    assert (origins["reward.options.flexible"].value, origins["reward.options.flexible"].source) == (True, "tiny.toml")
    assert (origins["run.seed"].value, origins["run.seed"].source) == (0, "default")
    assert origins["model.dtype"].source == "default"


def test_explain_says_what_a_preset_stands_for(file: Path) -> None:
    section = "algorithm.correction"
    origins = {origin.key: origin for origin in explain(file, [f"{section}.preset=decoupled_seq_is"])}
    told = [(origins[f"{section}.{key}"].value, origins[f"{section}.{key}"].source) for key in ("preset", "importance")]
    assert told == [("decoupled_seq_is", "--set"), ("sequence", "preset")]
    assert origins[f"{section}.rejection"].source == "default"


def test_epochs_round_trip_without_the_steps_that_they_replace(file: Path) -> None:
    config = load_config(file, ["run.epochs=1.5"])
    file.write_text(to_toml(config))
    assert load_config(file) == config
    assert config.run.epochs == 1.5


def test_a_set_of_one_length_replaces_the_other_of_the_file(file: Path) -> None:
    file.write_text(LEAST + "[run]\nepochs = 15")
    assert load_config(file, ["steps=3"]).run == load_config(file, ["run.epochs=2", "run.steps=3"]).run
    assert load_config(file, ["steps=3"]).run.epochs is None
    file.write_text(LEAST + "[run]\nsteps = 3")
    assert load_config(file, ["run.epochs=2"]).run.epochs == 2


def test_explain_shows_the_steps_that_follow_from_epochs(file: Path) -> None:
    origins = {origin.key: origin for origin in explain(file, ["run.epochs=2"], lambda config: with_steps(config, 80))}
    assert (origins["run.steps"].value, origins["run.steps"].source) == (10, "run.epochs")
    assert (origins["run.epochs"].value, origins["run.epochs"].source) == (2.0, "--set")


def test_changes_are_the_settings_that_have_no_default_value() -> None:
    raw = {"model": {"path": "m", "overrides": {"a": 1}}, "data": {"train": "t"}, "trainer": {"lr": 1e-5, "eps": 1e-8}}
    assert changes(decode(raw)) == [
        'model.path = "m"',
        "model.overrides.a = 1",
        'data.train = "t"',
        "trainer.lr = 1e-05",
    ]


# ── mistakes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"data": {"train": "a"}}, "missing section [model] with 'path'; `asyncrl init` writes a run file that has it"),
        ({"model": {}, "data": {"train": "a"}}, "missing key 'model.path': it has no default"),
        (
            {"model": {}},
            "2 mistakes:\n  missing key 'model.path': it has no default\n  missing section [data] with 'train'",
        ),
        ({"modle": {}}, "unknown key 'modle': did you mean 'model'?"),
        ({"run": {"stepz": 1}}, "unknown key 'run.stepz': did you mean 'run.steps'?"),
        ({"trainer": {"steps": 1}}, "unknown key 'trainer.steps': did you mean 'run.steps'?"),
        ({"learning": {"lr": 1}}, "unknown key 'learning.lr': did you mean 'trainer.lr'?"),
        ({"learning": {"by": 1}}, "unknown key 'learning.by': expected one of: run, model, data, schedule, sampling, "),
        ({"lr": 1}, "unknown key 'lr': did you mean 'trainer.lr'?"),
        ({"trainer": {"lora": {"rnk": 1}}}, "unknown key 'trainer.lora.rnk': did you mean 'trainer.lora.rank'"),
        ({"run": 3}, "run is a section, got 3"),
        ({"trainer": {"lora": "all"}}, "trainer.lora is a section, got 'all'"),
    ],
    ids=str,
)
def test_a_key_that_is_unknown_or_missing_is_one_sentence(raw: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decode(raw)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    ("section", "key", "value", "sentence"),
    [
        ("run", "steps", "many", "run.steps: expected a whole number such as 8, got 'many'"),
        ("run", "steps", True, "run.steps: expected a whole number such as 8, got True"),
        ("run", "steps", 0, "run.steps: expected a whole number >= 1, got 0"),
        ("run", "seed", -1, "run.seed: expected a whole number >= 0, got -1"),
        ("run", "seed", 2**63, "run.seed: expected a whole number <= 9223372036854775807, got 9223372036854775808"),
        ("sampling", "top_p", 1.5, "sampling.top_p: expected a number <= 1, got 1.5"),
        ("sampling", "stop", [1], 'sampling.stop[0]: expected a text such as "a", got 1'),
        ("trainer", "lr", "abc", "trainer.lr: expected a number such as 1e-5, got 'abc'"),
        ("algorithm", "clip_low", "abc", "algorithm.clip_low: expected a number such as 1e-5, got 'abc'"),
        ("trackers", "use", "wandb", "trackers.use: expected a list such as [\"wandb\"], got 'wandb'"),
        ("trainer", "beta1", 1.0, "trainer.beta1: expected a number < 1, got 1.0"),
        (
            "schedule",
            "staleness",
            "two",
            "schedule.staleness: expected one of a number such as 1e-5, 'auto', got 'two'",
        ),
        ("trainer", "lr", float("nan"), "trainer.lr: expected a number > 0, got nan"),
        ("trainer", "lr", float("inf"), "trainer.lr is inf: expected a finite number"),
        ("schedule", "staleness", float("inf"), "schedule.staleness is inf: expected a finite number"),
        ("model", "dtype", "float8", "model.dtype: expected one of 'float32', 'bfloat16', got 'float8'"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_one_sentence(
    section: str, key: str, value: object, sentence: str
) -> None:
    assert refused(**{section: {key: value}}) == sentence


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("run.steps", "--set 'run.steps': expected section.key=value"),
        ("=3", "--set '=3': expected section.key=value"),
        ("run.steps.more=3", "--set run.steps.more=3: 'steps' is a value, not a section"),
        ("run.stepz=3", "unknown key 'run.stepz': did you mean 'run.steps'?"),
        ("run=3", "run is a section, got 3"),
    ],
)
def test_a_set_that_cannot_be_read_is_one_sentence(file: Path, override: str, sentence: str) -> None:
    file.write_text(LEAST + "[run]\nsteps = 7")
    with pytest.raises(ConfigError) as raised:
        load_config(file, [override])
    assert str(raised.value) == sentence


def test_two_lengths_of_a_run_are_one_too_many() -> None:
    sentence = "run.steps is 60 and run.epochs is 2: both say how long to train; remove one"
    assert refused(run={"steps": 60, "epochs": 2}) == sentence


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such config file: .*absent\.toml"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"is a folder, not a config file$"):
        load_config(tmp_path)
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match=r"is a folder, not a config file; did you mean .*/run\.toml\?"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match=r"no such config file: .*runn\.toml; did you mean .*/run\.toml\?"):
        load_config(tmp_path / "runn.toml")
    for content in (b"[run", b"\xff"):
        (tmp_path / "broken.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"broken.toml is not (TOML|text in UTF-8): "):
            load_config(tmp_path / "broken.toml")


# ── there and back ──────────────────────────────────────────────────────────────────────────

SETTINGS = st.fixed_dictionaries(
    {
        "run": st.fixed_dictionaries({"name": st.text("aé0- \"'#"), "seed": st.integers(0, 2**63 - 1)}),
        "model": st.fixed_dictionaries({"path": st.text()}),
        "data": st.fixed_dictionaries({"train": st.text(min_size=1), "shuffle": st.booleans()}),
        "sampling": st.fixed_dictionaries({"stop": st.lists(st.text(min_size=1), max_size=3)}),
        "reward": st.fixed_dictionaries(
            {
                "options": st.dictionaries(
                    st.text(),
                    st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(-1e300, 1e300),
                    max_size=3,
                )
            }
        )
        | st.fixed_dictionaries(
            {
                "parts": st.lists(
                    st.fixed_dictionaries(
                        {
                            "name": st.text(min_size=1),
                            "function": st.text(),
                            "options": st.dictionaries(st.text(), st.text() | st.booleans(), max_size=2),
                            "data_sources": st.lists(st.text(), max_size=2),
                        }
                    ),
                    max_size=3,
                    unique_by=lambda part: str(part["name"]),
                )
            }
        ),
        "trainer": st.fixed_dictionaries({"lr": st.floats(1e-300, 1e300)}),
    }
)


@given(SETTINGS)
def test_what_is_written_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> None:
    config = decode(settings)
    path = tmp_path_factory.getbasetemp() / "again.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert load_config(path) == config
    assert from_json(to_json(config)) == config


def test_what_is_unset_is_not_written_and_reads_back_unset(tmp_path: Path) -> None:
    path = tmp_path / "again.toml"
    for lag in ({}, {"max_staleness": 0, "on_straggler": "train"}):
        config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "schedule": lag})
        path.write_text(to_toml(config), encoding="utf-8")
        assert ("max_staleness" in path.read_text(encoding="utf-8")) == bool(lag)
        assert load_config(path) == config


def test_a_written_config_names_every_value() -> None:
    written = to_toml(made())
    for name in msgspec.structs.asdict(made()):
        assert f"[{name}]" in written
    assert "steps_per_publish = 1" in written


BASE = Path("/srv/run")


def test_relative_paths_are_resolved_on_the_brokers_machine() -> None:
    raw = {
        "model": {"path": "models/a"},
        "data": {"train": ["a.parquet", "/data/b.parquet"], "held_out": "c.parquet"},
        "reward": {"function": "rewards.py:score"},
    }
    config = with_absolute_paths(decode(raw), BASE)
    assert config.model.path == "/srv/run/models/a"
    assert config.data.train == ["/srv/run/a.parquet", "/data/b.parquet"]
    assert config.data.held_out == "/srv/run/c.parquet"
    assert config.reward.function == "/srv/run/rewards.py:score"


def test_built_in_names_and_empty_paths_stay() -> None:
    config = decode({"model": {"path": "/m"}, "data": {"train": "/t"}, "reward": {"function": "gsm8k"}})
    assert with_absolute_paths(config, BASE) == config


def devices(trainer: str, rollout: str, engine: str = "vllm", backend: str = "auto") -> Config:
    sections: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": "t"}, "weights": {"backend": backend}}
    return decode(sections | {"trainer": {"device": trainer}, "rollout": {"device": rollout, "engine": engine}})


@pytest.mark.parametrize(
    ("trainer", "rollout", "engine", "backend"),
    [
        ("cuda", "cuda", "vllm", "nccl"),
        ("cuda", "cuda", "transformers", "nccl"),
        ("cuda", "auto", "vllm", "nccl"),
        ("npu", "auto", "vllm", "hccl"),
        ("npu", "npu", "transformers", "hccl"),
        ("cuda", "auto", "transformers", "gloo"),  # on the CPU
        ("cuda", "cpu", "vllm", "gloo"),
        ("cuda", "npu", "vllm", "gloo"),
        ("cpu", "cuda", "vllm", "gloo"),
        ("cpu", "auto", "vllm", "gloo"),
    ],
)
def test_weights_move_by_the_library_that_trainer_and_all_rollouts_can_use(
    trainer: str, rollout: str, engine: str, backend: str
) -> None:
    assert with_backend(devices(trainer, rollout, engine)).weights.backend == backend


def test_a_trainer_and_rollouts_that_share_devices_share_memory() -> None:
    colocated = devices("cuda", "cuda")
    colocated = replace(colocated, rollout=replace(colocated.rollout, colocated=True))
    assert with_backend(colocated).weights.backend == "shared"
    assert with_backend(devices("cuda", "cuda"), shares_device=True).weights.backend == "shared"
    with pytest.raises(ConfigError, match="'nccl', which needs a separate device for each end"):
        with_backend(devices("cuda", "cuda", backend="nccl"), shares_device=True)


def test_a_backend_that_is_set_stays() -> None:
    config = devices("cuda", "cuda", backend="gloo")
    assert with_backend(config) is config


# ── epochs ──────────────────────────────────────────────────────────────────────────────────


def lasting(epochs: float, groups: int = 8, **sections: Any) -> Config:
    least = {"model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"groups_per_step": groups}}
    return decode({**least, "run": {"epochs": epochs}, **sections})


@pytest.mark.parametrize(
    ("epochs", "rows", "groups", "steps"),
    [(15, 7473, 1024, 109), (1, 8, 8, 1), (2, 15, 8, 3), (0.5, 100, 8, 6), (0.29, 100, 1, 29)],
)
def test_epochs_are_the_whole_steps_that_fit_into_their_rows(epochs: float, rows: int, groups: int, steps: int) -> None:
    run = with_steps(lasting(epochs, groups), rows).run
    assert (run.steps, run.epochs) == (steps, None)


def test_steps_stay_as_they_are_without_epochs() -> None:
    config = devices("cuda", "cuda")
    assert with_steps(config, 10) is config


def test_epochs_that_are_no_step_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.epochs is 0\.1 and data\.train has 10 rows: that is less than the 8 "):
        with_steps(lasting(0.1), 10)


def test_the_warm_up_is_compared_with_the_steps_of_the_epochs() -> None:
    config = lasting(1, trainer={"warmup_steps": 100})
    with pytest.raises(ConfigError, match=r"warmup_steps is 100, longer than the run \(2 steps\)"):
        with_steps(config, 16)


@pytest.mark.parametrize("wrong", [{"run": {"steps": 3}}, None, 7])
def test_what_is_no_path_of_a_run_file_is_refused_in_one_sentence(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^expected the path of a run file, got (dict|NoneType|int) .*: write the "):
        load_config(wrong)


def test_one_override_may_be_a_text_of_its_own(file: Path) -> None:
    assert (
        load_config(file, "run.steps=7") == load_config(file, ["run.steps=7"]) == load_config(file, (["run.steps=7"],))
    )
    for wrong in ({"run.steps": 7}, [("run.steps", 7)]):
        with pytest.raises(ConfigError, match=r"expected texts such as 'run\.steps=20', one or a list of them"):
            load_config(file, wrong)  # type: ignore[arg-type]
