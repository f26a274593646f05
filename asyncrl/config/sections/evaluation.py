"""Settings of evaluations and checkpoints."""

from typing import Annotated

from asyncrl.config.sections.sampling import LEAST, SamplingConfig, greedy
from asyncrl.config.sections.section import LIVE, Count, Fraction, Limit, Natural, NonNegative, Section
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Sampling


class Evaluation(Section, frozen=True, kw_only=True):
    """Evaluation on ``data.held_out`` by one rollout at one pinned version, while the others go on training."""

    every_versions: Annotated[Limit, LIVE] = 10
    """Policy versions between two evaluations; 0 or -1: none between start and end [trainer.test_freq]."""
    at_start: bool = True
    """Evaluate the initial policy [val_before_train]."""
    at_end: bool = True
    """Evaluate the final policy."""
    max_prompts: Limit = 256
    """Usable rows to take from the start of each file of ``data.held_out``; 0 or -1: all [val_max_samples]."""
    max_tokens: Natural = 0
    """Longest completion, in tokens; 0 takes ``sampling.max_tokens``."""
    samples: Count = 1
    """k, completions per prompt; from 2 on, avg@k, pass@1 to pass@k and maj@k are measured [val_kwargs.n]."""
    answers: Natural = 0
    """
    Completions to keep of each evaluation, in ``samples/held_out/``: evenly spread over the prompts, and of the same
    ones each time [log_val_generations].
    """
    temperature: NonNegative = 0.0
    """
    Divisor of the logits, at least 0.01, or 0, which is greedy: all completions of a prompt are equal
    [val_kwargs.temperature].
    """
    top_p: Fraction = 1.0
    """Probability mass of the likeliest tokens to sample from; 1 keeps the whole vocabulary."""
    top_k: Limit = 0
    """Number of likeliest tokens to sample from; 0 or -1 keeps the whole vocabulary."""

    def sampling(self, training: SamplingConfig) -> Sampling:
        """The settings as the message type that a lease carries; stop texts are those of training."""
        return Sampling(
            max_tokens=self.max_tokens or training.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=training.stop,
        )

    def check_sampling(self) -> None:
        """Raise `ConfigError` if completions of a prompt would all be equal, or a setting is not read."""
        temperature = self.temperature
        if 0 < temperature < LEAST:
            raise ConfigError(
                f"evaluation.temperature is {temperature:g}: such values are not sampled alike by all engines; use 0, "
                f"which is greedy, or at least {LEAST:g}"
            )
        if self.samples > 1 and (cause := greedy(self)):
            raise ConfigError(
                f"evaluation.samples is {self.samples}, but evaluation.{cause}: greedy completions of a prompt are "
                f"all equal; sample with a temperature above 0, or use one sample"
            )
        if temperature == 0:
            for key in ("top_p", "top_k"):
                if getattr(self, key) != getattr(Evaluation(), key):
                    raise ConfigError(f"evaluation.{key} is only read with a temperature above 0; remove it")


class Checkpoint(Section, frozen=True, kw_only=True):
    """Checkpoints: model, optimizer and position in the run. The manifest is written last."""

    every_steps: Limit = 0
    """Optimizer steps between two checkpoints; 0 or -1: only the last, so a dead trainer starts over [save_freq]."""
    keep: Count = 2
    """Number of newest checkpoints to keep [max_actor_ckpt_to_keep]."""
    keep_best: bool = False
    """Also keep the checkpoint with the best evaluation; ``checkpoints/best.json`` names it."""
    best_metric: str = "accuracy"
    """With ``keep_best``: ``accuracy``, or another evaluation metric of which more is better."""
    copy_to_broker: bool = True
    """
    If the trainer does not see the run directory, copy each checkpoint there before its steps count as saved: any
    machine can then go on with the run. False saves the bandwidth, and ties the run to the trainer's machine.
    """
