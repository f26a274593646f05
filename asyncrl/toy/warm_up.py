"""
Teaches a fresh model step sums, then teaches it to be lazy: a base that knows the chain and rarely writes it.

    lr   ╱‾‾‾‾‾‾‾‾‾‾╲
        ╱  constant   ╲___ decay ─▶ accuracy ≥ goal? ──yes──▶ mixture: chains, wrong guesses, noisy chains
                            ▲           │ no
                            └── again ──┘

Accuracy is low and noisy while the rate is high and jumps when it falls, so it is judged after the decay, never before.
Reinforcement learning climbs to about the accuracy of the clean phase and no further, because a problem that is never
solved gives no gradient: the goal here is the ceiling there.
"""

import random
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from msgspec import Struct
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from asyncrl.errors import RunFailed
from asyncrl.toy import step_sums
from asyncrl.toy.demonstrations import Encoded, encode, loss, of_like_length, share_written
from asyncrl.toy.step_sums import Demonstration, Problem

CLEAN: dict[Demonstration, float] = {step_sums.clean_chain: 1.0}
MIXTURE: dict[Demonstration, float] = {
    step_sums.clean_chain: 0.3,
    step_sums.wrong_guess: 0.6,
    step_sums.noisy_chain: 0.1,
}
"""A guess is the likeliest start, so greedy decoding guesses; three samples in ten still show the way."""


class WarmUp(Struct, frozen=True, kw_only=True):
    """How long, and how fast. The rise is part of the constant steps."""

    batch_size: int = 32
    lr: float = 3e-3
    rise_steps: int = 30
    constant_steps: int = 600
    decay_steps: int = 1000
    final_lr_ratio: float = 0.05
    goal: float = 0.95
    """Held-out accuracy that ends the clean phase."""
    max_rounds: int = 3
    """Constant and decay so often at most; a lucky seed needs one."""
    mixture_steps: int = 300
    mixture_lr_ratio: float = 0.15
    """Low enough to change the habit and keep the skill."""
    more: float = 0.82
    """Chance of one more step in a problem: longer than in the data, because long chains are what is hard."""
    num_judged: int = 256
    report_every: int = 200


class Lesson:
    """
    A model, its optimizer, and problems to show it.

    Args:
        model: Trained in place.
        tokenizer: Knows `step_sums.WORDS`.
        schedule: How long.
        seed: Of the problems and their order.
        report: Gets a line now and then.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        schedule: WarmUp,
        *,
        seed: int,
        report: Callable[[str], None],
    ) -> None:
        self.model = model
        self._tokenizer, self._schedule, self._report = tokenizer, schedule, report
        self._rng = random.Random(seed)
        self._problems = step_sums.problems(seed, "train", more=schedule.more)
        # Not the rows of the held-out file: what decides when to stop cannot also be the result.
        held_out = step_sums.problems(seed + 1, "held_out", min_steps=step_sums.HELD_OUT_STEPS)
        self._judged = list(islice(held_out, schedule.num_judged))
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=schedule.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )

    def teach_chains(self) -> None:
        """
        Clean chains, until nearly all held-out ones are right.

        Raises:
            RunFailed: They are not, after the last round.
        """
        for _ in range(self._schedule.max_rounds):
            self._train("chains", CLEAN, self.clean_rates())
            if (accuracy := self._chains_written()) >= self._schedule.goal:
                return
        raise RunFailed(
            f"step sums: {accuracy:.0%} of held-out chains are right after {self._schedule.max_rounds} rounds, "
            f"expected {self._schedule.goal:.0%}; try another model.scratch.seed, or a larger model"
        )

    def teach_guessing(self) -> None:
        """Mostly wrong guesses, so that the skill stays and the habit goes."""
        steps, lr = self._schedule.mixture_steps, self._schedule.lr * self._schedule.mixture_lr_ratio
        self._train("mixture", MIXTURE, [lr * (1 - 0.9 * step / steps) for step in range(steps)])
        self._report(f"base: greedy accuracy {self._chains_written() + self._guesses_right():.3f}")

    def clean_rates(self) -> list[float]:
        """Learning rate of each step of one round: a short rise, a plateau, a linear fall."""
        schedule = self._schedule
        rise = [(step + 1) / schedule.rise_steps for step in range(schedule.rise_steps)]
        plateau = [1.0] * (schedule.constant_steps - schedule.rise_steps)
        drop = (1 - schedule.final_lr_ratio) / schedule.decay_steps
        fall = [1 - drop * step for step in range(schedule.decay_steps)]
        return [schedule.lr * share for share in rise + plateau + fall]

    def _train(self, name: str, demonstrations: dict[Demonstration, float], rates: list[float]) -> None:
        batches = self._batches(demonstrations)
        for step, lr in enumerate(rates, start=1):
            value = self._step(next(batches), lr)
            if step % self._schedule.report_every == 0 or step == len(rates):
                chains = self._chains_written()
                self._report(f"{name}: step {step} of {len(rates)}, loss {value:.3f}, held-out chains {chains:.3f}")

    def _step(self, batch: list[Encoded], lr: float) -> float:
        self._optimizer.param_groups[0]["lr"] = lr
        self._optimizer.zero_grad()
        value = loss(self.model, batch)
        value.backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        return value.item()

    def _batches(self, demonstrations: dict[Demonstration, float], pool: int = 32) -> Iterator[list[Encoded]]:
        """Batches of like length in random order, drawn ``pool`` at a time."""
        kinds, weights = list(demonstrations), list(demonstrations.values())
        while True:
            drawn = list(islice(self._problems, pool * self._schedule.batch_size))
            shown = [self._rng.choices(kinds, weights)[0](problem, self._rng) for problem in drawn]
            batches = of_like_length(self._encode(drawn, shown), self._schedule.batch_size)
            self._rng.shuffle(batches)
            yield from batches

    def _chains_written(self) -> float:
        return self._written([problem.chain() for problem in self._judged])

    def _guesses_right(self) -> float:
        return self._written([step_sums.ANSWER + problem.answer for problem in self._judged])

    def _written(self, completions: list[str]) -> float:
        return share_written(self.model, self._encode(self._judged, completions))

    def _encode(self, problems: list[Problem], completions: list[str]) -> list[Encoded]:
        return encode(self._tokenizer, [problem.prompt for problem in problems], completions)
