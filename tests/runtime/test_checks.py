"""What a dry run refuses about a model, in a process with torch."""

import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asyncrl.config.config import Config, to_json
from asyncrl.config.model.adapter import adapter_config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.rollout import Vllm
from asyncrl.config.sections.trainer import Lora
from asyncrl.data.check import inspect
from asyncrl.data.prompts import train_stream
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Prompt
from asyncrl.rollout.engines.text import encode_text
from asyncrl.rollout.engines.vllm import arguments
from asyncrl.rollout.engines.vllm.arguments import FIXED, argument_names
from asyncrl.runtime import check_architecture, checks
from asyncrl.runtime import checks as module
from asyncrl.runtime.check_process import answer, check_apart
from asyncrl.runtime.checks import (
    CHECKS,
    check_engine,
    check_environment,
    check_lengths,
    check_models,
    devices_of,
    resolved,
    token_count,
)
from asyncrl.runtime.machine import CheckLine, Devices
from asyncrl.weights.contents.token_ids import load_tokenizer
from tests.config.configs import made
from tests.config.model.directories import Shapes, write_model, write_safetensors
from tests.served.judge import KEY, Judge


def a_run(model: Path, max_tokens: int = 64) -> Config:
    data = {"train": "t", "max_prompt_tokens": 64}
    return decode({"model": {"path": str(model)}, "data": data, "sampling": {"max_tokens": max_tokens}})


def changed(toy: Path, tmp_path: Path, **settings: object) -> Path:
    model = shutil.copytree(toy / "model", tmp_path / "model")
    said = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(said | settings))
    return model


@pytest.mark.parametrize(
    ("settings", "line", "sentence"),
    [
        ({"model_type": "unheard"}, "architecture", "has no model of model_type 'unheard'"),
        ({"intermediate_size": 8}, "architecture", "has shape [32, 64], but by config.json it must have [32, 8]"),
        (
            {"max_position_embeddings": 100},
            "positions",
            "a slot holds 128 tokens (prompt and completion), but the model knows 100",
        ),
    ],
    ids=["unknown type", "another shape", "too few positions"],
)
def test_a_model_that_cannot_be_computed_is_one_sentence(
    toy: Path, tmp_path: Path, settings: dict[str, object], line: str, sentence: str
) -> None:
    """Here in this process, which has torch: that lines come out of the other is told in `test_own_process`."""
    problems = {
        name: problem for name, problem in examined(a_run(changed(toy, tmp_path, **settings))).items() if problem
    }
    assert list(problems) == [line]
    assert sentence in problems[line]
    assert "\n" not in problems[line]


def examined(config: Config) -> dict[str, str]:
    """The problem of each line, empty if there is none."""
    return {line.name: line.problem for line in check_architecture._lines(config, "")}


def test_an_adapter_of_other_layers_is_refused_before_anything_starts(toy: Path, tmp_path: Path) -> None:
    lora = Lora(rank=2, path=str(tmp_path))
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter_config(lora, ["q_proj"], "base")))
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes: Shapes = {f"{layer}.lora_A.weight": (2, 32), f"{layer}.lora_B.weight": (32, 2)}
    write_safetensors(tmp_path / "adapter_model.safetensors", shapes)

    config = a_run(toy / "model")
    problem = examined(replace(config, trainer=replace(config.trainer, lora=lora)))["architecture"]
    assert problem.startswith(f"trainer.lora.path={tmp_path} lacks base_model.model.model.layers.0.mlp.down_proj")


def test_what_an_unknown_architecture_hides_is_not_checked(toy: Path, tmp_path: Path) -> None:
    lines = list(check_architecture._lines(a_run(changed(toy, tmp_path, model_type="unheard")), ""))
    assert [(line.name, line.state) for line in lines] == [
        ("weights", "good"),
        ("architecture", "bad"),
        ("positions", "absent"),
        ("memory", "absent"),
    ]


def test_positions_are_those_of_vllm_too(toy: Path, tmp_path: Path) -> None:
    config = a_run(changed(toy, tmp_path, max_position_embeddings=130))
    assert examined(config)["positions"] == ""
    longer = replace(config, rollout=replace(config.rollout, engine="vllm", vllm=Vllm(max_model_len=131)))
    assert "a slot holds 131 tokens" in examined(longer)["positions"]


