"""
Token ids of a model, found in one way for sampler, trainer, evaluation and loops of one's own.

    tokenizer, as transformers loads it     its tokens, in whichever of its files they stand ─┐
    generation_config.json, config.json     tokens that end a completion ─────────────────────┼─▶ TokenIds
    image processor                         places of pictures, which are never sampled ──────┘

The loaded tokenizer decides, because no file tells the ids alone: tokens stand in tokenizer.json, in tables of other
files, or are named by their text and get the next id when transformers loads them. Added tokens that the embedding has
no row for do not exist: some models share the tokenizer of a larger one.
"""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from asyncrl.config.model.directory import require_directory
from asyncrl.config.model.tokenizer import check_tokenizer, foreign_tokenizer, has_vocabulary
from asyncrl.errors import ConfigError
from asyncrl.log import get_logger
from asyncrl.messages.token_ids import TokenIds
from asyncrl.plug_in import describe
from asyncrl.vision.processor import ImageProcessor

log = get_logger()


def load_tokenizer(model_path: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model directory. Raises `ConfigError` if it has none: transformers makes an empty one."""
    if not (model := Path(model_path)).is_dir():
        require_directory(model_path, "model.path")
    check_tokenizer(model, "model.path")
    try:
        return AutoTokenizer.from_pretrained(model_path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged file may raise anything
        raise ConfigError(
            f"model.path={model_path}: its tokenizer cannot be loaded: {describe(error, __file__)}"
        ) from error


def read_token_ids(model: PreTrainedModel, path: Path, processor: ImageProcessor | None) -> TokenIds:
    """
    Token ids of a model made by the configuration of a directory, with or without weights.

    Without a tokenizer there is no text, and each row of the embedding is an id. Raises `ConfigError` if the tokenizer
    cannot be loaded, or is another model's.
    """
    return find_token_ids(model, load_tokenizer(str(path)) if has_vocabulary(path) else None, processor)


def find_token_ids(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, processor: ImageProcessor | None
) -> TokenIds:
    """
    Token ids of a model with its generation config, a loaded tokenizer, and an image processor if it reads pictures.

    Raises `ConfigError` if the tokenizer's vocabulary, or a token that ends completions, has no row in the embedding.
    """
    num_rows = int(model.get_input_embeddings().weight.shape[0])
    ends = _end_ids(model, tokenizer, num_rows)
    pictures = processor.vision_token_ids if processor else frozenset[int]()
    tokens = set(range(num_rows)) if tokenizer is None else _tokens(model, tokenizer, num_rows)
    vocab_size = max(token_id for token_id in {*tokens, *ends, *pictures} if token_id < num_rows) + 1
    sampled = tokens.union(ends) - pictures
    return TokenIds(vocab_size, tuple(sorted(set(range(vocab_size)) - sampled)), tuple(ends))


def _tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, num_rows: int) -> set[int]:
    """Ids with a token and a row."""
    added = set(tokenizer.added_tokens_decoder)
    vocabulary = set(tokenizer.get_vocab().values()) - added
    highest = max(vocabulary, default=-1)
    if highest >= num_rows:
        raise ConfigError(foreign_tokenizer(f"model.path={model.config.name_or_path}", highest, num_rows))
    if beyond := sorted(token_id for token_id in added if token_id >= num_rows):
        log.warning("tokenizer.tokens_without_rows", rows=num_rows, tokens=tokenizer.convert_ids_to_tokens(beyond[:8]))
    found = {token_id for token_id in vocabulary | added if token_id < num_rows}
    # A vocabulary by text has one id of each text: others may have a token all the same.
    others = sorted(set(range(max(found, default=-1))) - found)
    texts = tokenizer.convert_ids_to_tokens(others) if others else []
    return found | {token_id for token_id, text in zip(others, texts, strict=True) if text is not None}


def _end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, num_rows: int) -> list[int]:
    """Ends named by the generation config, the model config or the tokenizer, ascending; a negative id names none."""
    sources = {
        "generation_config.json": getattr(getattr(model, "generation_config", None), "eos_token_id", None),
        "config.json": model.config.get_text_config().eos_token_id,
        "the tokenizer": tokenizer.eos_token_id if tokenizer else None,
    }
    found: set[int] = set()
    for source, ids in sources.items():
        named = {token_id for token_id in ([ids] if isinstance(ids, int) else ids or []) if token_id >= 0}
        if beyond := sorted(token_id for token_id in named if token_id >= num_rows):
            raise ConfigError(
                f"model.path={model.config.name_or_path}: {source} names the end token {beyond[0]}, but the model has "
                f"{num_rows} tokens, 0 to {num_rows - 1}; repair eos_token_id"
            )
        found |= named
    return sorted(found)
