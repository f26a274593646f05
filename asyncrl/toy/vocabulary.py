"""
Tokenizers made on the spot: one that knows a list of words, one that learns its pieces from text.

    of_words   "Tom a+5"  ─▶  Tom │ a│+│5        for a language whose words are known
    of_texts   "She sold" ─▶  She │ sold         byte-level BPE: any text

Invariant: text that was encoded decodes to the same text, as long as it is made of known words (`of_words`) or at all
(`of_texts`). Nothing is added in front or behind; a demonstration ends with `EOS` because its writer says so.
"""

import re
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from asyncrl.errors import ConfigError

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
NUM_BYTES = 256


def of_words(words: Sequence[str]) -> PreTrainedTokenizerBase:
    """A token for each word, spaces included as they stand; text in between becomes `UNKNOWN`."""
    ids = {word: token_id for token_id, word in enumerate((PAD, EOS, UNKNOWN, *words))}
    longest_first = sorted(words, key=len, reverse=True)
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return _finished(tokenizer, unk_token=UNKNOWN)


def of_texts(texts: Iterable[str], size: int) -> PreTrainedTokenizerBase:
    """
    A byte-level BPE of at most ``size`` tokens, learned from ``texts``; fewer if they hold no more pieces.

    Raises:
        ConfigError: ``size`` has no room for the single bytes.
    """
    least = NUM_BYTES + len((PAD, EOS))
    if size < least:
        raise ConfigError(
            f"model.scratch.vocab_size is {size}, but every byte and two special tokens need {least}; raise it"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finished(tokenizer)


def _finished(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,  # it would take spaces from " ." and the like
        **special,
    )
