"""
Checks of a run on this machine. `asyncrl run` stops at the first failure; `asyncrl doctor FILE` reports all of them.

    devices ─▶ engine ─▶ trackers ─▶ functions ─▶ environment ─▶ models ─▶ model ─▶ data

Each returns a short text, or raises one error. The architecture, which needs torch, is checked in a process of its own.
"""

import asyncio
import heapq
import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncrl.config.checks.environment import check_experts
from asyncrl.config.config import Config
from asyncrl.config.engines import imported
from asyncrl.config.model.adapter import base_of, check_adapter
from asyncrl.config.model.directory import check_model, known_positions, refuse_beyond, require_directory, snapshot_of
from asyncrl.config.model.tokenizer import FAST, num_experts
from asyncrl.config.model.weights import check_weights, read_config
from asyncrl.config.run_file import with_backend
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.models import INSTALL as INSTALL_MODELS
from asyncrl.config.sections.models import ServedModel, hidden_keys, key_of
from asyncrl.config.sections.run import goal_of
from asyncrl.data.census import num_chars
from asyncrl.data.chat_template import check_template, check_tools, read_special_tokens, read_template, text_advice
from asyncrl.data.check import CountTokens, FindSpelled, bad_row_lines
from asyncrl.data.images import check_model_reads
from asyncrl.data.prompts import PromptStream, held_out_stream, oddities, train_stream
from asyncrl.episodes.containers import ContainerPool
from asyncrl.episodes.environment import Description, check_row_tools
from asyncrl.episodes.pool import make_environments
from asyncrl.episodes.workers import named
from asyncrl.errors import ConfigError, ServiceFailed
from asyncrl.messages.trajectory import Prompt
from asyncrl.plug_in import hint
from asyncrl.records.evaluation_metrics import metric_names
from asyncrl.records.trackers import check_trackers
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.routing import auto_routed, check_routes, metrics_of, unmatched
from asyncrl.runtime.check_functions import check_functions
from asyncrl.runtime.check_template import try_template
from asyncrl.runtime.machine import TRAIN, Devices, apart, find, missing_packages, require_train, share
from asyncrl.similar_path import did_you_mean
from asyncrl.weights.groups.device import installed_version

# ── engine ────────────────────────────────────────────────────────────────────────────────────
# Check that the rollout engine is installed and knows its arguments, without importing it.


def check_engine(config: Config, kind: str) -> str:
    """
    Describe the engine and its version.

    Args:
        kind: Kind of the rollouts' devices.

    Raises:
        ConfigError: The engine is not installed, or the installed version does not know an argument.
    """
    entry = config.rollout.entry
    if entry.describe:
        return str(imported(entry.describe)(config, kind))
    versions = [f"{name} {installed_version(name) or '(not installed here)'}" for name in entry.packages]
    return ", ".join(versions) or config.rollout.engine


# ── environment ───────────────────────────────────────────────────────────────────────────────
# Loads the run's environment in a worker before anything starts, as a rollout will: it names what is missing.

KINDS = {"steps": "turn by turn", "solve": "an agent program", "command": "an agent program"}
RESUMES = {
    "replay": "continued elsewhere by replay",
    "snapshot": "continued elsewhere from snapshots",
    "rerun": "continued elsewhere by running again",
    "none": "begun anew elsewhere",
}
"""Ways to go on after a node is lost, by `Description.resume`."""
INSTALL = "pip install 'asyncrl[agents]'"
SHOWN = 5
"""Most tools that are named."""


