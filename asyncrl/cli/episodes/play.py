"""`asyncrl episode try`: one episode, played in the terminal with the built-in engine."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import gettempdir

import uvloop
from rich.console import Console
from rich.text import Text

from asyncrl.cli.episodes.choices import row_prompt, text_prompt
from asyncrl.cli.episodes.lines import end_lines, prompt_lines, reward_line, turn_lines
from asyncrl.cli.terminal import say
from asyncrl.config.config import Config
from asyncrl.config.model.directory import check_model
from asyncrl.data.chat_template import check_template, read_template
from asyncrl.data.images import check_model_reads
from asyncrl.errors import VerifierError
from asyncrl.messages.trajectory import Prompt, Turn, Unit
from asyncrl.node.hub import with_local_copies
from asyncrl.node.offline.sampling import OfflineSampler
from asyncrl.node.process.process import configure_logging
from asyncrl.node.rollout.engine import load_engine
from asyncrl.node.rollout.episodes import open_episodes
from asyncrl.observe.samples import prompt_text
from asyncrl.reward.routing import unrouted
from asyncrl.reward.verifier import episode_reward, verifier_input
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.rollout.episodes.episode import Episode
from asyncrl.rollout.results import Sampled
from asyncrl.spool.images import ImageStore

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
    with closing(ImageStore(Path(gettempdir()))) as images:
        prompt = row_prompt(config, row, images.add) if text is None else text_prompt(model, text, answer)
        check_template(read_template(model), config.data.chat_template_kwargs, has_chats=bool(prompt.chat))
        check_model_reads(model, len(prompt.images), 0)
        files = tuple(images.read(image.digest) for image in prompt.images)
        uvloop.run(_play(config, prompt, files, partial(say, console)))


async def _play(config: Config, prompt: Prompt, files: tuple[bytes, ...], say: Say) -> None:
    engine = await asyncio.to_thread(load_engine, config)
    try:
        async with open_episodes(config, engine, run_id="try", node="try", slots=1) as episodes:
            assert episodes is not None, "an environment is set"
            watcher = Watcher(say)
            for line in prompt_lines(prompt_text(prompt), prompt.answer):
                say(line)
            unit = Unit(0, 0, "held_out")
            episode: Episode = OfflineSampler(config, engine).episode(
                episodes, unit, prompt, files, on_turn=lambda: _watch(episode, watcher)
            )
            sampled = await episode.run()
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


async def _judge(config: Config, prompt: Prompt, sampled: Sampled, say: Say) -> None:
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
    async with WorkerPool(reward) as pool:
        try:
            verdict = await pool.judge(inputs)
        except VerifierError as error:
            say(Text(f"no reward of the run: {error}", style="red"))
            return
    say(reward_line("the run", verdict.reward, verdict.metrics))
