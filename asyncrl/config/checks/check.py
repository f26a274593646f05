"""Checks across fields: values that are valid alone and contradict each other. Each error is one sentence."""

import math

import msgspec

from asyncrl.config.catalogue import ADVANTAGES, estimator_entry
from asyncrl.config.checks.addresses import check_broker_addresses, check_gateway_address, check_interface
from asyncrl.config.checks.algorithm import algorithm_advice, check_algorithm
from asyncrl.config.checks.environment import check_environment, environment_advice
from asyncrl.config.checks.replay import check_replay, replay_advice
from asyncrl.config.checks.sampling import check_sampling, sampling_advice
from asyncrl.config.config import Config, leaves
from asyncrl.config.model.overrides import check_overrides
from asyncrl.config.sections.broker import Broker
from asyncrl.config.sections.checkpoint import Checkpoint
from asyncrl.config.sections.reward import Reward
from asyncrl.config.sections.rollout import Vllm
from asyncrl.config.sections.run import Run
from asyncrl.config.sections.schedule import Schedule
from asyncrl.config.sections.trainer import Critic, Lora, Trainer
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path

TEMPLATE_ARGUMENTS = {
    "messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize",
    "return_dict", "return_tensors", "return_assistant_tokens_mask", "padding", "truncation", "max_length",
}  # fmt: skip
"""Arguments that asyncrl sets itself, or that would make a chat template return something other than token ids."""

MAX_OPEN = 4_000_000
"""Most trajectories open at once: groups in the window times trajectories of a group."""


def check(config: Config) -> None:
    """Raise `ConfigError` for the first contradiction between values."""
    _refuse_infinite(config)
    check_overrides(config.model.overrides)
    _check_run(config.run)
    _check_data(config)
    _check_schedule(config)
    check_sampling(config)
    _check_rollout(config)
    check_environment(config)
    check_replay(config)
    _check_reward(config.reward)
    check_algorithm(config)
    _check_reward_names(config)
    _check_trainer(config)
    if config.evaluation.answers and not config.data.held_out_files:
        raise ConfigError(
            f"evaluation.answers is {config.evaluation.answers}, but data.held_out is empty, so there are no "
            f"evaluations; name a file, or remove it"
        )
    _check_best(config)
    _check_weights(config)
    check_broker_addresses(config.broker)
    check_gateway_address(config.environment.gateway)
    _check_heartbeats(config.broker)


def advice(config: Config) -> list[str]:
    """A sentence for each setting that works, and that hardly anybody wants."""
    sentences = []
    on_cuda = [key for key, kind in _devices(config).items() if kind == "cuda"]
    if config.model.dtype == "float32" and on_cuda:
        sentences.append(
            f"model.dtype is 'float32' with {' and '.join(on_cuda)} = 'cuda': products run without TensorFloat-32, and "
            f"attention with memory that grows with the square of a sequence; 'bfloat16' is several times faster"
        )
    return [
        *sentences,
        *sampling_advice(config),
        *algorithm_advice(config),
        *replay_advice(config),
        *environment_advice(config),
    ]


def _devices(config: Config) -> dict[str, str]:
    return {"trainer.device": config.trainer.device, "rollout.device": config.rollout.wanted_device}


def _refuse_infinite(config: Config) -> None:
    for key, value in leaves(msgspec.to_builtins(config)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}: expected a finite number")


def _check_run(run: Run) -> None:
    for step in run.skip_steps:
        if run.epochs is None and step >= run.steps:
            raise ConfigError(f"run.skip_steps has {step}, but the run has the steps 0 to {run.steps - 1}; remove it")