def check_environment(config: Config) -> str:
    """
    Describe the environment of a run; ``none`` without one.

    Raises `ConfigError` if its interpreter or a package is missing, or its code cannot be loaded.
    """
    if not config.environment.is_set:
        return "none"
    description, runtime = _description(config)
    if description.kind != "steps" and find_spec("uvicorn") is None:
        raise ConfigError(f"{named(config.environment)} is an agent program and needs uvicorn: {INSTALL}")
    found = [f"{named(config.environment)}: {KINDS[description.kind]}"]
    if tools := [tool["function"]["name"] for tool in description.tools]:
        found.append(f"tools {', '.join(tools[:SHOWN])}" + (f" and {len(tools) - SHOWN} more" * (len(tools) > SHOWN)))
    if config.environment.container.is_set:
        found.append(f"a container of {runtime} for each episode")
    return ", ".join([*found, RESUMES[description.resume]])


def _description(config: Config) -> tuple[Description, str]:
    with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
        return thread.submit(asyncio.run, _described(config)).result()


async def _described(config: Config) -> tuple[Description, str]:
    """The environment, and its container runtime, in which nothing is started."""
    environment, runtime = config.environment, ""
    if environment.container.is_set:
        runtime = await ContainerPool(environment.container, "check", "check").find()
    alone = replace(environment, workers=1, container=replace(environment.container, image=""))
    async with make_environments(alone, "check", "check", hidden_keys(config.models)) as environments:
        return environments.description, runtime


# ── models ────────────────────────────────────────────────────────────────────────────────────
# Models that others serve: keys and packages must be there; a server may still be started, so its silence is a remark.

REACH_S = 5.0
"""Seconds for a server to list its models."""
REFUSES_KEY = (401, 403)


def check_models(config: Config, say: "Say") -> str:
    """
    Describe ``[models]``; ``none`` without any. ``say`` gets a remark on a server that does not answer as it should.

    Raises `ConfigError` if a variable with a key is not set, or a package is missing.
    """
    if not config.models:
        return "none"
    for package in ("httpx", "uvicorn"):
        if find_spec(package) is None:
            raise ConfigError(f"[models] needs {package}, which is not installed: {INSTALL_MODELS}")
    found = {name: _reached(name, model) for name, model in config.models.items()}
    for remark in filter(None, found.values()):
        say(f"note: {remark}")
    return ", ".join(f"{name} at {model.url}" for name, model in config.models.items())


def _reached(name: str, model: ServedModel) -> str:
    """A remark on the server; empty if it answers."""
    from asyncrl.wire.endpoint import bearer, status_of  # its client is an extra

    key, url = key_of(name, model), f"{model.url.rstrip('/')}/models"
    try:
        status = status_of(url, bearer(key), REACH_S)
    except ServiceFailed as error:
        return (
            f"model {name!r}: {error}; a run waits for it {model.deadline_s:g} s at a time (models.{name}.deadline_s)"
        )
    if status in REFUSES_KEY:
        whose = f"the key in {model.key_env}" if model.key_env else f"no key (models.{name}.key_env)"
        return f"model {name!r}: {url} answered with status {status} to {whose}"
    return f"model {name!r}: {url} answered with status {status}" if status >= 500 else ""


# ── prompt lengths ────────────────────────────────────────────────────────────────────────────
# Check that prompts have at most ``data.max_prompt_tokens``, before a run starts.
#
#     prompts ─ the longest by characters ─▶ chat template ─▶ tokenizer.json ─▶ too long? ─▶ counted as engines do
#
# transformers may read a tokenizer.json in its own way and takes seconds to import, so it counts the suspects alone.
#
# Only the `COUNTED` longest of at most `READ` prompts are counted; `asyncrl data check` counts all.

COUNTED = 5000
"""0.1 ms each."""
READ = 100_000
"""Prompts whose characters are counted, 20 µs each; of a larger dataset every second, every third and so on."""

Count = Callable[[Prompt], int]


