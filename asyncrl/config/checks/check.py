"""
Checks of a configuration: values that are valid alone and contradict each other. Each error is one sentence.

Contradictions within a section are found by its own methods, in asyncrl/config/sections; those between sections here.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

import msgspec

from asyncrl.config.addresses import check_gateway_address, check_interface
from asyncrl.config.catalogue import (
    ADVANTAGES,
    LOSSES,
    estimator_entry,
    loss_entry,
)
from asyncrl.config.checks.environment import (
    check_environment,
    check_replay,
    environment_advice,
    replay_advice,
)
from asyncrl.config.config import Config, leaves
from asyncrl.config.correction import WIDE, is_widened, preset, resolved, thresholds
from asyncrl.config.engines import ENGINES
from asyncrl.config.model.directory import check_overrides
from asyncrl.config.sections.algorithm import Algorithm, Correction
from asyncrl.config.sections.evaluation import Checkpoint
from asyncrl.config.sections.sampling import LOW, greedy
from asyncrl.config.sections.section import Section
from asyncrl.config.sections.trainer import Critic
from asyncrl.errors import ConfigError, check_all
from asyncrl.plug_in import hint, is_path

# ── check ─────────────────────────────────────────────────────────────────────────────────────

MAX_OPEN = 4_000_000
"""Most trajectories open at once: groups in the window times trajectories of a group."""


def check(config: Config) -> None:
    """Raise `ConfigError` for values that contradict each other, with all contradictions that can be told at once."""
    refuse_infinite(config)
    check_overrides(config.model.overrides)
    looks: list[Callable[[], object]] = [
        config.run.check,
        config.data.check,
        config.sampling.check,
        config.evaluation.check_sampling,
        config.reward.check,
        config.broker.check_addresses,
        config.broker.check_heartbeats,
        partial(check_gateway_address, config.environment.gateway),
        *(partial(rule, config) for rule in RULES),
    ]
    check_all(looks)


def advice(config: Config) -> list[str]:
    """A sentence for each setting that works, and that hardly anybody wants."""
    sentences = []
    devices = {"trainer.device": config.trainer.device, "rollout.device": config.rollout.wanted_device}
    on_cuda = [key for key, kind in devices.items() if kind == "cuda"]
    if config.model.dtype == "float32" and on_cuda:
        sentences.append(
            f"model.dtype is 'float32' with {' and '.join(on_cuda)} = 'cuda': products run without TensorFloat-32, and "
            f"attention with memory that grows with the square of a sequence; 'bfloat16' is several times faster"
        )
    if cause := greedy(config.sampling, LOW):
        sentences.append(
            f"sampling.{cause}: trajectories of a group are nearly the same, and a run learns from their differences"
        )
    sentences += _length_penalties(config)
    return [*sentences, *algorithm_advice(config), *replay_advice(config), *environment_advice(config)]


def refuse_infinite(values: Section) -> None:
    """Raise `ConfigError` for a number that is not finite, anywhere below a section."""
    for key, value in leaves(msgspec.to_builtins(values)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}: expected a finite number")


def _check_schedule(config: Config) -> None:
    schedule = config.schedule
    batch = schedule.groups_per_step * schedule.steps_per_publish
    if schedule.window < batch:
        raise ConfigError(
            f"schedule: the window holds {schedule.window} groups, but one publish consumes {batch}; raise staleness"
        )
    size = config.trajectories_per_group
    if (num_open := schedule.window * size) > MAX_OPEN:
        raise ConfigError(
            f"schedule: {schedule.window:,} groups of {size:,} trajectories are open at once, {num_open:,} in all, "
            f"but the broker keeps at most {MAX_OPEN:,} in memory, about 1 kB each; lower groups_per_step, "
            f"group_size, steps_per_publish or staleness"
        )
    if schedule.partial_rollout == "turn" and not config.environment.is_set:
        raise ConfigError(
            "schedule.partial_rollout='turn' finishes turns, but without an [environment] there is one; use false, "
            "or set the environment"
        )
    if schedule.order_window is not None and schedule.order != "windowed":
        raise ConfigError("schedule.order_window is only read with order='windowed'; remove it, or set the order")
    if schedule.staleness == "auto":
        _check_auto(config)
    schedule.check_staleness()
    schedule.check_filter()
    if config.reward.group and schedule.group_size < 2:
        raise ConfigError(
            f"reward.group is {config.reward.group!r}, which compares the trajectories of a prompt, but "
            f"schedule.group_size is {schedule.group_size}; use at least 2, or reward.function"
        )


def _check_auto(config: Config) -> None:
    schedule = config.schedule
    if config.rollout.colocated:
        raise ConfigError(
            "schedule.staleness is 'auto' and rollout.colocated is true: no plan is fitted to devices that are used in "
            "turn; give a number"
        )
    if schedule.order == "windowed" and schedule.order_window is None:
        raise ConfigError(
            "schedule.staleness is 'auto' with order = 'windowed' and no order_window, whose default follows the "
            "staleness; set order_window"
        )


def _check_rollout(config: Config) -> None:
    rollout = config.rollout
    _check_engine(config)
    if config.rollout.colocated and config.trainer.nodes > 1:
        raise ConfigError(
            f"rollout.colocated is true and trainer.nodes is {config.trainer.nodes}: turns are for one machine; set "
            f"trainer.nodes = 1"
        )
    longest = config.longest_request
    key = rollout.entry.max_tokens
    if 0 < (most := rollout.own(key, 0)) < longest:
        raise ConfigError(
            f"rollout.{key} is {most}, but one trajectory may have {longest} tokens "
            f"(data.max_prompt_tokens + {_written_limit(config, 'evaluation')}); raise it, or leave it out"
        )


def _check_engine(config: Config) -> None:
    """Raise `ConfigError` for settings that another engine reads, and for what the engine cannot do."""
    rollout, entry = config.rollout, config.rollout.entry
    for name, other in ENGINES.items():
        if other.section and other.section != entry.section:
            section = getattr(rollout, other.section)
            _refuse_unread(section, f"rollout.{other.section}", f"with engine={name!r}, not {rollout.engine!r}")
    for what, is_wanted, is_able, lack in (
        ("sampling.replay_mask", config.sampling.replay_mask, entry.records_masks, "records no sampling masks"),
        ("rollout.replay_routes", rollout.replay_routes, entry.records_routes, "records no routes of experts"),
        ("rollout.colocated", rollout.colocated, entry.sleeps, "cannot leave its devices to a trainer"),
        ("an [environment]", config.environment.is_set, entry.converses, "cannot continue a turn of the policy"),
    ):
        if is_wanted and not is_able:
            raise ConfigError(
                f"{what} with rollout.engine={rollout.engine!r}, which {lack}; remove it, or use "
                f"rollout.engine='transformers'"
            )


def _refuse_unread(section: Section, where: str, reader: str) -> None:
    for key in section.__struct_fields__:
        if getattr(section, key) != getattr(type(section)(), key):
            raise ConfigError(f"{where}.{key} is only read {reader}; remove it")


def _check_reward_names(config: Config) -> None:
    """Check metric names against ``reward.parts``. Metrics of a single ``reward.function`` are not known here."""
    weights, metric = config.algorithm.reward_weights, config.schedule.filter_metric
    if "score" in weights:
        raise ConfigError("algorithm.reward_weights names 'score': use 'reward', the reward of the verdict")
    if not config.reward.parts or config.reward.group:  # A group function may return any.
        return
    metrics = ["correct", *(part.name for part in config.reward.parts)]
    for key, names, known in (
        ("schedule.filter_metric", [metric] if metric else [], metrics),
        ("algorithm.reward_weights", weights, ["reward", *metrics]),
    ):
        for name in names:
            if name.partition(".")[0] not in known:
                raise ConfigError(f"{key} names {name!r}, which no reward.parts returns: {hint(name, known)}")


def _free_tokens(function: str, options: Mapping[str, Any]) -> int:
    """Tokens up to which a built-in penalty on lengths is zero; 0 of options of other types."""
    if function == "length":
        free = options.get("free", 0)
    else:
        free = options["max_tokens"] - buffer if isinstance(buffer := options.get("buffer"), int) else 0
    return free if isinstance(free, int) else 0


def _length_penalties(config: Config) -> list[str]:
    """
    Sentences of advice on penalties whose ``max_tokens`` is not the longest completion.

    Raises `ConfigError` for one that no completion can reach. Options of other types are refused when they are bound.
    """
    reward, limit = config.reward, config.longest_written("train")
    parts = [(f"reward.parts[{place}]", part.function, part.options) for place, part in enumerate(reward.parts)]
    sentences = []
    for key, function, options in parts or [("reward", reward.function, reward.options)]:
        most = options.get("max_tokens")
        if function not in ("overlong", "length") or not isinstance(most, int):
            continue
        free = _free_tokens(function, options)
        if free >= limit:
            raise ConfigError(
                f"{key}.options: {function!r} has no penalty up to {free} tokens, and no completion is longer "
                f"than {_written_limit(config)} = {limit}; set its max_tokens to {limit}"
            )
        if most != limit:
            sentences.append(
                f"{key}.options.max_tokens of {function!r} is {most}, and the longest completion has {limit} "
                f"tokens ({_written_limit(config)}): the whole penalty is that of {most} tokens"
            )
    return sentences


def _check_trainer(config: Config) -> None:
    trainer = config.trainer
    trainer.check_lr()
    if trainer.mini_batches > config.schedule.groups_per_step:
        raise ConfigError(
            f"trainer.mini_batches is {trainer.mini_batches}, but a step has {config.schedule.groups_per_step} groups "
            f"(schedule.groups_per_step), which are never split; use at most as many"
        )
    trainer.check_machines()
    trainer.check_offload(has_reference=bool(config.algorithm.kl_coef))
    trainer.lora.check()


def _check_critic(config: Config) -> None:
    advantage = config.algorithm.advantage
    # A custom estimator may need a critic: that is known when it is loaded.
    if config.critic != Critic() and not is_path(advantage) and "values" not in estimator_entry(advantage).needs:
        readers = " or ".join(repr(name) for name, entry in ADVANTAGES.items() if "values" in entry.needs)
        raise ConfigError(f"[critic] is only read with algorithm.advantage={readers}, not {advantage!r}; remove it")


def _check_warmup(config: Config) -> None:
    steps, warmup_steps = config.run.steps, config.trainer.warmup_steps
    if config.run.epochs is None and warmup_steps > steps:
        raise ConfigError(
            f"trainer.warmup_steps is {warmup_steps}, longer than the run ({steps} steps); lower it, to {steps // 4} "
            f"for instance, or make the run longer"
        )


def _check_checkpoints(config: Config) -> None:
    every, publish = config.checkpoint.every_steps, config.schedule.steps_per_publish
    if every % publish:
        raise ConfigError(
            f"checkpoint.every_steps is {every}: a checkpoint holds the weights of one policy version, and a version "
            f"is published every {publish} steps (schedule.steps_per_publish); use a multiple of it"
        )


def _check_micro_batch(config: Config) -> None:
    trainer, longest = config.trainer, config.data.max_prompt_tokens + config.longest_written("train")
    if trainer.max_tokens_per_micro_batch * trainer.sequence_parallel < longest:
        ranks = f" on each of trainer.sequence_parallel = {trainer.sequence_parallel} ranks"
        raise ConfigError(
            f"trainer.max_tokens_per_micro_batch is {trainer.max_tokens_per_micro_batch}"
            f"{ranks if trainer.sequence_parallel > 1 else ''}, but one trajectory "
            f"may have {longest} tokens (data.max_prompt_tokens + {_written_limit(config)})"
        )


def _written_limit(config: Config, *others: str) -> str:
    """Settings that limit what is written after a prompt: of episodes, or of completions and those of ``others``."""
    if config.environment.is_set:
        return "environment.max_tokens"
    return " or ".join(f"{section}.max_tokens" for section in ("sampling", *others))


def _check_answers(config: Config) -> None:
    if config.evaluation.answers and not config.data.held_out_files:
        raise ConfigError(
            f"evaluation.answers is {config.evaluation.answers}, but data.held_out is empty, so there are no "
            f"evaluations; name a file, or remove it"
        )


def _check_goal(config: Config) -> None:
    if not config.run.stop_when:
        return
    if not config.data.held_out_files:
        raise ConfigError("run.stop_when is judged by evaluations on data.held_out, which is empty; name a file")
    if not config.evaluation.every_versions:
        raise ConfigError(
            "run.stop_when is judged by evaluations, and evaluation.every_versions is 0, so there is none between the "
            "first step and the last; set it"
        )


def _check_best(config: Config) -> None:
    checkpoint, evaluation = config.checkpoint, config.evaluation
    if not checkpoint.keep_best:
        if checkpoint.best_metric != Checkpoint().best_metric:
            raise ConfigError("checkpoint.best_metric is only read with keep_best=true; remove it")
        return
    if not config.data.held_out_files:
        raise ConfigError("checkpoint.keep_best compares checkpoints on data.held_out, which is empty; name a file")
    if checkpoint.keep < 2:
        raise ConfigError(
            "checkpoint.keep is 1: with keep_best a checkpoint would be deleted before its evaluation; use at least 2"
        )
    evaluated_every = max(evaluation.every_versions, 0) * config.schedule.steps_per_publish
    saved_every = max(checkpoint.every_steps, 0)
    if not (evaluated_every and saved_every) or evaluated_every % saved_every:
        versions = saved_every // config.schedule.steps_per_publish
        remedies = [f"evaluation.every_versions to {versions} or a multiple of it"] if versions else []
        remedies += [f"checkpoint.every_steps to {evaluated_every}"] if evaluated_every else []
        raise ConfigError(
            f"checkpoint.keep_best needs a checkpoint of every version that is evaluated, but checkpoints are every "
            f"{saved_every} steps and evaluations every {evaluated_every} (evaluation.every_versions); set "
            f"{', or '.join(remedies) or 'both'}"
        )


def _check_weights(config: Config) -> None:
    if config.weights.interface:
        check_interface(config.weights.interface, "weights.interface")
    if config.weights.staging == "whole":
        return
    if config.weights.delta:
        raise ConfigError(
            "weights.delta needs a copy of the previous version, which a rollout with weights.staging='bucket' does "
            "not keep; use one of them"
        )
    if not config.rollout.entry.swaps_in_place:
        raise ConfigError(
            f"weights.staging='bucket' replaces weights while decoding is paused, which rollout.engine="
            f"{config.rollout.engine!r} cannot do; use staging='whole'"
        )
    if config.data.held_out_files:
        raise ConfigError(
            "weights.staging='bucket' replaces the weights of every rollout at each publish, but evaluation on "
            "data.held_out pins the version of one rollout; leave data.held_out empty, or use staging='whole'"
        )


# ── checks of the algorithm ────────────────────────────────────────────────────────────────────
# Checks of ``[algorithm]`` across its settings.
#
# A setting that the chosen estimator and loss do not read is refused rather than ignored. Settings of custom functions
# are checked when the functions are loaded.

MAX_WEIGHT = 10.0
"""Importance weights with a larger bound count as unbounded."""


def check_algorithm(config: Config) -> None:
    """Raise `ConfigError` for the first setting found that contradicts another or would be ignored."""
    algorithm = config.algorithm
    algorithm.check_options()
    algorithm.check_read()
    _check_group(config)
    algorithm.check_aggregation()
    algorithm.check_kl()
    _check_kl_horizon(config)
    _check_correction(algorithm)
    _check_anchor(config)
    algorithm.check_clip()


def algorithm_advice(config: Config) -> list[str]:
    """Sentences of advice on old trajectories: the default of their clip, and importance weights without a bound."""
    algorithm, staleness = config.algorithm, config.schedule.staleness_bound
    if is_widened(config):
        age = config.schedule.staleness
        return [
            f"schedule.staleness is {age if age == 'auto' else f'{age:g}'}, so the default of algorithm.clip_high is "
            f"{WIDE:g}: with .28 old trajectories would teach slowly; set it to have another bound"
        ]
    if staleness < 1 or is_path(algorithm.loss) or resolved(algorithm.correction).rejection:
        return []
    if (bound := _weight_bound(algorithm)) <= MAX_WEIGHT:
        return []
    weights = "no importance weights" if bound == inf else f"importance weights up to {bound:g}"
    return [
        f"algorithm.loss is {algorithm.loss!r} with {weights} and schedule.staleness is {staleness:g}: nothing keeps "
        f"old trajectories from dominating the loss, and such runs may collapse; use loss = 'clipped', or bound the "
        f"weights"
    ]


def _weight_bound(algorithm: Algorithm) -> float:
    """Largest weight of a token's gradient; infinite if old tokens are trained on as if they were new."""
    if algorithm.loss == "cispo":
        return 1 + (algorithm.clip_high or 0.0)
    if loss_entry(algorithm.loss).function != LOSSES["reinforce"].function:
        return 0.0
    importance = thresholds(resolved(algorithm.correction)).importance
    return inf if importance is None else importance.high


