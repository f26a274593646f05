"""
`asyncrl eval` and `asyncrl sample`: a model directory, or a checkpoint of a run, on held-out or own prompts.

torch is imported after options and files are checked, so that a mistake is told at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from math import isnan
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import uvloop
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from asyncrl.config.config import Config
from asyncrl.config.model.directory import check_model
from asyncrl.config.run_file import decode, override_one
from asyncrl.config.toml import put, read
from asyncrl.data.chat_template import check_template, check_tools, read_template, text_advice
from asyncrl.data.check import bad_row_lines
from asyncrl.data.images import MAX_FILE_BYTES, Keep, check_model_reads, describe
from asyncrl.data.prompts import held_out_stream
from asyncrl.data.row import num_marks
from asyncrl.data.table import guessed
from asyncrl.data.tools import tool_names
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import ConfigError, DataError, LedgerError, RunFailed
from asyncrl.files.atomic import check_output
from asyncrl.files.checkpoints import SETTINGS
from asyncrl.files.foreign import read_bytes
from asyncrl.foreign_text import escaped
from asyncrl.messages.trajectory import IMAGE_MARK, Prompt, Unit
from asyncrl.messages.words import FinishReason
from asyncrl.records.evaluation_files import CompletionRow, write_completions
from asyncrl.records.evaluation_metrics import EvaluationMetrics
from asyncrl.records.formatting import duration
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import changed_settings, is_run
from asyncrl.records.samples import prompt_text
from asyncrl.reward.routing import check_routes
from asyncrl.runtime.check_template import try_template
from asyncrl.runtime.checks import check_tools_of_rows
from asyncrl.runtime.offline import (
    PER_SLOT,
    OfflineEvaluation,
    OfflineEvaluator,
    OfflineSampler,
    open_rewards,
    summarize,
)
from asyncrl.runtime.process import configure_logging
from asyncrl.spool.images import ImageStore
from asyncrl.terminal import aligned, echo, say, to_json
from asyncrl.tools.play import prompt_lines, row_prompts, text_prompt
from asyncrl.vision.settings import read_settings


def model_and_run_file(model: str) -> tuple[str, Path | None]:
    """
    The model, of a run directory its newest checkpoint; and the run file of its run, that of an export, or None.

    Raises `ConfigError` if a run directory has no intact checkpoint.
    """
    path = Path(model)
    if is_run(path):
        from asyncrl.trainer.checkpoints.export import find_checkpoint

        directory = RunDirectory(path)
        return str(find_checkpoint(directory.checkpoints, None)[0]), directory.config
    folder = path.resolve().parent
    directory = RunDirectory(folder.parent)
    if folder == directory.checkpoints and is_run(directory.path):
        return model, directory.config
    exported = path / SETTINGS
    return model, exported if exported.is_file() else None


# ── eval ──────────────────────────────────────────────────────────────────────────────────────
# `asyncrl eval`: evaluate a model directory on held-out prompts, without a run.

FIRST_S = 15.0
"""Seconds to the first line about how far it is."""
REASONS_SHOWN = 5
"""Most frequent reasons of failures that are listed; the others are counted."""
MAX_TOKENS = 1024
"""Longest completion if neither an option nor a run file says it, and the model knows as many positions."""


def evaluate_model(config: Config, *, out: Path | None, as_json: bool) -> None:
    """
    Evaluate the model and print its metrics.

    Raises `ConfigError` if the model, the data or the verifier cannot be used, or ``out`` cannot be written;
    `EngineDied` if the engine's process has died; and `RunFailed` if no completion has a verdict.
    """
    if out:
        check_output(out)
    configure_logging("eval")
    check_model(config.model.path, setting="MODEL")
    console = Console(stderr=True)
    tell = partial(say, console)
    config = replace(config, data=guessed(config.data, config.data.held_out_files[0], tell))
    with closing(ImageStore(Path(gettempdir()))) as images:
        prompts = check_prompts(config, tell, images.add)
        config = with_room(config)
        rows, wall_s = uvloop.run(_evaluate(config, prompts, images, console))
    evaluation = summarize(config, rows, wall_s)
    for line in failures(rows):
        echo(line, err=True)
    if out:
        write_completions(out, rows)
    if not evaluation.overall.num_prompts:
        raise RunFailed(f"none of {len(rows)} completions has a verdict; the first failed: {rows[0].failure}")
    echo(to_json(evaluation) if as_json else table(evaluation))


def eval_config(
    model: str,
    path: Path | None = None,
    *,
    data: Sequence[str] = (),
    samples: int | None = None,
    reward: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    max_prompts: int | None = None,
    engine: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """
    Apply the options of the command to the run file ``path``, that of the run that ``model`` is in or was exported
    from, or the defaults. An exported one is told.

    ``evaluation.max_tokens`` is 0 if nobody gave the length of completions; see `with_room`.

    Raises `ConfigError` if an option, the file or the run cannot be used.
    """
    model, of_run = model_and_run_file(model)
    if of_run and not path and of_run.name == SETTINGS:
        echo(f"settings as in {of_run}; --config names others", err=True)
    path = path or of_run
    plain = {"reward": {"function": "auto"}, "evaluation": {}}
    raw: dict[str, Any] = read(path, "config file") if path else plain
    if path and path == of_run and is_run(path.parent):
        with suppress(LedgerError):  # The model can be evaluated all the same, as the run was started.
            for key, value in changed_settings(RunDirectory(path.parent).read_events()).items():
                put(raw, key, value, where=f"the run's {key}")
    options: dict[str, Any] = {
        "model.path": model,
        "evaluation.samples": samples,
        "evaluation.temperature": temperature,
        "evaluation.top_p": top_p,
        "evaluation.max_tokens": max_tokens,
        "evaluation.max_prompts": max_prompts or 0,
        "rollout.engine": engine,
        "run.seed": seed,
    }
    if data:
        options |= {
            "data.train": list(data),
            "data.held_out": list(data),
            "data.hold_out": 0,
        }  # train is not read, but required
    if reward:
        raw["reward"] = {key: value for key, value in raw.get("reward", {}).items() if key in ("workers", "timeout_s")}
        options["reward.function"] = reward
    for key, value in options.items():
        if value is not None:
            put(raw, key, value, where=f"option for {key}")
    for override in overrides:
        override_one(raw, override)
    evaluation = raw["evaluation"]
    if evaluation.get("samples", 1) != 1 and temperature is None and not evaluation.get("temperature"):
        evaluation["temperature"] = 1.0  # with greedy decoding all completions of a prompt would be equal
    if not {*raw.get("data", {})} & {"held_out", "hold_out"}:
        raise ConfigError("no prompts to evaluate the model on: give --data FILE, or a --config with data.held_out")
    is_given = evaluation.get("max_tokens") or "max_tokens" in raw.get("sampling", {})
    config = decode(raw)
    longest = config.evaluation.max_tokens or (config.sampling.max_tokens if path or is_given else MAX_TOKENS)
    return replace(
        config,
        sampling=replace(config.sampling, max_tokens=longest),  # a slot holds nothing longer
        evaluation=replace(config.evaluation, max_tokens=longest if is_given else 0),
    )


def with_room(config: Config) -> Config:
    """
    The configuration with limits of prompts and completions that fit the positions which the model knows.

    Completions are shortened only if nobody gave their length. A prompt longer than the rest then fails alone. Limits
    by which prompts are cut stay, because other tokens would be left of them.

    Raises `ConfigError` if the lengths that were given do not fit.
    """
    from asyncrl.weights.contents.architecture import num_positions
    from asyncrl.weights.contents.architecture import read_config as load_model_config

    known = num_positions(load_model_config(Path(config.model.path), config.model.overrides).get_text_config())
    if known is None:
        return config
    if not config.evaluation.max_tokens:
        longest_prompt = min(config.data.max_prompt_tokens, known // 2)
        fitting = min(config.sampling.max_tokens, known - longest_prompt)
        config = replace(config, sampling=replace(config.sampling, max_tokens=fitting))
    written, is_cut = config.longest_written("held_out"), config.data.truncation != "error"
    if written < known and not is_cut:
        limit = min(config.data.max_prompt_tokens, known - written)
        return replace(config, data=replace(config.data, max_prompt_tokens=limit))
    if config.longest_request > known:
        option = "--set environment.max_tokens" if config.environment.is_set else "--max-tokens"
        beside = f"prompts of {config.data.max_prompt_tokens}" if is_cut else "a prompt"
        raise ConfigError(
            f"completions of {written} tokens do not fit beside {beside} into the {known} positions that the model "
            f"knows; lower {option}{' or --set data.max_prompt_tokens' * is_cut}"
        )
    return config


def check_prompts(config: Config, say: Callable[[str], None], keep: Keep) -> list[Prompt]:
    """
    Load the prompts, and give their pictures to ``keep`` and remarks on them to ``say``.

    Raises `ConfigError` if the model, the data or the verifier cannot be used.
    """
    stream = held_out_stream(config.data, config.evaluation.max_prompts, keep)
    summary, template = stream.summary, read_template(Path(config.model.path))
    check_template(template, config.data.chat_template_kwargs, has_chats=summary.has_chats)
    try_template(Path(config.model.path), config.data.chat_template_kwargs)
    for sentence in text_advice(template, has_texts=summary.has_texts and not config.environment.is_set):
        say(f"note: {sentence}")
    for sentence in summary.census.sentences(are_tasks=config.environment.is_set):
        say(f"note: {sentence}")
    check_tools_of_rows(config, summary.tools)
    check_model_reads(Path(config.model.path), summary.num_images)
    if summary.bad:
        say("\n".join(bad_row_lines(summary.bad)))
    prompts = [draw.prompt for draw in stream.since(0)]
    try:
        check_routes(config.reward, {prompt.data_source for prompt in prompts})
    except ConfigError as error:
        raise ConfigError(f"{error}; --reward NAME, or --reward FILE.py:FUNCTION, names one here") from error
    return prompts


async def _evaluate(
    config: Config, prompts: Sequence[Prompt], images: ImageStore, console: Console
) -> tuple[list[CompletionRow], float]:
    """Return the rows, and the seconds it took without loading the model; a terminal shows a progress bar."""
    from asyncrl.runtime.rollout import load_engine, models_of_rollout, open_episodes

    what = "episodes" if config.environment.is_set else "completions"
    columns = TextColumn(f"[bold]{what}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    async with open_rewards(config) as pool:
        engine = await asyncio.to_thread(load_engine, config)
        try:
            async with (
                models_of_rollout(config) as models,
                open_episodes(
                    config,
                    engine,
                    run_id="eval",
                    node="eval",
                    slots=config.rollout.slots,
                    variables=models.variables,
                ) as episodes,
            ):
                start_s = time.monotonic()
                total = len(prompts) * config.evaluation.samples
                pace = Pace(total, what, partial(say, console))
                with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
                    task = bar.add_task("", total=total)

                    def advance() -> None:
                        bar.advance(task)
                        if not console.is_terminal:
                            pace.advance(time.monotonic() - start_s)

                    evaluator = OfflineEvaluator(config, engine, pool, images.read, episodes)
                    rows = await evaluator.evaluate(prompts, advance)
                return rows, time.monotonic() - start_s
        finally:
            await engine.aclose()


class Pace:
    """Lines about how far an evaluation is, at doubling intervals, for a log that shows no bar."""

    def __init__(self, total: int, what: str, say: Callable[[str], object]) -> None:
        self._total = total
        self._what = what
        self._say = say
        self._done = 0
        self._next_s = FIRST_S

    def advance(self, now_s: float) -> None:
        """One more is done, ``now_s`` seconds after the start."""
        self._done += 1
        if now_s < self._next_s or self._done == self._total:
            return
        self._next_s = 2 * now_s
        left_s = now_s / self._done * (self._total - self._done)
        self._say(f"{self._done} of {self._total} {self._what} after {duration(now_s)}, about {duration(left_s)} left")


def table(evaluation: OfflineEvaluation) -> str:
    """Table with one row per data source, one for all of them if there are several, and a line on the sampling."""
    lines = dict(evaluation.by_source)
    if len(lines) > 1:
        lines["all"] = evaluation.overall
    names = [name for name in evaluation.overall.metrics if name not in ("length_mean", "truncated", "failed")]
    first = [] if evaluation.samples > 1 else ["accuracy"]
    head = ["data source", "prompts", *first, *names, "tokens", "truncated", "failed"]
    rows = [[source, *_cells(found, [*first, *names])] for source, found in lines.items()]
    return "\n".join([*aligned([head, *rows], right=range(1, len(head))), _sampling(evaluation)])


def failures(rows: Sequence[CompletionRow]) -> list[str]:
    """Lines with the number of completions without a verdict for each reason, most frequent first."""
    reasons = Counter(row.failure for row in rows if row.failure).most_common()
    rest = sum(count for _, count in reasons[REASONS_SHOWN:])
    lines = [f"{count} without a verdict: {' '.join(reason.split())}" for reason, count in reasons[:REASONS_SHOWN]]
    return [*lines, *([f"{rest} without a verdict for {len(reasons) - REASONS_SHOWN} other reasons"] if rest else [])]


def _sampling(evaluation: OfflineEvaluation) -> str:
    e = evaluation
    decoding = f"temperature {e.temperature:g}, top-p {e.top_p:g}" if e.temperature else "greedy"
    most, turns = f"at most {e.max_tokens} tokens", ""
    if e.turns_mean is not None:
        most, turns = f"{most} a turn", f"{e.turns_mean:.1f} turns on average, "
    return (
        f"{e.samples} of each prompt, {decoding}, {most}, seed {e.seed}; {turns}{e.tokens:,} tokens in {e.wall_s:.1f} s"
    )


def _cells(found: EvaluationMetrics, names: Sequence[str]) -> list[str]:
    values = {"accuracy": found.accuracy} | found.metrics
    tail = [f"{values['length_mean']:.0f}", f"{values['truncated']:.1%}", f"{values['failed']:.0f}"]
    return [str(found.num_prompts), *(_cell(name, values.get(name)) for name in names), *tail]


def _cell(name: str, value: float | None) -> str:
    """Format a metric; ``-`` where a data source has none, such as maj@k if its verifier reports no answers."""
    if value is None or isnan(value):
        return "-"
    return f"{value:.2f}" if name == "reward" else f"{value:.1%}"


# ── sample ────────────────────────────────────────────────────────────────────────────────────
# `asyncrl sample`: completions of prompts from the command line, without data and without rewards.


class SampledText(Struct, frozen=True):
    """One completion of a prompt."""

    prompt: str
    answer: str
    """Reference answer of a row; empty for a prompt of one's own."""
    completion: str
    finish_reason: FinishReason
    num_tokens: int


