"""A toy of everything: a random Qwen3 of 22 words, 64 prompts, and a whole run of real processes around them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.broker.ledger_reader import LedgerReader
from asyncrl.broker.records import AnyRecord
from asyncrl.config import Config, load
from asyncrl.observe.run_directory import RunDirectory, Summary

WORDS = ["<pad>", "<eos>", *"0123456789+-=#", "a", "b", "c", "How", "many", "now?"]
EOS_ID = WORDS.index("<eos>")
STUCK_S = 100.0
"""A run that has not ended by then hangs."""
POLL_S = 0.05

REWARD = '''
def count_of_a(sample):
    """Something that random weights earn, and that differs within a group."""
    return {"score": float(sample.completion.count("a") % 3), "correct": float("a" in sample.completion)}
'''

CONFIG = """
[run]
steps = {steps}
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


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its tokenizer, prompts, and a reward function."""
    folder = tmp_path_factory.mktemp("toy")
    make_model(folder / "model")
    rows = [{"prompt": f"a + {i % 10} b How many now?", "answer": str(i % 10), "data_source": "toy"} for i in range(64)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:16]), folder / "held_out.parquet")
    (folder / "reward.py").write_text(REWARD)
    return folder


def make_model(path: Path) -> None:
    """Random weights: every word is about as likely as any other, so that completions have about 22 of them."""
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
        head_dim=8,
        tie_word_embeddings=True,
        eos_token_id=EOS_ID,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(path)


class ToyRun:
    """One `asyncrl run`, from its start to what it left behind."""

    def __init__(self, folder: Path, toy: Path, *overrides: str, steps: int = 8) -> None:
        self._config = folder / "toy.toml"
        self._config.write_text(CONFIG.format(toy=toy, steps=steps))
        command = [sys.executable, "-m", "asyncrl", "run", self._config.name]
        for override in overrides:
            command += ["--set", override]
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.directory = RunDirectory(folder / "runs" / "toy")
        self.most_processes = 0
        self.output = self.errors = ""
        self.code: int | None = None

    @property
    def config(self) -> Config:
        """As it was resolved."""
        return load(self.directory.config)

    @property
    def summary(self) -> Summary:
        """How it ended."""
        summary = self.directory.read_summary()
        assert summary is not None
        return summary

    @property
    def events(self) -> list[dict[str, object]]:
        """What happened."""
        return self.directory.read_events()

    def records(self) -> list[AnyRecord]:
        """The ledger, in order."""
        with LedgerReader(self.directory.ledger) as ledger:
            return list(ledger.records())

    def processes(self) -> list[int]:
        """This run's, the supervisor included."""
        found = [self._process.pid]
        for pid in found:
            try:
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except FileNotFoundError:
                continue
        return found

    def pid_of(self, node: str) -> int:
        """The process that plays ``node`` now."""
        for pid in self.processes():
            try:
                if node.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
            except FileNotFoundError:
                continue
        raise AssertionError(f"no process plays {node}")

    def steps_done(self) -> int:
        """Lines of metrics so far."""
        return len(self.directory.read_metrics()) if self.directory.metrics.exists() else 0

    def until(self, condition: Callable[[], bool]) -> None:
        """Look again and again, for as long as the run goes on."""
        deadline_s = time.monotonic() + STUCK_S
        while not condition():
            self.most_processes = max(self.most_processes, len(self.processes()))
            assert self._process.poll() is None, f"the run ended too early: {self._process.communicate()}"
            assert time.monotonic() < deadline_s, "the run hangs"
            time.sleep(POLL_S)

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal would: but only to the one in front."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> "ToyRun":
        """Wait until it has ended by itself."""
        self.output, self.errors = self._process.communicate(timeout=STUCK_S)
        self.code = self._process.returncode
        return self

    def kill(self) -> None:
        """Whatever is left of it."""
        for pid in reversed(self.processes()):
            if self._process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture(scope="session")
def start_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ToyRun]]:
    """Start a toy run in a folder of its own: ``start_run("staleness=0", steps=4)``."""
    runs: list[ToyRun] = []

    def start(*overrides: str, steps: int = 8) -> ToyRun:
        runs.append(ToyRun(tmp_path_factory.mktemp("run"), toy, *overrides, steps=steps))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()