def _check_group(config: Config) -> None:
    name = config.algorithm.advantage
    if config.schedule.group_size == 1 and estimator_entry(name).compares_group:
        raise ConfigError(
            f"schedule.group_size is 1, but algorithm.advantage={name!r} compares the trajectories of a group; use at "
            f"least 2"
        )


def _check_kl_horizon(config: Config) -> None:
    """A step changes the coefficient by up to ``0.2 * trajectories / horizon`` of it, which must stay below 1."""
    algorithm, num_trajectories = config.algorithm, config.schedule.groups_per_step * config.schedule.group_size
    if algorithm.kl_target and num_trajectories >= 5 * algorithm.kl_horizon:
        raise ConfigError(
            f"algorithm.kl_horizon is {algorithm.kl_horizon}, but a step has {num_trajectories} trajectories and could "
            f"reduce the weight of the KL to 0; use more than {num_trajectories // 5}"
        )


def _check_correction(algorithm: Algorithm) -> None:
    name, correction = algorithm.correction.preset, resolved(algorithm.correction)
    if name and (loss := preset(name).loss) not in ("", algorithm.loss):
        raise ConfigError(
            f"algorithm.correction.preset={name!r} needs algorithm.loss={loss!r}, not {algorithm.loss!r}; set it"
        )
    _check_thresholds(correction)
    if correction.mode == "decoupled":
        return
    # A custom loss may do without the ratio: the configuration cannot tell.
    if correction.importance != "none" and loss_entry(algorithm.loss).has_ratio and not is_path(algorithm.loss):
        raise ConfigError(
            f"algorithm.correction.importance={correction.importance!r} would weight the sampler's tokens twice: with "
            f"mode='bypass' the ratio in loss={algorithm.loss!r} weights them already; use mode='decoupled', or "
            f"loss='reinforce'"
        )
    if correction.importance_normalize:
        raise ConfigError(
            "algorithm.correction.importance_normalize needs the mean weight over a step, but with mode='bypass' "
            "weights change during the step; use mode='decoupled'"
        )


