"""
Toy tokenizers: one knows a list of words, one is a byte-level BPE trained on text.

    tokenizer_from_words   "Tom a+5"  ─▶  Tom │ a│+│5     for a language whose words are known
    tokenizer_from_texts   "She sold" ─▶  She │ sold      for any text

Invariant: encoded text decodes to the same text: text of known words (`tokenizer_from_words`), any text
(`tokenizer_from_texts`). No token is added before or after a text; writers of demonstrations append `EOS` themselves.
"""

import re
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from asyncrl.errors import ConfigError

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
NUM_BYTES = 256
PLAIN_CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""Chat template under which a chat is the text of its messages, one after another."""


def tokenizer_from_words(
    words: Sequence[str], special: Sequence[str] = (), *, chat_template: str | None = None
) -> PreTrainedTokenizerBase:
    """Tokenizer with one token per word, its spaces included; other text becomes `UNKNOWN`."""
    ids = {word: token_id for token_id, word in enumerate((PAD, EOS, UNKNOWN, *special, *words))}
    longest_first = sorted(words, key=len, reverse=True)
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return _wrapped(tokenizer, unk_token=UNKNOWN, extra_special_tokens=list(special), chat_template=chat_template)


def tokenizer_from_texts(texts: Iterable[str], vocab_size: int, special: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE of at most ``vocab_size`` tokens; raises `ConfigError` if single bytes do not fit."""
    first = [PAD, EOS, *special]
    least = NUM_BYTES + len(first)
    if vocab_size < least:
        raise ConfigError(
            f"vocab_size is {vocab_size}, but every byte and {len(first)} special tokens need {least}; raise it"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=first,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrapped(tokenizer, extra_special_tokens=list(special))


def _wrapped(tokenizer: Tokenizer, **settings: str | list[str] | None) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,  # cleaning would remove spaces from " ." and the like
        **settings,
    )
