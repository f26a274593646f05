"""
`asyncrl init`: finds model, data and devices, by files and drivers alone, and writes a run file and a reward function
for them.

    models/base, data/train.parquet ──▶ Findings(model, data, held_out, devices) ──▶ run_text
"""

import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.engines import ENGINES
from asyncrl.config.model.directory import check_model
from asyncrl.config.model.weights import CONFIG, check_weights, read_config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.reward import Reward
from asyncrl.data.chat_template import read_template
from asyncrl.data.check import CountTokens, inspect
from asyncrl.data.table import OPTION, Columns, guess, open_rows
from asyncrl.errors import ConfigError
from asyncrl.files.json_lines import toml_value
from asyncrl.reward.routing import unrouted
from asyncrl.runtime.check_architecture import MEMORY, examine
from asyncrl.runtime.machine import TRAIN, CheckLine, Devices, find, missing_packages
from asyncrl.runtime.model_files import model_folder, model_name
from asyncrl.terminal import command_line
from asyncrl.tools.plug_ins.reward import attempt, read_rows, run_config, summary_lines
from asyncrl.weights.groups.device import installed_version

DEPTH = 3
"""Folders below the working directory in which models and data are looked for."""
DATA = (".parquet", ".jsonl")
HELD_OUT = ("held_out", "heldout", "test", "val", "valid", "validation", "eval", "dev")
SKIPPED = ("runs", "node_modules", "__pycache__")


class ModelFound(Struct, frozen=True):
    path: str
    num_parameters: int
    positions: int
    """Longest prompt and completion together, in tokens; 0 if config.json does not say."""
    has_template: bool = False
    """True if the tokenizer has a chat template."""


class DataFound(Struct, frozen=True):
    path: str
    num_rows: int
    columns: Columns
    data_sources: list[str]
    longest_prompt: int
    """Tokens of the longest prompt, counted; or estimated from its characters."""
    is_counted: bool
    num_bad: int
    as_chat: bool = False
    """Prompts are texts, to which the model's chat template should be applied."""


class Findings(Struct, frozen=True):
    model: ModelFound
    data: DataFound
    held_out: list[str]
    """Files that may be the held-out one; it is known if there is one alone."""
    devices: Devices
    cores: int
    has_vllm: bool


def find_model(path: str | None) -> ModelFound:
    """The model in ``path``, or the only one near the working directory; raises `ConfigError`."""
    if path is None:
        path = _only(sorted({str(found.parent) for found in _near(CONFIG)}), "model", "--model DIR", _TOY)
    check_model(path, setting="--model")
    shapes = check_weights(Path(path), "--model")
    config = read_config(Path(path))
    text = config.get("text_config")
    positions = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    return ModelFound(
        path=path,
        num_parameters=sum(map(math.prod, shapes.values())),
        positions=positions if isinstance(positions, int) else 0,
        has_template=bool(read_template(Path(path))),
    )


_TOY = "; `asyncrl toy step-sums cache/step-sums` makes a small model with its data"


def find_data(
    path: str | None,
    given: Mapping[str, str],
    load_count: Callable[[], CountTokens] | None,
    *,
    has_template: bool = False,
) -> DataFound:
    """
    The dataset in ``path``, or the only one to train on near the working directory; raises `ConfigError`.

    Args:
        given: ``prompt`` and ``answer`` columns, as far as the user named them.
        load_count: Loads the function that counts the tokens of a prompt, once the columns are known; None estimates.
        has_template: The model has a chat template, which prompts of plain text should get.
    """
    if path is None:
        near = [str(found) for suffix in DATA for found in _near(f"*{suffix}") if not _is_held_out(found)]
        path = _only(sorted(near), "dataset", "--data FILE", "")
    rows = open_rows(Path(path))
    columns = guess(rows, given, OPTION)
    count_tokens = load_count() if load_count else None
    is_text = any(isinstance(value, str) for value in rows.column(columns.prompt))
    as_chat = has_template and is_text
    inspection = inspect(
        Path(path),
        Data(
            train=path,
            prompt_column=columns.prompt,
            answer_column=columns.answer or "answer",
            as_chat=as_chat,
            on_bad_row="skip",
        ),
        count_tokens=count_tokens,
    )
    inspection.require_usable()
    longest = inspection.prompt_tokens.get("max") or math.ceil(inspection.prompt_chars.get("max", 0) / 2)
    return DataFound(
        path=path,
        num_rows=inspection.num_rows,
        columns=columns,
        data_sources=list(inspection.data_sources),
        longest_prompt=longest,
        is_counted=load_count is not None,
        num_bad=len(inspection.bad),
        as_chat=as_chat,
    )


