"""
Training step with plain transformers: micro-batches of a fixed number of rows, padded on the right.

Everything else is the same as in asyncrl's step: centred and scaled rewards, clipped ratio, mean over tokens, gradient
norm clipped to 1, fused AdamW.
"""

import ragged
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


def main(work: ragged.Work) -> ragged.Timed:
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32, attn_implementation="sdpa").eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    rewards = torch.tensor(work.rewards).view(-1, ragged.GROUP_SIZE)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)).flatten()
    places = torch.arange(len(work.completions)).split(work.rows)  # type: ignore[no-untyped-call]
    num_tokens = sum(map(len, work.completions))

    def step() -> None:
        for rows in places:
            (loss(model, work, rows.tolist(), advantages[rows]) / num_tokens).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return ragged.timed(step, work.steps)


def loss(model: torch.nn.Module, work: ragged.Work, places: list[int], advantages: Tensor) -> Tensor:
    """[] clipped policy-gradient loss, summed over the completion tokens of ``places``."""
    width = max(len(work.completions[place]) for place in places)
    prompts = torch.tensor([work.prompt(place) for place in places])
    completions, behavior, mask = torch.zeros(3, len(places), width)
    for row, place in enumerate(places):
        length = len(work.completions[place])
        completions[row, :length] = torch.tensor(work.completions[place])
        behavior[row, :length] = torch.tensor(work.behavior_logprobs(place))
        mask[row, :length] = 1
    ids = torch.cat((prompts, completions.long()), 1)
    # With causal attention, tokens cannot attend to the padding on their right, so no attention mask is needed.
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=width + 1).logits[:, :-1]
    logprobs = -torch.nn.functional.cross_entropy(logits.transpose(1, 2), completions.long(), reduction="none")
    ratio = (logprobs - behavior).exp()
    pushes = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.28) * advantages[:, None])
    summed: Tensor = (pushes * mask).sum()
    return -summed


if __name__ == "__main__":
    ragged.print_timed(main(ragged.read_work()))