def test_overrides_count_for_the_positions_of_a_slot(toy: Path, tmp_path: Path) -> None:
    config = a_run(changed(toy, tmp_path, max_position_embeddings=100))
    assert examined(with_overrides(config, max_position_embeddings=128))["positions"] == ""
    assert "but the model knows 101" in examined(with_overrides(config, max_position_embeddings=101))["positions"]
    assert (
        "has no such setting; did you mean" in examined(with_overrides(config, position_embeddings=1))["architecture"]
    )


def with_overrides(config: Config, **overrides: object) -> Config:
    return replace(config, model=replace(config.model, overrides=overrides))


@pytest.mark.slow("imports torch in a process of its own")
def test_a_run_that_does_not_fit_into_the_devices_is_one_sentence(toy: Path) -> None:
    raw = {"model": {"path": str(toy / "model")}, "data": {"train": "t"}, "trainer": {"device": "cuda"}}
    with pytest.raises(ConfigError, match=r"the trainer needs .* on each cuda device \(step\), but a device has 1 MiB"):
        check_architecture.check_architecture(decode(raw), "1MiB")


@pytest.mark.slow("imports torch in processes of its own")
def test_a_model_that_can_be_computed_is_accepted_and_this_process_imports_no_torch_for_it(
    monkeypatch: pytest.MonkeyPatch, toy: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = {line.name: line.what for line in check_architecture.check_architecture(a_run(toy / "model"))}
    assert found["architecture"] == "a model of type 'qwen3', which the trainer can compute"
    assert found["positions"].startswith("128 of prompt and completion, of ")
    assert found["memory"].startswith("fits: ")


# ── test checks ───────────────────────────────────────────────────────────────────────────────
# Checks of a run before anything starts: each says what it found, or ends with one sentence.


@pytest.fixture
def checks_a_run(tmp_path: Path) -> Config:
    write_model(tmp_path / "model")
    return decode({"model": {"path": str(tmp_path / "model")}, "data": {"train": write(tmp_path, "openai/gsm8k")}})


def write(folder: Path, *sources: str) -> str:
    path = folder / "train.jsonl"
    rows = [{"prompt": "1 + 1", "answer": "2", "data_source": source} for source in sources]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return str(path)


def test_every_check_says_what_it_found(checks_a_run: Config) -> None:
    found = {name: check(checks_a_run, pytest.fail) for name, check in CHECKS.items()}
    assert found["devices"] == "the trainer on the CPU, rollouts on the CPU, weights over gloo"
    assert found["trackers"] == "none"
    assert found["functions"] == "advantage grpo, loss clipped, reward auto"
    assert found["data"] == "1 rows of train, with a reward for each data source: openai/gsm8k"


def test_a_row_without_a_reward_is_found(checks_a_run: Config, tmp_path: Path) -> None:
    write(tmp_path, "openai/gsm8k", "mine")
    with pytest.raises(ConfigError, match="no reward is for rows with data_source 'mine'"):
        CHECKS["data"](checks_a_run, pytest.fail)


def test_a_verifier_whose_library_is_missing_is_found_where_auto_would_use_it(
    checks_a_run: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, *, setting: str) -> None:
        raise ConfigError(f"{setting} {name!r} needs a library that is not installed")

    write(tmp_path, "lighteval/MATH")
    monkeypatch.setattr(checks, "resolve", missing)
    with pytest.raises(ConfigError, match="'auto': 'math' needs a library that is not installed"):
        CHECKS["data"](checks_a_run, pytest.fail)


def test_bad_rows_that_are_skipped_are_a_remark(checks_a_run: Config, tmp_path: Path) -> None:
    remarks: list[str] = []
    path = tmp_path / "train.jsonl"
    path.write_text(path.read_text() + '\n{"prompt": "", "answer": "2"}\n')
    data: dict[str, Any] = {"train": checks_a_run.data.train, "on_bad_row": "skip"}
    CHECKS["data"](decode({"model": {"path": checks_a_run.model.path}, "data": data}), remarks.append)
    assert "1 row cannot be used" in remarks[0]


def test_it_is_advised_to_apply_the_chat_template_to_texts(checks_a_run: Config) -> None:
    remarks: list[str] = []
    (Path(checks_a_run.model.path) / "chat_template.jinja").write_text("{{ messages[0].content }}")
    CHECKS["data"](checks_a_run, remarks.append)
    assert [remark.partition(":")[0] for remark in remarks] == ["note"]
    assert "set data.as_chat = true" in remarks[0]
    CHECKS["data"](replace(checks_a_run, data=replace(checks_a_run.data, as_chat=True)), pytest.fail)


def test_a_check_of_the_data_and_one_of_the_run_say_the_same_about_rows_for_another_purpose(
    checks_a_run: Config, tmp_path: Path
) -> None:
    remarks: list[str] = []
    (tmp_path / "train.jsonl").write_text(
        '{"prompt": "1 + 1", "answer": "1", "answer": "2", "meta": {"a": 1}, "data_source": "openai/gsm8k"}\n'
        '{"prompt": "[{\'role\': \'user\', \'content\': \'1 + 2\'}]", "answer": "3", "data_source": "openai/gsm8k"}\n'
    )
    CHECKS["data"](checks_a_run, remarks.append)
    odd = inspect(tmp_path / "train.jsonl").odd
    assert len(odd) == 3
    assert remarks == [f"note: data.train: {clause}" for clause in odd]


@pytest.mark.parametrize("environment", [{}, {"tools": ["calculator"]}])
def test_tools_of_rows_need_a_template_that_shows_them_and_an_environment_that_has_them(
    checks_a_run: Config, tmp_path: Path, environment: dict[str, Any]
) -> None:
    def check(*names: str, **settings: Any) -> None:
        tools = [{"name": name} for name in names]
        row = {"prompt": [{"role": "user", "content": "1 + 1"}], "answer": "2", "data_source": "openai/gsm8k"}
        (tmp_path / "train.jsonl").write_bytes(msgspec.json.encode(row | {"tools": tools}))
        CHECKS["data"](
            replace(checks_a_run, environment=made(environment=environment | settings).environment), pytest.fail
        )

    template = Path(checks_a_run.model.path) / "chat_template.jinja"
    template.write_text("{{ messages[0].content }}")
    with pytest.raises(ConfigError, match=r"rows have tools \(calculator\), but the model's chat template never reads"):
        check("calculator")
    if environment:
        check("calculator", tool_parser="plain")
        with pytest.raises(
            ConfigError, match=r"tools that nothing in \[environment\] runs, search: it has calculator; add"
        ):
            check("calculator", "search", tool_parser="plain")
    (template.parent / "additional_chat_templates").mkdir()
    (template.parent / "additional_chat_templates" / "tool_use.jinja").write_text(
        "{{ tools }}{{ messages[0].content }}"
    )
    check("calculator")


def test_it_is_advised_to_replay_the_routes_of_a_mixture_of_experts(
    checks_a_run: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks: list[str] = []
    monkeypatch.setattr(checks, "num_experts", lambda _: 128)
    CHECKS["model"](checks_a_run, remarks.append)
    assert "is a mixture of 128 experts" in remarks[0]
    CHECKS["model"](replace(checks_a_run, rollout=replace(checks_a_run.rollout, replay_routes=True)), pytest.fail)


@pytest.mark.parametrize(("base", "is_told"), [("base", True), ("far/{model}", False), ("", False)])
def test_an_adapter_of_another_model_is_told(checks_a_run: Config, tmp_path: Path, base: str, is_told: bool) -> None:
    lora = Lora(rank=2, path=str(tmp_path))
    of = base.format(model=Path(checks_a_run.model.path).name)
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter_config(lora, ["q_proj"], of)))
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes: Shapes = {f"{layer}.lora_A.weight": (2, 4), f"{layer}.lora_B.weight": (4, 2)}
    write_safetensors(tmp_path / "adapter_model.safetensors", shapes)
    told: list[str] = []
    CHECKS["model"](replace(checks_a_run, trainer=replace(checks_a_run.trainer, lora=lora)), told.append)
    assert any("was trained on base, and model.path is" in line for line in told) is is_told


