"""What is fine alone and wrong together: the contradictions of a configuration, each in one sentence."""

import math

import msgspec

from asyncrl.config.algorithm import check_algorithm
from asyncrl.config.presets import preset, resolved
from asyncrl.config.sections import (
    Algorithm,
    Broker,
    Checkpoint,
    Config,
    Correction,
    Critic,
    Evaluation,
    Lora,
    Reward,
    Schedule,
    Vllm,
    leaves,
)
from asyncrl.config.thresholds import thresholds
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path

WITHOUT_RATIO = ("reinforce", "gpg", "dro")
"""Losses that are not weighted by the ratio to the policy that sampled."""

TEMPLATE_ARGUMENTS = {
    "messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize",
    "return_dict", "return_tensors", "return_assistant_tokens_mask", "padding", "truncation", "max_length",
}  # fmt: skip
"""What a chat template is called with in any case, or would give something else than token ids."""


def check(config: Config) -> None:
    """
    Refuse values that are fine alone and wrong together.

    Raises:
        ConfigError: The first contradiction found.
    """
    _refuse_infinite(config)
    _check_data(config)
    _check_schedule(config)
    _check_rollout(config)
    _check_reward(config.reward)
    check_algorithm(config)
    _check_correction(config.algorithm)
    _check_reward_names(config)
    _check_trainer(config)
    _check_evaluation(config.evaluation)
    _check_best(config)
    _check_weights(config)
    _check_addresses(config.broker)


def _refuse_infinite(config: Config) -> None:
    for key, value in leaves(msgspec.to_builtins(config)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}: expected a finite number")


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
            f"data.filter_overlong_prompts never happens: with truncation={data.truncation!r} no prompt is too long; "
            f"use one of them"
        )
    for name in sorted(TEMPLATE_ARGUMENTS & data.chat_template_kwargs.keys()):
        raise ConfigError(f"data.chat_template_kwargs.{name} is set by asyncrl itself; remove it")
    if config.model.scratch.recipe and (len(files) > 1 or len(data.held_out_files) > 1):
        raise ConfigError("model.scratch makes or reads one file each of data.train and data.held_out; name only one")


def _check_schedule(config: Config) -> None:
    schedule = config.schedule
    batch = schedule.groups_per_step * schedule.steps_per_publish
    if schedule.window < batch:
        raise ConfigError(
            f"schedule: the window holds {schedule.window} groups but one publish consumes {batch}; raise staleness"
        )
    _check_max_lag(schedule)
    _check_filter(schedule)
    if config.sampling.temperature == 0:
        raise ConfigError(
            "sampling.temperature is 0: greedy trajectories of a group are all equal; use a value above 0"
        )


