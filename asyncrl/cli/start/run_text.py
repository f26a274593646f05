"""
The run file that `asyncrl init` writes: findings in, commented TOML out.

Settings that have good defaults are left out. Each one that is written says why it has its value.
"""

from collections.abc import Sequence

from msgspec import Struct

from asyncrl.cli.start.findings import Findings
from asyncrl.files.toml_text import toml_value

SMALL, MEDIUM = 10_000_000, 500_000_000
"""Parameters up to which a model learns with the larger learning rates."""
SHARED_MEMORY = 0.4
"""Part of the only device's memory that vLLM takes beside the trainer."""


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


def choose(found: Findings) -> Choices:
    """Choose where trainer and rollouts compute, how long texts may be, and how fast to learn."""
    prompt = _round_up(found.data.longest_prompt, 64)
    room = found.model.positions - prompt if found.model.positions else 1 << 30
    size = found.model.num_parameters
    lr = 2e-4 if size <= SMALL else 5e-6 if size <= MEDIUM else 1e-6
    num, kind = len(found.devices.ids), found.devices.kind
    longest = min(128 if size <= SMALL else 1024, max(room, 1))
    if not num:
        each = max(1, found.cores // 2)
        where = f"no accelerator was found: everything runs on {found.cores} cores"
        rollout: dict[str, object] = {"replicas": 1 if found.cores < 2 else 2, "threads": max(1, each // 2)}
        return Choices(rollout, {"threads": each}, "float32", where, prompt, longest, lr)
    rollout = {"engine": "vllm"} if found.has_vllm else {"device": kind}
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


def render(found: Findings, chosen: Choices, reward: str) -> str:
    """Text of the run file; ``reward`` is ``auto`` or ``file.py:name``."""
    sections = {
        "run": [_line("steps", 100, "optimizer steps; `asyncrl resume RUN --steps N` makes it longer")],
        "model": [
            _line("path", found.model.path, f"{found.model.num_parameters:,} parameters"),
            _line("dtype", chosen.dtype, "data type of the weights"),
        ],
        "data": _data(found, chosen),
        "schedule": [
            _line("groups_per_step", 16, "prompts of a step ..."),
            _line("group_size", 8, "... and completions of each, which are compared with each other"),
            _line("staleness", 1, "rollouts sample the next batch while the trainer uses this one; 0 is synchronous"),
        ],
        "sampling": [_line("max_tokens", chosen.max_tokens, "longest completion; raise it if `len` comes near")],
        "rollout": [f"# {chosen.placement}", *(_line(key, value) for key, value in chosen.rollout.items())],
        "reward": [_line("function", reward, _why(reward, found.data.data_sources))],
        "trainer": [
            *(_line(key, value) for key, value in chosen.trainer.items()),
            _line("lr", chosen.lr, "lower it if the reward collapses, raise it if nothing moves"),
            _line("warmup_steps", 10, "the first gradients have the most noise"),
        ],
        "checkpoint": [_line("every_steps", 10, "a killed trainer continues from the newest one")],
    }
    off = "" if len(found.held_out) == 1 else "# "
    sections["checkpoint"].append(off + _line("keep_best", True, "for `asyncrl export --step best`"))
    evaluation = _line("every_versions", 10, "policy versions between two evaluations")
    texts = ["\n".join([f"[{name}]", *lines]) for name, lines in sections.items()]
    return "\n\n".join([HEAD, *texts, f"{off}[evaluation]\n{off}{evaluation}"]) + "\n"


def _data(found: Findings, chosen: Choices) -> list[str]:
    data, columns = found.data, found.data.columns
    counted = "counted by the tokenizer" if data.is_counted else "estimated as half of its characters"
    lines = [_line("train", data.path, f"{data.num_rows:,} rows"), _held_out(found.held_out)]
    lines.append(_line("prompt_column", columns.prompt))
    if data.as_chat:
        lines.append(_line("as_chat", True, "prompts are texts: the model's chat template is applied to each"))
    if columns.answer:
        lines.append(_line("answer_column", columns.answer, "reference answer, which the reward function gets"))
    if data.num_bad:
        lines.append(_line("on_bad_row", "skip", f"{data.num_bad} rows are bad; `asyncrl data check` lists them"))
    longest = f"the longest prompt has {data.longest_prompt}, {counted}"
    return [*lines, _line("max_prompt_tokens", chosen.max_prompt_tokens, longest)]


def _held_out(found: Sequence[str]) -> str:
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
        inputs: ``prompt``, ``completion``, ``answer``, ``data_source`` and ``extra`` of the row, and ``num_tokens``.

    Returns:
        ``score`` is the reward. ``correct`` is averaged into accuracy. Other numbers become metrics.
    """
    wanted = inputs.answer.rpartition("####")[2].strip()
    ends_with_it = re.search(rf"(?<![\\w.-]){re.escape(wanted)}\\W*$", inputs.completion)
    correct = float(bool(wanted) and ends_with_it is not None)
    return {"score": correct, "correct": correct}
'''
"""Reward function for a dataset that no built-in one is for."""


def stub(run_file: str) -> str:
    """Text of a reward function, whose docstring says how to try it."""
    return STUB.replace("RUN_FILE", run_file)


def _why(function: str, sources: list[str]) -> str:
    if function == "auto":
        return f"a built-in verifier by data source: {', '.join(sources[:3])}"
    return "yours to change; `asyncrl reward try` shows what it gives"


def _line(key: str, value: object, why: str = "") -> str:
    text = f"{key} = {toml_value(value)}"
    return f"{text:<29} # {why}" if why else text


def _round_up(number: int, unit: int) -> int:
    return max(unit, -(-number // unit) * unit)
