"""From options to a configuration, and from rows to a table; whole evaluations are in tests/integration."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import Qwen3Config

from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Prompt
from asyncrl.records.evaluation_files import CompletionRow
from asyncrl.records.evaluation_metrics import EvaluationMetrics
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.offline import OfflineEvaluation
from asyncrl.tools.evaluate import (
    Pace,
    SampledText,
    eval_config,
    failures,
    model_and_run_file,
    own_prompt,
    sample_model,
    table,
    with_room,
)
from asyncrl.tools.play import NO_DATA
from asyncrl.tools.toy import drawn_squares
from asyncrl.tools.toy.drawn_squares import VISION_WORDS, image_processor, random_vision_model
from asyncrl.tools.toy.models import save_model, tokenizer_from_words
from tests.conftest import draw_picture, require_pictures

PICTURE = Path("picture.png")
RUN = """
[model]
path = "base"
dtype = "bfloat16"
[data]
train = "train.parquet"
held_out = "held_out.parquet"
[sampling]
max_tokens = 99
[reward]
function = "numeric"
options = { tolerance = 0.1 }
timeout_s = 5.0
[evaluation]
max_prompts = 7
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


# ── options ───────────────────────────────────────────────────────────────────────────


def test_without_a_run_file_one_greedy_completion_of_every_row_is_judged_by_its_data_source() -> None:
    config = eval_config("m", data=["a.jsonl", "b.jsonl"])

    assert (config.model.path, config.data.held_out_files) == ("m", ["a.jsonl", "b.jsonl"])
    evaluation = config.evaluation
    assert (evaluation.samples, evaluation.temperature, config.longest_written("held_out")) == (1, 0.0, 1024)
    assert evaluation.max_prompts == 0
    assert config.reward.function == "auto"


def test_several_completions_are_drawn_at_temperature_1_unless_told_otherwise() -> None:
    assert eval_config("m", data=["a"], samples=16).evaluation.temperature == 1.0
    assert eval_config("m", data=["a"], samples=16, temperature=0.6).evaluation.temperature == 0.6
    with pytest.raises(ConfigError, match=r"samples is 16, but evaluation\.temperature is 0"):
        eval_config("m", data=["a"], samples=16, temperature=0.0)


def test_options_go_where_the_run_file_has_them() -> None:
    options: dict[str, Any] = {"top_p": 0.9, "temperature": 0.7, "max_tokens": 9, "max_prompts": 3, "seed": 5}
    config = eval_config("m", data=["a"], engine="vllm", **options)

    found = config.evaluation
    assert (found.top_p, found.temperature, found.max_tokens, found.max_prompts) == (0.9, 0.7, 9, 3)
    assert (config.run.seed, config.rollout.engine) == (5, "vllm")


def test_a_run_file_says_what_options_do_not(run_file: Path) -> None:
    config = eval_config("m", run_file)

    assert (config.model.path, config.model.dtype) == ("m", "bfloat16")
    assert (config.data.held_out, config.reward.function) == ("held_out.parquet", "numeric")
    assert config.evaluation.sampling(config.sampling).max_tokens == 99
    assert config.evaluation.max_prompts == 0, "an offline evaluation takes all of them"


def test_an_exported_model_is_asked_as_in_its_run_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_file: Path
) -> None:
    (tmp_path / "asyncrl.toml").write_text(
        'data.as_chat = true\ndata.prompt_column = "ask"\nevaluation.max_tokens = 7\n'
    )
    config = eval_config(str(tmp_path), data=["a.jsonl"])
    assert (config.data.as_chat, config.data.prompt_column, config.evaluation.max_tokens) == (True, "ask", 7)
    assert capsys.readouterr().err == f"settings as in {tmp_path}/asyncrl.toml; --config names others\n"
    with pytest.raises(ConfigError, match="no prompts to evaluate the model on: give --data FILE"):
        eval_config(str(tmp_path))
    assert not eval_config(str(tmp_path), run_file).data.as_chat


def test_a_limit_that_was_set_while_the_run_went_on_holds_for_its_evaluations(
    make_run: Callable[..., RunDirectory], tmp_path: Path
) -> None:
    directory = make_run()
    directory.config.write_text('[model]\npath = "m"\n[data]\ntrain = "t"\nheld_out = "h"\n')
    directory.append_event("setting.changed", key="sampling.max_tokens", value=96, time_s=1.0)
    checkpoint = directory.checkpoints / "step_000003"
    checkpoint.mkdir(parents=True)
    assert eval_config(str(checkpoint)).longest_written("held_out") == 96


