"""
The workload shared by the contenders of `trainer_step.py`: one model and one batch of trajectories of unequal length.

The logarithms of the completion lengths are spaced evenly; the longest completion is ``spread`` times the shortest. The
total number of tokens does not depend on ``spread``.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from msgspec import Struct
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

GROUP_SIZE = 8
PROMPT_TOKENS = 32
WARM_UPS = 1

SMALL = {
    "vocab_size": 4096,
    "hidden_size": 192,
    "intermediate_size": 576,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""A model small enough for a CPU, and large enough that matrix products dominate the time."""


class Work(Struct, frozen=True, kw_only=True):
    """One batch and the settings for training on it."""

    model: str
    """A Hugging Face model directory with a tokenizer whose words are ``w0``, ``w1`` …"""
    prompts: list[list[int]]
    """[groups] token ids."""
    completions: list[list[int]]
    """[trajectories] token ids, `GROUP_SIZE` consecutive ones for each prompt, in random order of length."""
    rewards: list[float]
    """[trajectories] distinct values."""
    steps: int
    """Number of timed steps."""
    rows: int
    """Trajectories per micro-batch, for contenders that limit rows."""
    max_tokens: int
    """Tokens per micro-batch, for contenders that limit tokens."""

    def behavior_logprobs(self, place: int) -> list[float]:
        """[T] log-probabilities of a uniform policy for the completion at ``place``."""
        return [-float(np.log(SMALL["vocab_size"]))] * len(self.completions[place])

    def prompt(self, place: int) -> list[int]:
        """Prompt of the trajectory at ``place``."""
        return self.prompts[place // GROUP_SIZE]

    @property
    def num_tokens(self) -> int:
        """Tokens the model processes, without padding."""
        return sum(map(len, self.completions)) + PROMPT_TOKENS * len(self.completions)


class Timed(Struct, frozen=True, kw_only=True):
    """Wall seconds and CPU seconds of each step of a contender."""

    steps_s: list[float]
    cpu_s: list[float]


def work(model: Path, spread: float, *, groups: int, mean: int, steps: int, rows: int) -> Work:
    """
    A random batch, the same for the same arguments.

    Args:
        model: Directory written by `save_model`.
        spread: Length of the longest completion divided by the shortest.
        groups: Number of prompts.
        mean: Mean completion length in tokens.
        steps: Number of timed steps.
        rows: Trajectories per micro-batch; ``max_tokens`` is set to the average number of tokens of so many.
    """
    random = np.random.default_rng(0)
    count = groups * GROUP_SIZE
    lengths = np.exp(np.linspace(0, np.log(spread), count))
    lengths = np.maximum(1, np.round(lengths * mean * count / lengths.sum())).astype(int)
    random.shuffle(lengths)
    words = SMALL["vocab_size"]
    return Work(
        model=str(model),
        prompts=[random.integers(2, words, PROMPT_TOKENS).tolist() for _ in range(groups)],
        completions=[random.integers(2, words, length).tolist() for length in lengths],
        rewards=random.normal(size=count).tolist(),
        steps=steps,
        rows=rows,
        max_tokens=max(rows * (mean + PROMPT_TOKENS), int(lengths.max()) + PROMPT_TOKENS),
    )


def save_model(path: Path) -> None:
    """Save a model of shape `SMALL` with random weights, and its tokenizer."""
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SMALL)).save_pretrained(path)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(SMALL["vocab_size"])}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="w1", pad_token="w0", padding_side="left"
    ).save_pretrained(path)


def read_work() -> Work:
    """Read the `Work` file named by the first command-line argument, and limit torch to one thread."""
    torch.set_num_threads(1)
    return msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Work)


def timed(step: Callable[[], object], steps: int) -> Timed:
    """Call ``step`` `WARM_UPS` times, then time ``steps`` calls."""
    for _ in range(WARM_UPS):
        step()
    marks = [(time.perf_counter(), time.process_time())]
    for _ in range(steps):
        step()
        marks.append((time.perf_counter(), time.process_time()))
    return timed_from_marks(marks)


def timed_from_marks(marks: Sequence[tuple[float, float]]) -> Timed:
    """Step times from (wall, CPU) clock readings at the start of each step and the end of the last."""
    wall_s, cpu_s = np.diff(np.array(marks), axis=0).T.tolist()
    return Timed(steps_s=wall_s, cpu_s=cpu_s)


def print_timed(found: Timed) -> None:
    """Print the result as the last line of output."""
    sys.stdout.write("\n" + msgspec.json.encode(found).decode() + "\n")
