"""Special tokens of a tokenizer: those that text is decoded without."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> Mapping[int, str]:
    """Texts of the special tokens, by id."""
    added = {token_id: token for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    return {token_id: str(token) for token_id, token in (*added.items(), *named)}


def without_last(token_ids: Sequence[int], special: Mapping[int, str]) -> list[int]:
    """Ids up to the last that is not special: a turn without what ended it."""
    end = len(token_ids)
    while end and token_ids[end - 1] in special:
        end -= 1
    return list(token_ids[:end])