def test_an_adapter_to_start_from_is_checked_with_the_model(checks_a_run: Config, tmp_path: Path) -> None:
    lora = Lora(rank=2, path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"trainer\.lora\.path=.* is not an adapter directory"):
        CHECKS["model"](replace(checks_a_run, trainer=replace(checks_a_run.trainer, lora=lora)), pytest.fail)


def test_too_few_devices_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    raw: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": "t"}}
    config = decode(raw | {"trainer": {"device": "cuda", "ranks": 4}})
    with pytest.raises(ConfigError, match="needs 4 devices, but this machine has 2"):
        devices_of(config)
    config = decode(raw | {"trainer": {"device": "cuda"}, "rollout": {"device": "cuda", "replicas": 1}})
    assert devices_of(config) == (
        Devices("cuda", ("0",), "CUDA_VISIBLE_DEVICES=0,1"),
        [Devices("cuda", ("1",), "CUDA_VISIBLE_DEVICES=0,1, less 1 device for the trainer")],
    )
    assert resolved(config, devices_of(config)[1]).weights.backend == "nccl"


# ── test engine ───────────────────────────────────────────────────────────────────────────────
# An engine that is configured is installed, and knows its arguments: found without importing it.

NEEDED = (
    "model", "dtype", "max_num_seqs", "tensor_parallel_size", "gpu_memory_utilization", "enforce_eager",
    "max_model_len", "enable_chunked_prefill", *FIXED,
)  # fmt: skip