def own_prompt(
    model: Path, text: str, *, system: str = "", files: Sequence[Path] = (), is_plain: bool = False
) -> tuple[Prompt, list[bytes]]:
    """
    A prompt of one text, and the files of its pictures, whose marks stand before a text that has none.

    The text is a message of the user, unless it ``is_plain`` or the model has no chat template.

    Raises `ConfigError` if a file is no picture, there are other marks than pictures, or the model has no chat template
    for a system message.
    """
    if files and IMAGE_MARK not in text:
        text = IMAGE_MARK * len(files) + text
    prompt = Prompt(text=text) if is_plain else text_prompt(model, text)
    if system and not prompt.chat:
        raise ConfigError("--system is a message, but the prompt is plain text: write it into --prompt")
    if system:
        prompt = replace(prompt, chat=[{"role": "system", "content": system}, *prompt.chat])
    try:
        contents = [read_bytes(file, MAX_FILE_BYTES) for file in files]
        prompt = replace(prompt, images=list(map(describe, contents)))
    except DataError as error:
        raise ConfigError(f"--image cannot be used: {error}") from error
    check_model_reads(model, len(files))
    # A model that reads none reads the mark as text.
    if (marks := num_marks(prompt)) != len(files) and (files or read_settings(model) is not None):
        raise ConfigError(f"the prompt has {marks} marks {IMAGE_MARK} for {len(files)} pictures; write one for each")
    return prompt, contents


