"""
The row of an option by its key, by a former key, or by the end of one.

    option_for("data.max_prompt_length")                  the row of that key
    option_for("actor_rollout_ref.actor.profiler.tool")   the row "actor_rollout_ref.actor.profiler.*"
    present("reward_model.reward_manager")                "reward.reward_manager.name"
    like("ppo_mini_batch_size")                           the first row whose key ends with these words
"""

from collections.abc import Mapping

from asyncrl.tools.verl.options import TABLE
from asyncrl.tools.verl.overrides import Option

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
    "reward_model.overlong_buffer": "reward.overlong_buffer",
    "reward_model.launch_reward_fn_async": "reward.launch_reward_fn_async",
    "reward_model.use_reward_loop": "reward.use_reward_loop",
    "reward_model.sandbox_fusion": "reward.sandbox_fusion",
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


def option_for(key: str) -> Option | None:
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
    return option_for(present(name)) or next((row for row in found if row), None)


PLAIN_WORDS = frozenset({"logger", "nnodes"})
"""Single words without an underscore that name an option by themselves."""


def _ends() -> dict[str, Option]:
    ends: dict[str, Option] = {}
    for key, row in [*TABLE.items(), *((former, TABLE[current]) for former, current in RENAMED.items())]:
        parts = key.removesuffix(".*").split(".")
        for end in (".".join(parts[start:]) for start in range(len(parts))):
            if "." in end or "_" in end or end in PLAIN_WORDS:
                ends.setdefault(end, row)
    return ends


ENDS: Mapping[str, Option] = _ends()
"""First row by each end that its key may be shortened to."""
