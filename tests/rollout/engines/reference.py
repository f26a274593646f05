"""Log-probabilities to compare an engine's with."""

import torch
from transformers import PreTrainedModel

from asyncrl.engine import Request


def reference_logprobs(model: PreTrainedModel, request: Request, ids: list[int]) -> list[float]:
    """Log-probs of ``ids`` under the model's own forward pass, with the filters applied in plain Python."""
    sampling = request.sampling
    with torch.inference_mode():
        logits = model(torch.tensor([request.prompt_ids + ids])).logits[0, len(request.prompt_ids) - 1 : -1]
    out = []
    for row, token in zip(logits / (sampling.temperature or 1.0), ids, strict=True):
        ranked = row.softmax(-1).tolist()
        order = sorted(range(len(ranked)), key=lambda i: -ranked[i])[: sampling.top_k or None]
        total, kept, mass = sum(ranked[i] for i in order), [], 0.0
        for i in order:
            kept.append(i)
            mass += ranked[i] / total
            if sampling.top_p < 1 and mass >= sampling.top_p:
                break
        out.append(float(torch.tensor(ranked[token] / sum(ranked[i] for i in kept)).log()))
    return out
