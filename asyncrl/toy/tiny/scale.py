"""
Reduction of a recipe for many devices to one for a CPU: the same options, with a tiny model and few rows.

    model.path ─▶ random model of the same architecture     data.train, data.held_out ─▶ rows in the same form
    sizes      ─▶ at most what two cores do in seconds      devices, machines         ─▶ this CPU
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.toml import convert
from asyncrl.data.table import open_rows
from asyncrl.toy.models import save_model
from asyncrl.toy.tiny.architectures import architecture_of, picture_processor, random_model, special_words
from asyncrl.toy.tiny.samples import dataset_of, write_sample
from asyncrl.toy.vocabulary import tokenizer_from_texts

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
        tokenizer = tokenizer_from_texts(_texts(files["train"]), VOCAB_SIZE, special_words(architecture))
        tokenizer.chat_template = CHAT_TEMPLATE
        made = random_model(architecture, tokenizer, seed)
        save_model(model, made, tokenizer, report, picture_processor(architecture))
    return {"model.path": str(model), **{f"data.{key}": paths for key, paths in files.items() if paths}}


def _limits(values: dict[str, Any]) -> dict[str, Any]:
    most = MOST | ({} if values["run"]["epochs"] else {"trainer.warmup_steps": values["run"]["steps"]})
    sizes = {key: min(_at(values, key), value) for key, value in most.items()}
    return INSTEAD | sizes


def _at(values: dict[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    return values[section][name]


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