def engine_a_run(**vllm: Any) -> Config:
    rollout = {"engine": "vllm", "vllm": vllm}
    return decode({"model": {"path": "m"}, "data": {"train": "t"}, "rollout": rollout})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM whose engine has the arguments that asyncrl needs, and ``block_size``."""
    (tmp_path / "engine").mkdir()
    fields = "".join(f"    {name}: int = 0\n" for name in (*NEEDED, "block_size"))
    source = (
        f"class EngineArgs:\n{fields}\n\nclass AsyncEngineArgs(EngineArgs):\n    enable_log_requests: bool = False\n"
    )
    (tmp_path / "engine" / "arg_utils.py").write_text(source)
    spec = ModuleSpec("vllm", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(arguments, "find_spec", lambda _: spec)
    return tmp_path


def test_the_built_in_engine_comes_with_transformers() -> None:
    assert "transformers" in check_engine(decode({"model": {"path": "m"}, "data": {"train": "t"}}), "cpu")


def test_a_vllm_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^rollout.engine is 'vllm', but vLLM is not installed here; pip install"):
        check_engine(engine_a_run(), "cuda")


def test_arguments_are_compared_with_those_of_the_installed_engine(installed: Path) -> None:
    assert "knows its arguments" in check_engine(engine_a_run(engine_args={"block_size": 32}), "cuda")
    assert argument_names(installed) >= {"block_size", "enable_log_requests"}
    with pytest.raises(ConfigError, match=r"engine_args\.blocksize: .* no such argument; did you mean 'block_size'\?"):
        check_engine(engine_a_run(engine_args={"blocksize": 32}), "cuda")
    with pytest.raises(ConfigError, match="on a CPU vLLM dies when it prefills"):
        check_engine(engine_a_run(enable_chunked_prefill=True), "cpu")


def test_a_vllm_that_has_moved_its_arguments_is_not_judged(installed: Path) -> None:
    (installed / "engine" / "arg_utils.py").write_text("class (")
    assert "were not checked" in check_engine(engine_a_run(engine_args={"blocksize": 32}), "cuda")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_arguments_of_the_real_vllm_are_found() -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec
    assert spec.origin
    assert argument_names(Path(spec.origin).parent) >= set(NEEDED)


# ── test environment ──────────────────────────────────────────────────────────────────────────
# The environment of a run is loaded before anything starts.

CODE = """
class Till:
    resume = "replay"

    def reset(self, task):
        return None

    def step(self, said):
        return None


def solve(task, client):
    return 1.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "till.py"
    path.write_text(CODE)
    return path


def check(**environment: Any) -> str:
    return check_environment(made(environment=environment))


def test_a_run_without_an_environment_has_none() -> None:
    assert check_environment(made()) == "none"


