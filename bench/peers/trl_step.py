"""
Training step of TRL's GRPOTrainer on given completions, without generation.

A ``rollout_func`` returns the completions, so the timed work is padding, scoring, loss, backward and AdamW. Gradient
checkpointing, which is on by default in TRL, is off, as for the other contenders.
"""

import time
from collections import defaultdict
from tempfile import TemporaryDirectory
from typing import Any

import ragged
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class GivenCompletions:
    """Source of the given completions and their rewards, with TRL's interfaces."""

    def __init__(self, work: ragged.Work) -> None:
        self._work = work
        self._texts = [" ".join(f"w{token}" for token in prompt) for prompt in work.prompts]
        self.__name__ = "given"
        self._places: list[int] = []

    def prompts(self, steps: int) -> list[dict[str, str]]:
        """[steps * groups] dataset rows."""
        return [{"prompt": text} for _ in range(steps) for text in self._texts]

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """The ``rollout_func`` of GRPOTrainer, which replaces generation."""
        seen: defaultdict[str, int] = defaultdict(int)
        self._places = []
        for text in prompts:
            self._places.append(self._texts.index(text) * ragged.GROUP_SIZE + seen[text])
            seen[text] += 1
        return {
            "prompt_ids": [self._work.prompt(place) for place in self._places],
            "completion_ids": [self._work.completions[place] for place in self._places],
            "logprobs": [self._work.behavior_logprobs(place) for place in self._places],
        }

    def __call__(self, **_: object) -> list[float]:
        """The reward function: [trajectories] rewards of the last rollout."""
        return [self._work.rewards[place] for place in self._places]


class Marks(TrainerCallback):  # type: ignore[misc]
    """Records (wall, CPU) clock readings at the start of the first step and the end of each step."""

    def __init__(self) -> None:
        self.at: list[tuple[float, float]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.at:
            self._mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._mark()

    def _mark(self) -> None:
        self.at.append((time.perf_counter(), time.process_time()))


def main(work: ragged.Work) -> ragged.Timed:
    given, marks, steps = GivenCompletions(work), Marks(), work.steps + ragged.WARM_UPS
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32)
    with TemporaryDirectory() as output:
        GRPOTrainer(
            model=model,
            reward_funcs=given,
            rollout_func=given.rollout,
            args=GRPOConfig(
                output_dir=output,
                use_cpu=True,
                bf16=False,
                max_steps=steps,
                per_device_train_batch_size=work.rows,
                gradient_accumulation_steps=len(work.completions) // work.rows,
                num_generations=ragged.GROUP_SIZE,
                max_completion_length=max(map(len, work.completions)),
                loss_type="dapo",
                beta=0.0,
                learning_rate=1e-6,
                shuffle_dataset=False,
                gradient_checkpointing=False,
                dataloader_pin_memory=False,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(given.prompts(steps)),
            processing_class=AutoTokenizer.from_pretrained(work.model, padding_side="left"),
            callbacks=[marks],
        ).train()
    return ragged.timed_from_marks(marks.at[ragged.WARM_UPS :])


if __name__ == "__main__":
    ragged.print_timed(main(ragged.read_work()))
