"""Alarms: when they warn, and what they advise. Incidents: which are kept, and their sentences."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pytest

from asyncrl.broker.metrics.incidents import (
    KEPT,
    MAX_CHARS,
    MIN_TOKENS,
    SAME_S,
    STEPS,
    DriftAlarms,
    GapAlarm,
    IncidentBook,
    advice,
)
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.messages.supervisor import Incident
from asyncrl.records.events import EventKind


def a_config(warn: float = 0.5, **sections: Any) -> Config:
    plain = {"model": {"path": "m"}, "data": {"train": "t"}, "algorithm": {"ess_warn": warn}}
    return decode(plain | sections)


def lines(*sizes: float | None) -> list[dict[str, Any]]:
    return [{"step": step, "ess": size} for step, size in enumerate(sizes)]


def said_of(
    kind: EventKind, steps: Iterable[dict[str, Any]], config: Config, earlier: Iterable[dict[str, Any]] = ()
) -> Any:
    """Fields of the event of this kind at each step; empty where there is none."""
    alarms = DriftAlarms(config, earlier)
    return [dict(alarms.check(line, config)).get(kind, {}) for line in steps]


def warned_at(config: Config, *sizes: float | None) -> list[int]:
    """Steps at which it warns of these effective sample sizes."""
    return [step for step, fields in enumerate(said_of("ess.low", lines(*sizes), config)) if fields]


def test_it_warns_when_the_mean_of_ten_steps_falls_below_the_bound() -> None:
    said = said_of("ess.low", lines(*[0.9] * STEPS, *[0.099] * STEPS), a_config())
    first = next(place for place, fields in enumerate(said) if fields)

    assert first == STEPS + 5 - 1, "five steps of .9 and five of .099 have a mean just below .5"
    assert {key: said[first][key] for key in ("step", "ess", "bound")} == {"step": 14, "ess": 0.4995, "bound": 0.5}
    assert sum(map(bool, said)) == 1, "once for each fall"


def test_a_few_low_steps_raise_no_alarm() -> None:
    assert warned_at(a_config(), *[0.9] * STEPS, 0.01, 0.01, 0.01, *[0.9] * STEPS) == []
    assert warned_at(a_config(), *[0.1] * (STEPS - 1)) == [], "the first steps are no mean yet"


def test_it_warns_again_only_after_the_mean_has_come_halfway_back() -> None:
    low, half, high = [0.1] * STEPS, [0.7] * STEPS, [0.9] * STEPS

    assert len(warned_at(a_config(), *low, *half, *low)) == 1
    assert len(warned_at(a_config(), *low, *high, *low)) == 2


def test_steps_without_a_number_are_passed_over() -> None:
    for nothing in (None, float("nan")):
        assert warned_at(a_config(), *[0.1] * (STEPS - 1), nothing, 0.1) == [STEPS]
    assert said_of("ess.low", [{"step": 0}], a_config()) == [{}]


def test_a_restarted_broker_goes_on_where_it_was() -> None:
    earlier = lines(*[0.1] * STEPS)

    assert said_of("ess.low", [{"step": STEPS, "ess": 0.1}], a_config(), earlier) == [{}]
    assert said_of("ess.low", [{"step": STEPS - 1, "ess": 0.1}], a_config(), earlier[:-1]) != [{}]


@pytest.mark.parametrize(("warn", "warned"), [(0.0, []), (0.05, []), (0.2, [STEPS - 1])])
def test_the_bound_is_a_setting_and_0_never_warns(warn: float, warned: list[int]) -> None:
    assert warned_at(a_config(warn), *[0.1] * STEPS) == warned


def test_the_advice_names_the_settings_that_matter_in_this_run() -> None:
    stale = advice("ess.low", a_config(schedule={"staleness": 16}))
    assert "lower schedule.staleness (now 16), or lower trainer.lr" in stale
    assert "mask_divergent" in stale
    assert "fewer updates" not in stale
    fresh = advice("ess.low", a_config(schedule={"staleness": 0}, trainer={"mini_batches": 4}))
    assert "staleness" not in fresh
    assert "fewer updates per batch (trainer.epochs and mini_batches, now 4)" in fresh
    assert "sampler_kl_coef (such as 0.1)" in stale
    held = a_config(algorithm={"correction": {"mask_divergent": 0.1}, "sampler_kl_coef": 0.1})
    assert "mask_divergent" not in advice("ess.low", held)
    assert "sampler_kl_coef" not in advice("ess.low", held)


def clipped(*shares: float) -> list[dict[str, float]]:
    return [{"step": step, "ess": 0.9, "clip_fraction": share} for step, share in enumerate(shares)]


def test_it_warns_when_more_tokens_are_clipped_than_the_bound_and_again_after_the_mean_has_halved() -> None:
    shares = [*[0.2] * STEPS, *[0.06] * STEPS, *[0.2] * STEPS, *[0.04] * STEPS, *[0.2] * STEPS]

    said = [fields for fields in said_of("clip.high", clipped(*shares), a_config()) if fields]

    assert said[0].items() >= {"step": STEPS - 1, "clip_fraction": 0.2, "bound": 0.1}.items()
    assert [fields["step"] for fields in said] == [9, 43]


@pytest.mark.parametrize(
    ("algorithm", "is_warned"),
    [({}, True), ({"clip_warn": 1.0}, False), ({"loss": "cispo"}, False), ({"loss": "gspo"}, False)],
)
def test_losses_that_learn_from_clipped_tokens_or_clip_many_by_design_are_not_warned_about(
    algorithm: dict[str, Any], is_warned: bool
) -> None:
    config = a_config(algorithm=algorithm)
    assert any(said_of("clip.high", clipped(*[0.9] * STEPS), config)) == is_warned


def test_all_alarms_tell_their_event_with_advice_by_the_settings_that_hold_now() -> None:
    alarms = DriftAlarms(a_config(), [{"step": step, "ess": 0.1, "clip_fraction": 0.2} for step in range(STEPS - 1)])
    now = a_config(schedule={"staleness": 2})

    found = dict(alarms.check({"step": STEPS - 1, "ess": 0.1, "clip_fraction": 0.2}, now))

    assert list(found) == ["ess.low", "clip.high"]
    assert "lower schedule.staleness (now 2)" in str(found["clip.high"]["advice"])
    assert "widen the bound (algorithm.clip_high, such as 4)" in str(found["clip.high"]["advice"])
    assert "widen" not in advice("clip.high", a_config(algorithm={"clip_high": 4.0}))
    assert "widen" not in advice("clip.high", a_config(schedule={"staleness": 4}))
    assert "widen" not in advice("clip.high", a_config(algorithm={"correction": {"mode": "decoupled"}}))


def early(config: Config, *steps: dict[str, float]) -> list[tuple[str, dict[str, Any]]]:
    """Events of steps with these metrics."""
    alarms = DriftAlarms(config)
    return [found for step, line in enumerate(steps) for found in alarms.check({"step": step, **line}, config)]


NOTHING = {"zero_advantage_fraction": 1.0, "reward": 0.0, "truncated": 0.0}
SOME = NOTHING | {"zero_advantage_fraction": 0.5}


def test_a_run_that_learns_nothing_is_told_after_three_steps_and_again_only_when_it_has_learned_meanwhile() -> None:
    ((kind, fields),) = early(a_config(), *[NOTHING] * 9)
    assert (kind, fields["step"]) == ("signal.none", 2)
    assert "100.0 % of the completions of the last 3 steps taught nothing" in fields["because"]
    assert "there is little to learn from" in fields["advice"]
    assert "take easier problems" in fields["advice"]
    assert early(a_config(), NOTHING, NOTHING, SOME, NOTHING, NOTHING) == []
    there_and_gone = early(a_config(), *[NOTHING] * 3, SOME, *[NOTHING] * 3, *[SOME] * 6, *[NOTHING] * 10)
    assert [(kind, fields["step"]) for kind, fields in there_and_gone] == [
        ("signal.none", 2), ("signal.back", 11), ("signal.none", 21)
    ]  # fmt: skip


def test_a_collapse_is_told_with_what_stops_it_and_cut_completions_only_if_nothing_is_learned() -> None:
    good, bad = SOME | {"accuracy": 0.6, "reward": 0.6}, SOME | {"accuracy": 0.1, "reward": 0.1}
    told = early(a_config(), *[good] * 10, *[bad] * 10, *[good] * 20)
    assert [kind for kind, _ in told] == ["reward.fell", "reward.back"]
    assert "lower trainer.lr" in told[0][1]["advice"]
    cut = {"truncated": 0.95}
    rising = [SOME | cut | {"accuracy": 0.01 * step} for step in range(40)]
    assert early(a_config(), *rising) == []
    ((kind, fields), *_) = early(a_config(sampling={"max_tokens": 8}), *[SOME | cut | {"accuracy": 0.05}] * 40)
    assert (kind, fields["step"]) == ("completions.cut", 19)
    assert "raise sampling.max_tokens (now 8)" in fields["advice"]


def test_a_broker_that_restarts_tells_no_trouble_twice() -> None:
    before = [{"step": step, **NOTHING} for step in range(5)]
    restarted = DriftAlarms(a_config(), before)
    assert list(restarted.check({"step": 5, **NOTHING}, a_config())) == []


def test_the_advice_names_what_makes_groups_equal() -> None:
    cold = a_config(sampling={"max_tokens": 8, "temperature": 0.05})
    ((_, fields),) = early(cold, *[NOTHING | {"reward": 1.0}] * 3)
    assert "let a group differ: sampling.temperature is 0.05" in fields["advice"]
    assert "take harder ones" in fields["advice"]
    cut = early(a_config(sampling={"max_tokens": 8}), *[NOTHING | {"truncated": 0.95}] * 3)
    assert [kind for kind, _ in cut] == ["signal.none"]
    assert "raise sampling.max_tokens (now 8)" in cut[0][1]["advice"]


# ── test gap alarm ────────────────────────────────────────────────────────────────────────────


def gap_alarm_a_config(dtype: str = "float32", warn: float = 0.0) -> Config:
    return decode(
        {
            "model": {"path": "m", "dtype": dtype},
            "data": {"train": "t"},
            "trainer": {"logprob_gap_warn": warn},
        }
    )


def a_line(step: int, mean: float | None, tokens: int = MIN_TOKENS) -> dict[str, Any]:
    return {"step": step, "logprob_gap_mean": mean, "logprob_gap_max": 1.0, "logprob_gap_tokens": tokens}


def test_one_warning_a_run_says_what_to_check() -> None:
    alarm = GapAlarm(gap_alarm_a_config())

    assert alarm.check({"step": 0}) == {}
    assert alarm.check(a_line(1, 2e-6)) == {}
    said = alarm.check(a_line(2, 0.3))
    assert (said["step"], said["logprob_gap_mean"], said["bound"]) == (2, 0.3, 1e-4)
    assert "processed_logprobs" in str(said["advice"])
    assert alarm.check(a_line(3, 0.3)) == {}


def test_a_restarted_broker_does_not_warn_again() -> None:
    assert GapAlarm(gap_alarm_a_config(), [a_line(2, 0.3)]).check(a_line(3, 0.3)) == {}
    assert GapAlarm(gap_alarm_a_config(), [a_line(2, 1e-6), a_line(3, None)]).check(a_line(4, 0.3))


@pytest.mark.parametrize(
    ("config", "mean", "is_said"),
    [
        (gap_alarm_a_config("bfloat16"), 0.05, False),
        (gap_alarm_a_config("bfloat16"), 0.2, True),
        (gap_alarm_a_config(warn=0.5), 0.3, False),
        (gap_alarm_a_config("bfloat16", warn=0.01), 0.02, True),
    ],
)
def test_the_bound_is_the_dtypes_unless_one_is_set(config: Config, mean: float, is_said: bool) -> None:
    assert bool(GapAlarm(config).check(a_line(0, mean))) == is_said


def test_a_few_tokens_raise_no_alarm() -> None:
    assert GapAlarm(gap_alarm_a_config()).check(a_line(0, 0.3, tokens=MIN_TOKENS - 1)) == {}


# ── incidents ──────────────────────────────────────────────────────────────────────────────────


def test_a_death_is_told_with_its_cause_and_its_age() -> None:
    book = IncidentBook()
    book.add("node.lost", {"node": "rollout-1", "role": "rollout", "cause": "silent for 10 s"}, 20.0)
    assert book.told(32.0) == [Incident("rollout-1 was lost: silent for 10 s", 12.0)]


def test_the_same_sentence_is_counted_and_the_newest_comes_first() -> None:
    book = IncidentBook()
    for time_s, reason in ((1.0, "zero_variance"), (2.0, "dead_letter"), (3.0, "zero_variance")):
        book.add("group.dropped", {"reason": reason}, time_s)
    assert book.told(3.0) == [
        Incident("group dropped: zero_variance", 0.0, 2),
        Incident("group dropped: dead_letter", 1.0),
    ]


def test_what_happens_again_at_another_step_or_version_is_counted_with_its_first_place_and_hides_nothing() -> None:
    book = IncidentBook()
    book.add("node.rejected", {"node": "gpu-2", "cause": "wrong key"}, 0.0)
    for step in range(100):
        book.add("signal.none", {"step": step, "advice": f"advice {step}"}, 1.0)
        book.add("step.skipped", {"step": step, "cause": "a loss or a gradient was not finite"}, 2.0)
        book.add("eval.left_out", {"policy_version": 10 + step, "cause": "busy"}, 3.0)
        book.add("node.returned", {"node": "gpu-1", "away_s": step}, 4.0)
    assert [(one.count, one.sentence) for one in book.told(9.0)] == [
        (100, "gpu-1 is back after 99 s"),
        (100, "v109 was not evaluated: busy (the first at v10)"),
        (100, "no update in step 100: a loss or a gradient was not finite (the first at step 1)"),
        (100, "nothing to learn from by step 100: advice 99 (the first at step 1)"),
        (1, "gpu-2 was refused: wrong key"),
    ]


def test_an_event_that_carries_its_whole_count_replaces_the_one_before() -> None:
    book = IncidentBook()
    for count in (1, 9):
        book.add("units.failed", {"stage": "reward", "cause": "KeyError", "count": count}, 5.0)
    assert book.told(5.0) == [Incident("failed reward: KeyError", 0.0, 9)]


def test_a_node_that_is_back_ends_its_death() -> None:
    book = IncidentBook()
    book.add("node.exited", {"node": "trainer-0", "cause": "was killed by SIGKILL", "restarting": True}, 1.0)
    book.add("node.returned", {"node": "trainer-0", "away_s": 30.2, "step": 250}, 31.2)
    assert [one.sentence for one in book.told(40.0)] == [
        "trainer-0 is back after 30.2 s",
        "trainer-0 was killed by SIGKILL (over)",
    ]


def test_a_silence_that_is_over_says_so_until_the_next_one() -> None:
    book = IncidentBook()
    book.add("node.quiet", {"node": "rollout-0"}, 0.0)
    book.add("node.quiet", {"node": "rollout-1"}, 1.0)
    book.add("node.heard", {"node": "rollout-0"}, 2.0)
    told = [incident.sentence for incident in book.told(3.0)]
    assert told == ["rollout-1 fell silent", "rollout-0 fell silent (over)"]
    book.add("node.quiet", {"node": "rollout-0"}, 4.0)
    assert book.told(5.0)[0] == Incident("rollout-0 fell silent", 1.0, 2)


def test_a_node_that_an_error_ended_is_an_incident_and_one_that_was_done_is_none() -> None:
    book = IncidentBook()
    for cause in ("done", "told to stop", "ConfigError: model.path is not that of the run"):
        book.add("node.left", {"node": "gpu2-rollout", "role": "rollout", "cause": cause}, 3.0)
    assert book.told(3.0) == [Incident("gpu2-rollout left: ConfigError: model.path is not that of the run", 0.0)]


def test_what_is_no_incident_and_what_an_operator_does_are_left_out() -> None:
    book = IncidentBook()
    book.add("version.live", {"policy_version": 3}, 1.0)
    for kind in ("node.quiet", "node.lost"):
        book.add(kind, {"node": "operator-7", "role": "supervisor", "cause": "silent"}, 1.0)
    assert book.told(2.0) == []


def test_a_spool_that_is_away_is_an_incident_if_the_run_waits_for_it_until_it_is_back() -> None:
    book = IncidentBook()
    book.add("spool.away", {"spool": "idle", "trajectories": 0, "waits_s": 600.0}, 1.0)
    assert book.told(1.0) == []
    for number in (3, 5):
        book.add("spool.away", {"spool": "s", "trajectories": number, "waits_s": 600.0}, 1.0)
    assert book.told(1.0) == [Incident("s went away with 5 trajectories that no checkpoint contains yet", 0.0, 2)]
    book.add("spool.back", {"spool": "other"}, 2.0)
    assert book.told(2.0)[0].sentence.endswith("contains yet")
    book.add("spool.back", {"spool": "s"}, 2.0)
    assert book.told(1.0)[0].sentence.endswith("contains yet (over)")


def test_the_oldest_are_forgotten() -> None:
    book = IncidentBook()
    for number in range(KEPT + 3):
        book.add("node.quiet", {"node": f"rollout-{number}"}, float(number))
    told = book.told(100.0)
    assert (len(told), told[-1].sentence) == (KEPT, "rollout-3 fell silent")


def test_incidents_of_an_earlier_life_of_the_broker_are_told_and_a_missing_field_is_a_question_mark() -> None:
    at = "2026-01-31T20:12:24.000Z"
    book = IncidentBook([{"event": "node.exited", "node": "trainer-0", "at": at}, {"event": "run.started", "at": at}])
    stopped_s = 149.0
    assert book.told(datetime.fromisoformat(at).timestamp() + stopped_s) == [Incident("trainer-0 ?", stopped_s)]


def test_what_follows_from_a_death_is_counted_with_it_whether_told_before_or_after() -> None:
    book = IncidentBook()
    book.add("transfer.failed", transfer_failed("rollout-0", "rollout-1 closed its connection"), 9.0)
    book.add("transfer.failed", transfer_failed("rollout-0", "with rollout-11: timeout"), 9.0)
    book.add("node.exited", {"node": "rollout-1", "cause": "was killed by SIGKILL", "restarting": True}, 10.0)
    book.add("node.lost", {"node": "rollout-1", "role": "rollout", "cause": "was killed by SIGKILL"}, 10.0)
    book.add("transfer.aborted", {"cause": "rollout-1 was lost"}, 11.0)
    book.add("transfer.failed", transfer_failed("trainer-0", "rollout-1 was lost", role="trainer"), 11.0)
    book.add("node.returned", {"node": "rollout-1", "away_s": 3}, 13.0)
    book.add("transfer.aborted", {"cause": "rollout-1 was silent"}, 10.0 + 2 * SAME_S)
    assert [one.sentence for one in book.told(200.0)] == [
        "weight transfer given up: rollout-1 was silent",
        "rollout-1 is back after 3 s",
        "rollout-1 was killed by SIGKILL (over), with 4 consequences",
        "rollout-0 failed to receive weights: with rollout-11: timeout",
    ]


def test_a_trainer_fails_to_send_weights_and_a_rollout_to_receive_them() -> None:
    book = IncidentBook()
    book.add("transfer.failed", transfer_failed("trainer-0", "timeout", role="trainer"), 1.0)
    book.add("transfer.failed", transfer_failed("rollout-0", "timeout"), 2.0)
    assert [one.sentence for one in book.told(2.0)] == [
        "rollout-0 failed to receive weights: timeout",
        "trainer-0 failed to send weights: timeout",
    ]


def test_a_long_sentence_is_cut_between_words() -> None:
    book = IncidentBook()
    book.add("node.left", {"node": "a", "role": "rollout", "cause": "word-1 " * 100}, 1.0)
    (one,) = book.told(1.0)
    assert one.sentence.endswith("word-1 …")
    assert len(one.sentence) <= MAX_CHARS


def test_the_starts_of_the_broker_are_one_incident() -> None:
    book = IncidentBook()
    for start in (2, 3):
        book.add("run.resumed", {"name": "run", "window": 4, "start": start}, float(start))
    assert book.told(3.0) == [Incident("the broker was started again (start 3 of this run)", 0.0, 2)]


def transfer_failed(node: str, cause: str, role: str = "rollout") -> dict[str, object]:
    return {"node": node, "role": role, "policy_version": 3, "cause": cause}
