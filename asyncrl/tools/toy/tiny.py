"""
Reduction of a recipe for many devices to one for a CPU: the same options, with a tiny model and few rows.

    model.path ─▶ random model of the same architecture     data.train, data.held_out ─▶ rows in the same form
    sizes      ─▶ at most what two cores do in seconds      devices, machines         ─▶ this CPU
"""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from asyncrl.config.config import Config
from asyncrl.config.model.weights import read_config
from asyncrl.config.run_file import decode
from asyncrl.config.toml import convert
from asyncrl.data.prepare.geo3k import GEO3K
from asyncrl.data.prepare.published import DAPO_MATH, GSM8K, PublishedDataset, PublishedProblem, write, written_row
from asyncrl.data.table import open_rows
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import IMAGE_MARK
from asyncrl.tools.toy import drawn_squares
from asyncrl.tools.toy.drawn_squares import VISION_WORDS, image_processor, random_vision_model
from asyncrl.tools.toy.models import save_model, tokenizer_from_texts

# ── architectures ─────────────────────────────────────────────────────────────────────────────
# Random models of a few layers, one for each architecture that recipes train.
#
#     models/Qwen3-30B-A3B ─▶ qwen3_moe ─▶ 2 layers, 4 experts, random weights
#         by config.json, or by the name if there is no such directory

MAX_POSITIONS = 4096
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": False,
    "bos_token_id": None,
}
"""Sizes that all language models here have in common."""

NAMES = (
    (r"qwen3-vl-[\d.]+b(?!-a)", "qwen3_vl"),
    (r"qwen3-\d+b-a\d+b", "qwen3_moe"),
    (r"qwen3-[\d.]+b", "qwen3"),
    (r"qwen2(\.5)?-(math-)?[\d.]+b", "qwen2"),
)
"""Patterns of published names, in lower case, with the ``model_type`` in config.json."""


READ_PICTURES = ("qwen3_vl",)
ARCHITECTURES = ("qwen2", "qwen3", "qwen3_moe", *READ_PICTURES)


def architecture_of(path: Path) -> str:
    """
    ``model_type`` of a model directory, or of the published model that its path names.

    Raises:
        ConfigError: No random model of the architecture can be made, or the name is not a known one.
    """
    if (path / "config.json").is_file():
        found = str(read_config(path).get("model_type"))
    else:
        found = next((kind for pattern, kind in NAMES if re.match(pattern, path.name.lower())), "")
    if found not in ARCHITECTURES:
        what = f"has model_type {found!r}" if found else "is not here, and its name is not a published one"
        raise ConfigError(
            f"model.path={path} {what}; --scale tiny makes models of {', '.join(ARCHITECTURES)}: name one of those, "
            f"such as models/Qwen3-8B"
        )
    return found


def random_model(architecture: str, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A model with random weights, a function of its arguments; the process's random state stays as it was."""
    if architecture == "qwen3_vl":
        return random_vision_model(tokenizer, seed)
    text: dict[str, Any] = {
        **TEXT,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if architecture == "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**text))
        if architecture == "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**text, head_dim=16))
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**text, head_dim=16, **experts))


# ── samples ───────────────────────────────────────────────────────────────────────────────────
# Generated rows in the form in which `asyncrl data prepare` writes a published dataset.
#
#     data/gsm8k/train.parquet ─▶ gsm8k ─▶ "What is 3 + 4? ..." with its data source and instruction ─▶ parquet

DATASETS = {"gsm8k": GSM8K, "dapo-math": DAPO_MATH, "aime-2024": DAPO_MATH, "geo3k": GEO3K}
"""Published datasets by the name of a folder or file."""
NUM_ROWS = 32
LONG = 100
"""Repetitions of the question in a prompt that is too long."""


def dataset_of(path: Path) -> PublishedDataset:
    """Published dataset that a part of the path names. Raises `ConfigError` if no part does."""
    for part in (path.stem, *(parent.name for parent in path.parents)):
        if found := DATASETS.get(part.lower()):
            return found
    raise ConfigError(
        f"{path} is not here, and no part of it names a dataset that --scale tiny can imitate ({', '.join(DATASETS)}); "
        f"give a file that exists, with --set"
    )


def write_sample(dataset: PublishedDataset, out: Path, *, split: str, seed: int, long_every: int = 0) -> None:
    """
    Write `NUM_ROWS` rows of a dataset, sums or pictures of squares, drawn by ``split`` and ``seed``.

    Args:
        long_every: Each n-th prompt exceeds the limit of ``--scale tiny``, for recipes that drop or shorten such
            prompts; 0 makes none.
    """
    rng = random.Random(f"{dataset.data_source} {split} {seed}")
    rows = []
    for number in range(NUM_ROWS):
        is_long = long_every > 0 and number % long_every == long_every - 1
        times = LONG if is_long else 1
        problem = _squares(rng, times) if dataset is GEO3K else _sum(rng, times)
        rows.append(written_row(dataset, problem, split=split, number=number))
    out.parent.mkdir(parents=True, exist_ok=True)
    write(rows, out)


