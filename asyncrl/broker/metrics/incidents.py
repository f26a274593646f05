"""
Incidents of a run, made from its events: deaths, drops, failures and waits in sentences; and alarms, from its metrics.

    node.lost, group.dropped, units.failed, ... ─▶ one sentence per cause, with a count and the last time

The same sentence again, also of another step or version, is counted, not repeated. What follows from the death of a
node, such as the end of the weight transfers that it was in, is counted with the death. The oldest are forgotten.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import isnan
from statistics import fmean
from textwrap import shorten
from typing import Any

from msgspec import Struct

from asyncrl.config.config import Config
from asyncrl.config.correction import WIDE, clips_to_sampler, with_clip_high
from asyncrl.config.sections.sampling import LOW, greedy
from asyncrl.messages.supervisor import Incident
from asyncrl.records.alarms import NO_LEARNING, RAISED_BY, Raised
from asyncrl.records.events import ENDED_BY, EventKind
from asyncrl.records.formatting import Words, counted, numbered
from asyncrl.records.learning import FIRST_STEPS, MOSTLY, Judgement, Learning

KEPT = 12
"""Incidents kept, one for each sentence but for its `VARIED` fields."""
MAX_CHARS = 300
"""Length of a sentence."""
SAME_S = 60.0
"""Seconds between a death and its last consequences: weight transfers are given up at their deadline."""
SENTENCES = {
    "node.lost": "{node} was lost: {cause}",
    "node.exited": "{node} {cause}",
    "node.returned": "{node} is back after {away_s} s",
    "node.left": "{node} left: {cause}",
    "node.rejected": "{node} was refused: {cause}",
    "key.refused": "a peer at {address} was refused: nobody here owns its key, {key}",
    "node.quiet": "{node} fell silent",
    "node.stalled": "{node} makes no progress: {cause}",
    "node.barred": "{node} gets no work for {seconds} s: {cause}",
    "trainer.disbanded": "the trainer's machines parted: {cause}",
    "lease.expired": "a lease of {node} expired",
    "lease.overdue": "{node} kept a lease for far longer than others take",
    "grading.overdue": "{node} has kept {trajectories} trajectories for more than {seconds} s without a verdict, and "
    "there is no other reward node: restart it, or add one",
    "group.dropped": "group dropped: {reason}",
    "trajectory.left_out": "a group goes on without a trajectory: {reason}",
    "group.untrained": "group left out of its step: {reason}",
    "group.restarted": "group restarted: too old, or its spool was lost",
    "units.failed": "failed {stage}: {cause}",
    "gateway.not_enforced": "an agent program asks for {field}, which nothing enforces: it gets what the policy "
    "writes; environment.gateway_refuses refuses it",
    "transfer.failed": "{node} failed to receive weights: {cause}",
    "transfer.aborted": "weight transfer given up: {cause}",
    "upload.failed": "version {policy_version} could not be stored at the spool: {cause}",
    "eval.lost": "evaluation of v{policy_version} interrupted: {node} has it no more",
    "eval.left_out": "v{policy_version} was not evaluated: {cause}",
    "spool.away": "{spool} went away with {trajectories} trajectories that no checkpoint contains yet",
    "spool.lost": "{spool} was given up: {groups_restarted} groups are sampled again",
    "checkpoint.damaged": "checkpoint {path} is damaged: {cause}",
    "run.waiting": "{cause}",
    "run.copied": "{cause}",
    "ledger.locked": "{cause}",
    "ledger.unlocked": "the ledger can be written again, after {waited_s} s",
    "ledger.left_locked": "{cause}",
    "samples.lost": "samples of step {step} were lost",
    "step.failed": "the trainer failed at step {step}: {reason}",
    "step.skipped": "no update in step {step}: {cause}",
    "logprob_gap.exceeded": "rollout and trainer log-probs differ too much at step {step}",
    "signal.none": "nothing to learn from by step {step}: {advice}",
    "completions.cut": "most completions are cut and nothing is learned by step {step}: {advice}",
    "reward.fell": "the batches have become worse by step {step}: {advice}",
    "ess.low": "a few tokens outweigh the others since step {step}: `asyncrl why` says what to change",
    "clip.high": "many tokens are clipped since step {step}: `asyncrl why` says what to change",
    "broker.refused": "the broker refused the run: {cause}",
    "broker.slept": "the broker's process stood still",
    "run.resumed": "the broker was started again (start {start} of this run)",
}
"""Sentence of each kind of event that may be an incident."""
SENT = "{node} failed to send weights: {cause}"
"""Sentence of a ``transfer.failed`` of the trainer."""
DEATHS = ("node.lost", "node.exited")
CONSEQUENCES = ("transfer.failed", "transfer.aborted", "lease.expired", "eval.lost", "node.quiet", "node.stalled")
"""Kinds that follow from a death of a node that they name."""
USUAL_ENDS = ("done", "told to stop")
"""Causes of a ``node.left`` that is no incident: any other is an error that ended the node."""
PLACES = {"step": "step ", "policy_version": "v"}
"""Fields that say where in the run something happened, and the words before them."""
VARIED = frozenset((*PLACES, "start", "advice", "away_s", "waited_s", "seconds", "trajectories", "groups_restarted"))
"""Fields that tell one occurrence of an incident from the next: each would fill the list with what is known."""
COUNTED_TOTALS = ("units.failed",)
"""Kinds whose events carry the whole count so far."""


def is_incident(kind: str, fields: Mapping[str, Any]) -> bool:
    """True for an event that an operator should know."""
    is_usual = kind == "node.left" and fields.get("cause") in USUAL_ENDS
    is_usual |= kind == "spool.away" and not fields.get("trajectories", 1)
    return kind in SENTENCES and not is_usual and fields.get("role") != "supervisor"


class _Kept(Struct):
    sentence: str
    """Text of the last occurrence."""
    sameness: str
    """The sentence without what varies, by which occurrences are counted."""
    kind: str
    node: str
    cause: str
    at_s: float
    place: str = ""
    """Step or version of the first occurrence."""
    count: int = 1
    followers: int = 0
    """Later incidents that followed from this one, and are counted with it."""
    is_over: bool = False
    """An event has ended it, of the same node if it names one."""


class IncidentBook:
    """Last incidents of a run. ``earlier`` are the events of the broker's earlier lives; times are Unix times."""

    def __init__(self, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self._kept: dict[str, _Kept] = {}
        """Incident by its sameness, the oldest first."""
        for event in earlier:
            if "at" in event:
                at_s = datetime.fromisoformat(str(event["at"])).timestamp()
                self.add(str(event.get("event", "")), event, at_s)

    def add(self, kind: str, fields: Mapping[str, Any], at_s: float) -> None:
        """Keep an event, if it is an incident; count it with the death that it follows from, if there is one."""
        for kept in self._kept.values():
            if kind in ENDED_BY.get(kept.kind, ()) and kept.node == _node(fields):
                kept.is_over = True
        if not is_incident(kind, fields):
            return
        same = sentence(kind, {name: value for name, value in fields.items() if name not in VARIED})
        node, cause = _node(fields), str(fields.get("cause", ""))
        new = _Kept(sentence(kind, fields), same, kind, node, cause, at_s, _place(fields))
        for kept in reversed(self._kept.values()):
            if _follows(new, kept):
                kept.followers += 1
                return
        if before := self._kept.pop(same, None):
            new.count, new.followers, new.place = before.count + 1, before.followers, before.place
        if kind in COUNTED_TOTALS:
            new.count = int(fields.get("count", 1))
        for kept in list(self._kept.values()):
            if _follows(kept, new):
                new.followers += kept.count
                del self._kept[kept.sameness]
        self._kept[same] = new
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def told(self, at_s: float) -> list[Incident]:
        """All that are kept, the newest first, with their ages at ``at_s``."""
        found = [Incident(_told(kept), max(at_s - kept.at_s, 0.0), kept.count) for kept in self._kept.values()]
        return found[::-1]


def _follows(one: _Kept, death: _Kept) -> bool:
    """True if ``one`` is a consequence of the death of a node: it names the node, and happened at about that time."""
    if death.kind not in DEATHS or abs(one.at_s - death.at_s) > SAME_S:
        return False
    if one.kind == "node.lost":  # The end of its process is told, too.
        return death.kind == "node.exited" and (one.node, one.cause) == (death.node, death.cause)
    name = re.escape(death.node)
    return one.kind in CONSEQUENCES and re.search(rf"(?<![\w.-]){name}(?![\w-])", one.sentence) is not None


def sentence(kind: str, fields: Mapping[str, Any]) -> str:
    """Sentence of an incident."""
    is_sender = kind == "transfer.failed" and fields.get("role") == "trainer"
    words = (SENT if is_sender else SENTENCES[kind]).format_map(Words(numbered(fields)))
    return shorten(words, MAX_CHARS, placeholder=" …", break_on_hyphens=False)


def _node(fields: Mapping[str, Any]) -> str:
    return str(fields.get("node", fields.get("spool", "")))


def _place(fields: Mapping[str, Any]) -> str:
    return next((f"{words}{numbered(fields)[name]}" for name, words in PLACES.items() if name in fields), "")


def _told(kept: _Kept) -> str:
    said = f"{kept.sentence} (over)" if kept.is_over else kept.sentence
    if kept.count > 1 and kept.place:
        said += f" (the first at {kept.place})"
    return f"{said}, with {counted(kept.followers, 'consequence')}" if kept.followers else said


# ── alarms ─────────────────────────────────────────────────────────────────────────────────────
# Warnings before the reward shows it: a run learns nothing, its policy is far from the one that sampled, or rollouts
# and trainer compute different log-probs.
#
#     ess      1 ▔▔╲
#     mean of      ╲___        ╱▔▔▔╲
#     10 steps         ╲______╱     ╲      ess.low, once for each fall; the next one is armed when the mean has come
#     bound   .7 ───────╳────────────╳──   halfway back to 1
#
# The effective sample size of the ratios falls when a few tokens outweigh all others: a collapse follows if nothing
# bounds the ratios. The share of clipped tokens rises where the loss bounds them: those tokens teach nothing, and the
# run is safe and slow. bench/RESULTS.md has runs that show both.
#
# Whether a run learns, `asyncrl.records.learning` judges, from its first steps on. A trouble is told at once, and is
# over when `FIRST_STEPS` in a row have been without it.

STEPS = 10
"""Steps over which a metric is averaged: single steps exceed the bound in healthy runs too."""
LEARNS_FROM_CLIPPED = ("cispo", "gspo")
"""Losses that are not warned about: one learns from clipped tokens too, the other clips many by design."""
Line = Mapping[str, float]


class DriftAlarm:
    """
    Warns about the mean of a metric.

    Args:
        healthy: Value of the metric when both policies are the same.
        bound: Mean from which on it warns, on the side away from ``healthy``.
    """

    def __init__(self, metric: str, *, healthy: float, bound: float) -> None:
        self._metric = metric
        self._healthy = healthy
        self._bound = bound
        self._values: deque[float] = deque(maxlen=STEPS)
        self._is_armed = True

    def check(self, line: Line) -> dict[str, float]:
        """Fields of the event, given the metrics of a new step; empty if there is nothing to warn about."""
        value = line.get(self._metric)
        # NaN is read back as None, and its step is skipped; a step that trained on nothing has no ratios.
        if value is None or isnan(value) or not line.get("ess"):
            return {}
        self._values.append(value)
        mean, limit = fmean(self._values), abs(self._bound - self._healthy)
        if abs(mean - self._healthy) < limit / 2:
            self._is_armed = True
        if not self._is_armed or len(self._values) < STEPS or abs(mean - self._healthy) <= limit:
            return {}
        self._is_armed = False
        return {"step": line["step"], self._metric: round(mean, 4), "bound": self._bound}


class LearningAlarm:
    """Tells when a run begins to learn nothing, and when that is over."""

    def __init__(self) -> None:
        self._learning = Learning()
        self._raised: Raised | None = None
        self._num_well = 0
        """Steps in a row without the trouble that was told."""

    def check(self, line: Line) -> tuple[Raised | None, Raised | None, Judgement]:
        """The trouble that is over with a new step, the one that begins, and the judgement by then."""
        self._learning.add(line)
        judged, before = self._learning.judgement, self._raised
        kind = RAISED_BY.get(judged.state)
        self._num_well = 0 if kind == before else self._num_well + 1
        if kind == before or (kind is None and self._num_well < FIRST_STEPS):
            return None, None, judged
        self._raised, self._num_well = kind, 0
        return before, kind, judged


class DriftAlarms:
    """All alarms about learning of one run. Alarms that the earlier ``lines`` raised are not raised again."""

    def __init__(self, config: Config, lines: Iterable[Line] = ()) -> None:
        algorithm = config.algorithm
        most_clipped = 1.0 if algorithm.loss in LEARNS_FROM_CLIPPED else algorithm.clip_warn
        self._learning = LearningAlarm()
        self._alarms: dict[EventKind, DriftAlarm] = {
            "ess.low": DriftAlarm("ess", healthy=1.0, bound=algorithm.ess_warn),
            "clip.high": DriftAlarm("clip_fraction", healthy=0.0, bound=most_clipped),
        }
        for line in lines:
            self._learning.check(line)
            for alarm in self._alarms.values():
                alarm.check(line)

    def check(self, line: Line, config: Config) -> Iterator[tuple[EventKind, dict[str, float | str]]]:
        """Kind and fields of each event of a new step; ``config`` has the settings that hold now."""
        ended, begun, judged = self._learning.check(line)
        if ended:
            yield NO_LEARNING[ended], {"step": line["step"]}
        if begun:
            told = advice(begun, config) if begun == "reward.fell" else signal_advice(begun, line, config)
            yield begun, {"step": line["step"], "because": judged.because, "advice": told}
        for kind, alarm in self._alarms.items():
            if fields := alarm.check(line):
                yield kind, {**fields, "advice": advice(kind, config)}


def signal_advice(kind: Raised, line: Line, config: Config) -> str:
    """Meaning of an event of a run without a signal, and what to look at, in a sentence."""
    sampling, limit = config.sampling, config.longest_written("train")
    longer = f"raise {'environment' if config.environment.is_set else 'sampling'}.max_tokens (now {limit:,})"
    if kind == "completions.cut":
        return (
            f"what is cut has no answer, so its reward says little; {longer}, or look whether an end token is missing"
        )
    meaning = "hardly a trajectory differs in its reward from the others of its group, so there is little to learn from"
    remedies = ["see what is rewarded (`asyncrl reward try`, `asyncrl top`)"]
    if line.get("truncated", 0.0) >= MOSTLY:
        remedies.insert(0, longer)
    if cause := greedy(sampling, LOW):
        remedies.insert(0, f"let a group differ: sampling.{cause}")
    remedies.append("take easier problems" if line.get("reward", 0.0) <= 0 else "take harder ones, if all are right")
    return f"{meaning}; {', or '.join(remedies)}"


def advice(kind: str, config: Config) -> str:
    """Meaning of the event, and the settings to change, in a sentence."""
    schedule, trainer, algorithm = config.schedule, config.trainer, with_clip_high(config)
    remedies = [f"lower trainer.lr (now {trainer.lr:g})"]
    if schedule.staleness_bound:
        remedies.insert(0, f"lower schedule.staleness (now {schedule.staleness_bound:g})")
    if (updates := trainer.epochs * trainer.mini_batches) > 1:
        remedies.append(f"make fewer updates per batch (trainer.epochs and mini_batches, now {updates})")
    if kind == "clip.high":
        meaning = (
            "the policy moves far between sampling and training; clipped tokens teach nothing, so it learns slowly"
        )
        if clips_to_sampler(config.algorithm) and (algorithm.clip_high or 0.0) < WIDE:
            remedies.append(f"widen the bound (algorithm.clip_high, such as {WIDE:g})")
    elif kind == "reward.fell":
        meaning = "the policy loses what it had learned"
        remedies.append("export the best checkpoint, or go on from it")
    else:
        meaning = (
            "the trained trajectories are far from what the policy in training would write, and a few of their tokens "
            "outweigh the others"
        )
        if not algorithm.sampler_kl_coef:
            remedies.append("set algorithm.sampler_kl_coef (such as 0.1)")
        if not algorithm.correction.mask_divergent:
            remedies.append("set algorithm.correction.mask_divergent (such as 0.1)")
    return f"{meaning}; {', or '.join(remedies)}"


# ── the alarm of a gap between sampler and trainer ─────────────────────────────────────────────
# Warning, once per run, at the first step whose rollouts do not compute the same log-probs as the trainer.
#
# Such a difference does not stop a run, but it biases every ratio in the loss, and the reward curve hides it for
# hours.

BOUND = {"float32": 1e-4, "bfloat16": 0.1}
"""Mean gap of a step, nats: about 50 and 5 times that of a correct engine, which is 2e-6 and 2e-2."""
MIN_TOKENS = 64
"""A mean over fewer tokens is unreliable: one unlikely token may differ a hundred times as much as the others."""
ADVICE = (
    "with the same weights the rollouts' log-probs are not the trainer's, so every ratio in the loss is off by that; "
    "check that the engine returns log-probs of the distribution it samples from (vLLM: "
    "logprobs_mode=processed_logprobs), that it computes in model.dtype, and that it has the trainer's model and the "
    "weights of the version it names"
)


class GapAlarm:
    """Checks the log-prob gap of each step. It has warned already if one of the earlier ``lines`` exceeds the bound."""

    def __init__(self, config: Config, lines: Iterable[Mapping[str, float]] = ()) -> None:
        self._bound = config.trainer.logprob_gap_warn or BOUND[config.model.dtype]
        self._has_warned = any(self._exceeds(line) for line in lines)

    def check(self, line: Mapping[str, float]) -> dict[str, float | str]:
        """Fields of the warning, given the metrics of a new step; empty if there is nothing to warn about."""
        if self._has_warned or not self._exceeds(line):
            return {}
        self._has_warned = True
        seen = {key: line[key] for key in ("step", "logprob_gap_mean", "logprob_gap_max", "logprob_gap_tokens")}
        return {**seen, "bound": self._bound, "advice": ADVICE}

    def _exceeds(self, line: Mapping[str, float]) -> bool:
        # NaN is read back as None; the trainer skips a step with a NaN gap and reports that itself.
        mean = line.get("logprob_gap_mean") or 0.0
        return line.get("logprob_gap_tokens", 0.0) >= MIN_TOKENS and mean > self._bound
