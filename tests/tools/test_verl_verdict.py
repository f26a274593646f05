"""The verdict on a translated launch is what a dry run says of its run file; what cannot be checked is not known."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.runtime.check_type import unknown_of
from asyncrl.tools import verl_verdict
from asyncrl.tools.verl_verdict import ScriptVerdict, judge
from asyncrl.vision.settings import FAMILIES
from tests.tools.verl.launches import translated

M, REWARD = "actor_rollout_ref.model", "reward.custom_reward_function"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults of some types are files of a hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def of_model(path: str, *options: str) -> ScriptVerdict:
    return judge(translated("synchronous", f"{M}.path={path}", *options), unknown_of)


# ── types ─────────────────────────────────────────────────────────────────────────────────────


def refusal(kind: str, folder: Path) -> str | None:
    """What the check of a dry run says of a model with the defaults of a type; None if there are no defaults."""
    from transformers import CONFIG_MAPPING

    from asyncrl.trainer.model.architecture import check_architecture
    from asyncrl.weights.contents.architecture import NotMade

    try:
        CONFIG_MAPPING[kind]().save_pretrained(folder)
    except Exception:  # noqa: BLE001  a type whose parts must be given raises anything
        return None
    try:
        check_architecture(folder, None, "model.path")
    except NotMade:
        return None
    except ConfigError as error:
        return str(error).partition(": ")[2]
    return ""


@pytest.mark.timeout(600)  # as many models as transformers has types
@pytest.mark.slow("makes every model that transformers has, without memory")
def test_the_verdict_on_every_type_of_transformers_is_that_of_the_check_of_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import CONFIG_MAPPING

    found: dict[str, str] = {}
    for number, kind in enumerate(CONFIG_MAPPING):
        monkeypatch.setattr(verl_verdict, "model_type_of", lambda path, kind=kind: kind if path else "")
        verdict, said = of_model("models/any"), refusal(kind, tmp_path / str(number))
        found[kind] = verdict.verdict
        if said is None:
            assert verdict.verdict == "not known", kind
        elif said:
            assert (verdict.verdict, said in verdict.problems[0]) == ("cannot", True), (kind, verdict, said)
        else:
            assert verdict == ScriptVerdict("runs"), kind
    assert {found[kind] for kind in ("qwen2", "qwen3_vl", "deepseek_v3")} == {"runs"}
    assert {found[kind] for kind in ("gemma2", "mamba", "gpt_oss", "glm4v")} == {"cannot"}
    assert found["encoder-decoder"] == "not known"


@pytest.mark.parametrize(
    ("path", "verdict", "words"),
    [
        ("Qwen/Qwen3-8B", "runs", ""),
        ("XiaomiMiMo/MiMo-7B-RL", "cannot", "has no model of model_type 'mimo'"),
        ("openai/gpt-oss-20b", "cannot", "scaled_dot_product_attention"),
        ("Qwen/Qwen3.5-27B", "cannot", "outside of attention"),
        ("models/mine", "not known", "the type of the model models/mine"),
    ],
)
def test_a_published_name_tells_the_type_that_is_checked(path: str, verdict: str, words: str) -> None:
    found = of_model(path)
    assert found.verdict == verdict
    assert words in "".join([*found.problems, *found.unknown])


def test_a_model_that_is_here_is_checked_by_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    found = of_model(str(tmp_path))
    assert found.verdict == "cannot"
    assert "safetensors" in found.problems[0]


def test_a_critic_is_of_a_type_that_has_a_value_model() -> None:
    critic = ("algorithm.adv_estimator=gae", "actor_rollout_ref.rollout.n=1")
    assert of_model("Qwen/Qwen3-8B", *critic, "critic.model.path=Qwen/Qwen2.5-7B").verdict == "runs"
    assert "no value model" in of_model("allenai/OLMo-2-7B", *critic).problems[0]
    assert of_model("Qwen/Qwen3-8B", *critic, "critic.model.path=models/mine").verdict == "not known"


def test_overrides_are_those_of_the_type() -> None:
    assert of_model("Qwen/Qwen3-8B", f"+{M}.override_config.rope_theta=10000.0").verdict == "runs"
    assert "no such setting" in of_model("Qwen/Qwen3-8B", f"+{M}.override_config.nonsense=1").problems[0]


# ── pictures ──────────────────────────────────────────────────────────────────────────────────

PICTURES: tuple[tuple[str, ...], ...] = (
    ("data.train_files=data/geo3k/train.parquet",),
    ("data.train_files=mine.parquet", "data.image_key=images"),
    ("data.train_files=[data/gsm8k/train.parquet,geometry3k/train.parquet]",),
)
TEXT: tuple[tuple[str, ...], ...] = (
    ("data.train_files=data/gsm8k/train.parquet",),
    ("data.train_files=mine.parquet",),
    ("data.train_files=data/geo3k/train.parquet", "data.image_key=''"),
)
PATHS = {
    "qwen2_5_vl": "Qwen/Qwen2.5-VL-7B-Instruct",
    "qwen3_vl": "Qwen/Qwen3-VL-8B-Instruct",
    "glm4v": "zai-org/GLM-4.1V-9B-Thinking",
    "internvl": "OpenGVLab/InternVL3-8B-hf",
    "internvl_chat": "OpenGVLab/InternVL3-8B",
    "kimi_vl": "moonshotai/Kimi-VL-A3B-Instruct",
    "gemma3": "google/gemma-3-12b-it",
    "mllama": "meta-llama/Llama-3.2-11B-Vision-Instruct",
    "qwen2_vl": "Qwen/Qwen2-VL-7B-Instruct",
    "qwen2_5_omni": "Qwen/Qwen2.5-Omni-7B",
    "phi4mm": "microsoft/Phi-4-multimodal-instruct",
    "qwen3_vl_moe": "Qwen/Qwen3-VL-30B-A3B-Instruct",
    "qwen2": "Qwen/Qwen2.5-7B",
}


@pytest.mark.parametrize("kind", PATHS)
def test_pictures_run_with_the_families_that_read_them_alone(kind: str) -> None:
    for options in PICTURES:
        found = of_model(PATHS[kind], *options)
        assert found.verdict == ("runs" if kind in FAMILIES else "cannot"), options
        assert kind in FAMILIES or f"models of type {kind!r} read none here" in found.problems[0]
    for options in TEXT:
        assert not any("read none here" in problem for problem in of_model(PATHS[kind], *options).problems)


def test_rows_that_are_here_tell_whether_they_have_pictures(tmp_path: Path) -> None:
    rows = tmp_path / "geo3k.jsonl"
    rows.write_text('{"prompt": "1", "answer": "1"}\n' * 4)
    options = (f"data.train_files={rows}", "data.image_key=images")
    assert of_model("google/gemma-3-12b-it", *options).verdict == "runs"
    rows.write_text('{"prompt": "<image>", "answer": "1", "images": ["a.png"]}\n' * 4)
    assert of_model("google/gemma-3-12b-it", *options).verdict == "cannot"


# ── functions and packages ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        ("def score(solution_str, ground_truth): ...", "runs", ""),
        ("from json import loads as score", "runs", ""),
        ("from json import *", "runs", ""),
        ("score = print", "runs", ""),
        ("import nowhere\nasync def score(): ...", "not known", "nowhere not installed here"),
        ("def other(): ...", "cannot", "defines no 'score'"),
        ("def score(:", "cannot", "is no file of Python"),
        (None, "runs", "is not here"),
    ],
)
def test_a_reward_file_is_read_if_it_is_here_and_never_run(
    tmp_path: Path, text: str | None, verdict: str, words: str
) -> None:
    file, trace = tmp_path / "mine.py", tmp_path / "ran"
    if text is not None:
        file.write_text(f"{text}\nopen({str(trace)!r}, 'w')\n")
    found = of_model("Qwen/Qwen3-8B", f"{REWARD}.path={file}", f"{REWARD}.name=score")
    assert found.verdict == verdict
    assert words in "".join([*found.problems, *found.unknown, *found.unread])
    assert not trace.exists()


def test_without_torch_it_is_said_what_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_verdict, "missing_packages", lambda _: ["torch", "transformers"])
    found = of_model("Qwen/Qwen3-8B")
    assert found.verdict == "not known"
    assert found.unknown[0].startswith(
        "whether the trainer can compute Qwen/Qwen3-8B: torch, transformers not installed"
    )
    assert of_model("google/gemma-3-12b-it", *PICTURES[0]).verdict == "cannot"


def test_an_argument_that_the_installed_engine_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    found = of_model("Qwen/Qwen3-8B", "+actor_rollout_ref.rollout.engine_kwargs.vllm.nonsense=1")
    assert found.verdict == "cannot"
    assert "nonsense" in found.problems[0]


def test_an_option_that_is_not_supported_counts_more_than_what_is_not_known() -> None:
    assert of_model("models/mine", "trainer.val_only=True").verdict == "cannot"
    assert of_model("Qwen/Qwen3-8B", "actor_rollout_ref.rollout.name=sglang").verdict == "runs with substitutions"
