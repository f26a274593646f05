"""What is fine alone and wrong together: the contradictions of a configuration, each in one sentence."""

import math

import msgspec

from asyncrl.config import Broker, Config, Schedule, Vllm, leaves
from asyncrl.errors import ConfigError


def check(config: Config) -> None:
    """
    Refuse values that are fine alone and wrong together.

    Raises:
        ConfigError: The first contradiction found.
    """
    _refuse_infinite(config)
    _check_schedule(config)
    _check_rollout(config)
    _check_algorithm(config)
    _check_trainer(config)
    _check_weights(config)
    _check_addresses(config.broker)


def _refuse_infinite(config: Config) -> None:
    for key, value in leaves(msgspec.to_builtins(config)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}: expected a finite number")


def _check_schedule(config: Config) -> None:
    schedule, algorithm = config.schedule, config.algorithm
    batch = schedule.groups_per_step * schedule.steps_per_publish
    if schedule.window < batch:
        raise ConfigError(
            f"schedule: the window holds {schedule.window} groups but one publish consumes {batch}; raise staleness"
        )
    _check_max_lag(schedule)
    _check_filter(schedule)
    if schedule.group_size == 1 and algorithm.advantage in ("grpo", "dr_grpo"):
        raise ConfigError(
            f"schedule.group_size is 1, but algorithm.advantage={algorithm.advantage!r} compares the trajectories of a "
            f"group; use at least 2"
        )
    if config.sampling.temperature == 0:
        raise ConfigError(
            "sampling.temperature is 0: greedy trajectories of a group are all equal; use a value above 0"
        )


def _check_max_lag(schedule: Schedule) -> None:
    lag, mode = schedule.max_lag, schedule.on_straggler
    if lag is None:
        if mode != "wait":
            raise ConfigError(f"schedule.on_straggler={mode!r} is only read with schedule.max_lag; set it")
        return
    # All that may be open at one version has its last step before version + lag + 1: asyncrl/broker/lag.py.
    is_kept = schedule.window <= (lag + 1) * schedule.groups_per_step * schedule.steps_per_publish
    if mode == "wait" and not is_kept:
        raise ConfigError(
            f"schedule.max_lag is {lag}, but staleness={schedule.staleness:g} admits {schedule.window} groups at one "
            f"version, more than {lag + 1} consume: waiting cannot keep the bound; use max_lag="
            f"{math.ceil(schedule.staleness)}, or on_straggler='reissue'"
        )
    if mode != "wait" and is_kept and schedule.order == "fifo":
        raise ConfigError(
            f"schedule.on_straggler={mode!r} never happens: with order='fifo' and staleness={schedule.staleness:g} no "
            f"group gets older than max_lag={lag}; remove it, or use order='completion'"
        )


def _check_filter(schedule: Schedule) -> None:
    if schedule.filter == "none":
        for key in ("filter_metric", "filter_patience"):
            if getattr(schedule, key):
                raise ConfigError(f"schedule.{key} is only read with filter='zero_variance'; remove it")
    elif schedule.group_size == 1:
        raise ConfigError(
            "schedule.filter='zero_variance' compares the trajectories of a group, but schedule.group_size is 1; use "
            "at least 2"
        )


def _check_rollout(config: Config) -> None:
    engine, vllm, plain = config.rollout.engine, config.rollout.vllm, Vllm()
    if engine != "vllm":
        for key in Vllm.__struct_fields__:
            if getattr(vllm, key) != getattr(plain, key):
                raise ConfigError(f"rollout.vllm.{key} is only read with engine='vllm', not {engine!r}; remove it")
    if engine == "transformers" and (device := config.rollout.device) not in ("auto", "cpu"):
        raise ConfigError(
            f"rollout.device is {device!r}, but rollout.engine='transformers' decodes on the CPU; use engine='vllm'"
        )
    longest = config.data.max_prompt_tokens + config.sampling.max_tokens
    if 0 < vllm.max_model_len < longest:
        raise ConfigError(
            f"rollout.vllm.max_model_len is {vllm.max_model_len}, but one trajectory may have {longest} tokens "
            f"(data.max_prompt_tokens + sampling.max_tokens); raise it, or leave it out"
        )