def _check_max_lag(schedule: Schedule) -> None:
    lag, mode = schedule.max_staleness, schedule.on_straggler
    if lag is None:
        if mode != "wait":
            raise ConfigError(f"schedule.on_straggler={mode!r} is only read with schedule.max_staleness; set it")
        return
    # All that may be open at one version has its last step before version + lag + 1: see max_staleness.py.
    is_kept = schedule.window <= (lag + 1) * schedule.groups_per_step * schedule.steps_per_publish
    if mode == "wait" and not is_kept:
        raise ConfigError(
            f"schedule.max_staleness is {lag}, but staleness={schedule.staleness:g} admits {schedule.window} groups "
            f"at one "
            f"version, more than {lag + 1} consume: waiting cannot keep the bound; use max_staleness="
            f"{math.ceil(schedule.staleness)}, or on_straggler='reissue'"
        )
    if mode != "wait" and is_kept and schedule.order == "fifo":
        raise ConfigError(
            f"schedule.on_straggler={mode!r} never happens: with order='fifo' and staleness={schedule.staleness:g} no "
            f"group gets older than max_staleness={lag}; remove it, or use order='completion'"
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
    longest = config.longest_request
    if 0 < vllm.max_model_len < longest:
        raise ConfigError(
            f"rollout.vllm.max_model_len is {vllm.max_model_len}, but one trajectory may have {longest} tokens "
            f"(data.max_prompt_tokens + sampling.max_tokens, or evaluation's); raise it, or leave it out"
        )


def _check_reward(reward: Reward) -> None:
    if not reward.parts:
        return
    plain = Reward()
    if reward.function != plain.function or reward.options:
        raise ConfigError("reward.function and reward.options are not read beside reward.parts; make them a part")
    names = [part.name for part in reward.parts]
    for place, (name, part) in enumerate(zip(names, reward.parts, strict=True)):
        if name in ("", "score", "correct", "answer") or name in names[:place]:
            raise ConfigError(
                f"reward.parts[{place}].name is {name!r}: it names a metric, and is {'taken' if name else 'empty'}"
            )
        if not math.isfinite(part.weight):
            raise ConfigError(f"reward.parts[{place}].weight is {part.weight}: expected a finite number")


def _check_reward_names(config: Config) -> None:
    """Metrics of verdicts that the algorithm reads by name; those of a person's function are not known."""
    if not (parts := config.reward.parts):
        return
    known = ["score", "correct", *(part.name for part in parts)]
    asked = {"schedule.filter_metric": [config.schedule.filter_metric] if config.schedule.filter_metric else []}
    asked["algorithm.reward_weights"] = list(config.algorithm.reward_weights)
    for key, names in asked.items():
        for name in names:
            if name.partition(".")[0] not in known:
                raise ConfigError(f"{key} names {name!r}, which no reward.parts gives: {hint(name, known)}")


def _check_correction(algorithm: Algorithm) -> None:
    name, correction = algorithm.correction.preset, resolved(algorithm.correction)
    if name and (loss := preset(name).loss) not in ("", algorithm.loss):
        raise ConfigError(
            f"algorithm.correction.preset={name!r} goes with algorithm.loss={loss!r}, not {algorithm.loss!r}; set it"
        )
    _check_thresholds(correction)
    if correction.mode == "decoupled":
        return
    # A function of one's own may do without the ratio: it is not for us to say.
    if correction.importance != "none" and algorithm.loss not in WITHOUT_RATIO and ":" not in algorithm.loss:
        raise ConfigError(
            f"algorithm.correction.importance={correction.importance!r} would weigh the sampler's tokens twice: with "
            f"mode='bypass' the ratio in loss={algorithm.loss!r} does it already; use mode='decoupled', or "
            f"loss='reinforce'"
        )
    if correction.importance_normalize:
        raise ConfigError(
            "algorithm.correction.importance_normalize needs the mean over a step of weights that, with mode='bypass', "
            "change within it; use mode='decoupled'"
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
            f"(schedule.groups_per_step), which stay whole; use at most as many"
        )
    if not trainer.lora.rank and trainer.lora != Lora():
        raise ConfigError("trainer.lora.alpha and targets are only read with trainer.lora.rank above 0; remove them")
    # A function of one's own may ask for a critic: that is known when it is loaded.
    if config.critic != Critic() and config.algorithm.advantage != "gae" and not is_path(config.algorithm.advantage):
        raise ConfigError(
            f"[critic] is only read with algorithm.advantage='gae', not {config.algorithm.advantage!r}; remove it"
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


def _check_evaluation(evaluation: Evaluation) -> None:
    if evaluation.temperature > 0:
        return
    if evaluation.samples > 1:
        raise ConfigError(
            f"evaluation.samples is {evaluation.samples}, but evaluation.temperature is 0: greedy completions of a "
            f"prompt are all equal; use a temperature above 0, or one sample"
        )
    for key in ("top_p", "top_k"):
        if getattr(evaluation, key) != getattr(Evaluation(), key):
            raise ConfigError(f"evaluation.{key} is only read with a temperature above 0; remove it")


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
            "checkpoint.keep is 1: with keep_best a checkpoint would go before its evaluation begins; use at least 2"
        )
    measured_every = evaluation.every_versions * config.schedule.steps_per_publish
    if not (measured_every and checkpoint.every_steps) or measured_every % checkpoint.every_steps:
        raise ConfigError(
            f"checkpoint.keep_best needs a checkpoint of every version that is evaluated, but there is one every "
            f"{checkpoint.every_steps} steps, and an evaluation every {measured_every} (evaluation.every_versions); "
            f"use the same number for both"
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