def test_a_long_evaluation_tells_how_far_it_is_at_doubling_intervals() -> None:
    said: list[str] = []
    pace = Pace(8, "completions", said.append)
    for now_s in (10.0, 20.0, 30.0, 39.0, 40.0, 79.0, 80.0, 90.0):
        pace.advance(now_s)
    assert said == [
        "2 of 8 completions after 20.0 s, about 1 min 0 s left",
        "5 of 8 completions after 40.0 s, about 24.0 s left",
        "7 of 8 completions after 1 min 20 s, about 11.4 s left",
    ]


def test_another_reward_does_not_inherit_options_of_the_run_files(run_file: Path) -> None:
    reward = eval_config("m", run_file, reward="gsm8k").reward

    assert (reward.function, reward.options, reward.timeout_s) == ("gsm8k", {}, 5.0)


def test_slots_have_room_for_the_completions_of_the_evaluation_alone(run_file: Path) -> None:
    assert eval_config("m", run_file, max_tokens=16).longest_request == 512 + 16
    assert eval_config("m", run_file).longest_request == 512 + 99


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"max_tokens": 16}, 112),
        ({"max_tokens": 16, "overrides": ["data.max_prompt_tokens=50"]}, 50),
        ({"max_tokens": 16, "overrides": ["data.truncation=left", "data.max_prompt_tokens=40"]}, 40),
    ],
)
def test_prompts_have_the_positions_that_completions_leave(tmp_path: Path, options: dict[str, Any], limit: int) -> None:
    Qwen3Config(max_position_embeddings=128).save_pretrained(tmp_path)
    assert with_room(eval_config(str(tmp_path), data=["a"], **options)).data.max_prompt_tokens == limit


@pytest.mark.parametrize(
    ("positions", "overrides", "lengths"),
    [
        (128, [], (64, 64)),
        (128, ["data.max_prompt_tokens=32"], (32, 96)),
        (4096, [], (512, 1024)),
        (128, ["data.max_prompt_tokens=32", "sampling.max_tokens=8"], (32, 8)),
        (128, ["evaluation.max_tokens=8"], (120, 8)),
    ],
)
def test_completions_are_as_long_as_the_model_allows_unless_their_length_is_given(
    tmp_path: Path, positions: int, overrides: list[str], lengths: tuple[int, int]
) -> None:
    Qwen3Config(max_position_embeddings=positions).save_pretrained(tmp_path)
    config = with_room(eval_config(str(tmp_path), data=["a"], overrides=overrides))
    assert (config.data.max_prompt_tokens, config.longest_written("held_out")) == lengths


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"max_tokens": 128}, "lower --max-tokens"),
        (
            {"max_tokens": 16, "overrides": ["data.truncation=left"]},
            "lower --max-tokens or --set data.max_prompt_tokens",
        ),
    ],
)
def test_lengths_that_do_not_fit_the_model_are_answered_with_the_options_of_the_command(
    tmp_path: Path, options: dict[str, Any], advice: str
) -> None:
    Qwen3Config(max_position_embeddings=128).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=rf"into the 128 positions that the model knows; {advice}$"):
        with_room(eval_config(str(tmp_path), data=["a"], **options))


def test_overrides_come_last(run_file: Path) -> None:
    config = eval_config("m", run_file, seed=1, overrides=["rollout.slots=8", "seed=2"])

    assert (config.rollout.slots, config.run.seed) == (8, 2)


def test_without_prompts_the_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="give --data FILE"):
        eval_config("m")


def test_a_misspelt_override_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'rollout.slots'\?"):
        eval_config("m", data=["a"], overrides=["rollout.slot=8"])


# ── output ───────────────────────────────────────────────────────────────────────────


def some_metrics(accuracy: float, **further: float) -> EvaluationMetrics:
    tail = {"reward": accuracy, "length_mean": 12.4, "truncated": 0.25, "failed": 1.0}
    return EvaluationMetrics(accuracy=accuracy, num_prompts=8, metrics=further | tail)


def an_evaluation(samples: int, overall: EvaluationMetrics, **by_source: EvaluationMetrics) -> OfflineEvaluation:
    return OfflineEvaluation(
        model="m",
        data=["a"],
        samples=samples,
        seed=3,
        temperature=0.0 if samples == 1 else 0.6,
        top_p=1.0,
        top_k=0,
        max_tokens=64,
        tokens=12_345,
        wall_s=2.5,
        overall=overall,
        by_source=by_source,
    )


