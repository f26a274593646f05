"""Proof before the start of a run that a chat template has seams."""

from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from asyncrl.errors import ConfigError, EngineError
from asyncrl.rollout.engines.chat_template import PROBE
from asyncrl.rollout.engines.seam import ChatSeam

ENDINGS = ("a", "word", "5", ".", "?", " ", "\n", "}", "</tool_call>", "é", "水")
"""Ends of turns that are tried, besides `NUM_TOKENS` single tokens of the vocabulary."""
NUM_TOKENS = 32
"""Tokens of the vocabulary that are tried as the end of a turn and as the beginning of an answer."""


def check_seam(seam: ChatSeam, tokenizer: PreTrainedTokenizerBase, roles: Sequence[str]) -> None:
    """
    Raise `ConfigError` unless the policy can read an answer of each of these roles after its turn.

    A special token must stand at the seam, or else the tokens of a turn and of the answer to it must be those of their
    joined text: with other tokens at the seam the policy would read what no text has.
    """
    for role in roles:
        try:
            shape = seam.shape([role])
            if not seam.begins_with_special_token(shape):
                _check_tokens(seam, tokenizer, role)
        except EngineError as error:
            raise ConfigError(f"episodes need another chat template: {error}") from error


def _check_tokens(seam: ChatSeam, tokenizer: PreTrainedTokenizerBase, role: str) -> None:
    texts = list(_texts(tokenizer))
    for answer in texts or [PROBE]:
        after = seam.after([{"role": role, "content": answer}], [])
        rendered = seam.tail([{"role": role, "content": answer}])
        for end in texts:
            if [*_ids(tokenizer, end), *after] != _ids(tokenizer, end + rendered):
                raise ConfigError(
                    f"episodes need another chat template: it puts no special token between a turn that ends in "
                    f"{end!r} and an answer of the role {role}, and the tokenizer would join {rendered[:20]!r} with "
                    f"it; add the token that ends a turn to the template"
                )


def _texts(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Texts that are the same after they were encoded and decoded."""
    vocabulary = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    step = max(1, len(vocabulary) // NUM_TOKENS)
    for text in (*ENDINGS, *(tokenizer.decode([token_id]) for token_id in vocabulary[::step])):
        if text and tokenizer.decode(_ids(tokenizer, text), clean_up_tokenization_spaces=False) == text:
            yield text


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)