def find_held_out(train: str) -> list[str]:
    """Files of evaluation prompts beside the training data, by their names; those of its own format if there are."""
    beside = sorted(path for path in Path(train).parent.iterdir() if path != Path(train))
    found = [path for path in beside if path.suffix in DATA and _is_held_out(path)]
    alike = [path for path in found if path.suffix == Path(train).suffix]
    return list(map(str, alike or found))


def find_machine(environment: Mapping[str, str]) -> tuple[Devices, int]:
    """Devices that the vendor's drivers list, and cores."""
    return find("auto", environment), len(os.sched_getaffinity(0))


def _is_held_out(path: Path) -> bool:
    """True if one of `HELD_OUT` is among the words of the name."""
    name = path.stem.lower().replace("-", "_")
    return any(f"_{word}_" in f"_{name}_" for word in HELD_OUT)


def _near(pattern: str) -> Iterator[Path]:
    """Files below the working directory, not in hidden folders or those of runs."""
    for depth in range(DEPTH + 1):
        for path in Path().glob("*/" * depth + pattern):
            if not any(part.startswith(".") or part in SKIPPED for part in path.parts):
                yield path


def _only(found: Sequence[str], what: str, option: str, advice: str) -> str:
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"no {what} was found in this folder: name one with {option}{advice}")
    shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    raise ConfigError(f"the {what} could be any of {shown}: name one with {option}")


# ── run text ──────────────────────────────────────────────────────────────────────────────────
# The run file that `asyncrl init` writes: findings in, commented TOML out.
#
# Settings that have good defaults are left out. Each one that is written says why it has its value.

SMALL, MEDIUM = 10_000_000, 500_000_000
"""Parameters up to which a model learns with the larger learning rates."""
SHARED_MEMORY = 0.4
"""Part of the only device's memory that vLLM takes beside the trainer."""
GROUP_SIZE = 8
ON_CPUS = ((16, 256), (8, 256), (8, 128), (8, 64), (4, 64), (2, 64))
"""Groups of a step and tokens of the longest completion without an accelerator, from most work to least."""
CPU_STEP_S = 240.0
"""Seconds that a step may take there if every completion is the longest."""
CPU_FLOPS, TOKEN_FLOPS = 3e10, 8
"""
Operations of a core in a second, and of a parameter for each token: two to sample it, six to train on it. An estimate
for products of small batches in float32.
"""
LESS_MEMORY = {
    "max_tokens_per_micro_batch": "of one pass; more takes more memory, and on CPUs no less time",
    "gradient_checkpointing": "recomputes activations, for which the memory is too small",
}
"""Reasons of settings of the trainer."""

HEAD = """\
# Written by `asyncrl init`. Paths are relative to the folder that asyncrl is run in, not to the folder of this file.
# `asyncrl config show FILE` prints every setting.\
"""


class Choices(Struct, frozen=True):
    """Decisions that follow from findings."""

    rollout: dict[str, object]
    trainer: dict[str, object]
    dtype: str
    placement: str
    """In words, for the comment and the terminal."""
    max_prompt_tokens: int
    max_tokens: int
    lr: float
    groups: int = 16
    steps: int = 100
    held_out: int = 0
    """Prompts of an evaluation; 0 leaves the default."""