def test_one_completion_of_one_source_is_one_line() -> None:
    assert table(an_evaluation(1, some_metrics(0.5), sums=some_metrics(0.5))).splitlines() == [
        "data source  prompts  accuracy  reward  tokens  truncated  failed",
        "sums               8     50.0%    0.50      12      25.0%       1",
        "1 of each prompt, greedy, at most 64 tokens, seed 3; 12,345 tokens in 2.5 s",
    ]


def test_several_sources_have_a_line_each_and_one_for_all() -> None:
    curve = {"avg@2": 0.5, "pass@1": 0.5, "pass@2": 0.75, "maj@2": 0.4}
    no_vote = {name: value for name, value in curve.items() if name != "maj@2"}
    found = an_evaluation(
        2, some_metrics(0.5, **curve), sums=some_metrics(0.5, **curve), math=some_metrics(0.5, **no_vote)
    )

    head, sums, math, everything, how = table(found).splitlines()

    assert " ".join(head.split()) == "data source prompts avg@2 pass@1 pass@2 maj@2 reward tokens truncated failed"
    assert " ".join(sums.split()) == "sums 8 50.0% 50.0% 75.0% 40.0% 0.50 12 25.0% 1"
    assert " ".join(math.split()) == "math 8 50.0% 50.0% 75.0% - 0.50 12 25.0% 1"
    assert everything.startswith("all ")
    assert how.startswith("2 of each prompt, temperature 0.6, top-p 1, ")


def test_failures_are_counted_by_reason() -> None:
    def a_row(failure: str) -> CompletionRow:
        return CompletionRow(place=0, index=0, data_source="", prompt="", reference="", failure=failure)

    rows = [*map(a_row, ["", "hung", "raised:\n  why", "hung"]), *(a_row(f"other {i}") for i in range(5))]

    assert failures(rows) == [
        "2 without a verdict: hung",
        "1 without a verdict: raised: why",
        "1 without a verdict: other 0",
        "1 without a verdict: other 1",
        "1 without a verdict: other 2",
        "2 without a verdict for 2 other reasons",
    ]


# ── test evaluated model ──────────────────────────────────────────────────────────────────────
# `asyncrl eval` finds the settings of the run that a model is in.


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "run")
    directory.config.touch()
    return directory