def test_an_environment_is_loaded_and_described(file: Path) -> None:
    assert check(function=f"{file}:Till") == (
        f"environment.function '{file}:Till': turn by turn, continued elsewhere by replay"
    )
    assert check(tools=["calculator"]) == (
        "environment.tools ['calculator']: turn by turn, tools calculator, continued elsewhere from snapshots"
    )


def test_a_command_is_looked_up_and_not_started() -> None:
    assert (
        check(command=["true"])
        == "environment.command ['true']: an agent program, continued elsewhere by running again"
    )
    with pytest.raises(ConfigError, match=r"environment.command: there is no program 'no-such-program'"):
        check(command=["no-such-program"])


def test_it_may_be_checked_within_an_event_loop(file: Path) -> None:
    async def main() -> str:
        return check(function=f"{file}:Till")

    assert "turn by turn" in asyncio.run(main())


def test_what_cannot_be_loaded_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment\.function.*Tall"):
        check(function=f"{file}:Tall")
    with pytest.raises(ConfigError, match=r"environment\.python is '/nowhere/python', but there is no such program"):
        check(function=f"{file}:Till", python="/nowhere/python")


def test_an_agent_program_needs_uvicorn(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "an agent program, continued elsewhere by running again" in check(function=f"{file}:solve")
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"is an agent program and needs uvicorn: pip install 'asyncrl\[agents\]'"):
        check(function=f"{file}:solve")


# ── test own process ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def config() -> Config:
    return decode({"model": {"path": "m"}, "data": {"train": "t"}})


def test_a_check_that_hangs_is_one_sentence(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, timeout: float, **__: Any) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(ConfigError, match="it took too long"):
        check_apart("any", config, limit_s=3.0, too_slow="it took too long")


def test_a_check_that_crashes_is_one_sentence(config: Config) -> None:
    with pytest.raises(ConfigError, match="No module named asyncrl_there_is_none"):
        check_apart("asyncrl_there_is_none", config, limit_s=60.0, too_slow="")


def test_the_answer_is_a_line_and_an_exit_code(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(got: Config) -> None:
        assert got == config
        raise ConfigError("no")

    checks = ((refuse, 78, "", "asyncrl: no\n"), (lambda _: None, 0, "", ""), (lambda _: b"found", 0, "found", ""))
    for check, code, found, line in checks:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(to_json(config))))
        assert answer(check) == code
        assert capsys.readouterr() == (found, line)


# ── test prompt lengths ───────────────────────────────────────────────────────────────────────
# Prompts with too many tokens are refused before a run starts, as engines would count them.

