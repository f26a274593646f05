"""The run file is valid, commented, and fits the machine."""

import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.data.table import Columns
from asyncrl.plug_in import load_function
from asyncrl.reward.verifier import VerifierInput
from asyncrl.runtime.check_architecture import MEMORY
from asyncrl.runtime.machine import CheckLine, Devices
from asyncrl.tools import init
from asyncrl.tools.init import STUB, DataFound, Findings, ModelFound, choose, fit, render

CPU = Devices("cpu")
FOUND = Findings(
    ModelFound("models/base", 150_000, 4096),
    DataFound(
        "train.parquet", 100, Columns("question", "answer"), ["sums"], 44, is_counted=True, num_bad=0, num_prompts=60
    ),
    ["test.parquet"],
    CPU,
    2,
    has_vllm=False,
)


@pytest.mark.parametrize("num_devices", [0, 1, 2, 8])
@pytest.mark.parametrize("has_vllm", [True, False])
@pytest.mark.parametrize("held_out", [["test.parquet"], [], ["a.parquet", "b.parquet"]])
def test_every_run_file_is_accepted(num_devices: int, has_vllm: bool, held_out: list[str]) -> None:
    devices = Devices("cuda", tuple(map(str, range(num_devices)))) if num_devices else CPU
    found = replace(FOUND, devices=devices, has_vllm=has_vllm, held_out=held_out)
    config = decode(tomllib.loads(render(found, choose(found), "reward.py:score")))
    assert (config.data.train, config.data.held_out, config.data.prompt_column) == (
        "train.parquet",
        held_out[0] if len(held_out) == 1 else "",
        "question",
    )
    assert config.checkpoint.keep_best == (len(held_out) == 1)
    settings = [line for line in render(found, choose(found), "reward.py:score").splitlines() if " = " in line]
    assert [line for line in settings if " # " not in line] == [], "every setting says why"
    if num_devices > 1:
        assert config.trainer.ranks + config.rollout.replicas == num_devices
    assert config.trainer.device == devices.kind
    assert config.rollout.engine == ("vllm" if has_vllm and num_devices else "transformers")


def test_prompts_and_completions_fit_into_the_positions_of_the_model() -> None:
    found = replace(FOUND, model=ModelFound("m", 10**9, 512), data=replace(FOUND.data, longest_prompt=450))
    chosen = choose(found)
    assert chosen.max_prompt_tokens == 512
    assert chosen.max_tokens == 1
    assert choose(FOUND).max_prompt_tokens == 64


@pytest.mark.parametrize(
    ("cores", "size", "groups", "max_tokens"),
    [(2, 150_000, 16, 128), (2, 135_000_000, 8, 128), (64, 135_000_000, 16, 256), (2, 1_500_000_000, 2, 64)],
)
def test_a_step_on_cpus_takes_minutes_at_most(cores: int, size: int, groups: int, max_tokens: int) -> None:
    found = replace(FOUND, cores=cores, model=ModelFound("m", size, 4096))
    config = decode(tomllib.loads(render(found, choose(found), "auto")))
    assert (config.schedule.groups_per_step, config.sampling.max_tokens) == (groups, max_tokens)
    is_toy = size < 10**6
    assert config.rollout.replicas == (2 if is_toy else 1)
    assert (config.run.steps, config.evaluation.max_prompts) == ((100, 256) if is_toy else (40, 64))
    assert config.trainer.max_tokens_per_micro_batch == (16384 if is_toy else 2048)


def checked(monkeypatch: pytest.MonkeyPatch, problem: str) -> list[bool | str]:
    """Replace the check by one that has a problem without recomputation; return what it will be asked for."""
    asked: list[bool | str] = []

    def examine(config: Config) -> list[CheckLine]:
        asked.append(config.trainer.gradient_checkpointing)
        good = CheckLine("run", MEMORY, "good", "fits: 9 GiB of 23")
        return [good] if asked[-1] else [CheckLine("run", MEMORY, "bad", "see below", problem)]

    monkeypatch.setattr(init, "missing_packages", lambda names: [])
    monkeypatch.setattr(init, "examine", examine)
    return asked