def _check_algorithm(config: Config) -> None:
    algorithm = config.algorithm
    if algorithm.dual_clip is not None and 0 < algorithm.dual_clip <= 1:
        raise ConfigError(
            f"algorithm.dual_clip is {algorithm.dual_clip:g}: at or below 1 it would cut the loss of an unchanged "
            f"policy; use a value above 1, or 0 to switch it off"
        )
    if algorithm.aggregation_norm and algorithm.aggregation != "seq-mean-token-sum-norm":
        raise ConfigError(
            f"algorithm.aggregation_norm is only read with aggregation='seq-mean-token-sum-norm', "
            f"not {algorithm.aggregation or 'token-mean'!r}; remove it"
        )


def _check_trainer(config: Config) -> None:
    trainer = config.trainer
    if trainer.min_lr_ratio and trainer.lr_schedule == "constant":
        raise ConfigError("trainer.min_lr_ratio is only read with lr_schedule='cosine'; remove it")
    if trainer.min_lr_ratio > 1:
        raise ConfigError(
            f"trainer.min_lr_ratio is {trainer.min_lr_ratio:g}: the cosine would end above trainer.lr; use at most 1"
        )
    if trainer.warmup_steps > config.run.steps:
        raise ConfigError(
            f"trainer.warmup_steps is {trainer.warmup_steps}, longer than the run ({config.run.steps} steps)"
        )
    every, publish = config.checkpoint.every_steps, config.schedule.steps_per_publish
    if every % publish:
        raise ConfigError(
            f"checkpoint.every_steps is {every}: a checkpoint holds the weights of one policy version, which there is "
            f"every {publish} steps (schedule.steps_per_publish); use a multiple of it"
        )
    longest = config.data.max_prompt_tokens + config.sampling.max_tokens
    if trainer.max_tokens_per_micro_batch < longest:
        raise ConfigError(
            f"trainer.max_tokens_per_micro_batch is {trainer.max_tokens_per_micro_batch}, but one trajectory "
            f"may have {longest} tokens (data.max_prompt_tokens + sampling.max_tokens)"
        )


def _check_weights(config: Config) -> None:
    if config.weights.staging == "whole":
        return
    if config.weights.delta:
        raise ConfigError(
            "weights.delta needs the version before, of which a rollout with weights.staging='bucket' keeps no copy; "
            "use one of them"
        )
    if config.rollout.engine == "transformers":
        raise ConfigError(
            "weights.staging='bucket' replaces weights while decoding stands still, which "
            "rollout.engine='transformers' cannot do; use staging='whole'"
        )
    if config.data.held_out:
        raise ConfigError(
            "weights.staging='bucket' replaces the weights of every rollout at each publish, but data.held_out is "
            "answered by one that keeps its version meanwhile; leave data.held_out empty, or use staging='whole'"
        )


def _check_addresses(broker: Broker) -> None:
    for key, address in (("broker.bind", broker.bind), ("broker.spool_bind", broker.spool_bind)):
        if not address.startswith(("tcp://127.0.0.1:", "tcp://localhost:", "ipc://")):
            raise ConfigError(
                f"{key} is {address!r}: only loopback addresses (tcp://127.0.0.1:PORT, ipc://PATH) are served, because "
                f"connections are not yet authenticated"
            )
    if broker.notice_s < 3 * broker.beat_s:
        raise ConfigError(f"broker.notice_s is {broker.notice_s:g} s, less than three beats of {broker.beat_s:g} s")
    if broker.node_ttl_s < broker.notice_s:
        raise ConfigError(
            f"broker.node_ttl_s is {broker.node_ttl_s:g} s, less than broker.notice_s = {broker.notice_s:g} s: a node "
            f"would be lost before it is noticed"
        )
