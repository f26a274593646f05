"""Model directories whose tokenizers let tokens stand in each of the places that transformers reads."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

NUM_WORDS, NUM_ROWS = 12, 20
"""Tokens of the vocabulary, ``<unk>``, ``<eos>`` and ``w2`` .. ``w11``, and rows of the embedding."""
EOS = 1
MORE = "<|more|>"
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
ADDED = {"content": MORE, **FLAGS}

Files = dict[str, Any]
"""Contents of files by name; a table is merged into the file's own."""


def vocabulary(hole: range = range(0)) -> dict[str, int]:
    words = ["<unk>", "<eos>", *(f"w{place}" for place in range(2, NUM_WORDS))]
    return {word: place + len(hole) * (place >= hole.start) for place, word in enumerate(words)}


def of_words(hole: range = range(0)) -> Tokenizer:
    made = Tokenizer(models.WordLevel(vocabulary(hole), unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def model_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The vocabulary, as a tokenizer.json has it."""
    found: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return found


def settings(**changes: Any) -> Files:
    return {"tokenizer_config.json": changes}


def added_tokens(*tokens: dict[str, Any]) -> list[dict[str, Any]]:
    own = [{"id": place, "content": word, **FLAGS} for place, word in enumerate(["<unk>", "<eos>"])]
    return [*own, *tokens]


SHAPES: dict[str, Files] = {
    "tokenizer.json alone": {},
    "added_tokens of tokenizer.json": {"tokenizer.json": {"added_tokens": added_tokens({"id": 12, **ADDED})}},
    "an added token after a gap": {"tokenizer.json": {"added_tokens": added_tokens({"id": 15, **ADDED})}},
    "added_tokens_decoder": settings(added_tokens_decoder={"12": ADDED}),
    "added_tokens.json": {"added_tokens.json": {MORE: 12}},
    "special_tokens_map.json": {"special_tokens_map.json": {"additional_special_tokens": [MORE]}},
    "additional_special_tokens": settings(additional_special_tokens=[MORE, "<|most|>"]),
    "extra_special_tokens, a table": settings(extra_special_tokens={"more_token": MORE}),
    "extra_special_tokens, a list": settings(extra_special_tokens=[MORE]),
    "a pad token": settings(pad_token=MORE),
    "a bos token": settings(bos_token={"__type": "AddedToken", **ADDED}),
    "an end of generation_config.json": {"generation_config.json": {"eos_token_id": [EOS, 14]}},
    "an end of config.json": {"config.json": {"eos_token_id": 13}},
    "a hole in the vocabulary": {"tokenizer.json": {"model": model_of(of_words(range(5, 8)))}},
    "more tokens than rows": settings(additional_special_tokens=[f"<|{number}|>" for number in range(12)]),
}
"""By the place of the token that the others lack."""


TOKENS = st.sampled_from([MORE, "<|most|>", "w3", "<eos>", "w99"])
PARTS: dict[str, st.SearchStrategy[Files]] = {
    "tokenizer_config.json": st.fixed_dictionaries(
        {},
        optional={
            "added_tokens_decoder": st.dictionaries(
                st.integers(0, NUM_ROWS + 5).map(str), TOKENS.map(lambda text: {**ADDED, "content": text}), max_size=3
            ),
            "additional_special_tokens": st.lists(TOKENS, max_size=3),
            "extra_special_tokens": st.one_of(
                st.lists(TOKENS, max_size=2), st.dictionaries(st.sampled_from(["a_token", "b_token"]), TOKENS)
            ),
            "pad_token": TOKENS,
            "bos_token": TOKENS.map(lambda text: {"__type": "AddedToken", **ADDED, "content": text}),
        },
    ),
    "added_tokens.json": st.dictionaries(TOKENS, st.integers(0, NUM_ROWS + 5), max_size=3),
    "special_tokens_map.json": st.fixed_dictionaries({}, optional={"pad_token": TOKENS, "mask_token": TOKENS}),
    "generation_config.json": st.fixed_dictionaries(
        {}, optional={"eos_token_id": st.lists(st.integers(-1, NUM_ROWS - 1), min_size=1, max_size=3)}
    ),
    "tokenizer.json": st.tuples(st.integers(0, NUM_WORDS), st.integers(0, 3)).map(
        lambda hole: {"model": model_of(of_words(range(hole[0], sum(hole))))}
    ),
}
FILES = st.fixed_dictionaries({}, optional=PARTS)
"""Any of these files together."""


def make_model_directory(path: Path, files: Files, *, num_rows: int = NUM_ROWS, seed: int = 0) -> Path:
    """Write a random model of a tokenizer of words, with changes to its files."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_words(), eos_token="<eos>", unk_token="<unk>")
    return _make(path, tokenizer.save_pretrained, files, num_rows, seed)


def make_directory_without_a_tokenizer_json(path: Path, kind: str, num_rows: int) -> Path:
    """Write a random model whose vocabulary is in ``vocab.json``, a sentencepiece model, or a tiktoken file."""
    return _make(path, OTHER_FILES[kind], settings(additional_special_tokens=[MORE]), num_rows, seed=0)


def _make(path: Path, save_tokenizer: Callable[[Path], object], files: Files, num_rows: int, seed: int) -> Path:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=num_rows,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=seed % 2 == 0,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)
    save_tokenizer(path)
    for name, content in files.items():
        file = path / name
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(before | content))
    return path


def _save_bpe(path: Path) -> None:
    pieces = [*"abcdefgh", "ab", "abc"]
    (path / "vocab.json").write_text(json.dumps({piece: place for place, piece in enumerate(pieces)}))
    (path / "merges.txt").write_text("#version: 0.2\na b\nab c\n")


def _save_sentencepiece(path: Path) -> None:
    import sentencepiece

    model, texts = io.BytesIO(), iter(["aa bb cc ab bc"] * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, vocab_size=14, model_type="bpe", minloglevel=2
    )
    (path / "tokenizer.model").write_bytes(model.getvalue())
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))


def _save_tiktoken(path: Path) -> None:
    pieces = [*(bytes([byte]) for byte in range(256)), b"ab"]
    lines = (f"{base64.b64encode(piece).decode()} {place}" for place, piece in enumerate(pieces))
    (path / "tiktoken.model").write_text("\n".join(lines))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"}))


OTHER_FILES = {"bpe": _save_bpe, "sentencepiece": _save_sentencepiece, "tiktoken": _save_tiktoken}
