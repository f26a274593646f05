"""
Checks of ``[environment]`` with other sections, and of what a trainer replays.

    no [environment]                        rollout.episodes is not read
    [models.NAME]                           code must be there that may ask them, and wait for them
    reward.function = "episode"             something must give a reward: tools never do
    environment.seats = 2                   each seat has its own reward, which only the environment can give
"""

from asyncrl.config.config import Config
from asyncrl.config.correction import resolved
from asyncrl.errors import ConfigError

EPISODE = "episode"
"""Reward function that takes the environment's word."""


def check_environment(config: Config) -> None:
    """Raise `ConfigError` for an environment that cannot work, or settings that nothing reads."""
    config.environment.check()
    if config.environment.is_set:
        _check_lengths(config)
        if config.environment.history == "as_template" and config.data.truncation != "error":
            raise ConfigError(
                f"environment.history='as_template' renders whole conversations again, which data.truncation="
                f"{config.data.truncation!r} cannot cut; use 'error', or history='as_sampled'"
            )
    elif config.rollout.episodes:
        raise ConfigError("rollout.episodes is only read with an [environment]; remove it, or set one")
    _check_reward(config)
    _check_seats(config)
    _check_models(config)


def environment_advice(config: Config) -> list[str]:
    """Sentences of advice on episodes."""
    rollout = config.rollout
    if not config.environment.is_set or not 0 < rollout.episodes < rollout.slots:
        return []
    return [
        f"rollout.episodes is {rollout.episodes}, below rollout.slots = {rollout.slots}: slots stay empty, and more so "
        f"while environments think; 0 takes twice the slots"
    ]


def _check_lengths(config: Config) -> None:
    most = config.environment.max_tokens
    for key, length in (
        ("sampling.max_tokens", config.sampling.max_tokens),
        ("evaluation.max_tokens", config.evaluation.max_tokens),
    ):
        if length > most:
            raise ConfigError(
                f"{key} is {length} for one turn, more than environment.max_tokens = {most} for a whole episode; "
                f"lower it, or raise environment.max_tokens"
            )


def _check_reward(config: Config) -> None:
    reward = config.reward
    functions = {f"reward.parts[{place}].function": part.function for place, part in enumerate(reward.parts)} or {
        "reward.function": reward.function
    }
    for key, function in functions.items():
        if function != EPISODE:
            continue
        if not config.environment.is_set:
            raise ConfigError(f"{key}='episode' takes the word of an [environment], and there is none; set one")
        if config.environment.tools:
            raise ConfigError(
                f"{key}='episode' takes the environment's word, but environment.tools give no reward; name a function "
                f"that judges the last turn, or use environment.function"
            )


def _check_seats(config: Config) -> None:
    if (seats := config.environment.seats) == 1:
        return
    if config.reward.parts or config.reward.function != EPISODE:
        given = "reward.parts" if config.reward.parts else f"reward.function={config.reward.function!r}"
        raise ConfigError(
            f"environment.seats is {seats}, but {given} judges an episode with one number, which is no seat's own; use "
            f"reward.function='episode', and let the environment reward each seat"
        )
    if config.greedy_per_group:
        raise ConfigError(
            f"environment.seats is {seats}, but algorithm.advantage={config.algorithm.advantage!r} compares with the "
            f"one reward of a greedy episode; use an estimator that compares the episodes of a group"
        )


def _check_models(config: Config) -> None:
    """Let a request reach its own deadline before that of the code which asks: its message names the model."""
    for name, model in config.models.items():
        model.check(name)
        if not (config.rollout_models or config.reward_models):
            raise ConfigError(
                f"models.{name}: an [environment] or a reward function of your own asks models, and there is neither; "
                f"remove it, or set environment.function, tools or command, or reward.function = 'file.py:name'"
            )
        for key, limit_s, is_limited in (
            (
                "environment.call_s",
                config.environment.call_s,
                config.environment.is_set and not config.environment.command,
            ),
            ("reward.timeout_s", config.reward.timeout_s, config.reward.is_custom),
        ):
            if is_limited and limit_s <= model.deadline_s:
                raise ConfigError(
                    f"{key} is {limit_s:g} s, but one request to models.{name} may take deadline_s = "
                    f"{model.deadline_s:g} s; raise {key} above that, or lower deadline_s"
                )


