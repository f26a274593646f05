"""
The work that contenders of `trainer_step.py` share: one model, and one batch of trajectories of unlike length.

Completions are spread evenly in the logarithm of their length, from the shortest to ``spread`` times that; they have
the same number of tokens together whatever the spread.
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
"""Small enough for a CPU, and large enough that the time goes into products."""


class Work(Struct, frozen=True, kw_only=True):
    """One batch."""

    model: str
    """A Hugging Face directory, with a tokenizer whose words are ``w0``, ``w1`` …"""
    prompts: list[list[int]]
    """[groups]."""
    completions: list[list[int]]
    """[trajectories], `GROUP_SIZE` of each prompt, in no order of length."""
    rewards: list[float]
    """[trajectories], no two alike."""
    steps: int
    """To be timed."""
    rows: int
    """Trajectories of a micro-batch, where those are counted in rows."""
    max_tokens: int
    """Tokens of a micro-batch, where those are counted in tokens."""

    def behavior_logprobs(self, place: int) -> list[float]:
        """Those of a policy that knows nothing."""
        return [-float(np.log(SMALL["vocab_size"]))] * len(self.completions[place])

    def prompt(self, place: int) -> list[int]:
        """Of a trajectory."""
        return self.prompts[place // GROUP_SIZE]

    @property
    def num_tokens(self) -> int:
        """That the model has to read, padding not counted."""
        return sum(map(len, self.completions)) + PROMPT_TOKENS * len(self.completions)


class Timed(Struct, frozen=True, kw_only=True):
    """What a contender prints."""

    steps_s: list[float]
    cpu_s: list[float]


def work(model: Path, spread: float, *, groups: int, mean: int, steps: int, rows: int) -> Work:
    """
    A batch.

    Args:
        model: See `save_model`.
        spread: Longest completion over shortest.
        groups: Prompts.
        mean: Tokens of the mean completion.
        steps: To be timed.
        rows: Of a micro-batch of those who count in rows; the others get as many tokens as that is on average.
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
    """`SMALL` with random weights, and its tokenizer."""
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SMALL)).save_pretrained(path)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(SMALL["vocab_size"])}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="w1", pad_token="w0", padding_side="left"
    ).save_pretrained(path)


def read() -> Work:
    """What the first argument of a contender's command names."""
    torch.set_num_threads(1)
    return msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Work)


def timed(step: Callable[[], object], steps: int) -> Timed:
    """Warm up, then measure."""
    for _ in range(WARM_UPS):
        step()
    marks = [(time.perf_counter(), time.process_time())]
    for _ in range(steps):
        step()
        marks.append((time.perf_counter(), time.process_time()))
    return of_marks(marks)


def of_marks(marks: Sequence[tuple[float, float]]) -> Timed:
    """(wall, CPU) at the start of each step, and the end of the last."""
    wall_s, cpu_s = np.diff(np.array(marks), axis=0).T.tolist()
    return Timed(steps_s=wall_s, cpu_s=cpu_s)


def answer(found: Timed) -> None:
    """Print it, last of all."""
    sys.stdout.write("\n" + msgspec.json.encode(found).decode() + "\n")