def _check_data(config: Config) -> None:
    data, files = config.data, config.data.train_files
    if not files:
        raise ConfigError("data.train is empty; name a parquet or JSONL file")
    for key, named in (("train", files), ("held_out", data.held_out_files)):
        if twice := [path for path in named if named.count(path) > 1]:
            raise ConfigError(f"data.{key} names {twice[0]!r} twice; for more of a file set data.ratios")
    if data.ratios and len(data.ratios) != len(files):
        raise ConfigError(
            f"data.ratios has {len(data.ratios)} numbers, but data.train {len(files)} files; give one for each"
        )
    if data.filter_overlong_prompts and data.truncation != "error":
        raise ConfigError(
            f"data.filter_overlong_prompts has no effect: with truncation={data.truncation!r} no prompt is too long; "
            f"use one of them"
        )
    for name in sorted(TEMPLATE_ARGUMENTS & data.chat_template_kwargs.keys()):
        raise ConfigError(f"data.chat_template_kwargs.{name} is set by asyncrl itself; remove it")


def _check_schedule(config: Config) -> None:
    schedule = config.schedule
    batch = schedule.groups_per_step * schedule.steps_per_publish
    if schedule.window < batch:
        raise ConfigError(
            f"schedule: the window holds {schedule.window} groups, but one publish consumes {batch}; raise staleness"
        )
    size = schedule.group_size + config.greedy_per_group
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
    _check_max_staleness(schedule)
    _check_filter(schedule)


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


