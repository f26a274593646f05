"""
`asyncrl export` refuses what it cannot write before it reads gigabytes; the model card holds the facts in the files of
a run, and no others. The command itself is in test_main.py.
"""

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import LocalTokenNotFoundError
from msgspec.structs import replace

from asyncrl.config.sections.trainer import Lora
from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import SHARED_EVENT, RunRecord, read_run
from asyncrl.tools.export import HubModel, export_run, model_card, settings_text
from asyncrl.trainer.checkpoints.checkpoint import Manifest

EXPORT = "asyncrl.trainer.checkpoints.export"


def test_an_existing_directory_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists and is never overwritten"):
        export_run(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ('[model]\npath = "m"\n', r"trained the model itself \(trainer\.lora\.rank = 0\); export it without --adapter"),
        ("", r"has no readable config\.toml, which has the scale of the adapter"),
    ],
)
def test_a_run_without_an_adapter_has_none_to_export(tmp_path: Path, config: str, sentence: str) -> None:
    (tmp_path / "config.toml").write_text(config)
    with pytest.raises(ConfigError, match=sentence):
        export_run(tmp_path, tmp_path / "out", is_adapter=True)


class Hub:
    """The calls that the Hub's client gets, which takes no others; ``error`` is its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        for name, answer in (("create_repo", "https://huggingface.co/me/mine"), ("upload_folder", None)):
            known = inspect.signature(getattr(HfApi, name))

            def call(
                _: HfApi, *args: Any, name: str = name, answer: Any = answer, known: Any = known, **kw: Any
            ) -> Any:
                self.calls.append((name, known.bind(None, *args, **kw).arguments))
                if error:
                    raise error
                return answer

            monkeypatch.setattr(HfApi, name, call)


def test_a_push_makes_the_model_first_and_uploads_the_export_in_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(monkeypatch)
    url = HubModel("me/mine", is_private=True).upload(tmp_path, "step 3 of sums")
    made, uploaded = hub.calls
    assert (made[0], made[1]["repo_id"], made[1]["private"], made[1]["exist_ok"]) == (
        "create_repo",
        "me/mine",
        True,
        True,
    )
    assert (uploaded[1]["folder_path"], uploaded[1]["commit_message"]) == (tmp_path, "step 3 of sums")
    assert url == "https://huggingface.co/me/mine"


def test_a_hub_that_refuses_does_so_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch, LocalTokenNotFoundError("Token is required"))
    (tmp_path / "config.toml").write_text('[model]\npath = "m"\n')
    with pytest.raises(ConfigError, match=r"Token is required\); nothing was exported; `hf auth login`"):
        export_run(tmp_path, tmp_path / "out", push_to="me/mine")
    assert not (tmp_path / "out").exists()


def test_an_adapter_names_its_base_model_on_the_hub_and_the_scale_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = "/cache/models--org--name/snapshots/0123abc"
    (tmp_path / "config.toml").write_text(f'[model]\npath = "{base}"\n[trainer.lora]\nrank = 4\nalpha = 6.0\n')
    folder = tmp_path / "step_000001"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    manifest = Manifest(step=1, policy_version=1, random_state=b"", files={})
    given: dict[str, Any] = {}

    def write(*paths: Any, **options: Any) -> None:
        given.update(options)
        paths[2].mkdir()

    monkeypatch.setattr(f"{EXPORT}.find_checkpoint", lambda *_: (folder, manifest))
    monkeypatch.setattr(f"{EXPORT}.export_adapter", write)
    export_run(tmp_path, tmp_path / "out", is_adapter=True)
    assert (given["base"], given["revision"], given["lora"]) == ("org/name", "0123abc", Lora(rank=4, alpha=6.0))
    assert 'base_model: "org/name"' in given["card"]


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none"):
        export_run(tmp_path / "none", tmp_path / "out")


MakeRun = Callable[..., RunDirectory]

CONFIG = """
[run]
steps = 10
[model]
path = "models/base"
[data]
train = ["a.parquet", "b|c.parquet"]
held_out = "held_out.parquet"
[algorithm]
advantage = "rloo"
loss = "clipped"
kl = "k3"
kl_coef = 0.001
[evaluation]
samples = 4
temperature = 0.6
max_tokens = 64
"""


def a_record(make_run: MakeRun, config: str = CONFIG) -> RunRecord:
    directory = make_run()
    directory.config.write_text(config)
    metrics = {"avg@4": 0.5, "pass@4": 0.9, "maj@4": 0.6, "math/avg@4": 0.4, "sums/avg@4": 0.6, "truncated": 0.25}
    directory.append_event(
        "eval.finished", policy_version=10, accuracy=0.5, num_prompts=64, length_mean=12.5, **metrics
    )
    return read_run(directory.path)


def card(record: RunRecord, policy_version: int = 10, dtype: str | None = None) -> list[str]:
    return model_card(record, "mine", step=10, policy_version=policy_version, dtype=dtype).splitlines()


def test_the_card_lists_model_algorithm_and_data(make_run: MakeRun) -> None:
    lines = card(a_record(make_run))

    assert lines[:2] == ["---", "library_name: transformers"]
    assert "# mine" in lines
    assert any(line.startswith("`models/base` after 10 optimizer steps") for line in lines)
    assert "| optimizer steps | 10 of 10 planned |" in lines
    assert "| advantage | `rloo` |" in lines
    assert "| training data | `a.parquet`, `b\\|c.parquet` |" in lines


def test_other_settings_are_listed_if_they_differ_from_the_default(make_run: MakeRun) -> None:
    lines = card(a_record(make_run))

    assert "| algorithm.kl_coef | 0.001 |" in lines
    assert not any("algorithm.kl |" in line for line in lines)


def test_a_card_tells_no_path_of_the_machine(make_run: MakeRun) -> None:
    base = "/home/me/.cache/models--org--base/snapshots/0123abc"
    config = CONFIG.replace("models/base", base).replace('"a.parquet"', '"/home/me/data/a.parquet"')
    config += '[[reward.parts]]\nname = "form"\nfunction = "/home/me/rewards.py:form"\n'
    config += '[trainer.lora]\npath = "/home/me/l"\n'
    text = "\n".join(card(a_record(make_run, config)))

    assert "`org/base` after 10 optimizer steps" in text
    assert "| training data | `a.parquet`, `b\\|c.parquet` |" in text
    assert "`rewards.py:form`" in text
    assert "/home" not in text
    base = "/home/me/models/base"
    text = model_card(a_record(make_run), "m", step=1, policy_version=1, dtype=None, adapter_of=base)
    assert "/home" not in text.replace(f'from_pretrained("{base}")', ""), "only what loads it, as adapter_config.json"


def test_settings_that_were_changed_before_the_checkpoint_have_both_values(make_run: MakeRun) -> None:
    record = a_record(make_run, CONFIG + "[trainer]\nlr = 1e-6\n[schedule]\nstaleness = 1\n")
    times = {line["step"]: line["time_s"] for line in record.metrics}
    directory = make_run("changed")
    for key, value, time_s in (
        ("trainer.lr", 2e-6, times[3] + 0.01),
        ("schedule.staleness", 4, times[4] + 0.01),
        ("algorithm.entropy_coef", 0.1, times[4] + 0.01),
        ("trainer.lr", 5.0, times[9] + 1.0),
    ):
        directory.append_event("setting.changed", key=key, value=value, time_s=time_s)
    lines = card(a_record(lambda: directory, CONFIG + "[trainer]\nlr = 1e-6\n[schedule]\nstaleness = 1\n"))

    told = "\n".join(lines)
    assert "| learning rate | 1e-06; 2e-06 after 4 steps (" in told
    assert "| staleness, at most | 1; 4 after 5 steps (" in told
    assert "| algorithm.entropy_coef | 0; 0.1 after 5 steps (" in told
    assert "5 after" not in told, "changed after the checkpoint"


def test_failed_completions_are_counted_below_the_accuracy(make_run: MakeRun) -> None:
    assert not any("failed" in line for line in card(a_record(make_run)))
    directory = make_run("failed")
    directory.append_event("eval.finished", policy_version=10, accuracy=0.5, num_prompts=64, failed=6.0)
    directory.config.write_text(CONFIG)
    assert "| failed, in no mean |  | 6 |" in card(read_run(directory.path))


def test_results_stand_beside_those_of_the_base_model(make_run: MakeRun) -> None:
    lines = card(a_record(make_run))

    assert "|  | before | these weights |" in lines
    assert any(line.startswith("| accuracy") and line.count("%") == 7 for line in lines)
    assert "| pass@4 |  | 90.0% |" in lines
    assert "| math |  | 40.0% |" in lines
    assert "| tokens, mean |  | 12.5 |" in lines
    assert "For each prompt 4 completions, at temperature 0.6, of at most 64 tokens." in lines


def test_a_graded_reward_and_a_limit_that_was_changed_live_stand_with_the_results(make_run: MakeRun) -> None:
    record = a_record(make_run)
    evaluated = {"event": "eval.finished", "policy_version": 10, "accuracy": 0.1, "num_prompts": 64, "reward": 0.45}
    lines = card(replace(record, events=[*record.events, evaluated | {"max_tokens": 8}]))
    assert any(line.startswith("| reward, mean |") and "0.45" in line for line in lines)
    assert any(line.startswith("| limit in tokens, set while the run went on |") and "| 8 |" in line for line in lines)
    assert any("max_new_tokens=8)" in line for line in lines)
    assert not any("limit in tokens" in line for line in card(replace(record, events=[*record.events, evaluated])))


def test_held_out_prompts_that_were_trained_on_are_counted_beside_the_accuracy(make_run: MakeRun) -> None:
    record = a_record(make_run)
    assert not any("trained on" in line for line in card(record))
    record.events.append({"event": SHARED_EVENT, "num_shared": 12, "num_held_out": 64})
    sentence = "12 of 64 held-out prompts are among those trained on"
    assert f"{sentence}: of these the accuracy is not that of unseen prompts." in card(record)


def test_a_version_that_was_not_evaluated_has_no_results(make_run: MakeRun) -> None:
    lines = card(a_record(make_run), policy_version=7)

    assert "The run did not evaluate version 7, which this model is." in lines
    assert "|  | before |" in lines
    assert not any("these weights" in line for line in lines)


def test_a_run_without_held_out_data_has_no_section_of_results(make_run: MakeRun) -> None:
    assert "## Held-out prompts" not in card(a_record(make_run, '[model]\npath = "models/base"\n'))


def test_weights_that_were_chosen_by_their_evaluation_say_so(make_run: MakeRun) -> None:
    def chosen(*, is_best: bool) -> str:
        return model_card(a_record(make_run), "m", step=10, policy_version=10, dtype=None, is_best=is_best)

    assert "chosen as the best of 2 evaluations on these prompts: expect a little less on others" in chosen(
        is_best=True
    )
    assert "chosen as the best" not in chosen(is_best=False)


def test_the_card_asks_the_model_as_its_run_did(make_run: MakeRun) -> None:
    config = CONFIG.replace("[algorithm]", "chat_template_kwargs = { enable_thinking = false }\n[algorithm]")
    for has_template in (True, False):
        text = model_card(
            a_record(make_run, config), "m", step=10, policy_version=10, dtype=None, has_template=has_template
        )
        program = text.partition("```python\n")[2].partition("```")[0]
        compile(program, "README.md", "exec")
        assert ("apply_chat_template(" in program and "enable_thinking=False" in program) is has_template
        assert "max_new_tokens=64" in program
        assert "`asyncrl eval m --data FILE` evaluates it as its run did" in text


def test_settings_of_an_export_are_those_of_prompts_and_verdicts_without_a_path(make_run: MakeRun) -> None:
    config = CONFIG.replace('"a.parquet"', '"/home/me/a.parquet"').replace("[algorithm]", "as_chat = true\n[algorithm]")
    config += '[reward]\nfunction = "/home/me/r.py:f"\n'
    settings = tomllib.loads(settings_text(a_record(make_run, config)))
    assert settings == {
        "data": {"as_chat": True},
        "evaluation": {"samples": 4, "temperature": 0.6, "max_tokens": 64},
    }
    text = settings_text(a_record(make_run, config))
    assert text.startswith("# How the run ")
    assert "its reward is one's own: give --reward r.py:f" in text
    told = model_card(a_record(make_run, config), "m", step=10, policy_version=10, dtype=None)
    assert "`asyncrl eval m --data FILE --reward r.py:f` evaluates it as its run did" in told
    assert not settings_text(a_record(make_run, config + '[environment]\nfunction = "e.py:E"\n'))


def test_a_cast_is_recorded(make_run: MakeRun) -> None:
    assert "| weights | cast to bfloat16 |" in card(a_record(make_run), dtype="bfloat16")


def test_a_run_directory_without_records_still_gives_a_card(tmp_path: Path) -> None:
    lines = card(read_run(tmp_path))

    assert "| optimizer steps | 10 |" in lines
    assert any("from_pretrained(" in line for line in lines)


def test_an_adapter_is_used_with_its_base_model(make_run: MakeRun) -> None:
    snapshot = "/cache/models--org--base/snapshots/0123abc"
    record = a_record(make_run, CONFIG.replace("models/base", snapshot) + "[trainer.lora]\nrank = 4\n")
    text = model_card(record, "mine", step=10, policy_version=10, dtype=None, adapter_of="org/base")
    assert text.startswith('---\nlibrary_name: peft\nbase_model: "org/base"\n')
    assert "A LoRA adapter of `org/base` after 10 optimizer steps" in text
    assert "| trainer.lora.rank | 4 |\n| trainer.lora.alpha | 8 |" in text
    assert 'PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("org/base"), "mine")' in text
    assert "vllm serve" not in text


def test_a_base_model_that_is_a_folder_is_called_one_and_is_no_name_on_the_hub(make_run: MakeRun) -> None:
    record = a_record(make_run, CONFIG.replace("models/base", "/home/me/tags"))
    text = model_card(record, "mine", step=10, policy_version=10, dtype=None, adapter_of="/home/me/tags")
    assert "A LoRA adapter of `tags` (a local folder) after 10 optimizer steps" in text
    assert "| base model | `tags` (a local folder) |" in text
    assert "base_model:" not in text


def test_an_adapter_and_its_base_model_of_one_name_are_told_apart_by_their_paths(make_run: MakeRun) -> None:
    record = a_record(make_run, CONFIG.replace("models/base", "/models/dates"))
    text = model_card(
        record, "dates", step=10, policy_version=10, dtype=None, adapter_of="/models/dates", path="out/dates"
    )
    assert 'PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("/models/dates"), "out/dates")' in text
    assert 'tokenizer = AutoTokenizer.from_pretrained("out/dates")' in text
    assert "\n# dates\n" in text
    assert "A LoRA adapter of `dates`" in text


def test_a_model_that_reads_pictures_is_used_with_its_processor(make_run: MakeRun) -> None:
    record = a_record(make_run)
    text = model_card(record, "mine", step=10, policy_version=10, dtype=None, reads_pictures=True)
    assert "pipeline_tag: image-text-to-text" in text
    assert 'processor = AutoProcessor.from_pretrained("mine")' in text
    assert 'model = AutoModelForImageTextToText.from_pretrained("mine")' in text
    assert "AutoModelForCausalLM" not in text
