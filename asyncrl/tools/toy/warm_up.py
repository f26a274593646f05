"""
Warm-up: supervised training that gives a base model which can write the chain of a task and rarely does.

    lr   ╱‾‾‾‾‾‾‾‾‾‾╲
        ╱  constant   ╲___ decay ─▶ accuracy ≥ goal? ──yes──▶ mixture: chains, wrong guesses, noisy chains
                            ▲           │ no
                            └── again ──┘

Accuracy is low and noisy at a high learning rate and jumps when the rate falls, so it is measured after the decay only.
Reinforcement learning climbs to about the accuracy of the clean phase and no further, because a problem that is never
solved gives no gradient: the goal here is the ceiling there.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import torch
from msgspec import Struct
from transformers import PreTrainedModel

from asyncrl.errors import RunFailed
from asyncrl.tools.toy.demonstrations import EncodedDemonstration, batches_by_length, exact_match_share, loss
from asyncrl.tools.toy.lessons import Completion, Demonstration, Lesson


class WarmUpSchedule(Struct, frozen=True, kw_only=True):
    """Lengths and learning rates of a warm-up. The rise is part of the constant steps."""

    batch_size: int = 32
    lr: float = 3e-3
    rise_steps: int = 30
    constant_steps: int = 600
    decay_steps: int = 1000
    final_lr_ratio: float = 0.05
    goal: float = 0.95
    """Held-out accuracy that ends the clean phase."""
    max_rounds: int = 3
    """Most repetitions of constant and decay; a lucky seed needs one."""
    mixture_steps: int = 300
    mixture_lr_ratio: float = 0.15
    """Low enough that the model learns to guess and does not forget the chain."""
    batches_by_length: int = 32
    """Batches that are drawn together and sorted by length, so that they have little padding."""
    num_held_out: int = 256
    report_every: int = 200


def supervised_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: Sequence[EncodedDemonstration], lr: float
) -> float:
    """One update on a batch of demonstrations, its gradient clipped to norm 1. Returns the loss before it, in nats."""
    optimizer.param_groups[0]["lr"] = lr
    optimizer.zero_grad()
    value = loss(model, batch)
    torch.autograd.backward(value)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return value.item()


class WarmUp:
    """Trains a model, in place, by a lesson; ``report`` gets a line every ``schedule.report_every`` steps."""

    def __init__(
        self,
        model: PreTrainedModel,
        lesson: Lesson,
        schedule: WarmUpSchedule,
        *,
        seed: int,
        report: Callable[[str], None],
    ) -> None:
        self.model = model
        self._lesson, self._schedule, self._report = lesson, schedule, report
        self._rng = random.Random(seed)
        self._held_out = list(islice(lesson.held_out, schedule.num_held_out))
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=schedule.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )

    def train_chains(self) -> None:
        """Train on chains up to held-out accuracy ``schedule.goal``; raises `RunFailed` after ``max_rounds`` rounds."""
        for _ in range(self._schedule.max_rounds):
            rates, steps_after = self.clean_learning_rates(), self._schedule.mixture_steps
            self._train("chains", {self._lesson.clean: 1.0}, rates, steps_after)
            if (accuracy := self._chain_accuracy()) >= self._schedule.goal:
                return
        raise RunFailed(
            f"{self._lesson.name}: {accuracy:.0%} of held-out chains are right after {self._schedule.max_rounds} "
            f"rounds, expected {self._schedule.goal:.0%}; try another seed, or a larger model"
        )

    def train_guessing(self) -> None:
        """Train on the lesson's mixture, so that the model mostly guesses and can still write chains."""
        steps, lr = self._schedule.mixture_steps, self._schedule.lr * self._schedule.mixture_lr_ratio
        self._train("mixture", self._lesson.mixture, [lr * (1 - 0.9 * step / steps) for step in range(steps)])
        guesses = self._match_share([problem.guess() for problem in self._held_out])
        self._report(f"base: greedy accuracy {self._chain_accuracy() + guesses:.3f}")

    def clean_learning_rates(self) -> list[float]:
        """Learning rate of each step of one round of chains: a short rise, a plateau, a linear decay."""
        schedule = self._schedule
        rise = [(step + 1) / schedule.rise_steps for step in range(schedule.rise_steps)]
        plateau = [1.0] * (schedule.constant_steps - schedule.rise_steps)
        drop = (1 - schedule.final_lr_ratio) / schedule.decay_steps
        fall = [1 - drop * step for step in range(schedule.decay_steps)]
        return [schedule.lr * share for share in rise + plateau + fall]

    def _train(
        self, name: str, demonstrations: Mapping[Demonstration, float], rates: list[float], steps_after: int = 0
    ) -> None:
        """Train one step for each of ``rates``; ``steps_after`` are those of the next phase, for the time left."""
        batches, started = self._batches(demonstrations), time.monotonic()
        for step, lr in enumerate(rates, start=1):
            value = supervised_step(self.model, self._optimizer, next(batches), lr)
            if step % self._schedule.report_every == 0 or step == len(rates):
                chains = self._chain_accuracy()
                when = " (rises when the learning rate falls)" if lr == self._schedule.lr else ""
                left_s = (time.monotonic() - started) / step * (len(rates) - step + steps_after)
                self._report(
                    f"{name}: step {step} of {len(rates)}, loss {value:.3f}, held-out chains {chains:.3f}{when}, "
                    f"about {left_s:.0f} s left"
                )

    def _batches(self, demonstrations: Mapping[Demonstration, float]) -> Iterator[list[EncodedDemonstration]]:
        """Yield batches of similar length in random order."""
        kinds, weights = list(demonstrations), list(demonstrations.values())
        while True:
            num = self._schedule.batches_by_length * self._schedule.batch_size
            drawn = list(islice(self._lesson.problems, num))
            shown = [self._rng.choices(kinds, weights)[0](problem, self._rng) for problem in drawn]
            batches = batches_by_length(self._lesson.encode(drawn, shown), self._schedule.batch_size)
            self._rng.shuffle(batches)
            yield from batches

    def _chain_accuracy(self) -> float:
        return self._match_share([problem.chain() for problem in self._held_out])

    def _match_share(self, completions: Sequence[Completion]) -> float:
        return exact_match_share(self.model, self._lesson.encode(self._held_out, completions))