def _check_max_staleness(schedule: Schedule) -> None:
    limit, mode = schedule.max_staleness, schedule.on_straggler
    if limit is None:
        if mode != "wait":
            raise ConfigError(f"schedule.on_straggler={mode!r} is only read with schedule.max_staleness; set it")
        return
    # Every group open at one version is consumed before version + limit + 1: asyncrl/broker/groups/max_staleness.py.
    is_kept = schedule.window <= (limit + 1) * schedule.groups_per_step * schedule.steps_per_publish
    if mode == "wait" and not is_kept:
        raise ConfigError(
            f"schedule.max_staleness is {limit}, but staleness={schedule.staleness_bound:g} admits {schedule.window} "
            f"groups at one version, more than {limit + 1} versions consume: waiting cannot keep the bound; use "
            f"max_staleness={math.ceil(schedule.staleness_bound)}, or on_straggler='reissue'"
        )
    by_order = schedule.most_versions_by_order
    if mode == "wait" and schedule.order == "windowed" and by_order is not None and by_order > limit:
        raise ConfigError(
            f"schedule.order_window is {schedule.order_window}: so many groups may pass a slow one that it is trained "
            f"on {by_order} versions late, more than max_staleness={limit}; use at most "
            f"{schedule.reach_within(limit)}, or leave it out"
        )
    if mode != "wait" and by_order is not None and by_order <= limit:
        raise ConfigError(
            f"schedule.on_straggler={mode!r} has no effect: with order={schedule.order!r} and staleness="
            f"{schedule.staleness_bound:g} no group exceeds max_staleness={limit}; remove it, or use order='completion'"
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
    if config.rollout.colocated and config.trainer.nodes > 1:
        raise ConfigError(
            f"rollout.colocated is true and trainer.nodes is {config.trainer.nodes}: turns are for one machine; set "
            f"trainer.nodes = 1"
        )
    longest = config.longest_request
    if 0 < vllm.max_model_len < longest:
        raise ConfigError(
            f"rollout.vllm.max_model_len is {vllm.max_model_len}, but one trajectory may have {longest} tokens "
            f"(data.max_prompt_tokens + {_written_limit(config, 'evaluation')}); raise it, or leave it out"
        )


def _check_reward(reward: Reward) -> None:
    if not reward.parts:
        return
    plain = Reward()
    if reward.function != plain.function or reward.options:
        raise ConfigError("reward.function and reward.options are not read when reward.parts is set; make them a part")
    names = [part.name for part in reward.parts]
    for place, (name, part) in enumerate(zip(names, reward.parts, strict=True)):
        if name in ("", "reward", "score", "correct", "answer") or name in names[:place]:
            raise ConfigError(
                f"reward.parts[{place}].name is {name!r}: it names a metric and is {'taken' if name else 'empty'}; "
                f"choose another name"
            )
        if not math.isfinite(part.weight):
            raise ConfigError(f"reward.parts[{place}].weight is {part.weight}: expected a finite number")


def _check_reward_names(config: Config) -> None:
    """Check metric names against ``reward.parts``. Metrics of a single ``reward.function`` are not known here."""
    weights, metric = config.algorithm.reward_weights, config.schedule.filter_metric
    if "score" in weights:
        raise ConfigError("algorithm.reward_weights names 'score': use 'reward', the reward of the verdict")
    if not config.reward.parts:
        return
    metrics = ["correct", *(part.name for part in config.reward.parts)]
    for key, names, known in (
        ("schedule.filter_metric", [metric] if metric else [], metrics),
        ("algorithm.reward_weights", weights, ["reward", *metrics]),
    ):
        for name in names:
            if name.partition(".")[0] not in known:
                raise ConfigError(f"{key} names {name!r}, which no reward.parts returns: {hint(name, known)}")


def _check_trainer(config: Config) -> None:
    trainer = config.trainer
    if trainer.min_lr_ratio and trainer.lr_schedule == "constant":
        raise ConfigError("trainer.min_lr_ratio is only read with lr_schedule='cosine'; remove it")
    if trainer.min_lr_ratio > 1:
        raise ConfigError(
            f"trainer.min_lr_ratio is {trainer.min_lr_ratio:g}: the cosine would end above trainer.lr; use at most 1"
        )
    if trainer.mini_batches > config.schedule.groups_per_step:
        raise ConfigError(
            f"trainer.mini_batches is {trainer.mini_batches}, but a step has {config.schedule.groups_per_step} groups "
            f"(schedule.groups_per_step), which are never split; use at most as many"
        )
    _check_machines(trainer)
    _check_offload(config)
    if not trainer.lora.rank and trainer.lora != Lora():
        raise ConfigError(
            "trainer.lora.alpha, targets and path are only read with trainer.lora.rank above 0; set it, or remove them"
        )
    advantage = config.algorithm.advantage
    # A custom estimator may need a critic: that is known when it is loaded.
    if config.critic != Critic() and not is_path(advantage) and "values" not in estimator_entry(advantage).needs:
        readers = " or ".join(repr(name) for name, entry in ADVANTAGES.items() if "values" in entry.needs)
        raise ConfigError(f"[critic] is only read with algorithm.advantage={readers}, not {advantage!r}; remove it")
    if config.run.epochs is None and trainer.warmup_steps > config.run.steps:
        raise ConfigError(
            f"trainer.warmup_steps is {trainer.warmup_steps}, longer than the run ({config.run.steps} steps); add "
            f"--set trainer.warmup_steps={config.run.steps // 4}, or make the run longer"
        )
    every, publish = config.checkpoint.every_steps, config.schedule.steps_per_publish
    if every % publish:
        raise ConfigError(
            f"checkpoint.every_steps is {every}: a checkpoint holds the weights of one policy version, and a version "
            f"is published every {publish} steps (schedule.steps_per_publish); use a multiple of it"
        )
    longest = config.data.max_prompt_tokens + config.longest_written("train")
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


def _check_offload(config: Config) -> None:
    trainer, offload = config.trainer, config.trainer.offload
    if twice := [name for name in offload if offload.count(name) > 1]:
        raise ConfigError(f"trainer.offload names {twice[0]!r} twice; remove one")
    if "parameters" in offload and "moments" in offload:
        raise ConfigError(
            "trainer.offload names 'moments', which 'parameters' keeps on the host too, because the optimizer steps "
            "there; remove 'moments'"
        )
    if trainer.expert_parallel and (away := [name for name in offload if name in ("parameters", "reference")]):
        raise ConfigError(
            f"trainer.offload names {away[0]!r}, but with trainer.expert_parallel experts compute where they are "
            f"stored; remove one of them"
        )
    if "reference" in offload and not config.algorithm.kl_coef:
        raise ConfigError(
            "trainer.offload names 'reference', but without algorithm.kl_coef there is no reference model; remove it"
        )
    if "activations" in offload and not trainer.gradient_checkpointing:
        raise ConfigError(
            "trainer.offload names 'activations', the inputs of layers that trainer.gradient_checkpointing recomputes; "
            "set gradient_checkpointing to true or 'selective'"
        )


def _check_machines(trainer: Trainer) -> None:
    if trainer.min_nodes > trainer.nodes:
        raise ConfigError(
            f"trainer.min_nodes is {trainer.min_nodes}, more than trainer.nodes = {trainer.nodes}; use at most as many"
        )
    if trainer.min_nodes in (0, trainer.nodes) and trainer.wait_s != Trainer().wait_s:
        raise ConfigError(
            "trainer.wait_s is only read with trainer.min_nodes between 1 and trainer.nodes - 1: otherwise the trainer "
            "waits for all of its machines; remove it, or set min_nodes"
        )

    fewest = trainer.ranks * (trainer.min_nodes or trainer.nodes)
    if trainer.shard_size and (trainer.ranks * trainer.nodes % trainer.shard_size or fewest % trainer.shard_size):
        raise ConfigError(
            f"trainer.shard_size is {trainer.shard_size}, which does not divide the trainer's {fewest} ranks; use a "
            f"divisor of trainer.ranks = {trainer.ranks}, or 0 to shard over all ranks"
        )
    if trainer.ranks % trainer.sequence_parallel:
        raise ConfigError(
            f"trainer.sequence_parallel is {trainer.sequence_parallel}, which does not divide the {trainer.ranks} "
            f"ranks of a machine, which share rows with each other alone; use a divisor of trainer.ranks"
        )
    if trainer.expert_parallel:
        _check_expert_parallel(trainer, fewest)


def _check_expert_parallel(trainer: Trainer, fewest: int) -> None:
    most = trainer.ranks * trainer.nodes
    if (trainer.shard_size or most) == 1:
        raise ConfigError(
            "trainer.expert_parallel spreads experts over the ranks that share one copy of the model, but each rank "
            "has its own; raise trainer.ranks or trainer.shard_size, or remove it"
        )
    if fewest < most and not trainer.shard_size:
        raise ConfigError(
            f"trainer.expert_parallel with trainer.min_nodes = {trainer.min_nodes} needs as many ranks for each copy "
            f"of the model with fewer machines; set trainer.shard_size, for example to {trainer.ranks} (trainer.ranks)"
        )


def _check_best(config: Config) -> None:
    checkpoint, evaluation = config.checkpoint, config.evaluation
    if not checkpoint.keep_best:
        if checkpoint.best_metric != Checkpoint().best_metric:
            raise ConfigError("checkpoint.best_metric is only read with keep_best=true; remove it")
        return
    if not config.data.held_out:
        raise ConfigError("checkpoint.keep_best compares checkpoints on data.held_out, which is empty; name a file")
    if checkpoint.keep < 2:
        raise ConfigError(
            "checkpoint.keep is 1: with keep_best a checkpoint would be deleted before its evaluation; use at least 2"
        )
    evaluated_every = evaluation.every_versions * config.schedule.steps_per_publish
    if not (evaluated_every and checkpoint.every_steps) or evaluated_every % checkpoint.every_steps:
        raise ConfigError(
            f"checkpoint.keep_best needs a checkpoint of every version that is evaluated, but checkpoints are every "
            f"{checkpoint.every_steps} steps and evaluations every {evaluated_every} (evaluation.every_versions); "
            f"use the same number for both"
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
    if config.rollout.engine == "transformers":
        raise ConfigError(
            "weights.staging='bucket' replaces weights while decoding is paused, which rollout.engine='transformers' "
            "cannot do; use staging='whole'"
        )
    if config.data.held_out:
        raise ConfigError(
            "weights.staging='bucket' replaces the weights of every rollout at each publish, but evaluation on "
            "data.held_out pins the version of one rollout; leave data.held_out empty, or use staging='whole'"
        )


def _check_heartbeats(broker: Broker) -> None:
    if broker.notice_s < 3 * broker.beat_s:
        raise ConfigError(f"broker.notice_s is {broker.notice_s:g} s, less than three beats of {broker.beat_s:g} s")
    if broker.node_ttl_s < broker.notice_s:
        raise ConfigError(
            f"broker.node_ttl_s is {broker.node_ttl_s:g} s, less than broker.notice_s = {broker.notice_s:g} s: a node "
            f"would be declared lost before it is suspended"
        )
