"""
TRL's GRPOTrainer on the CPU: one process that alternates between generation with transformers and training.

    PYTHONPATH=bench python -m peers.trl_grpo CONFIG THREADS ROWS

The following is the same as for asyncrl: base model, prompts (text, or chats through the model's template) and their
order, group size, lengths, loss (DAPO's token mean, clip bounds, no KL), AdamW with its warm-up, and reward function.
Trackers, checkpoints, progress bars and gradient checkpointing are off, because they only cost time. ROWS is
``per_device_train_batch_size``; the gradients of the micro-batches are accumulated to one optimizer step, so ROWS
changes the speed and not the algorithm.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from datasets import Dataset
from timeline import Stopwatch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer
from workload import Weights, Workload

from asyncrl.algo.losses import resolve_loss
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.messages.trajectory import Prompt
from asyncrl.messages.words import FinishReason
from asyncrl.rollout.engines import text
from asyncrl.trainer.model.optimizer import learning_rate

SCALE_REWARDS = {"grpo": "group", "dr_grpo": "none"}


def arguments(config: Config, rows: int, output: str) -> GRPOConfig:
    """The config as TRL arguments."""
    schedule, sampling, algorithm = config.schedule, config.sampling, config.algorithm
    loss = resolve_loss(algorithm.loss).settings
    return GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        seed=config.run.seed,
        max_steps=config.run.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=schedule.groups_per_step * schedule.group_size // rows,
        num_generations=schedule.group_size,
        max_completion_length=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        chat_template_kwargs=config.data.chat_template_kwargs,
        loss_type="dapo",
        epsilon=loss["clip_low"] if algorithm.clip_low is None else algorithm.clip_low,
        epsilon_high=loss["clip_high"] if algorithm.clip_high is None else algorithm.clip_high,
        beta=algorithm.kl_coef,
        scale_rewards=SCALE_REWARDS[algorithm.advantage],
        max_grad_norm=config.trainer.grad_clip,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class RewardFunction:
    """
    Reward function with TRL's signature, which also counts the completion tokens of the step.

    Args:
        prompts: In the order of the dataset, whose column ``place`` has the place of each.
    """

    __name__ = "reward_function"

    def __init__(self, workload: Workload, prompts: list[Prompt], tokenizer: PreTrainedTokenizerBase) -> None:
        self._workload = workload
        self._prompts = prompts
        self._tokenizer = tokenizer
        self.tokens = 0

    def __call__(self, *, completion_ids: list[list[int]], place: list[int], **_: Any) -> list[float]:
        self.tokens = sum(map(len, completion_ids))
        return [self._reward(self._prompts[number], ids) for number, ids in zip(place, completion_ids, strict=True)]

    def _reward(self, prompt: Prompt, ids: list[int]) -> float:
        finish_reason: FinishReason = "stop" if ids[-1:] == [self._tokenizer.eos_token_id] else "length"
        return self._workload.reward(prompt, text.decode(self._tokenizer, ids), len(ids), finish_reason)


class Timing(TrainerCallback):  # type: ignore[misc]
    """Starts the stopwatch at the first step, and records the end of each step."""

    def __init__(self, watch: Stopwatch, reward_function: RewardFunction) -> None:
        self._watch = watch
        self._reward_function = reward_function

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._watch.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watch.step_done(self._reward_function.tokens)


def optimizers(config: Config, model: PreTrainedModel) -> tuple[torch.optim.Optimizer, Any]:
    """AdamW and learning-rate schedule with the settings of asyncrl's learner."""
    trainer = config.trainer
    adam = torch.optim.AdamW(
        model.parameters(),
        lr=trainer.lr,
        betas=(trainer.beta1, trainer.beta2),
        eps=trainer.eps,
        weight_decay=trainer.weight_decay,
        fused=True,
    )
    share = lambda step: learning_rate(step, trainer, config.run.steps, trainer.lr) / trainer.lr  # noqa: E731
    return adam, torch.optim.lr_scheduler.LambdaLR(adam, share)


def main(path: Path, threads: int, rows: int) -> None:
    """Train, and print the measurements as JSON."""
    torch.set_num_threads(threads)
    config = load_config(path)
    workload = Workload(config)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    prompts_in_order = [prompt for step in range(config.run.steps) for prompt in workload.prompts(step)]
    if any(prompt.images or prompt.tools for prompt in prompts_in_order):
        raise SystemExit(
            "this peer takes text and chats, but the prompts have pictures or tools; leave it out: --peers bare"
        )
    reward_function = RewardFunction(workload, prompts_in_order, tokenizer)

    def weights() -> Weights:
        return {name: weight.detach().clone() for name, weight in model.named_parameters()}

    watch = Stopwatch(workload, weights)
    with TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward_function,
            args=arguments(config, rows, output),
            train_dataset=Dataset.from_list(
                [{"prompt": p.chat or p.text, "place": place} for place, p in enumerate(prompts_in_order)]
            ),
            processing_class=tokenizer,
            callbacks=[Timing(watch, reward_function)],
            optimizers=optimizers(config, model),
        )
        trainer.train()
    sys.stdout.buffer.write(msgspec.json.encode(watch.timeline()) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
