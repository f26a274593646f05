"""Configuration and prompt of an episode that is tried in a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode, override_one
from asyncrl.config.toml import put, read
from asyncrl.data.chat_template import read_template
from asyncrl.data.images import Keep
from asyncrl.data.prompts import held_out_stream
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Prompt

NO_DATA = "-"
"""Stands for a dataset that is not read."""
FIXED: dict[str, Any] = {
    "rollout.slots": 8,  # turns that a program may have sampled at a time
    "rollout.episodes": 0,
    "environment.workers": 1,
    "checkpoint": {},
    "weights": {},  # like checkpoints of a run alone, and checked against its evaluations
}
"""Settings in place of the run file's."""
ANSWERS = ("function", "tools", "command", "options")
"""Settings that say what answers the policy; the others of the section are limits."""


def try_config(
    function: str | None = None,
    path: Path | None = None,
    *,
    model: str | None = None,
    tools: Sequence[str] = (),
    data: str | None = None,
    greedy: bool = False,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """
    Apply the options of the command to the run file ``path`` or the defaults.

    The episode is sampled as in training, with a temperature of 0 if ``greedy``.

    Raises:
        ConfigError: There is no environment or no model, or the values contradict each other.
    """
    raw: dict[str, Any] = read(path, "config file") if path else {}
    if function or tools:
        limits = {key: value for key, value in raw.get("environment", {}).items() if key not in ANSWERS}
        raw["environment"] = limits | {"function": function or "", "tools": list(tools)}
        raw.setdefault("reward", {"function": "episode"} if function else {})
    for key, value in FIXED.items():
        put(raw, key, value, where=key)
    for key, value in (("model.path", model), ("run.seed", seed), ("data.held_out", data)):
        if value is not None:
            put(raw, key, value, where=f"option for {key}")
    for override in overrides:
        override_one(raw, override)
    put(raw, "data.train", raw.get("data", {}).get("train") or NO_DATA, where="data.train")
    raw["evaluation"] = _sampling(raw.get("sampling", {}), greedy=greedy)
    if not raw.get("model", {}).get("path"):
        raise ConfigError("no model to play with: give --model DIR, or a --config")
    if not any(raw["environment"].get(key) for key in ANSWERS[:3]):
        raise ConfigError("no environment to play in: give ENV, --tool NAME, or a --config with an [environment]")
    return decode(raw)


def row_prompt(config: Config, row: int, keep: Keep) -> Prompt:
    """
    Usable row number ``row`` of ``data.held_out``, or of ``data.train`` without one; its pictures go to ``keep``.

    Raises `ConfigError` if there is no such row, or the file cannot be read.
    """
    file, *_ = config.data.held_out_files or config.data.train_files
    if file == NO_DATA:
        raise ConfigError("no prompt to begin with: give --prompt TEXT, --data FILE, or a --config with data")
    stream = held_out_stream(replace(config.data, held_out=file), 0, keep)
    if not 0 <= row < (usable := len(stream.summary.usable)):
        raise ConfigError(f"--row is {row}, expected 0 .. {usable - 1}, a usable row of {file}")
    return next(iter(stream.since(row))).prompt


def text_prompt(model: Path, text: str, answer: str = "") -> Prompt:
    """A prompt of one text, which is a message of the user if the model has a chat template."""
    if read_template(model):
        return Prompt(chat=[{"role": "user", "content": text}], answer=answer)
    return Prompt(text=text, answer=answer)


def _sampling(training: dict[str, Any], *, greedy: bool) -> dict[str, Any]:
    """Section ``evaluation`` that samples as in training."""
    if greedy:
        return {"temperature": 0.0}
    return {"temperature": 1.0} | {key: training[key] for key in ("temperature", "top_p", "top_k") if key in training}
