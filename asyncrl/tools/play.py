"""`asyncrl episode try`: one episode of a run file's environment, played in the terminal with the built-in engine."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import uvloop
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from asyncrl.config.config import Config
from asyncrl.config.model.directory import check_model
from asyncrl.config.run_file import decode, override_one
from asyncrl.config.toml import put, read
from asyncrl.data.chat_template import check_template, read_template
from asyncrl.data.images import check_model_reads
from asyncrl.data.prompts import held_out_stream
from asyncrl.data.row import chat_of
from asyncrl.data.tools import tool_names
from asyncrl.episodes.episode import Episode
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import ConfigError, VerifierError
from asyncrl.foreign_text import escaped
from asyncrl.messages.trajectory import Prompt, Turn, Unit
from asyncrl.records.episode_view import summary, views
from asyncrl.records.formatting import nth
from asyncrl.records.samples import SampledEpisode, prompt_text
from asyncrl.reward.routing import unrouted
from asyncrl.reward.verifier import episode_reward, verifier_input
from asyncrl.runtime.check_template import try_template
from asyncrl.runtime.checks import check_tools_of_rows
from asyncrl.runtime.model_files import with_local_copies
from asyncrl.runtime.offline import OfflineSampler, open_rewards
from asyncrl.runtime.process import configure_logging
from asyncrl.spool.images import ImageStore
from asyncrl.terminal import say

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
    if data is not None:
        raw["data"].pop("hold_out", None)
    for override in overrides:
        override_one(raw, override)
    put(raw, "data.train", raw.get("data", {}).get("train") or NO_DATA, where="data.train")
    raw["evaluation"] = _sampling(raw.get("sampling", {}), greedy=greedy)
    if not raw.get("model", {}).get("path"):
        raise ConfigError("no model to play with: give --model DIR, or a --config")
    if not any(raw["environment"].get(key) for key in ANSWERS[:3]):
        raise ConfigError("no environment to play in: give ENV, --tool NAME, or a --config with an [environment]")
    return decode(raw)


def row_prompts(config: Config, rows: Sequence[int]) -> list[tuple[Prompt, list[bytes]]]:
    """
    Usable rows of ``data.held_out``, or of ``data.train`` without one, each with the files of its pictures.

    Raises `ConfigError` if there is no such row, or the file cannot be read.
    """
    file, *_ = config.data.held_out_files or config.data.train_files
    if file == NO_DATA:
        raise ConfigError("no prompt to begin with: give --prompt TEXT, --data FILE, or a --config with data")
    with closing(ImageStore(Path(gettempdir()))) as images:
        stream = held_out_stream(replace(config.data, held_out=file, hold_out=0), 0, images.add)
        usable = len(stream.summary.usable)
        if beyond := [row for row in rows if not 0 <= row < usable]:
            raise ConfigError(f"--row is {beyond[0]}, expected 0 .. {usable - 1}, a usable row of {file}")
        prompts = [stream.at(row).prompt for row in rows]
        return [(prompt, [images.read(image.digest) for image in prompt.images]) for prompt in prompts]


def text_prompt(model: Path, text: str, answer: str = "") -> Prompt:
    """A prompt of one text, which is a message of the user if the model has a chat template."""
    if read_template(model):
        return Prompt(chat=chat_of(text), answer=answer)
    return Prompt(text=text, answer=answer)


def _sampling(training: dict[str, Any], *, greedy: bool) -> dict[str, Any]:
    """Section ``evaluation`` that samples as in training."""
    if greedy:
        return {"temperature": 0.0}
    return {"temperature": 1.0} | {key: training[key] for key in ("temperature", "top_p", "top_k") if key in training}


# ── lines ─────────────────────────────────────────────────────────────────────────────────────
# An episode in a terminal, turn by turn.
#
#     ── turn 1, after 0 ── reward 0.5, 3 tokens after 5, 0.25 s
#     environment  left 2
#     policy       4

ENDS = {
    "stop": "the environment, or the policy, ended it",
    "length": "a limit ended it: environment.max_turns, max_tokens or episode_s",
}
"""Sentence for each finish reason of an episode."""
WIDTH = 13
"""Columns before a text."""


def turn_lines(turns: Sequence[Turn], first: int = 0) -> Iterator[Text]:
    """Lines of the turns from ``first`` on."""
    for view in list(views(turns))[first:]:
        yield Text(f"── {view.title} ── {view.facts}", style="cyan")
        if view.observation:
            yield from _said("environment", view.observation, "dim")
        yield from _said("policy", view.text, "green")


def prompt_lines(prompt: str, answer: str = "") -> Iterator[Text]:
    """Lines before the first turn."""
    yield from _said("prompt", prompt, "bold")
    if answer:
        yield from _said("answer", answer, "dim")


def end_lines(turns: Sequence[Turn], finish_reason: str) -> Iterator[Text]:
    """Lines after the last turn: why the episode ended, and its size."""
    yield Text(f"── {finish_reason}: {ENDS.get(finish_reason, 'not finished')}", style="cyan")
    yield Text(summary(turns))


def sampled_lines(episode: SampledEpisode) -> Iterator[Text]:
    """Lines of an episode that a run was trained on."""
    yield Text(f"step {nth(episode.step)}, trajectory {episode.group_id}/{episode.index}", style="bold")
    yield from prompt_lines(episode.prompt, episode.answer)
    yield from turn_lines(episode.turns)
    yield from end_lines(episode.turns, episode.finish_reason)
    yield reward_line("the run", episode.reward, {})


def reward_line(name: str, reward: float, metrics: Mapping[str, float]) -> Text:
    """
    A reward with its metrics, under the name of who gave it.

    Example:
        reward of the environment 1, correct 1, moves 7
    """
    return Text(", ".join([f"reward of {name} {reward:.6g}", *(f"{key} {metrics[key]:.6g}" for key in metrics)]))


def _said(who: str, content: str, style: str) -> Iterator[Text]:
    """Lines of one text, the first with the name of who said it."""
    for number, line in enumerate(content.splitlines() or [""]):
        yield Text.assemble((("" if number else who).ljust(WIDTH), "dim"), (escaped(line.expandtabs()), style))


# ── play ──────────────────────────────────────────────────────────────────────────────────────
# `asyncrl episode try`: one episode, played in the terminal with the built-in engine.

Say = Callable[[Text], None]


class Watcher:
    """Shows each turn once the environment has answered it, which is when the next turn is complete."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._shown = 0

    def show(self, turns: list[Turn], *, are_all: bool = False) -> None:
        """Show the turns that were not shown yet, without the last one unless ``are_all``."""
        ready = turns if are_all else turns[:-1]
        for line in turn_lines(ready, self._shown):
            self._say(line)
        self._shown = max(self._shown, len(ready))


