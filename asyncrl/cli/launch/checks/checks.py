"""
Checks of a run on this machine. `asyncrl run` stops at the first failure; `asyncrl doctor FILE` reports all of them.

    devices ─▶ engine ─▶ trackers ─▶ functions ─▶ environment ─▶ model ─▶ data

Each returns a short text, or raises one error. Checks that need torch are in `asyncrl.cli.launch.checks.architecture`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from asyncrl.cli.launch.checks.engine import check_engine
from asyncrl.cli.launch.checks.environment import check_environment
from asyncrl.cli.launch.checks.functions import check_functions
from asyncrl.cli.launch.checks.prompt_lengths import check_lengths
from asyncrl.config.checks.environment import check_pictures
from asyncrl.config.checks.replay import check_experts
from asyncrl.config.config import Config
from asyncrl.config.model.adapter import check_adapter
from asyncrl.config.model.directory import check_model, require_directory
from asyncrl.config.model.experts import num_experts
from asyncrl.config.model.weights import check_weights
from asyncrl.config.resolve import with_backend
from asyncrl.data.chat_template import check_template, read_template, text_advice
from asyncrl.data.check import bad_row_lines
from asyncrl.data.images import check_model_reads
from asyncrl.data.prompts import PromptStream, held_out_stream, train_stream
from asyncrl.node.machine.devices import Devices, apart, find, share
from asyncrl.observe.trackers.catalogue import check_trackers
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.routing import auto_routed, check_routes
from asyncrl.rollout.engines.vllm.arguments import reads_pictures

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


def _engine(config: Config, _: Say) -> str:
    return check_engine(config, devices_of(config)[1][0].kind)


def _trackers(config: Config, _: Say) -> str:
    check_trackers(config.trackers)
    return ", ".join(config.trackers.use) or "none"


def _functions(config: Config, _: Say) -> str:
    check_functions(config)
    rewards = [part.function for part in config.reward.parts] or [config.reward.function]
    return f"advantage {config.algorithm.advantage}, loss {config.algorithm.loss}, reward {', '.join(rewards)}"


def _environment(config: Config, _: Say) -> str:
    return check_environment(config)


def _model(config: Config, say: Say) -> str:
    check_model(config.model.path)
    if config.rollout.engine == "vllm":
        reads_pictures(config.model.path)
    for sentence in check_experts(config, num_experts(Path(config.model.path))):
        say(f"note: {sentence}")
    if config.critic.path:
        check_weights(require_directory(config.critic.path, "critic.path"), "critic.path")
    if config.trainer.lora.path:
        check_adapter(config.trainer.lora)
    return " and ".join(filter(None, [config.model.path, config.critic.path, config.trainer.lora.path]))


def _data(config: Config, say: Say) -> str:
    streams = {"train": train_stream(config.data, config.run.seed)}
    if config.data.held_out_files:
        streams["held_out"] = held_out_stream(config.data, config.evaluation.max_prompts)
    summaries = [stream.summary for stream in streams.values()]
    template = read_template(Path(config.model.path))
    has_chats, has_texts = (any(getattr(each, name) for each in summaries) for name in ("has_chats", "has_texts"))
    check_template(template, config.data.chat_template_kwargs, has_chats=has_chats)
    for sentence in text_advice(template, has_texts=has_texts and not config.environment.is_set):
        say(f"note: {sentence}")
    num_images = sum(summary.num_images for summary in summaries)
    check_model_reads(Path(config.model.path), num_images, sum(summary.num_marked for summary in summaries))
    check_pictures(config, num_images)
    for name, stream in streams.items():
        check_routes(config.reward, stream.summary.data_sources)
        for verifier in auto_routed(config.reward, stream.summary.data_sources):
            resolve(verifier, setting="reward.function = 'auto':")
        if stream.summary.bad:
            say("\n".join([f"data.{name}:", *bad_row_lines(stream.summary.bad)]))
    for name, stream in streams.items():
        check_lengths(config, name, stream, say)
    return _rows(streams)


def _rows(streams: Mapping[str, PromptStream]) -> str:
    sources = sorted({source or "(none)" for stream in streams.values() for source in stream.summary.data_sources})
    rows = [f"{stream.num_rows:,} rows of {name}" for name, stream in streams.items()]
    shown = ", ".join(sources[:5]) + (f" and {len(sources) - 5} more" if len(sources) > 5 else "")
    return f"{' and '.join(rows)}, with a reward for each data source: {shown}"


CHECKS: Mapping[str, Check] = {
    "devices": _devices,
    "engine": _engine,
    "trackers": _trackers,
    "functions": _functions,
    "environment": _environment,
    "model": _model,
    "data": _data,
}
"""Checks by name; the quick ones are first."""
