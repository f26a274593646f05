"""
Lookup of an option's row by its full key, or by the end of a key, as people type it.

    of("data.max_prompt_length")                  the row of that key
    of("actor_rollout_ref.actor.profiler.tool")   the row "actor_rollout_ref.actor.profiler.*"
    like("ppo_mini_batch_size")                   the first row whose key ends with these words
"""

from collections.abc import Iterator, Mapping

from asyncrl.verl.option import Option
from asyncrl.verl.options.sampling import DATA, REWARD, ROLLOUT
from asyncrl.verl.options.training import ACTOR, ALGORITHM, MODEL, SCHEDULE, SURROUNDINGS

TABLE: Mapping[str, Option] = {**SCHEDULE, **DATA, **ALGORITHM, **ROLLOUT, **ACTOR, **MODEL, **REWARD, **SURROUNDINGS}
"""All rows by key. The tables that a shortened key means most often are first."""
RENAMED: Mapping[str, str] = {
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_manager": "reward.reward_manager.name",
    "reward.reward_manager": "reward.reward_manager.name",
}
"""verl's present key by its former one."""
MOVED: Mapping[str, str] = {
    "custom_reward_function": "reward.custom_reward_function",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model": "reward.reward_model",
    "sandbox_fusion": "reward.sandbox_fusion",
}
"""verl's present section by its former one; longer sections are first, because a part of them may be one too."""


def present(key: str) -> str:
    """Translate a former key to the present one; return any other key as it is."""
    if key in RENAMED:
        return RENAMED[key]
    section = next((section for section in MOVED if key == section or key.startswith(f"{section}.")), "")
    return MOVED[section] + key.removeprefix(section) if section else key


def of(key: str) -> Option | None:
    """Row of a full, present key; None if no table has it."""
    if key in TABLE:
        return TABLE[key]
    parts = key.split(".")
    patterns = (".".join([*parts[:length], "*"]) for length in range(len(parts) - 1, 0, -1))
    return next((TABLE[pattern] for pattern in patterns if pattern in TABLE), None)


def like(name: str) -> Option | None:
    """
    Row whose key ends with the longest possible part of ``name``; None if no key does.

    A single word without an underscore is compared only if it is one of `PLAIN_WORDS`: ``n`` or ``path`` may mean
    anything.
    """
    parts = name.split(".")
    found = (ENDS.get(".".join(parts[start:end])) for end in range(len(parts), 0, -1) for start in range(end))
    return of(present(name)) or next((row for row in found if row), None)


PLAIN_WORDS = frozenset({"logger", "nnodes"})
"""Single words without an underscore that name an option by themselves."""


def _ends() -> dict[str, Option]:
    ends: dict[str, Option] = {}
    for key, row in [*TABLE.items(), *((former, TABLE[current]) for former, current in RENAMED.items())]:
        for end in _ends_of(key.removesuffix(".*")):
            ends.setdefault(end, row)
    return ends


def _ends_of(key: str) -> Iterator[str]:
    parts = key.split(".")
    for start in range(len(parts)):
        end = ".".join(parts[start:])
        if "." in end or "_" in end or end in PLAIN_WORDS:
            yield end


ENDS: Mapping[str, Option] = _ends()
"""First row by each end that its key may be shortened to."""
