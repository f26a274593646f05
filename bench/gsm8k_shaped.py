"""
A task of GSM8K's shape that a small model learns: real prompts, worked solutions with long tails, a checked answer.

    asyncrl data prepare gsm8k train.jsonl --text -o cache/gsm8k/train.parquet
    asyncrl data prepare gsm8k test.jsonl --text -o cache/gsm8k/test.parquet
    python bench/gsm8k_shaped.py cache/gsm8k [--epochs 3]         # base model in cache/gsm8k/model, supervised
    python bench/lagged.py bench/gsm8k_shaped.toml --methods default --staleness 0,16 --lr 2e-4

GSM8K's solutions mark their calculations: ``<<48/2=24>>``. A model of a million parameters imitates them without
solving problems, so correctness gives it no gradient. It can learn to be consistent: a completion is right if its last
calculation is, and the number after ``####`` is its result.
"""

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import smoke
import torch
from transformers import PreTrainedModel

from asyncrl.reward.verifier import VerifierInput
from asyncrl.tools.toy.demonstrations import EncodedDemonstration, batches_by_length, encode
from asyncrl.tools.toy.models import save_model, tokenizer_from_texts
from asyncrl.tools.toy.text_model import TextModelSizes, random_model
from asyncrl.tools.toy.warm_up import supervised_step

NUMBER = r"(-?\d+(?:\.\d+)?)"
CALCULATION = re.compile(rf"<<{NUMBER}([-+*/]){NUMBER}={NUMBER}>>")
ANSWER = re.compile(rf"#### {NUMBER}\s*$")
SIZES = TextModelSizes(layers=3, hidden_size=128, intermediate_size=384, heads=4, kv_heads=2, head_dim=32)
VOCABULARY = 2048
BATCH_SIZE = 32
LR = 3e-3
RISE_STEPS = 30
DRAWN_TOGETHER = 32
"""Batches that are drawn together and sorted by length, so that they have little padding."""


def score(sample: VerifierInput) -> dict[str, float]:
    """1 if the last calculation of the completion is right and its result is the answer, else 0."""
    calculations, answer = CALCULATION.findall(sample.completion), ANSWER.search(sample.completion)
    is_right = (
        calculations and answer and _is_right(*calculations[-1]) and float(calculations[-1][3]) == float(answer[1])
    )
    return {"score": float(bool(is_right)), "correct": float(bool(is_right))}


def _is_right(left: str, sign: str, right: str, result: str) -> bool:
    a, b = Fraction(left), Fraction(right)
    match sign:
        case "/":
            exact = a / b if b else None
        case "*":
            exact = a * b
        case _:
            exact = a + b if sign == "+" else a - b
    return exact is not None and abs(Fraction(result) - exact) < Fraction(1, 100)


def train(model: PreTrainedModel, examples: list[EncodedDemonstration], epochs: float, seed: int) -> None:
    """Supervised training on the solutions, with a short rise and a linear fall of the learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    stream, steps = batches(examples, random.Random(seed)), int(epochs * len(examples) / BATCH_SIZE)
    started_s = time.monotonic()
    for step, batch in enumerate(islice(stream, steps)):
        lr = LR * min(1.0, (step + 1) / RISE_STEPS) * (1 - 0.95 * step / steps)
        value = supervised_step(model, optimizer, batch, lr)
        if step % 50 == 0:
            line = {"bench": "gsm8k_shaped", "case": f"step {step} of {steps}", "loss": round(value, 3)}
            print(json.dumps(line | {"seconds": round(time.monotonic() - started_s)}), flush=True)


def batches(examples: list[EncodedDemonstration], rng: random.Random) -> Iterator[list[EncodedDemonstration]]:
    """Epochs of batches of similar length, in random order."""
    size = DRAWN_TOGETHER * BATCH_SIZE
    while True:
        rng.shuffle(examples)
        drawn = [examples[start : start + size] for start in range(0, len(examples), size)]
        shuffled = [batch for one in drawn for batch in batches_by_length(one, BATCH_SIZE)]
        rng.shuffle(shuffled)
        yield from reversed(shuffled)


def write_few(path: Path) -> None:
    """Data of ``--smoke``: problems as GSM8K has them, of our own."""
    solution = "He has <<{a}+{b}={c}>>{c} apples.\n#### {c}"
    rows = [
        {"prompt": f"Tom has {a} apples and buys {b}.", "extra_info": {"answer": solution.format(a=a, b=b, c=a + b)}}
        for a in range(8)
        for b in range(8)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=Path("cache/gsm8k"),
        help="has train.parquet, and gets the directory model",
    )
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = smoke.parsed(parser)
    if options.smoke:
        write_few(options.directory / "train.parquet")
    torch.set_num_threads(1)
    rows = pq.read_table(options.directory / "train.parquet", columns=["prompt", "extra_info"]).to_pylist()
    prompts, solutions = [row["prompt"] for row in rows], [row["extra_info"]["answer"] for row in rows]
    tokenizer = tokenizer_from_texts([*prompts, *solutions], VOCABULARY)
    model = random_model(SIZES, tokenizer, options.seed)
    train(model, encode(tokenizer, prompts, solutions), options.epochs, options.seed)
    save_model(options.directory / "model", model, tokenizer, lambda line: print(line, file=sys.stderr))


if __name__ == "__main__":
    main()