def check_lengths(config: Config, name: str, stream: PromptStream, say: Callable[[str], None]) -> None:
    """
    Check the prompts of ``data.<name>``; ``say`` gets the number of those that the configuration leaves out.

    Without the trainer's packages, a tokenizer.json, or a limit on the prompts of rows, nothing is checked.

    Raises:
        ConfigError: Some have too many tokens, and are neither truncated nor left out.
    """
    data, path = config.data, Path(config.model.path)
    if data.truncation != "error" or config.environment.is_set or missing_packages(TRAIN):
        return
    if not (count := token_count(path, data.chat_template_kwargs)):
        return
    every = -(-stream.num_rows // READ)
    longest = heapq.nlargest(
        COUNTED,
        stream.prompts(every),
        key=num_chars,
    )
    suspects = [prompt for prompt in longest if count(prompt) > data.max_prompt_tokens]
    more = f"of {stream.num_rows:,} prompts have more tokens than data.max_prompt_tokens = {data.max_prompt_tokens:,}"
    if suspects and data.filter_overlong_prompts:
        say(f"data.{name}: about {len(suspects):,} {more}; they are left out (data.filter_overlong_prompts)")
        return
    exact = readers(path, data)[0] if suspects else count
    lengths = [length for length in map(exact, suspects) if length > data.max_prompt_tokens]
    if lengths:
        least = "at least " if every > 1 or len(lengths) == len(longest) < stream.num_rows else ""
        raise ConfigError(
            f"data.{name}: {least}{len(lengths):,} {more}, up to {max(lengths):,}: raise it, or leave them out with "
            f"data.filter_overlong_prompts = true, or cut them with data.truncation"
        )


def readers(model: Path, data: Data) -> tuple[CountTokens, FindSpelled]:
    """Functions of a prompt: its number of tokens as engines count them, and the special tokens that it spells."""
    require_train()
    from asyncrl.config.model.weights import CONFIG
    from asyncrl.rollout.engines.special_tokens import SpelledTokens
    from asyncrl.rollout.engines.text import encode
    from asyncrl.vision.processor import ImageProcessor
    from asyncrl.weights.contents.token_ids import load_tokenizer

    check_template(read_template(model), data.chat_template_kwargs, has_chats=False)
    try_template(model, data.chat_template_kwargs)
    tokenizer = load_tokenizer(str(model))
    processor = ImageProcessor.load(model) if (model / CONFIG).is_file() else None  # a tokenizer alone will do for text
    spelled = SpelledTokens(tokenizer, are_text=data.split_special_tokens)

    def count(prompt: Prompt) -> int:
        return len(encode(tokenizer, prompt, data.chat_template_kwargs, processor, spelled))

    return count, lambda prompt: spelled.found(prompt.chat)


def token_count(model: Path, template_kwargs: dict[str, Any]) -> Count | None:
    """Counts tokens of prompts without transformers; None if the model has no tokenizer.json that can be read."""
    from tokenizers import Tokenizer

    if not (model / FAST).is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(model / FAST))
    except Exception:  # noqa: BLE001  the library raises nothing else; engines say what is wrong with the file
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return partial(_count, tokenizer, read_template(model), read_special_tokens(model) | template_kwargs)


def _count(tokenizer: Any, template: str, arguments: dict[str, Any], prompt: Prompt) -> int:
    if not prompt.chat:
        return len(tokenizer.encode(prompt.text))
    from transformers.utils.chat_template_utils import render_jinja_template  # takes a second

    try:
        rendered, _ = render_jinja_template(
            conversations=[prompt.chat],
            tools=msgspec.json.decode(prompt.tools) if prompt.tools else None,
            chat_template=template,
            add_generation_prompt=True,
            **arguments,
        )
        text = str(rendered[0])
    except Exception:  # noqa: BLE001  a template may raise anything, and the rollouts report it
        text = "".join([prompt.tools, *(message["content"] for message in prompt.chat)])
    return len(tokenizer.encode(text, add_special_tokens=False))


# ── names ─────────────────────────────────────────────────────────────────────────────────────
# Names that settings give to metrics and data sources, against those that the reward and the data can have. Metrics of
# a function of the user's only a run shows: the first verdict without one ends it.