TEMPLATE = (
    "{{ bos_token }} {% for m in messages %}{{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<policy>{% endif %}"
    "{% if thinks %} <think>{% endif %}{% for tool in tools or [] %} {{ tool }}{% endfor %}"
)
CHAT = [{"role": "user", "content": "one two"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    words = Tokenizer(models.WordLevel({"?": 0, "<policy>": 1, "<think>": 2, "<s>": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.enable_truncation(4)
    saved = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=TEMPLATE, bos_token="<s>")
    saved.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def remarks(model: Path, prompts: list[Any], **data: Any) -> list[str]:
    said: list[str] = []
    path = model.parent / "train.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode({"prompt": prompt, "answer": "1"}) for prompt in prompts))
    config = decode({"model": {"path": str(model)}, "data": {"train": str(path), "max_prompt_tokens": 4} | data})
    check_lengths(config, "train", train_stream(config.data, 0), said.append)
    return said


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(text="one two three four five six"),
        Prompt(chat=CHAT),
        Prompt(chat=CHAT, tools='[{"name": "a"}]'),
        Prompt(text=" "),
    ],
)
def test_tokens_are_counted_as_engines_count_them(model: Path, prompt: Prompt) -> None:
    count = token_count(model, {"thinks": True})
    assert count is not None
    assert count(prompt) == len(encode_text(load_tokenizer(str(model)), prompt, {"thinks": True}))


def test_a_chat_of_four_tokens_fits_and_one_of_five_is_refused_with_the_settings(model: Path) -> None:
    assert remarks(model, ["one two three four", CHAT]) == []
    with pytest.raises(ConfigError) as caught:
        remarks(model, ["one", CHAT], chat_template_kwargs={"thinks": True})
    assert str(caught.value).startswith(
        "data.train: 1 of 2 prompts have more tokens than data.max_prompt_tokens = 4, up to 5: raise it, or leave"
    )
    assert "data.filter_overlong_prompts = true" in str(caught.value)
    assert "data.truncation" in str(caught.value)


def test_prompts_that_are_left_out_are_a_remark_and_those_that_are_cut_are_fine(model: Path) -> None:
    prompts = ["one two three four five", "one"]
    (remark,) = remarks(model, prompts, filter_overlong_prompts=True)
    assert remark.startswith("data.train: about 1 of 2 prompts have more tokens")
    assert remarks(model, prompts, truncation="left") == []


def test_prompts_that_fit_as_engines_count_them_are_not_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "readers", lambda *_: (lambda prompt: 4, None))
    assert remarks(model, ["one two three four five"]) == []


def test_of_a_large_dataset_the_longest_prompts_are_counted(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "COUNTED", 2)
    with pytest.raises(ConfigError, match=r"1 of 3 prompts .* up to 5"):
        remarks(model, ["one", "1 2 3 4 5", "a_long_word"])
    with pytest.raises(ConfigError, match="at least 2 of 4 prompts"):
        remarks(model, ["1 2 3 4 5", "one", *["1 2 3 4 5"] * 2])
    monkeypatch.setattr(checks, "READ", 2)
    with pytest.raises(ConfigError, match="at least 1 of 4 prompts"):
        remarks(model, ["1 2 3 4 5", "one", "two", "three"], shuffle=False)


def test_a_model_without_a_tokenizer_that_can_be_read_is_left_to_other_checks(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    assert remarks(model, ["one two three four five"]) == []
    (model / "tokenizer.json").unlink()
    assert token_count(model, {}) is None


# ── models ────────────────────────────────────────────────────────────────────────────────────────


def checked_models(judge: Judge, monkeypatch: pytest.MonkeyPatch, **settings: str) -> tuple[str, list[str]]:
    """Description and remarks, while the judge serves."""
    monkeypatch.setenv("JUDGE_KEY", KEY)

    async def main() -> tuple[str, list[str]]:
        async with judge.running() as service:
            models = {"judge": {"url": service.url, "key_env": "JUDGE_KEY", **settings}}
            config = made(models=models, reward={"function": "judge.py:score", "timeout_s": 60})
            remarks: list[str] = []
            return await asyncio.to_thread(check_models, config, remarks.append), remarks

    return asyncio.run(main())


def test_a_model_that_answers_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge()
    assert checked_models(judge, monkeypatch) == (f"judge at {judge.url}", [])
    assert check_models(made(), print) == "none"


def test_a_key_that_is_refused_and_a_server_that_is_away_are_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(key="another")
    assert checked_models(judge, monkeypatch)[1] == [
        f"note: model 'judge': {judge.url}/models answered with status 401 to the key in JUDGE_KEY"
    ]
    (remark,) = checked_models(judge, monkeypatch, url="http://127.0.0.1:9/v1")[1]
    assert remark.startswith("note: model 'judge': http://127.0.0.1:9/v1/models does not answer: ConnectError")
    assert remark.endswith("; a run waits for it 50 s at a time (models.judge.deadline_s)")


def test_a_key_that_is_not_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"models\.judge\.key_env names the variable NO_SUCH_KEY, which is not set"):
        checked_models(Judge(), monkeypatch, key_env="NO_SUCH_KEY")


def test_a_run_is_refused_for_what_is_certain_and_told_of_memory_which_is_estimated() -> None:
    notes: list[str] = []
    memory = CheckLine("run", "memory", "bad", "see below", "it needs 90 GiB")
    check_architecture.refuse_certain([CheckLine("run", "architecture", "good", "fine"), memory], notes.append)
    assert notes == ["it needs 90 GiB"]
    with pytest.raises(ConfigError, match="too few positions"):
        check_architecture.refuse_certain(
            [memory, CheckLine("run", "positions", "bad", "see below", "too few positions")], notes.append
        )
