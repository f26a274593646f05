"""
Demonstrations as tensors: prompt, completion, end of sequence.

    prompt  prompt  prompt │ completion  completion  <eos> │ <pad> <pad>
    labels    -      -         completion  completion  <eos>     -     -
    patches of the prompt's picture, if it has one

    prompt │ turn  observation  turn  <eos>                  a completion of several turns
    labels   turn       -       turn  <eos>

Padding is on the right, where a causal model never looks, so no attention mask is needed.
"""

import math
from collections.abc import Sequence
from itertools import islice

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from msgspec import Struct
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

IGNORED = -100
"""Label of tokens without a loss: prompt, observations and padding."""


class Passage(Struct, frozen=True):
    """Part of a completion of several turns, in whole words."""

    text: str
    is_learned: bool = True
    """False for what the policy reads, such as the answer of an environment: it has no loss."""


class EncodedDemonstration(Struct, frozen=True):
    """Token ids of one demonstration."""

    prompt_ids: list[int]
    completion_ids: list[int]
    """Ends with the end-of-sequence token."""
    patches: Tensor | None = None
    """[N, D] pixels of a square picture."""
    is_learned: list[bool] = []
    """True for each completion token with a loss; empty if all have one."""

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def labels(self) -> list[int]:
        """Completion tokens, `IGNORED` in place of those without a loss."""
        if not self.is_learned:
            return self.completion_ids
        pairs = zip(self.completion_ids, self.is_learned, strict=True)
        return [token if is_learned else IGNORED for token, is_learned in pairs]


def encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], completions: Sequence[str]
) -> list[EncodedDemonstration]:
    ids = zip(tokenizer(list(prompts)).input_ids, tokenizer(list(completions)).input_ids, strict=True)
    return [
        EncodedDemonstration(prompt_ids, [*completion_ids, tokenizer.eos_token_id])
        for prompt_ids, completion_ids in ids
    ]


def encode_passages(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], completions: Sequence[Sequence[Passage]]
) -> list[EncodedDemonstration]:
    """Encode completions passage by passage, because a policy never sees its turns and observations as one text."""
    texts = sorted({passage.text for passages in completions for passage in passages})
    ids = dict(zip(texts, tokenizer(texts).input_ids, strict=True))
    return [
        EncodedDemonstration(
            prompt_ids,
            [*(token for passage in passages for token in ids[passage.text]), tokenizer.eos_token_id],
            is_learned=[*(passage.is_learned for passage in passages for _ in ids[passage.text]), True],
        )
        for prompt_ids, passages in zip(tokenizer(list(prompts)).input_ids, completions, strict=True)
    ]


def batches_by_length(demonstrations: list[EncodedDemonstration], batch_size: int) -> list[list[EncodedDemonstration]]:
    """Batches of similar length, so with little padding; shortest first."""
    by_length = sorted(demonstrations, key=len)
    return [by_length[start : start + batch_size] for start in range(0, len(by_length), batch_size)]


def loss(model: PreTrainedModel, batch: Sequence[EncodedDemonstration]) -> Tensor:
    """Return the mean cross-entropy of the completion tokens that have a loss: [], nats."""
    logits, labels = _predictions(model, batch)
    return F.cross_entropy(logits, labels)


@torch.no_grad()
def exact_match_share(
    model: PreTrainedModel, demonstrations: list[EncodedDemonstration], batch_size: int = 64
) -> float:
    """
    Share of prompts for which greedy decoding would give exactly the demonstrated completion.

    One forward pass is enough: greedy decoding gives a completion if and only if each of its tokens is the likeliest
    after the tokens before it. Tokens without a loss are taken as given.
    """
    matches = 0
    for batch in batches_by_length(demonstrations, batch_size):
        logits, labels = _predictions(model, batch)
        hits = iter((logits.argmax(-1) == labels).tolist())
        for row in batch:
            num_learned = sum(label != IGNORED for label in row.labels)
            matches += all(list(islice(hits, num_learned)))
    return matches / len(demonstrations)


def _predictions(model: PreTrainedModel, batch: Sequence[EncodedDemonstration]) -> tuple[Tensor, Tensor]:
    """Return [N, V] logits and [N] labels of the batch's N tokens with a loss, row after row."""
    width = max(map(len, batch))
    input_ids, labels = torch.zeros(len(batch), width, dtype=torch.long), torch.full((len(batch), width), IGNORED)
    for row, (one, row_labels) in enumerate(zip(batch, labels, strict=True)):
        input_ids[row, : len(one)] = torch.tensor(one.prompt_ids + one.completion_ids)
        row_labels[len(one.prompt_ids) : len(one)] = torch.tensor(one.labels)
    following = labels[:, 1:]
    is_learned = following != IGNORED
    input_ids = input_ids[:, :-1]
    states = model.base_model(input_ids=input_ids, use_cache=False, **_pictures(model, batch, input_ids))
    return model.get_output_embeddings()(states.last_hidden_state[is_learned]), following[is_learned]


def _pictures(model: PreTrainedModel, batch: Sequence[EncodedDemonstration], input_ids: Tensor) -> dict[str, Tensor]:
    """Arguments of the model for the batch's pictures, one for each row; empty without pictures."""
    patches = [row.patches for row in batch if row.patches is not None]
    if not patches:
        return {}
    sides = [math.isqrt(len(picture)) for picture in patches]
    return {
        "pixel_values": torch.cat(patches),
        "image_grid_thw": torch.tensor([[1, side, side] for side in sides]),
        "mm_token_type_ids": (input_ids == model.config.image_token_id).int(),
    }
