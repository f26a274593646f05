"""Demonstrations as tensors: labels, padding, and exact matches of greedy decoding."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.tools.toy.demonstrations import (
    IGNORED,
    EncodedDemonstration,
    Passage,
    batches_by_length,
    encode,
    encode_passages,
    exact_match_share,
    loss,
)
from asyncrl.tools.toy.models import tokenizer_from_words


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=12,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            initializer_range=0.3,
            tie_word_embeddings=True,
        )
    ).eval()


def test_a_completion_ends_with_the_end_of_sequence() -> None:
    tokenizer = tokenizer_from_words(["a", "b"])
    assert encode(tokenizer, ["ab"], ["b"]) == [EncodedDemonstration([3, 4], [4, tokenizer.eos_token_id])]


def test_passages_are_joined_and_observations_have_no_label() -> None:
    tokenizer = tokenizer_from_words(["a", "b", "c"])
    turns = [Passage("ab"), Passage("c", is_learned=False), Passage("b")]
    (row,) = encode_passages(tokenizer, ["a"], [turns])
    assert row == EncodedDemonstration(
        [3], [3, 4, 5, 4, tokenizer.eos_token_id], is_learned=[True, True, False, True, True]
    )
    assert row.labels == [3, 4, IGNORED, 4, tokenizer.eos_token_id]


def test_a_word_is_not_read_across_the_end_of_a_passage() -> None:
    tokenizer = tokenizer_from_words(["a", "b", "ab"])
    (row,) = encode_passages(tokenizer, ["a"], [[Passage("a"), Passage("b")]])
    assert tokenizer.convert_ids_to_tokens(row.completion_ids) == ["a", "b", tokenizer.eos_token]


def test_batches_hold_everything_once_sorted_by_length() -> None:
    rows = [EncodedDemonstration([1], [2] * length) for length in (3, 1, 2, 5, 4)]
    assert [[len(row) for row in batch] for batch in batches_by_length(rows, 2)] == [[2, 3], [4, 5], [6]]


def test_padding_changes_no_loss(model: Qwen3ForCausalLM) -> None:
    """Three and one completion tokens: the mean is over four, in one batch or in two."""
    long, short = EncodedDemonstration([3, 4, 5, 6], [7, 8, 1]), EncodedDemonstration([3], [1])
    together = loss(model, [long, short])
    torch.testing.assert_close(together, (3 * loss(model, [long]) + loss(model, [short])) / 4)


def test_the_loss_is_that_of_the_completion_alone(model: Qwen3ForCausalLM) -> None:
    logprobs = model(input_ids=torch.tensor([[3, 4, 7]])).logits.log_softmax(-1)[0]
    torch.testing.assert_close(
        loss(model, [EncodedDemonstration([3, 4], [7, 1])]), -(logprobs[1, 7] + logprobs[2, 1]) / 2
    )


def test_what_is_not_learned_is_read_and_has_no_loss(model: Qwen3ForCausalLM) -> None:
    logprobs = model(input_ids=torch.tensor([[3, 4, 7, 8, 1]])).logits.log_softmax(-1)[0]
    row = EncodedDemonstration([3, 4], [7, 8, 1], is_learned=[True, False, True])
    torch.testing.assert_close(loss(model, [row]), -(logprobs[1, 7] + logprobs[3, 1]) / 2)


def test_a_match_takes_observations_as_given(model: Qwen3ForCausalLM) -> None:
    ids = [3, 4]
    for read in (None, 9, None, None):
        ids.append(read or int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    turns = EncodedDemonstration([3, 4], ids[2:], is_learned=[True, False, True, True])
    slip = EncodedDemonstration([3, 4], [*ids[2:-1], (ids[-1] + 1) % 12], is_learned=turns.is_learned)
    assert exact_match_share(model, [turns]) == 1.0
    assert exact_match_share(model, [slip, turns]) == 0.5


def test_matches_are_exactly_the_completions_that_greedy_decoding_gives(model: Qwen3ForCausalLM) -> None:
    rows = []
    for prompt in ([3, 4], [5], [6, 7, 8], [9, 10]):
        ids = list(prompt)
        for _ in range(4):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        rows.append(EncodedDemonstration(prompt, ids[len(prompt) :]))
    assert exact_match_share(model, rows) == 1.0
    other = [(rows[0].completion_ids[-1] + 1) % 12]
    assert (
        exact_match_share(model, [*rows[1:], EncodedDemonstration([3, 4], rows[0].completion_ids[:-1] + other)]) == 0.75
    )
