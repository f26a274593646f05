"""Parameters of a schedule, drawn from its seed: the run, its nodes, the network and the faults."""

from random import Random
from typing import Any

from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.messages.words import WeightsVia
from asyncrl.runtime.process import PLACES, TURN_PLACES
from tests.simulation.wire import Weather

ADDRESS = "ipc://broker"
ROWS = 5
"""Dataset rows; fewer than a run needs, so that there are several epochs."""
MAX_TURNS = 8
CALM, BREEZE, STORM = Weather(), Weather(0.005, 0.01, 0.01, 0.01), Weather(0.03, 0.06, 0.05, 0.05)


class Pace(Struct, frozen=True, kw_only=True):
    """Seconds that work takes. Schedules drawn from a seed have the default, which is quick."""

    train_s: float = 0.0
    """A step."""
    transfer_s: float = 0.01
    """Mean of a transfer to one rollout."""
    sync_s: float = 0.0
    """A sync of a spool's disk."""
    verdict_s: float = 0.02
    """Mean of a verdict."""
    hung: float = 0.0
    """Share of verdicts that never come."""
    slow_rollout: float = 1.0
    """Factor on the seconds of a token of ``rollout-1``."""
    tail: float = 1.0
    """Factor on the seconds of a token of every 16th completion."""
    refused: float = 0.0
    """Share of prompts that no engine accepts."""
    memory_stall: float = 0.0
    """Share of the time in which every machine waits for memory."""
    cores_busy: float = 0.0
    """Share of every machine's cores that are busy."""
    num_held_out: int = 1


class Plan(Struct, frozen=True, kw_only=True):
    """Parameters of one schedule."""

    seed: int
    config: Config
    num_rollouts: int
    weights: list[WeightsVia]
    """By rollout."""
    num_rewards: int
    weather: Weather
    faults_s: float
    """Faults stop after these seconds."""
    fault_every_s: float
    """Mean seconds between faults."""
    failure: float
    """Share of generations and verifier calls that fail."""
    damage: float
    """Share of trajectories that are damaged after their rollout has checked them."""
    blindness: float
    """Share of damaged trajectories that reward nodes do not notice."""
    token_s: float
    """Mean seconds to decode a token."""
    lost_environments: float
    """Share of stored episodes whose environment cannot be brought back."""
    pace: Pace = Pace()
    failpoint: tuple[str, int] | None
    """Place at whose n-th pass the process dies."""

    @property
    def is_episodic(self) -> bool:
        return self.config.environment.is_set

    @property
    def is_grouped(self) -> bool:
        """True if trajectories of a group are judged together."""
        return bool(self.config.reward.group)


def plan_of(seed: int) -> Plan:
    dice = Random(f"plan {seed}")
    colocated = Random(f"colocated {seed}").random() < 0.25
    grouped = Random(f"grouped {seed}").random() < 0.3
    return Plan(
        seed=seed,
        config=_config(dice, seed, colocated=colocated, episodic=(episodic := _is_episodic(seed)), grouped=grouped),
        num_rollouts=dice.choice([1, 2, 2, 3]),
        weights=Random(f"weights {seed}").choices(["collective", "spool"], [2, 1], k=3),
        num_rewards=dice.choice([1, 1, 2]),
        weather=dice.choice([CALM, BREEZE, BREEZE, STORM]),
        faults_s=dice.choice([0.0, 4.0, 6.0, 8.0]),
        fault_every_s=dice.choice([0.3, 0.6, 1.2]),
        failure=dice.choice([0.0, 0.0, 0.05]),
        token_s=_token_s(dice, seed, episodic=episodic),
        lost_environments=Random(f"environments {seed}").choice([0.0, 0.5, 1.0, 1.0]) if episodic else 0.0,
        damage=(damage := Random(f"damage {seed}").choice([0.0, 0.0, 0.05, 0.15])),
        blindness=0.4 if damage else 0.0,
        failpoint=(dice.choice(PLACES + colocated * TURN_PLACES), dice.randint(1, 4)) if dice.random() < 0.5 else None,
    )


def _is_episodic(seed: int) -> bool:
    return Random(f"episodes {seed}").random() < 0.4


def _token_s(dice: Random, seed: int, *, episodic: bool) -> float:
    """Seconds to decode a token; more for episodes, so that many a turn is on disk before its rollout dies."""
    token_s = dice.choice([0.01, 0.1, 0.4])
    return max(token_s, Random(f"turns {seed}").choice([0.2, 0.4, 0.8])) if episodic else token_s


def _config(dice: Random, seed: int, *, colocated: bool, episodic: bool, grouped: bool) -> Config:
    publish = dice.choice([1, 1, 2])
    raw: dict[str, Any] = {
        "run": {"steps": dice.choice([3, 4]), "seed": seed},
        "model": {"path": "model"},
        "data": {"train": "train", "held_out": dice.choice(["", "held_out"])},
        "schedule": _schedule(dice, publish) | ({"group_size": 3} if grouped else {}),
        "reward": {"group": "sim:tournament"} if grouped else {},
        "environment": {"function": "sim:Environment", "max_turns": MAX_TURNS, "max_tokens": 64} if episodic else {},
        "sampling": {"max_tokens": 64} if episodic else {},
        "evaluation": {"every_versions": dice.choice([0, 1])},
        "checkpoint": {"every_steps": publish * dice.choice([0, 1, 1, 2])},
        "rollout": {
            "colocated": colocated,
            "slots": dice.choice([1, 2]),
            "progress_every_s": dice.choice([0.0, 0.1]),
            "drain_s": 2.0,
        },
        "weights": {"deadline_s": 1.0},
        "broker": {
            "bind": ADDRESS,
            "beat_s": 0.5,
            "node_ttl_s": 2.5,
            "samples": False,
            "segment_bytes": dice.choice([500, 100_000]),
        },
    }
    if raw["data"]["held_out"] and raw["evaluation"]["every_versions"]:
        raw["run"]["stop_when"] = Random(f"goal {seed}").choice(["", "", "accuracy >= 0", "accuracy > .5"])
    return decode(raw)


def _schedule(dice: Random, publish: int) -> dict[str, Any]:
    staleness, order = dice.choice([0, 1, 1, 2]), dice.choice(["fifo", "windowed", "completion"])
    return {
        "groups_per_step": dice.choice([1, 2]),
        "group_size": 2,
        "steps_per_publish": publish,
        "staleness": float(staleness),
        "partial_rollout": dice.random() < 0.7,
        "max_attempts": dice.choice([2, 3]),
        "lease_s": dice.choice([1.2, 4.0]),
        "filter": dice.choice(["none", "none", "none", "zero_variance"]),
        **_staleness_rules(dice, staleness, order),
    }


def _staleness_rules(dice: Random, staleness: int, order: str) -> dict[str, Any]:
    """Valid combinations of ``order``, ``max_staleness`` and ``on_straggler``."""
    mode, bound = dice.choice(["", "", "wait", "reissue", "train", "mask"]), dice.randint(0, 2)
    if not mode:
        return {"order": order}
    if mode == "wait":
        bound = max(bound, staleness)
    elif bound >= staleness:
        order = "completion"
    return {"order": order, "max_staleness": bound, "on_straggler": mode}


def tokens_of(seed: int) -> list[int]:
    """[1 .. 5] tokens that any engine writes for a request with this seed."""
    return [seed & 0x7FFFFFFF, *range(1, 1 + seed % 5)]
