"""
Your own training loop: asyncrl samples, grades, bounds staleness and moves the weights; the loop below trains.

    asyncrl toy step-sums cache/step-sums                          (once: the model and its data)
    asyncrl-node --role broker  --broker tcp://127.0.0.1:5570 --config conf/quickstart.toml &
    asyncrl-node --role rollout --broker tcp://127.0.0.1:5570 &
    asyncrl-node --role reward  --broker tcp://127.0.0.1:5570 &
    python examples/own_training_loop.py tcp://127.0.0.1:5570
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import asyncrl
from asyncrl.trainer.packing.step import TrainingTrajectory

MODEL = "cache/step-sums/model"


def logprobs(model: PreTrainedModel, never: list[int], prompt_ids: Tensor, completion_ids: Tensor) -> Tensor:
    """Log-probabilities [T] of a completion under the policy in training; ids ``never`` are not sampled."""
    ids = torch.cat([prompt_ids, completion_ids])[None]
    logits: Tensor = model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1]
    logits = logits.float().index_fill(-1, torch.tensor(never, dtype=torch.long), -torch.inf)
    return logits.log_softmax(-1).gather(1, completion_ids[:, None])[:, 0]


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    never: list[int],
    trajectories: Sequence[TrainingTrajectory],
) -> float:
    """One optimizer step: policy gradient with the group mean as baseline. Returns the gradient norm."""
    rewards = defaultdict(list)
    for trajectory in trajectories:
        rewards[trajectory.group_id].append(trajectory.reward)
    num_tokens = sum(len(trajectory.completion_ids) for trajectory in trajectories)
    optimizer.zero_grad()
    for trajectory in trajectories:
        group = rewards[trajectory.group_id]
        advantage = trajectory.reward - sum(group) / len(group)
        if advantage:
            prompt_ids, completion_ids = map(torch.LongTensor, (trajectory.prompt_ids, trajectory.completion_ids))
            behavior_logprobs = torch.tensor(trajectory.behavior_logprobs)
            ratio = (logprobs(model, never, prompt_ids, completion_ids) - behavior_logprobs).exp()
            loss = -advantage * ratio.clamp(max=2.0).sum() / num_tokens
            torch.autograd.backward(loss)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(norm)


async def main(address: str, model_path: str = MODEL) -> None:
    """Train until the run is over."""
    model = AutoModelForCausalLM.from_pretrained(model_path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.0)
    async with asyncrl.batches(address, model, AutoTokenizer.from_pretrained(model_path)) as stream:
        never = stream.token_ids.without_probability(model.config.vocab_size)
        async for batch in stream:
            # In a thread, because this event loop also sends heartbeats and weights.
            batch.metrics["grad_norm"] = await asyncio.to_thread(update, model, optimizer, never, batch.trajectories)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