def _check_anchor(config: Config) -> None:
    correction, steps = resolved(config.algorithm.correction), config.schedule.steps_per_publish
    if correction.anchor == "step":
        return
    if correction.mode != "decoupled":
        raise ConfigError(
            "algorithm.correction.anchor='publish' is only read with mode='decoupled': in bypass mode ratios are taken "
            "against the policy that sampled; remove it"
        )
    if steps == 1:
        raise ConfigError(
            "algorithm.correction.anchor='publish' has no effect with schedule.steps_per_publish=1: every step begins "
            "with published weights; remove it"
        )


def _check_thresholds(correction: Correction) -> None:
    if correction.importance == "none":
        for key in ("importance_threshold", "importance_normalize"):
            if getattr(correction, key):
                raise ConfigError(
                    f"algorithm.correction.{key} is only read with importance='token' or 'sequence'; remove it"
                )
    if bool(correction.rejection) != bool(correction.rejection_threshold):
        given, missing = "rejection", "rejection_threshold"
        if not correction.rejection:
            given, missing = missing, given
        raise ConfigError(f"algorithm.correction.{given} is only read with {missing}; set it, or remove both")
    thresholds(correction)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────

RULES: tuple[Callable[[Config], object], ...] = (
    _check_schedule,
    _check_rollout,
    check_environment,
    check_replay,
    check_algorithm,
    _check_reward_names,
    _length_penalties,
    _check_trainer,
    _check_critic,
    _check_warmup,
    _check_checkpoints,
    _check_micro_batch,
    _check_answers,
    _check_goal,
    _check_best,
    _check_weights,
)
"""Rules about several sections; each raises `ConfigError` for the first contradiction that it finds."""