def test_activations_are_recomputed_if_the_check_of_a_dry_run_wants_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = checked(monkeypatch, "the run needs 34 GiB")
    larger = replace(FOUND, model=ModelFound("models/base", 2_000_000, 4096))
    chosen, said = fit(larger, choose(larger), "auto")
    assert (asked, said) == ([False, True], "fits: 9 GiB of 23")
    assert "gradient_checkpointing = true # recomputes" in render(FOUND, chosen, "auto")


def test_without_the_packages_of_the_check_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = checked(monkeypatch, "")
    monkeypatch.setattr(init, "missing_packages", lambda names: ["torch"])
    assert fit(FOUND, choose(FOUND), "auto") == (choose(FOUND), "not checked: torch not installed here")
    assert asked == []


def test_large_models_learn_slowly() -> None:
    rates = [choose(replace(FOUND, model=ModelFound("m", size, 0))).lr for size in (10**6, 10**8, 10**10)]
    assert rates == [2e-4, 5e-6, 1e-6]


def test_what_needs_attention_is_said_where_it_is_set() -> None:
    found = replace(FOUND, data=replace(FOUND.data, num_bad=3, is_counted=False), held_out=[])
    text = render(found, choose(found), "auto")
    assert 'on_bad_row = "skip"' in text
    assert "3 rows are bad" in text
    assert "estimated" in text
    assert '# held_out = "FILE"' in text
    assert "a built-in verifier by data source: sums" in text
    assert text.startswith("# Written by `asyncrl init`. Paths are relative to the folder that asyncrl is run in")


def test_without_held_out_data_its_settings_are_there_and_commented_out() -> None:
    found = replace(FOUND, held_out=["test.parquet"] * 2)
    lines = render(found, choose(found), "auto").splitlines()
    commented = [
        line.removeprefix("# ") for line in lines if line.startswith(("# held_out", "# keep_best", "# [", "# every"))
    ]
    assert [line.partition("#")[0].rstrip() for line in commented] == [
        'held_out = "test.parquet"',
        "keep_best = true",
        "[evaluation]",
        "every_versions = 10",
    ]
    assert "without it, no accuracy is measured" in commented[0]


@pytest.mark.parametrize("held_out", [[], ["test.parquet", "val.parquet"]])
def test_without_one_held_out_file_a_tenth_of_the_prompts_is_held_out(held_out: list[str]) -> None:
    many = replace(FOUND, data=replace(FOUND.data, num_prompts=1000), held_out=held_out)
    text = render(many, choose(many), "auto")
    config = decode(tomllib.loads(text))
    assert (config.data.hold_out, config.data.held_out, config.checkpoint.keep_best) == (100, "", True)
    assert all(name in text for name in held_out)
    more = replace(many, data=replace(many.data, num_prompts=10**6))
    assert "hold_out = 256 " in render(more, choose(more), "auto")


def test_the_chat_template_is_applied_to_texts() -> None:
    found = replace(FOUND, data=replace(FOUND.data, as_chat=True))
    assert decode(tomllib.loads(render(found, choose(found), "auto"))).data.as_chat
    assert "as_chat" not in render(FOUND, choose(FOUND), "auto")


def test_the_stub_rewards_the_reference_answer_at_the_end_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(STUB.replace("RUN_FILE", "mine/run.toml"))
    assert "    asyncrl reward try mine/run.toml\n" in file.read_text()
    assert "compute_score(data_source, solution_str, ground_truth, extra_info)" in file.read_text()
    score = load_function(f"{file}:score", setting="reward.function")

    def reward(completion: str, answer: str = "8") -> float:
        return float(score(VerifierInput(completion=completion, answer=answer))["score"])

    assert [reward(text) for text in ("8", "so it is 8.", "#### 8", "\\boxed{8}")] == [1.0] * 4
    assert [reward(text) for text in ("", "18", "8 or 9", "-8", "1.8")] == [0.0] * 5
    assert reward("#### 8", "4 + 4 = 8 #### 8") == 1.0
    assert reward("anything", "") == 0.0