def sample_model(
    config: Config,
    texts: Sequence[str],
    *,
    rows: Sequence[int] = (),
    system: str = "",
    files: Sequence[Path] = (),
    is_plain: bool = False,
    as_json: bool = False,
) -> None:
    """
    Print ``evaluation.samples`` completions of each text, and of each of these rows of the data after its prompt and
    answer, in their order: each as soon as those before it are there, or all as a list of JSON. Further arguments as
    `own_prompt`, for texts.

    Raises:
        ConfigError: The model or a prompt cannot be used.
        EngineError: A completion could not be sampled.
    """
    configure_logging("sample")
    check_model(config.model.path, setting="MODEL")
    config, model = with_room(config), Path(config.model.path)
    prompts = [own_prompt(model, text, system=system, files=files, is_plain=is_plain) for text in texts]
    if rows:
        named = guessed(config.data, config.data.held_out_files[0], partial(echo, err=True))
        prompts += row_prompts(replace(config, data=named), rows)
    try_template(model, config.data.chat_template_kwargs)
    for prompt, contents in prompts:
        check_template(read_template(model), config.data.chat_template_kwargs, has_chats=bool(prompt.chat))
        check_tools(read_template(model, of_tools=True), tool_names(prompt.tools))
        check_model_reads(model, len(contents))
    if config.environment.is_set:
        echo("note: nothing answers here, as [environment] does in the run; asyncrl episode try plays one", err=True)
    samples, found = config.evaluation.samples, []

    def show(place: int, index: int, sampled: SampledTrajectory) -> None:
        prompt, _ = prompts[place]
        found.append(_sampled(prompt, sampled))
        if not as_json:
            if place >= len(texts) and index == 0:
                echo("\n".join(line.plain for line in prompt_lines(found[-1].prompt, prompt.answer)))
            of = [f"prompt {place + 1} of {len(prompts)}"] * (len(prompts) > 1)
            of += [f"completion {index + 1} of {samples}"] * (samples > 1)
            head = " ── ".join([*of, f"{found[-1].num_tokens} tokens, {found[-1].finish_reason}"])
            echo("\n".join([f"── {head}", *map(escaped, found[-1].completion.splitlines())]))

    uvloop.run(_sample(config, prompts, show))
    if as_json:
        echo(to_json(found))


async def _sample(
    config: Config,
    prompts: Sequence[tuple[Prompt, list[bytes]]],
    show: Callable[[int, int, SampledTrajectory], None],
) -> None:
    from asyncrl.runtime.rollout import load_engine

    engine = await asyncio.to_thread(load_engine, config)
    sampler = OfflineSampler(config, engine)
    at_once = asyncio.Semaphore(PER_SLOT * config.rollout.slots)

    async def one(place: int, index: int) -> SampledTrajectory:
        prompt, files = prompts[place]
        async with at_once:
            return await sampler.sample(Unit(place, index, "held_out"), prompt, tuple(files))

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                (place, index, tasks.create_task(one(place, index)))
                for place in range(len(prompts))
                for index in range(config.evaluation.samples)
            ]
            for place, index, task in running:
                show(place, index, await task)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    finally:
        await engine.aclose()


def _sampled(prompt: Prompt, sampled: SampledTrajectory) -> SampledText:
    completion = sampled.completion
    num_tokens = len(completion.completion_ids)
    return SampledText(prompt_text(prompt), prompt.answer, sampled.text, completion.finish_reason, num_tokens)
