"""
One update, a micro-batch at a time: which tokens are trained, the inputs of the losses, and the share of each in the
loss of the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algo.aggregate import Ragged
from asyncrl.algo.correction import divergent
from asyncrl.algo.kl import k2
from asyncrl.algo.logprobs import Scores
from asyncrl.algo.loss_tokens import Tokens
from asyncrl.config.config import Config
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.errors import BrokenInvariant
from asyncrl.messages.trajectory import Span, Turn, seat_rewards
from asyncrl.plug_in import is_path
from asyncrl.trainer.algorithm.estimates import Estimates
from asyncrl.trainer.algorithm.recipe import Recipe
from asyncrl.trainer.packing.batch import cut, turns_of
from asyncrl.trainer.packing.step import (
    PerToken,
    TrainingStep,
    TrainingTrajectory,
    TrajectoryInfo,
    all_gather_per_token,
)
from asyncrl.trainer.ranks.ranks import Ranks

F32 = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """
    Constants of the policy loss for the N completion tokens of a micro-batch.

    Tensors are [N] on the device, float32 or bool; log-probs in nats.
    """

    sequences: Ragged
    behavior_logprobs: Tensor
    old_logprobs: Tensor
    """[N] log-probs in the denominator of the ratio."""
    advantages: Tensor
    weights: Tensor
    """Weight of each token in the loss of the step."""
    importance: Tensor | None = None
    """Importance weights of decoupled correction; None for ones."""
    keep: Tensor | None = None
    """False where decoupled correction rejects; None if it rejects nothing."""
    ref_logprobs: Tensor | None = None
    """Set if the loss has a KL to the reference."""
    is_selected: Tensor | None = None
    """Set if the loss has a selection."""
    is_compared: Tensor | None = None
    """True for tokens that the weights in training wrote; None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatch:
    """Trajectories of one update. Per-token numbers cover the whole step and are the same on every rank."""

    step: TrainingStep
    places: Sequence[int]
    """Places of its trajectories in the step."""
    estimates: Estimates
    token_weights: Mapping[int, float]
    """Weight in the loss of a token of the trajectory at each place."""
    old_logprobs: PerToken | None
    """[T] by place, log-probs in the denominator of the ratio; None for the behavior log-probs."""
    ref_logprobs: PerToken | None
    """Log-probs under the reference, if the loss has a KL to it."""
    old_values: PerToken | None
    """Values before the step, if there is a critic."""
    selected: Mapping[int, NDArray[np.bool_]] | None
    """[T] by place, if the loss has a selection."""

    @property
    def with_advantage(self) -> list[int]:
        """Places of the trajectories with a non-zero advantage."""
        return [place for place in self.places if self.estimates.advantages[place].any()]

    @property
    def num_kept(self) -> int:
        """Tokens of all its trajectories that decoupled correction keeps."""
        return sum(self.estimates.num_kept(place) for place in self.places)

    def loss_inputs(
        self, places: Sequence[int], is_compared: NDArray[np.bool_] | None, *, device: torch.device
    ) -> LossInputs:
        """Inputs of the policy loss for one micro-batch of this rank's trajectories."""
        trajectories, estimates = self.step.select(places), self.estimates

        def tensor(values: PerToken | Mapping[int, NDArray[Any]] | None, dtype: torch.dtype = F32) -> Tensor | None:
            return None if values is None else _joined([values[place] for place in places], dtype, device)

        behavior = _joined([one.behavior_logprobs for one in trajectories], F32, device)
        weights = [np.full(len(estimates.advantages[place]), self.token_weights[place]) for place in places]
        keep = None if estimates.keep is None else self._keep(places, device)
        token_weights, old = _joined(weights, F32, device), tensor(self.old_logprobs)
        return LossInputs(
            sequences=Ragged([len(one.completion_ids) for one in trajectories], device=device),
            behavior_logprobs=behavior,
            old_logprobs=behavior if old is None else old,
            advantages=_joined([estimates.advantages[place] for place in places], F32, device),
            weights=token_weights if keep is None else token_weights * keep,
            importance=tensor(estimates.importance),
            keep=keep,
            ref_logprobs=tensor(self.ref_logprobs),
            is_selected=tensor(self.selected, torch.bool),
            is_compared=None if is_compared is None else torch.from_numpy(is_compared).to(device),
        )

    def value_inputs(self, places: Sequence[int], *, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """
        Values before the step, their targets, and a mask of kept tokens, [N] each, for one micro-batch.

        The step must have been scored by a critic.
        """
        if self.old_values is None or self.estimates.value_targets is None:
            raise BrokenInvariant("value loss requested, but no values were computed before the step")
        old, targets = (
            _joined([values[place] for place in places], F32, device)
            for values in (self.old_values, self.estimates.value_targets)
        )
        return old, targets, self._keep(places, device)

    def _keep(self, places: Sequence[int], device: torch.device) -> Tensor:
        return _joined([self.estimates.kept(place) for place in places], torch.bool, device)


def _joined(parts: Sequence[NDArray[Any]], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Join [T] of each trajectory to [N]; no parts give [0]."""
    return torch.from_numpy(np.concatenate((np.zeros(0, np.float32), *parts))).to(device, dtype)


# ── seats ─────────────────────────────────────────────────────────────────────────────────────
# An episode of several seats is a trajectory for each seat that spoke: a sequence of its own in every mean, with its
# own reward and its own return to go. Its turns, contexts and tokens are all it has.
#
#     turns of the seats   0 1 0 1 1        becomes   0 0   and   1 1 1        one index after the other
#
# Who spoke is in the payloads, so ranks tell each other how many tokens each seat has, and its reward.


def of_seat(trajectory: TrainingTrajectory, seat: int) -> TrainingTrajectory:
    """The turns of one seat, with the sum of their rewards."""
    turns = turns_of(trajectory)
    places = [place for place, turn in enumerate(turns) if turn.seat == seat]
    moved = {place: number for number, place in enumerate(places)}
    own = [
        structs.replace(turns[place], parent=moved.get(turns[place].parent, turns[place].parent)) for place in places
    ]
    is_own = [turn.seat == seat for turn in turns]
    keep = np.repeat(is_own, [turn.num_written for turn in turns])
    is_read = np.repeat(is_own, [turn.num_context for turn in turns])
    part = _with_kept(trajectory, keep, own, trajectory.context_ids[is_read])
    return replace(part, reward=seat_rewards(own)[seat], seat=seat)


def by_seat(step: TrainingStep, num_seats: int, ranks: Ranks) -> TrainingStep:
    """The step with a trajectory for each seat that spoke. Collective; every trajectory must have an owner."""
    own = {
        place: {seat: of_seat(one, seat) for seat in sorted({turn.seat for turn in turns_of(one)})}
        for place, one in step.trajectories.items()
    }
    facts = {place: np.zeros((num_seats, 3), np.float32) for place in own}
    """Tokens that each seat wrote, tokens that it read, and its reward; a seat that did not speak wrote none."""
    for place, parts in own.items():
        for seat, part in parts.items():
            facts[place][seat] = len(part.completion_ids), len(part.context_ids), part.reward
    shared = all_gather_per_token(
        {"facts": {place: one.ravel() for place, one in facts.items()}},
        lengths=[3 * num_seats] * len(step.infos),
        owners=step.owners,
        ranks=ranks,
    )["facts"]
    infos, trajectories, owners = list[TrajectoryInfo](), dict[int, TrainingTrajectory](), list[int]()
    for place, (info, numbers) in enumerate(zip(step.infos, shared, strict=True)):
        for seat, (written, read, reward) in enumerate(numbers.reshape(num_seats, 3).tolist()):
            if written:
                if place in own:
                    trajectories[len(infos)] = own[place][seat]
                outcome = replace(info.outcome, seat=seat, length=int(written), reward=reward)
                index = info.index * num_seats + seat
                infos.append(replace(info, index=index, outcome=outcome, context_length=int(read)))
                owners.append(step.owners[place])
    return TrainingStep(infos, trajectories, owners)


# ── trained part ──────────────────────────────────────────────────────────────────────────────
# Tokens of a step that are trained. The policy's other tokens become context: they are read, and are in no loss and in
# no mean. Not trained are
#
#     turns with ``is_trained`` false            with an [environment]
#     tokens more than L versions old            with ``schedule.on_straggler = "mask"``, L = ``max_staleness``
#
# Tokens are in the payloads, and every rank needs the lengths of all trajectories for its means, so ranks tell each
# other how many are left. Old tokens come first in a trajectory: without them its end is learned more than its
# beginning, so they are counted by quarters.
#
#     one turn    context p   written a b c d e        becomes   context p a b   written c
#     untrained                       x x · x ·                  context d       written e
#
# A trajectory without turns gets some. The reward of a turn stays at its end.

Mask = NDArray[np.bool_]
"""[T] one for each token that the policy wrote."""


def in_untrained_turns(trajectory: TrainingTrajectory) -> Mask:
    """True for the tokens of turns with ``is_trained`` false."""
    turns = turns_of(trajectory)
    return np.repeat([not turn.is_trained for turn in turns], [turn.num_written for turn in turns])


def older_than(trajectory: TrainingTrajectory, policy_version: int) -> Mask:
    """True for the tokens that an older version wrote; none if the versions are unknown."""
    mask = np.zeros(len(trajectory.completion_ids), np.bool_)
    for span in trajectory.spans:
        mask[span.start : span.end] = span.policy_version < policy_version
    return mask


def as_context(trajectory: TrainingTrajectory, untrained: Mask) -> TrainingTrajectory:
    """The trajectory with the ``untrained`` tokens as context, where they were written."""
    if not untrained.any():
        return trajectory
    keep = ~untrained
    turns = turns_of(trajectory)
    written = cut(trajectory.completion_ids, [turn.num_written for turn in turns])
    context = cut(trajectory.context_ids, [turn.num_context for turn in turns])
    marks = cut(keep, [turn.num_written for turn in turns])
    pieces: list[Turn] = []
    context_ids: list[NDArray[np.int32]] = []
    lasts: dict[int, int] = {}
    """Last piece of each turn."""
    for place, turn in enumerate(turns):
        parent = lasts.get(turn.parent, turn.parent)
        is_written = np.concatenate((np.zeros(turn.num_context, np.bool_), marks[place]))
        context_ids.append(np.concatenate((context[place], written[place]))[~is_written])
        starts = np.flatnonzero(is_written[:-1] & ~is_written[1:]) + 1
        num_images = turn.num_images  # of the first piece, which has all that was context before
        for run in np.split(is_written, starts):
            pieces.append(Turn(parent, int((~run).sum()), int(run.sum()), num_images=num_images))
            parent, num_images = len(pieces) - 1, 0
        pieces[-1] = structs.replace(pieces[-1], reward=turn.reward)
        lasts[place] = parent
    return _with_kept(trajectory, keep, pieces, np.concatenate(context_ids))


def _with_kept(
    trajectory: TrainingTrajectory, keep: Mask, turns: list[Turn], context_ids: NDArray[np.int32]
) -> TrainingTrajectory:
    before = np.concatenate((np.zeros(1, np.int64), keep.cumsum()))
    counts = trajectory.mask_counts
    return replace(
        trajectory,
        completion_ids=trajectory.completion_ids[keep],
        behavior_logprobs=trajectory.behavior_logprobs[keep],
        # A span of which nothing is left stays, because the first one tells with which weights a trajectory began.
        spans=[Span(span.policy_version, int(before[span.start]), int(before[span.end])) for span in trajectory.spans],
        mask_counts=counts[keep] if len(counts) else counts,
        mask_ids=trajectory.mask_ids[np.repeat(keep, counts)] if len(counts) else trajectory.mask_ids,
        turns=turns,
        context_ids=context_ids,
    )


QUARTERS = 4
Counts = NDArray[np.float32]
"""
Counts for the metrics: tokens left to train, tokens of untrained turns, and old tokens by quarter of the trajectory.
"""


class TrainedPart:
    """Selects the tokens of a step that are trained; all others become context. Seats become trajectories."""

    def __init__(self, config: Config) -> None:
        schedule = config.schedule
        self._max_staleness = schedule.max_staleness if schedule.on_straggler == "mask" else None
        self._steps_per_publish = schedule.steps_per_publish
        self._has_turns = config.environment.is_set
        self._num_seats = config.environment.seats
        self.is_whole = self._max_staleness is None and not self._has_turns
        """True if every token of the run is trained."""

    def of_trajectory(self, trajectory: TrainingTrajectory, step: int) -> tuple[TrainingTrajectory, Counts]:
        """
        The trajectory with its untrained tokens as context, and what is counted.

        Args:
            step: Number of the step that trains it.
        """
        untrained = in_untrained_turns(trajectory)
        num_in_turns = untrained.sum()
        quarters = np.zeros(QUARTERS, np.intp)
        if self._max_staleness is not None:
            is_old = older_than(trajectory, step // self._steps_per_publish - self._max_staleness)
            quarter = QUARTERS * np.flatnonzero(is_old) // max(len(is_old), 1)
            quarters = np.bincount(quarter, minlength=QUARTERS)
            untrained = untrained | is_old
        part = as_context(trajectory, untrained)
        return part, np.array([len(part.completion_ids), num_in_turns, *quarters], np.float32)

    def of_step(self, step: TrainingStep, number: int, ranks: Ranks) -> tuple[TrainingStep, dict[str, float]]:
        """
        The step by seats, with untrained tokens as context, and metrics of them. Collective; every trajectory must have
        an owner.

        ``number`` is that of the step. A step that is whole stays as it is.
        """
        if self.is_whole:
            return step, {}
        if self._num_seats > 1:
            step = by_seat(step, self._num_seats, ranks)
        own = {place: self.of_trajectory(one, number) for place, one in step.trajectories.items()}
        shared = all_gather_per_token(
            {"counts": {place: counts for place, (_, counts) in own.items()}},
            lengths=[2 + QUARTERS] * len(step.infos),
            owners=step.owners,
            ranks=ranks,
        )["counts"]
        infos = [info.with_trained(int(counts[0])) for info, counts in zip(step.infos, shared, strict=True)]
        part = replace(step, infos=infos, trajectories={place: one for place, (one, _) in own.items()})
        return part, self._metrics(np.sum(shared, 0))

    def _metrics(self, counts: NDArray[np.float64]) -> dict[str, float]:
        _, in_turns, *quarters = counts.tolist()
        metrics = {"untrained/turn_tokens": in_turns} if self._has_turns else {}
        if self._max_staleness is not None:
            metrics["untrained/old_tokens"] = sum(quarters)
            metrics |= {f"untrained/old_quarter_{place + 1}": tokens for place, tokens in enumerate(quarters)}
        return metrics


# ── objective ─────────────────────────────────────────────────────────────────────────────────
# Loss of one micro-batch, as its share of the loss of a step.
#
#     loss = Σ_t  w_t ( importance_t · policy_loss_t + sampler_kl_coef · k2_t + kl_coef · KL_t - entropy_coef · H_t )
#
# w_t is the token's weight by the aggregation, and zero where decoupled correction rejects it. In bypass mode the
# correction compares the policy in training with the sampler, changes with every update, and is computed here; so is
# the mask of divergent sequences in both modes. Rejected and masked tokens are excluded from the policy loss, from
# the means that sequence losses take, and from k2, the KL to the policy that sampled.

REJECTED = "rollout_corr/rollout_rs_masked_fraction"
"""Metric name shared with decoupled correction, which reports it for the whole step."""
DIVERGENT = "divergent_masked_fraction"
PROBED = 8
"""Tokens of each of two trajectories at which the objective is asked whether it has a gradient."""
LOG_FLOOR = 1e-10
"""Added to importance before its logarithm, so that one dropped token does not zero a long trajectory; as in verl."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatchLoss:
    """Loss and per-token metrics of a micro-batch."""

    loss: Tensor
    """[] with gradient."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """[N], or fewer if tokens were rejected; numbers or bools, without gradient."""
    keep: Tensor | None = None
    """[N] bool, tokens that are in a term of the loss; None if all are."""


def objective(recipe: Recipe, algorithm: Algorithm, scores: Scores, inputs: LossInputs) -> MicroBatchLoss:
    """
    Loss of a micro-batch, by the formula above; ``scores`` [N] contain entropy, in the loss or as a metric alone.
    """
    loss, metrics, keep = _policy_loss(recipe, scores.logprobs, inputs)
    if inputs.ref_logprobs is not None:
        kl = recipe.kl(scores.logprobs, inputs.ref_logprobs)
        loss, keep = loss + algorithm.kl_coef * torch.dot(kl, inputs.weights), inputs.keep
        metrics["kl_ref"] = kl.detach()
    if scores.entropy is not None:
        metrics["entropy"] = scores.entropy.detach()
    if scores.entropy is not None and algorithm.entropy_coef:
        loss, keep = loss - algorithm.entropy_coef * torch.dot(scores.entropy, inputs.weights), inputs.keep
    return MicroBatchLoss(loss, metrics, keep)


def trains_without_advantage(recipe: Recipe, algorithm: Algorithm) -> bool:
    """
    True if tokens of a trajectory whose advantages are all zero have a gradient.

    Asked of the objective itself, so that no term of it can be forgotten: its gradient at tokens that moved from their
    sampler by 1e-4 nats, which no correction rejects, and by up to 4. A loss in a file of a user may be zero at
    these and not at others, so its trajectories are all computed.
    """
    return is_path(algorithm.loss) or any(_has_gradient(recipe, algorithm, moved) for moved in (1e-4, 0.1, 4.0))


def _has_gradient(recipe: Recipe, algorithm: Algorithm, moved: float) -> bool:
    """True if the objective has a gradient at tokens without advantage, which moved by up to ``moved`` nats."""
    sampled = torch.full((2 * PROBED,), -5.0)
    logprobs = (sampled + moved * torch.linspace(-1, 1, PROBED).repeat(2)).requires_grad_()
    entropy = torch.ones_like(sampled).requires_grad_() if algorithm.entropy_coef else None
    inputs = LossInputs(
        sequences=Ragged([PROBED, PROBED]),
        behavior_logprobs=sampled,
        old_logprobs=sampled,
        advantages=torch.zeros_like(sampled),
        weights=torch.ones_like(sampled),
        ref_logprobs=sampled if recipe.penalises_loss else None,
        is_selected=torch.arange(len(sampled)) % 3 == 0 if recipe.select else None,
    )
    loss = objective(recipe, algorithm, Scores(logprobs, entropy=entropy), inputs).loss
    found = torch.autograd.grad(loss, [logprobs] if entropy is None else [logprobs, entropy], allow_unused=True)
    return any(gradient is not None and bool(gradient.any()) for gradient in found)


def _policy_loss(
    recipe: Recipe, logprobs: Tensor, inputs: LossInputs
) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    importance, keep, weights, sequences = inputs.importance, inputs.keep, inputs.weights, inputs.sequences
    masked: dict[str, Tensor] = {}
    if not recipe.is_decoupled:
        importance, keep = recipe.correct(logprobs.detach(), inputs.behavior_logprobs, sequences)
        if keep is not None:
            masked[REJECTED] = ~keep
            if recipe.averages_trajectories:  # These weights divide by the number of all tokens, not of kept.
                weights = weights * sequences.spread(sequences.lengths / sequences.sum(keep.long()).clamp(min=1))
    if recipe.mask_divergent:
        log_ratio = logprobs.detach() - inputs.behavior_logprobs
        is_divergent = divergent(log_ratio, inputs.advantages, sequences, recipe.mask_divergent)
        masked[DIVERGENT] = is_divergent
        keep = ~is_divergent if keep is None else keep & ~is_divergent
    if keep is not None:
        sequences = Ragged(sequences.sum(keep.long()).tolist(), device=logprobs.device)
    policy = recipe.losses(
        Tokens(
            logprobs=_kept(logprobs, keep),
            old_logprobs=_kept(inputs.old_logprobs, keep),
            advantages=_kept(inputs.advantages, keep),
            sequences=sequences,
            is_selected=None if inputs.is_selected is None else _kept(inputs.is_selected, keep),
        )
    )
    losses = policy.losses
    if importance is not None:
        importance = _kept(importance, keep)
        if recipe.loss.entry.is_of_sequences:
            importance = sequences.spread(sequences.mean((importance + LOG_FLOOR).log()).exp())
        losses = losses * importance
    if recipe.sampler_kl_coef:
        kl = k2(_kept(logprobs, keep), _kept(inputs.behavior_logprobs, keep))
        losses = losses + recipe.sampler_kl_coef * kl
    return torch.dot(losses, _kept(weights, keep)), {**policy.metrics, **masked}, keep


def _kept(values: Tensor, keep: Tensor | None) -> Tensor:
    return values if keep is None else values[keep]