def choose(found: Findings) -> Choices:
    """Choose where trainer and rollouts compute, how long texts may be, and how fast to learn."""
    prompt = max(64, -(-found.data.longest_prompt // 64) * 64)  # a multiple of 64
    room = found.model.positions - prompt if found.model.positions else 1 << 30
    size = found.model.num_parameters
    lr = 2e-4 if size <= SMALL else 5e-6 if size <= MEDIUM else 1e-6
    num, kind = len(found.devices.ids), found.devices.kind
    longest = min(128 if size <= SMALL else 1024, max(room, 1))
    if not num:
        return _on_cpus(found, Choices({}, {}, "float32", "", prompt, longest, lr))
    rollout: dict[str, object] = {"engine": "vllm"} if found.has_vllm else {"device": kind}
    if num == 1:
        where = f"one {kind} device: the trainer and one rollout share it"
        rollout |= {"replicas": 1}
        if found.has_vllm:
            rollout["vllm.gpu_memory_utilization"] = SHARED_MEMORY
        return Choices(rollout, {"device": kind}, "bfloat16", where, prompt, longest, lr)
    ranks = num // 2
    where = f"{num} {kind} devices: {ranks} for the trainer, {num - ranks} for rollouts"
    rollout |= {"replicas": num - ranks}
    return Choices(rollout, {"device": kind, "ranks": ranks}, "bfloat16", where, prompt, longest, lr)


def _on_cpus(found: Findings, chosen: Choices) -> Choices:
    """Complete the choices for a machine without an accelerator, where a model that is no toy takes its time."""
    is_toy = found.model.num_parameters <= SMALL
    replicas = 2 if is_toy and found.cores > 1 else 1
    each = max(1, found.cores // 2)
    for groups, longest in ON_CPUS:
        tokens = groups * (found.data.longest_prompt + GROUP_SIZE * min(longest, chosen.max_tokens))
        if tokens * found.model.num_parameters * TOKEN_FLOPS <= CPU_STEP_S * CPU_FLOPS * found.cores:
            break
    longest = min(longest, chosen.max_tokens)
    trainer = {} if is_toy else {"max_tokens_per_micro_batch": max(2048, chosen.max_prompt_tokens + longest)}
    return replace(
        chosen,
        rollout={"replicas": replicas, "threads": max(1, each // replicas)},
        trainer={"threads": each, **trainer},
        placement=f"no accelerator was found: everything runs on {found.cores} cores",
        max_tokens=longest,
        groups=groups,
        steps=chosen.steps if is_toy else 40,
        held_out=0 if is_toy else 64,
    )


def render(found: Findings, chosen: Choices, reward: str) -> str:
    """Text of the run file; ``reward`` is ``auto`` or ``file.py:name``."""
    sections = {
        "run": [_line("steps", chosen.steps, "optimizer steps; `asyncrl resume RUN --steps N` makes it longer")],
        "model": [
            _line("path", found.model.path, f"{found.model.num_parameters:,} parameters"),
            _line("dtype", chosen.dtype, "data type of the weights"),
        ],
        "data": _data(found, chosen),
        "schedule": [
            _line("groups_per_step", chosen.groups, "prompts of a step ..."),
            _line("group_size", GROUP_SIZE, "... and completions of each, which are compared with each other"),
            _line("staleness", 1, "rollouts sample the next batch while the trainer uses this one; 0 is synchronous"),
        ],
        "sampling": [
            _line("temperature", 1.0, "lower it, to 0.8 for instance, if completions are noise"),
            _line("max_tokens", chosen.max_tokens, "longest completion: raise it first if `len` comes near ..."),
            f"{'':<29} # ... and lower it first if a step takes too long",
        ],
        "rollout": [f"# {chosen.placement}", *(_line(key, value) for key, value in chosen.rollout.items())],
        "reward": [_line("function", reward, _why(reward, found.data.data_sources))],
        "trainer": [
            *(_line(key, value, LESS_MEMORY.get(key, "")) for key, value in chosen.trainer.items()),
            _line("lr", chosen.lr, "lower it if the reward collapses, raise it if nothing moves"),
            _line("warmup_steps", 10, "the first gradients have the most noise"),
        ],
        "checkpoint": [_line("every_steps", 10, "a killed trainer continues from the newest one")],
    }
    off = "" if len(found.held_out) == 1 else "# "
    sections["checkpoint"].append(
        off + _line("keep_best", True, "for `export --step best`; needs every_versions to be a multiple of every_steps")
    )
    evaluation = ["[evaluation]", _line("every_versions", 10, "policy versions between two evaluations")]
    if chosen.held_out:
        evaluation.append(_line("max_prompts", chosen.held_out, "so that an evaluation takes no longer than a step"))
    texts = ["\n".join([f"[{name}]", *lines]) for name, lines in sections.items()]
    return "\n\n".join([HEAD, *texts, "\n".join(off + line for line in evaluation)]) + "\n"


def _data(found: Findings, chosen: Choices) -> list[str]:
    data, columns = found.data, found.data.columns
    counted = "counted by the tokenizer" if data.is_counted else "estimated as half of its characters"
    lines = [_line("train", data.path, f"{data.num_rows:,} rows"), _held_out_line(found.held_out)]
    lines.append(_line("prompt_column", columns.prompt))
    if data.as_chat:
        lines.append(_line("as_chat", True, "prompts are texts: the model's chat template is applied to each"))
    if columns.answer:
        lines.append(_line("answer_column", columns.answer, "reference answer, which the reward function gets"))
    if data.num_bad:
        lines.append(_line("on_bad_row", "skip", f"{data.num_bad} rows are bad; `asyncrl data check` lists them"))
    longest = f"the longest prompt has {data.longest_prompt}, {counted}"
    return [*lines, _line("max_prompt_tokens", chosen.max_prompt_tokens, longest)]


def _held_out_line(found: Sequence[str]) -> str:
    if len(found) == 1:
        return _line("held_out", found[0], "never trained on; its accuracy is measured")
    file = found[0] if found else "FILE"
    others = f"or {', '.join(found[1:])}; " if found else ""
    why = f"{others}without it, no accuracy is measured on prompts that are not trained on"
    return "# " + _line("held_out", file, why)


STUB = '''"""
The reward of this run. To try it:

    asyncrl reward try RUN_FILE

Replace what `score` does by what a good completion is for you. An exception or a slow call fails the trajectory, with
its cause; it never becomes a reward of zero.

A function written for verl, compute_score(data_source, solution_str, ground_truth, extra_info), is called as verl calls
it: name it in reward.function in place of this one.
"""

import re

from asyncrl import VerifierInput


def score(inputs: VerifierInput) -> dict[str, float]:
    """
    Reward 1 if the completion ends with the reference answer, else 0.

    Args:
        inputs: ``prompt``, ``completion`` and ``answer``; further columns of the row are ``extra["NAME"]``.

    Returns:
        ``score`` is the reward. ``correct`` is averaged into accuracy. Other numbers become metrics.
    """
    wanted = inputs.answer.rpartition("####")[2].strip()
    ends_with_it = re.search(rf"(?<![\\w.-]){re.escape(wanted)}\\W*$", inputs.completion)
    correct = float(bool(wanted) and ends_with_it is not None)
    return {"score": correct, "correct": correct}
'''
"""Reward function for a dataset that no built-in one is for."""


def _why(function: str, sources: list[str]) -> str:
    if function == "auto":
        return f"a built-in verifier by data source: {', '.join(sources[:3])}"
    return "yours to change; `asyncrl reward try` shows what it gives"


def _line(key: str, value: object, why: str = "") -> str:
    text = f"{key} = {toml_value(value)}"
    return f"{text:<29} # {why}" if why else text


# ── init ──────────────────────────────────────────────────────────────────────────────────────
# `asyncrl init`: writes a run file and a reward function for the model, data and devices that are here.
#
#     find ─▶ choose ─▶ fit ─▶ run.toml, reward.py ─▶ read back, reward tried ─▶ next commands

RUN_FILE, REWARD_FILE = "run.toml", "reward.py"
TRIED_ROWS = 3

Say = Callable[[str], None]


def write_files(folder: Path, model: str | None, data: str | None, columns: Mapping[str, str], say: Say) -> None:
    """
    Write the files to ``folder``, and say what was found and what comes next.

    Args:
        model: Model directory; None looks for one.
        data: Dataset; None looks for one.
        columns: ``prompt`` and ``answer``, as far as the user named them.

    Raises:
        ConfigError: Something cannot be found out, or a file is in the way. Nothing is written then.
    """
    run_file, reward_file = folder / RUN_FILE, folder / REWARD_FILE
    _refuse_existing(run_file)
    found = _found(model, data, columns, say)
    has_route = not unrouted(Reward(), found.data.data_sources)
    reward = "auto" if has_route else f"{reward_file}:score"
    chosen, memory = fit(found, choose(found), reward)
    written = {run_file: render(found, chosen, reward)}
    if not has_route:
        written[reward_file] = STUB.replace("RUN_FILE", str(run_file))
    _write(written)
    say(f"devices   {chosen.placement}")
    say(f"memory    {memory}")
    config = run_config(run_file)
    rows = read_rows(config, TRIED_ROWS)
    first, *rest = summary_lines(attempt(config, rows))
    for line in (f"reward    {reward}, tried on {len(rows)} rows: {first}", *rest):
        say(line)
    say(f"wrote     {', '.join(map(str, written))}")
    say("next:")
    tries = [("reward", "try", run_file)] if reward_file in written else []
    for command in (*tries, ("run", run_file, "--dry-run"), ("run", run_file)):
        say(f"  {command_line('asyncrl', *command)}")


def fit(found: Findings, chosen: Choices, reward: str) -> tuple[Choices, str]:
    """
    Recompute activations if a run does not fit the memory otherwise.

    Returns:
        The choices, and what ``asyncrl run --dry-run`` will say of them.
    """
    if missing := missing_packages(TRAIN):
        return chosen, f"not checked: {', '.join(missing)} not installed here"
    line = _checked(render(found, chosen, reward))
    if line.name == MEMORY and line.state == "bad":
        chosen = replace(chosen, trainer=chosen.trainer | {"gradient_checkpointing": True})
        line = _checked(render(found, chosen, reward))
    return chosen, line.problem or line.what


def _checked(text: str) -> CheckLine:
    """The first bad line about the model and the memory of a run file, or the one about the memory."""
    lines = examine(decode(tomllib.loads(text)))
    return next((line for line in lines if line.state == "bad"), lines[-1])


def _found(model: str | None, data: str | None, columns: Mapping[str, str], say: Say) -> Findings:
    """Find everything, and say model, data and held-out file as soon as they are found: a tokenizer takes its time."""
    name = model_name(model) if model else None
    try:
        found_model = find_model(model_folder(name, "--model", say) if name else model)
    except ConfigError as error:
        raise ConfigError(f"{error}{_also_missing(data, columns)}") from error
    positions = found_model.positions or "unknown"
    say(f"model     {found_model.path}: {found_model.num_parameters:,} parameters, {positions} positions")

    def load_count() -> CountTokens:
        from asyncrl.runtime.checks import readers

        return readers(Path(found_model.path), Data(train=""))[0]

    loads = None if missing_packages(TRAIN) else load_count
    found_data = find_data(data, columns, loads, has_template=found_model.has_template)
    say(f"data      {_described(found_data)}")
    held_out = find_held_out(found_data.path)
    say(f"held out  {_held_out(held_out)}")
    devices, cores = find_machine(os.environ)
    has_vllm = any(installed_version(name) for name in ENGINES["vllm"].packages)
    return Findings(found_model, found_data, held_out, devices, cores, has_vllm)


def _also_missing(data: str | None, columns: Mapping[str, str]) -> str:
    """End of a sentence with what is wrong with the data; empty if nothing is."""
    try:
        find_data(data, columns, None)
    except ConfigError as error:
        return f"; and {error}"
    return ""


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists, and is left alone: move it away, or name another folder")


def _write(written: Mapping[Path, str]) -> None:
    for path in written:
        _refuse_existing(path)
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _described(data: DataFound) -> str:
    length = f"longest prompt {data.longest_prompt} tokens{'' if data.is_counted else ' (estimated)'}"
    bad = f", {data.num_bad} of them cannot be used" if data.num_bad else ""
    form = "; the chat template is applied (data.as_chat)" if data.as_chat else ""
    return f"{data.path}: {data.num_rows:,} rows{bad}; {data.columns}; {length}{form}"


def _held_out(found: Sequence[str]) -> str:
    if len(found) > 1:
        return f"could be any of {', '.join(found)}: name one as data.held_out"
    return found[0] if found else "none found: name a file as data.held_out"