def test_a_checkpoint_has_the_run_file_of_its_run(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    step = run.checkpoints / "step_000004"
    step.mkdir()
    assert model_and_run_file(str(step)) == (str(step), run.config)
    monkeypatch.chdir(step)
    assert model_and_run_file(".") == (".", run.config)


def test_a_run_is_its_newest_checkpoint(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = run.checkpoints / "step_000004"
    monkeypatch.setattr(
        "asyncrl.trainer.checkpoints.export.find_checkpoint",
        lambda *asked: asked == (run.checkpoints, None) and [newest],
    )
    assert model_and_run_file(str(run.path)) == (str(newest), run.config)


def test_a_run_without_a_checkpoint_is_refused(run: RunDirectory) -> None:
    with pytest.raises(ConfigError, match="there is no intact checkpoint in "):
        model_and_run_file(str(run.path))


def test_any_other_model_is_in_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step_000004"
    folder.mkdir(parents=True)
    for model in (str(folder), "org/name", "hf://org/name@main"):
        assert model_and_run_file(model) == (model, None)


# ── sample ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that reads pictures, without a chat template."""
    require_pictures()
    folder = tmp_path_factory.mktemp("reader")
    tokenizer = tokenizer_from_words([*VISION_WORDS, *drawn_squares.WORDS])
    save_model(folder / "model", random_vision_model(tokenizer, 0), tokenizer, print, image_processor())
    return folder / "model"


def sampled(capsys: pytest.CaptureFixture[str], model: Path, texts: Sequence[str], **choices: Any) -> str:
    config = eval_config(str(model), data=[NO_DATA], max_tokens=3, samples=choices.pop("samples", None), seed=1)
    sample_model(config, texts, **choices)
    return capsys.readouterr().out


def test_every_prompt_has_its_completions_in_order(reader: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"{drawn_squares.QUESTION}?", drawn_squares.QUESTION]
    shown = sampled(capsys, reader, texts, samples=2)
    heads = [line.removeprefix("── ").rpartition(" ── ")[0] for line in shown.splitlines() if line.startswith("──")]
    assert heads == [f"prompt {place} of 2 ── completion {index} of 2" for place in (1, 2) for index in (1, 2)]

    found = msgspec.json.decode(sampled(capsys, reader, texts, samples=2, as_json=True), type=list[SampledText])
    assert [one.prompt for one in found] == [texts[0]] * 2 + [texts[1]] * 2
    assert all(one.num_tokens <= 3 and one.completion in shown for one in found)


def test_a_row_of_the_data_is_a_prompt_with_its_pictures(
    reader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / PICTURE).write_bytes(draw_picture(96, 96, seed=1))
    row = {"question": f"<image>{drawn_squares.QUESTION}", "answer": "1", "images": [str(PICTURE)]}
    (tmp_path / "rows.jsonl").write_bytes(msgspec.json.encode(row))
    config = eval_config(str(reader), data=[str(tmp_path / "rows.jsonl")], max_tokens=3)
    sample_model(config, [drawn_squares.QUESTION], rows=[0], as_json=True)
    found = msgspec.json.decode(capsys.readouterr().out, type=list[SampledText])
    assert [(one.prompt, one.answer) for one in found] == [(drawn_squares.QUESTION, ""), (row["question"], "1")]
    sample_model(config, [drawn_squares.QUESTION], rows=[0])
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("── prompt 2 of 2"))
    assert [line.split(maxsplit=1) for line in lines[place - 2 : place]] == [
        ["prompt", row["question"]],
        ["answer", "1"],
    ]


def test_pictures_stand_before_a_prompt_without_marks(reader: Path, tmp_path: Path) -> None:
    one, two = (tmp_path / f"{seed}.png" for seed in (1, 2))
    one.write_bytes(draw_picture(24, 24, seed=1))
    two.write_bytes(draw_picture(48, 24, seed=2))
    prompt, contents = own_prompt(reader, "how many?", files=[one, two])
    assert (prompt.text, [image.width for image in prompt.images]) == ("<image><image>how many?", [24, 48])
    assert contents == [one.read_bytes(), two.read_bytes()]
    assert own_prompt(reader, "of <image> and <image>", files=[one, two])[0].text == "of <image> and <image>"


def test_a_picture_changes_what_is_sampled(reader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = set()
    for seed in range(4):
        (tmp_path / PICTURE).write_bytes(draw_picture(96, 96, seed=seed))
        said.add(sampled(capsys, reader, [drawn_squares.QUESTION], samples=32, files=[tmp_path / PICTURE]))
    assert len(said) > 1


def test_a_prompt_is_a_message_of_the_user_where_the_model_has_a_chat_template(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert own_prompt(tmp_path, "why?")[0].chat == [{"role": "user", "content": "why?"}]
    told = own_prompt(tmp_path, "why?", system="Be brief.")[0].chat
    assert [message["role"] for message in told] == ["system", "user"]
    assert own_prompt(tmp_path, "why?", is_plain=True)[0] == Prompt(text="why?")


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("a", {"system": "Be brief."}, "--system is a message, but the prompt is plain text"),
        ("a", {"files": [Path("none.png")]}, "--image cannot be used: none.png cannot be read: there is no such file"),
        ("a", {"files": [Path(__file__)]}, "--image cannot be used: a picture of [0-9,]+ bytes cannot be read"),
        ("<image> or <image>", {"files": [PICTURE]}, "the prompt has 2 marks <image> for 1 pictures"),
        ("<image>", {}, "the prompt has 1 marks <image> for 0 pictures"),
    ],
)
def test_what_cannot_be_a_prompt_is_named(
    reader: Path, tmp_path: Path, text: str, options: dict[str, Any], problem: str
) -> None:
    (tmp_path / PICTURE).write_bytes(draw_picture(24, 24, seed=1))
    if options.get("files") == [PICTURE]:
        options = {"files": [tmp_path / PICTURE]}
    with pytest.raises(ConfigError, match=problem):
        own_prompt(reader, text, **options)


def test_a_model_of_text_is_given_no_pictures(tmp_path: Path) -> None:
    Qwen3Config().save_pretrained(tmp_path)
    (tmp_path / PICTURE).write_bytes(draw_picture(24, 24, seed=1))
    with pytest.raises(ConfigError, match=r"the model .* reads none"):
        own_prompt(tmp_path, "how many?", files=[tmp_path / PICTURE])


def test_a_mistake_in_the_options_is_told_before_torch_is_imported() -> None:
    source = "import sys, asyncrl.tools.evaluate; print({'torch', 'transformers'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