def check_names(config: Config, data_sources: Mapping[str, Collection[str]], say: Callable[[str], None]) -> None:
    """
    Check the names of metrics by the data sources of ``train`` and ``held_out``.

    ``say`` gets a remark on each pattern of ``reward.parts`` that matches no row. Raises `ConfigError` for a metric
    that nothing reports.
    """
    checkpoint, schedule, wanted = config.checkpoint, config.schedule, config.run.stop_when
    sources = {source for some in data_sources.values() for source in some}
    judged = {"checkpoint.best_metric": checkpoint.best_metric} if checkpoint.keep_best else {}
    judged |= {"run.stop_when": goal_of(wanted).metric} if wanted else {}
    for key, name in judged.items():
        known = metric_names(data_sources.get("held_out", ()), config.evaluation.samples)
        _refuse_unknown(key, name, known, "no evaluation of this run reports")
    if (metrics := metrics_of(config.reward, data_sources["train"])) is not None:
        lack = f"reward.function = {config.reward.function!r} does not return"
        if schedule.filter_metric:
            remedy = " (leave it empty for the reward)"
            _refuse_unknown("schedule.filter_metric", schedule.filter_metric, metrics, lack, remedy)
        for name in config.algorithm.reward_weights:
            _refuse_unknown("algorithm.reward_weights", name, ["reward", *metrics], lack)
    for name, pattern in unmatched(config.reward, sources):
        here = ", ".join(repr(source) if source else "(none)" for source in sorted(sources)[:5])
        say(f"note: no row is for {pattern!r}, a pattern of the reward part {name!r}: the data sources are {here}")


def _refuse_unknown(key: str, name: str, known: Collection[str], lack: str, remedy: str = "") -> None:
    if name not in known:
        raise ConfigError(f"{key} names {name!r}, which {lack}: {hint(name, known)}{remedy}")


# ── checks ────────────────────────────────────────────────────────────────────────────────────

Say = Callable[[str], None]
"""Function that prints a remark, which is no error."""
Check = Callable[[Config, Say], str]
"""Function that returns a description of what it found, and raises `AsyncrlError` if the run cannot work."""


def devices_of(config: Config) -> tuple[Devices | None, list[Devices]]:
    """Devices of the trainer (None for the CPU) and of each rollout; `ConfigError` if there are too few."""
    wanted = config.rollout.wanted_device
    if config.trainer.device != "cpu" and wanted in ("auto", "cpu"):
        found = find(config.trainer.device, os.environ)
    else:
        found = find(wanted, os.environ)
    trainer, left = apart(found, config.trainer, colocated=config.rollout.colocated)
    if trainer is not None and wanted == "cpu":
        left = find("cpu", os.environ)
    return trainer, share(left, config.rollout, config.rollout.replicas)


def resolved(config: Config, shares: list[Devices]) -> Config:
    """Configuration with ``weights.backend`` chosen for rollouts on these ``shares`` of devices."""
    return with_backend(config, shares_device=any(share.is_shared for share in shares))


def where(shares: list[Devices]) -> str:
    """Describe the devices of all rollouts."""
    return " | ".join(map(str, shares)) if shares[0].ids else "the CPU"


def _devices(config: Config, _: Say) -> str:
    trainer, shares = devices_of(config)
    backend = resolved(config, shares).weights.backend
    return f"the trainer on {trainer or 'the CPU'}, rollouts on {where(shares)}, weights over {backend}"


def _trackers(config: Config, _: Say) -> str:
    check_trackers(config.trackers)
    return ", ".join(config.trackers.use) or "none"


def _functions(config: Config, _: Say) -> str:
    check_functions(config)
    rewards = [part.function for part in config.reward.parts] or [config.reward.function]
    group = f", compared by {config.reward.group}" if config.reward.group else ""
    return f"advantage {config.algorithm.advantage}, loss {config.algorithm.loss}, reward {', '.join(rewards)}{group}"