def _sum(rng: random.Random, times: int) -> PublishedProblem:
    first, second = rng.randrange(100), rng.randrange(100)
    return PublishedProblem(prompt=f"What is {first} + {second}? " * times, answer=str(first + second))


def _squares(rng: random.Random, times: int) -> PublishedProblem:
    drawn = next(drawn_squares.problems(rng.getrandbits(32), "train"))
    question = drawn.prompt.removeprefix(IMAGE_MARK)
    return PublishedProblem(
        prompt=IMAGE_MARK + f"{question} " * times,
        answer=drawn.answer,
        image=drawn_squares.png(drawn),
        image_name="squares.png",
    )


# ── scale ─────────────────────────────────────────────────────────────────────────────────────

MOST = {
    "data.max_prompt_tokens": 256,
    "schedule.groups_per_step": 4,
    "schedule.group_size": 4,
    "sampling.max_tokens": 24,
    "rollout.replicas": 2,
    "rollout.slots": 16,
    "trainer.mini_batches": 4,
    "trainer.ranks": 2,
    "trainer.shard_size": 2,
    "trainer.sequence_parallel": 2,
    "trainer.nodes": 1,
    "trainer.min_nodes": 1,
    "trainer.max_tokens_per_micro_batch": 2048,
    "weights.bucket_bytes": 1 << 20,
    "evaluation.max_tokens": 24,
}
"""Largest value of each setting that is a size."""
INSTEAD = {
    "rollout.engine": "transformers",
    "rollout.vllm": {},
    "rollout.device": "cpu",
    "trainer.device": "cpu",
    "weights.backend": "auto",
    "weights.interface": "",
    "broker.bind": "tcp://127.0.0.1:0",
    "broker.spool_bind": "",
    "broker.advertise": "",
    "evaluation.max_prompts": 8,
}
"""Replacements for settings that name devices or machines, or whose 0 means no limit."""
VOCAB_SIZE = 512
LONG_EVERY = 4
"""Every n-th training prompt is too long, if the recipe drops or truncates such prompts."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Template of Qwen's chat format; a content with pictures is a list of parts."""

Report = Callable[[str], None]


def scaled(raw: dict[str, Any], folder: Path, report: Report) -> Config:
    """
    Scale the recipe of a run file for a CPU, and check it. Its model and data are made in ``folder``, or kept from an
    earlier call; data files that exist at the recipe's paths are used as they are.

    Args:
        raw: The run file as a nested dict; unchanged.

    Raises:
        ConfigError: The architecture or dataset has no tiny counterpart, or the recipe is invalid.
    """
    values: dict[str, Any] = msgspec.to_builtins(convert(raw, Config))
    for key, value in {**_made(values, folder, report), **_limits(values)}.items():
        section, _, name = key.partition(".")
        if values[section][name] != value:
            report(f"scaled {key}: {values[section][name]} -> {value}")
            values[section][name] = value
    del values["run"]["steps" if values["run"]["epochs"] else "epochs"]
    return decode(values)


def _made(values: dict[str, Any], folder: Path, report: Report) -> dict[str, Any]:
    """Make the model and the data, and return the settings with their paths."""
    seed = values["run"]["seed"]
    architecture = architecture_of(Path(values["model"]["path"]))
    files = {key: _sample(values["data"], key, folder, seed) for key in ("train", "held_out")}
    model = folder / architecture
    if not (model / "config.json").is_file():
        reads_pictures = architecture in READ_PICTURES
        tokenizer = tokenizer_from_texts(_texts(files["train"]), VOCAB_SIZE, VISION_WORDS if reads_pictures else ())
        tokenizer.chat_template = CHAT_TEMPLATE
        made = random_model(architecture, tokenizer, seed)
        save_model(model, made, tokenizer, report, image_processor() if reads_pictures else None)
    return {"model.path": str(model), **{f"data.{key}": paths for key, paths in files.items() if paths}}


def _limits(values: dict[str, Any]) -> dict[str, Any]:
    most = MOST | ({} if values["run"]["epochs"] else {"trainer.warmup_steps": values["run"]["steps"]})
    sizes = {}
    for key, limit in most.items():
        section, _, name = key.partition(".")
        sizes[key] = min(values[section][name], limit)
    return INSTEAD | sizes


def _sample(data: dict[str, Any], split: str, folder: Path, seed: int) -> list[str]:
    """Paths of a split: each file itself if it exists, else a generated one in its form."""
    allows_long = data["filter_overlong_prompts"] or data["truncation"] != "error"
    paths = [data[split]] if isinstance(data[split], str) else data[split]
    made = []
    for path in map(Path, filter(None, paths)):
        sample = path
        if not path.is_file():
            dataset = dataset_of(path)
            long_every = LONG_EVERY if allows_long and split == "train" else 0
            kind = "-with-long" if long_every else ""
            sample = folder / f"{dataset.data_source.replace('/', '-')}{kind}" / f"{split}.parquet"
            write_sample(dataset, sample, split=split, seed=seed, long_every=long_every)
        made.append(str(sample))
    return made


def _texts(paths: list[str]) -> Iterator[str]:
    for path in paths:
        rows = open_rows(Path(path))
        yield from (str(rows[number]["prompt"]) for number in range(len(rows)))