# ── replay ────────────────────────────────────────────────────────────────────────────────────
# Checks of the replay of sampling masks and of routes to experts.
#
#     top_p < 1 or top_k > 0    sampling.replay_mask    any                     log-probs of one distribution
#                               without, decoupled      ratios of the trainer alone; importance weights begin below 1
#                               without, synchronous    every ratio begins below 1
#                               without, asynchronous   refused: age and truncation cannot be told apart
#     mixture of experts        rollout.replay_routes   any                     tokens take the experts they took
#                               with an [environment]   refused: nobody records the experts of several turns
#                               without, asynchronous   advised against


def check_replay(config: Config) -> None:
    """Raise `ConfigError` if a record would be useless or impossible, or if the correction needs missing masks."""
    _check_device(config)
    if config.rollout.replay_routes and config.environment.is_set:
        raise ConfigError(
            "rollout.replay_routes with an [environment]: routes are recorded for one completion after its prompt, not "
            "for the turns of an episode; remove one of them"
        )
    if config.sampling.replay_mask:
        if not config.sampling.sampling().is_truncated:
            raise ConfigError("sampling.replay_mask is only read with top_p below 1 or top_k above 0; remove it")
        if config.rollout.entry.unbounded_masks:
            _check_bounded(config)
    elif (cut := _truncation(config)) and config.schedule.staleness_bound and _mode(config) == "bypass":
        raise ConfigError(
            f"{cut} with schedule.staleness = {config.schedule.staleness_bound:g}: without the ids that were left at "
            f"each token, the ratio in the loss compares the whole vocabulary with a part of it; set "
            f"sampling.replay_mask = true, or algorithm.correction.mode = 'decoupled'"
        )


def replay_advice(config: Config) -> list[str]:
    """Sentences of advice on truncated sampling without a mask, which is allowed but biases the ratios."""
    if config.sampling.replay_mask or not (cut := _truncation(config)):
        return []
    which = "importance weights" if _mode(config) == "decoupled" else "ratios"
    return [
        f"{cut}: the sampler renormalises over the ids that are left, and the trainer over the whole vocabulary, so "
        f"{which} begin below 1; sampling.replay_mask = true has both renormalise over the same ids"
    ]


def check_experts(config: Config, num_experts: int) -> list[str]:
    """
    Sentences of advice on stale routes that are not replayed.

    Raises `ConfigError` if routes are to be replayed but the model has no experts, for which ``num_experts`` is 0.
    """
    model, is_replayed = f"model.path={config.model.path}", config.rollout.replay_routes
    if is_replayed and not num_experts:
        raise ConfigError(
            f"rollout.replay_routes is only read with a mixture of experts, and {model} is none; remove it"
        )
    if is_replayed or not num_experts or not config.schedule.staleness_bound:
        return []
    return [
        f"{model} is a mixture of {num_experts} experts and schedule.staleness is "
        f"{config.schedule.staleness_bound:g}: where experts are nearly tied, sampler and trainer choose different "
        f"ones, and log-probs jump as if the policy had moved; rollout.replay_routes = true sends each token to the "
        f"experts that it took"
    ]


def _check_device(config: Config) -> None:
    wanted = {
        "sampling.replay_mask": config.sampling.replay_mask,
        "rollout.replay_routes": config.rollout.replay_routes,
    }
    rollout, entry = config.rollout, config.rollout.entry
    for key, is_wanted in wanted.items():
        if is_wanted and rollout.device not in ("auto", *entry.records_on):
            raise ConfigError(
                f"{key} with rollout.engine={rollout.engine!r} needs {entry.records_with}, not on rollout.device="
                f"{rollout.device!r}; use rollout.engine='transformers', which records on any device"
            )


def _check_bounded(config: Config) -> None:
    """Raise `ConfigError` unless top-k is set, by which some engines bound the size of a mask."""
    evaluation, bounds = config.evaluation, {"sampling.top_k": config.sampling.top_k}
    if config.data.held_out_files and evaluation.temperature:
        bounds["evaluation.top_k"] = evaluation.top_k
    for key, top_k in bounds.items():
        if not top_k:
            raise ConfigError(
                f"sampling.replay_mask with rollout.engine={config.rollout.engine!r} needs {key} above 0: "
                f"{config.rollout.entry.unbounded_masks}; set it, for example to 100"
            )


def _truncation(config: Config) -> str:
    """Describe the setting that truncates sampling, with its value; empty if none does."""
    sampling = config.sampling
    if sampling.top_p < 1:
        return f"sampling.top_p is {sampling.top_p:g}"
    return f"sampling.top_k is {sampling.top_k}" if sampling.top_k else ""


def _mode(config: Config) -> str:
    return resolved(config.algorithm.correction).mode