def play(config: Config, console: Console, *, row: int = 0, text: str | None = None, answer: str = "") -> None:
    """
    Play an episode of the prompt ``text``, or of a row of the data.

    Raises:
        ConfigError: The model, the prompt or the environment cannot be used.
        EngineError: The episode failed.
    """
    configure_logging("episode")
    config = with_local_copies(config, partial(say, console), model_setting="--model")
    model = Path(config.model.path)
    check_model(config.model.path, setting="--model")
    prompt, files = row_prompts(config, [row])[0] if text is None else (text_prompt(model, text, answer), [])
    check_template(read_template(model), config.data.chat_template_kwargs, has_chats=bool(prompt.chat))
    try_template(model, config.data.chat_template_kwargs)
    check_tools_of_rows(config, tool_names(prompt.tools))
    check_model_reads(model, len(prompt.images))
    uvloop.run(_play(config, prompt, tuple(files), partial(say, console)))


async def _play(config: Config, prompt: Prompt, files: tuple[bytes, ...], say: Say) -> None:
    from asyncrl.runtime.rollout import load_engine, models_of_rollout, open_episodes  # torch

    engine = await asyncio.to_thread(load_engine, config)
    try:
        async with (
            models_of_rollout(config) as models,
            open_episodes(config, engine, run_id="try", node="try", slots=1, variables=models.variables) as episodes,
        ):
            assert episodes is not None, "an environment is set"
            watcher = Watcher(say)
            for line in prompt_lines(prompt_text(prompt), prompt.answer):
                say(line)
            unit = Unit(0, 0, "held_out")
            played: Episode = OfflineSampler(config, engine).episode(
                episodes, unit, prompt, files, on_turn=lambda: _watch(played, watcher)
            )
            sampled = await played.run()
        watcher.show(sampled.turns, are_all=True)
        for line in end_lines(sampled.turns, sampled.completion.finish_reason):
            say(line)
        say(reward_line("the environment", episode_reward(sampled.turns) or 0.0, sampled.scores))
        await _judge(config, prompt, sampled, say)
    finally:
        await engine.aclose()


def _watch(episode: Episode, watcher: Watcher) -> None:
    if written := episode.written():
        watcher.show(written.turns)


async def _judge(config: Config, prompt: Prompt, sampled: SampledTrajectory, say: Say) -> None:
    """Show the run's own reward, unless it is the environment's or no verifier is for this row."""
    reward = config.reward
    if unrouted(reward, [prompt.data_source]) or (not reward.parts and reward.function == "episode"):
        return
    completion = sampled.completion
    inputs = verifier_input(
        prompt,
        sampled.text,
        finish_reason=completion.finish_reason,
        num_tokens=len(completion.completion_ids),
        turns=sampled.turns,
        scores=sampled.scores,
        opened=sampled.opened,
    )
    async with open_rewards(config) as pool:
        try:
            verdict = await pool.judge(inputs)
        except VerifierError as error:
            say(Text(f"no reward of the run: {error}", style="red"))
            return
    who = "the run, before reward.group compares it with others" if reward.group else "the run"
    say(reward_line(who, verdict.reward, verdict.metrics))