def _model(config: Config, say: Say) -> str:
    check_model(config.model.path, config.model.overrides)
    if check := config.rollout.entry.check_model:
        imported(check)(config)
    for sentence in check_experts(config, num_experts(Path(config.model.path))):
        say(f"note: {sentence}")
    if config.critic.path:
        check_weights(require_directory(config.critic.path, "critic.path"), "critic.path")
    if config.trainer.lora.path:
        check_adapter(config.trainer.lora)
        of, found = base_of(Path(config.trainer.lora.path)), snapshot_of(config.model.path)
        if of and PurePath(of).name != PurePath(found.repo if found else config.model.path).name:
            say(
                f"note: the adapter of trainer.lora.path was trained on {of}, and model.path is {config.model.path}: "
                f"on other weights it is another model"
            )
    refuse_beyond(known_positions(read_config(Path(config.model.path)), config.model.overrides), config.longest_slot)
    return " and ".join(filter(None, [config.model.path, config.critic.path, config.trainer.lora.path]))


def _data(config: Config, say: Say) -> str:
    for folder in config.data.image_folders:
        if not Path(folder).is_dir():
            meant = did_you_mean(Path(folder), Path.is_dir)
            raise ConfigError(f"data.image_folders: there is no folder {folder}{meant}")
    streams = {"train": train_stream(config.data, config.run.seed)}
    if config.data.held_out_files:
        streams["held_out"] = held_out_stream(config.data, config.evaluation.max_prompts)
    summaries = [stream.summary for stream in streams.values()]
    template = read_template(Path(config.model.path))
    has_chats, has_texts = (any(getattr(each, name) for each in summaries) for name in ("has_chats", "has_texts"))
    check_template(template, config.data.chat_template_kwargs, has_chats=has_chats)
    try_template(Path(config.model.path), config.data.chat_template_kwargs)
    check_tools_of_rows(config, frozenset().union(*(summary.tools for summary in summaries)))
    for sentence in text_advice(template, has_texts=has_texts and not config.environment.is_set):
        say(f"note: {sentence}")
    check_model_reads(Path(config.model.path), sum(summary.num_images for summary in summaries))
    for name, stream in streams.items():
        check_routes(config.reward, stream.summary.data_sources)
        for verifier in auto_routed(config.reward, stream.summary.data_sources):
            resolve(verifier, setting="reward.function = 'auto':")
        if stream.summary.bad:
            say("\n".join([f"data.{name}:", *bad_row_lines(stream.summary.bad)]))
    for sentence in oddities(streams["train"], streams.get("held_out"), are_tasks=config.environment.is_set):
        say(f"note: {sentence}")
    check_names(config, {name: stream.summary.data_sources for name, stream in streams.items()}, say)
    for name, stream in streams.items():
        check_lengths(config, name, stream, say)
    return _rows(streams)


def check_tools_of_rows(config: Config, tools: Collection[str]) -> None:
    """Raise `ConfigError` if rows show tools that the chat template does not show, or the environment does not have."""
    if not tools:
        return
    if not (config.environment.is_set and config.environment.tool_parser == "plain"):
        check_tools(read_template(Path(config.model.path), of_tools=True), tools)
    if config.environment.is_set:
        check_row_tools(tools, _description(config)[0])


def _rows(streams: Mapping[str, PromptStream]) -> str:
    sources = sorted({source or "(none)" for stream in streams.values() for source in stream.summary.data_sources})
    rows = [f"{stream.num_rows:,} rows of {name}" for name, stream in streams.items()]
    shown = ", ".join(sources[:5]) + (f" and {len(sources) - 5} more" if len(sources) > 5 else "")
    return f"{' and '.join(rows)}, with a reward for each data source: {shown}"


CHECKS: Mapping[str, Check] = {
    "devices": _devices,
    "engine": lambda config, _: check_engine(config, devices_of(config)[1][0].kind),
    "trackers": _trackers,
    "functions": _functions,
    "environment": lambda config, _: check_environment(config),
    "models": check_models,
    "model": _model,
    "data": _data,
}
"""Checks by name; the quick ones are first."""
