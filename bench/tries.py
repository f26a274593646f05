"""
Time of a forward and backward pass over episodes that share what they begin with, and over rows that share nothing.

    python bench/tries.py [--histories as_sampled,as_template] [--hidden 512] [--layers 4] [--rounds 2] [--share 8]

A group of 8 episodes as in a customer-service benchmark: one prompt with a long policy document, 10 to 30 turns, tool
outputs longer than what the policy writes, which are thoughts and calls. With ``as_sampled`` an episode is one branch;
with ``as_template`` each message of the user, after every fifth turn, begins another branch, in which earlier thoughts
are left out.

    asyncrl              micro-batches of 16,384 tokens, in which equal beginnings lie once
    row per branch       a row for each branch: prompt, tool outputs and all
    row per turn         a row for each turn: all that it read, and what it wrote

Contenders take turns in one process with one thread; each figure is the median of its rounds, in CPU seconds. Rows are
independent, so one of ``--share`` rows per turn is run, in the order of their lengths, and the time is multiplied by
the tokens of all of them over those that were run. ``ratio`` is the peer's time divided by ours.
"""

import argparse
import json
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import smoke
import torch
from numpy.typing import NDArray
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from asyncrl.messages.trajectory import FROM_PROMPT, Turn
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import branches, collate, cut
from asyncrl.trainer.packing.step import TrainingTrajectory, micro_batches, trajectory_info

Ids = NDArray[np.int32]
Said = tuple[Ids, Ids, Ids]
"""What a turn reads (a tool's output or the user's message), thinks and calls."""
VOCABULARY, GROUP_SIZE, MAX_TOKENS = 4096, 8, 16384
USER_EVERY = 5
"""Turns between two messages of the user."""


# ── episodes ────────────────────────────────────────────────────────────────────────────────


def episodes(options: argparse.Namespace, history: str) -> list[TrainingTrajectory]:
    """One group."""
    random = np.random.default_rng(0)

    def ids(length: int) -> Ids:
        return random.integers(0, VOCABULARY, length).astype(np.int32)

    prompt = ids(options.prompt)
    numbers = np.linspace(10, 30, GROUP_SIZE).astype(int)
    said = [[(ids(options.tool), ids(options.thought), ids(options.call)) for _ in range(number)] for number in numbers]
    return [episode(prompt, turns, history) for turns in said]


def episode(prompt: Ids, said: Sequence[Said], history: str) -> TrainingTrajectory:
    turns: list[Turn] = []
    context: list[Ids] = []
    for place, (answer, thought, call) in enumerate(said):
        is_root = place == 0 or (history == "as_template" and place % USER_EVERY == 0)
        before = [part for tool, _, done in said[:place] for part in (tool, done)] if is_root else []
        context.append(np.concatenate([*before, answer]))
        turns.append(Turn(FROM_PROMPT if is_root else place - 1, len(context[-1]), len(thought) + len(call)))
    written = np.concatenate([part for _, thought, call in said for part in (thought, call)])
    return made(prompt, written, turns, np.concatenate(context))


def made(prompt: Ids, written: Ids, turns: Sequence[Turn] = (), context: Ids | None = None) -> TrainingTrajectory:
    logprobs, none = np.full(len(written), -8.0, np.float32), np.zeros(0, np.int32)
    return TrainingTrajectory(
        0, prompt, written, logprobs, 1.0, turns=turns, context_ids=none if context is None else context
    )


def rows_of_branches(one: TrainingTrajectory) -> list[TrainingTrajectory]:
    """Each branch alone. What an earlier branch has trained is context of it."""
    written = cut(one.completion_ids, [turn.num_written for turn in one.turns])
    rows = []
    for branch in branches(one):
        read, turns, context = branch.read, list[Turn](), list[Ids]()
        end = len(one.prompt_ids)
        for place, start in branch.starts.items():
            context.append(read[end:start])
            turns.append(Turn(len(turns) - 1, start - end, len(written[place])))
            end = start + len(written[place])
        new = np.concatenate([written[place] for place in branch.starts])
        rows.append(made(one.prompt_ids, new, turns, np.concatenate(context)))
    return rows


def rows_of_turns(one: TrainingTrajectory) -> list[TrainingTrajectory]:
    """Each turn alone: its prompt is all that it read."""
    written = cut(one.completion_ids, [turn.num_written for turn in one.turns])
    return [
        made(branch.read[:start], written[place]) for branch in branches(one) for place, start in branch.starts.items()
    ]


# ── time ────────────────────────────────────────────────────────────────────────────────────


class Contender:
    """
    Passes over micro-batches.

    Args:
        share: The time is multiplied by it.
    """

    def __init__(self, batches: Sequence[Sequence[TrainingTrajectory]], share: float = 1.0) -> None:
        self.batches = batches
        self.num_tokens = round(share * sum(collate(batch, device=CPU).num_packed for batch in batches))
        self.times_s: list[float] = []
        self._share = share

    def run(self, policy: Policy) -> None:
        started_s = time.process_time()
        for batch in self.batches:
            policy.score(collate(batch, device=CPU), temperature=1.0).logprobs.sum().backward()  # type: ignore[no-untyped-call]
        self.times_s.append(self._share * (time.process_time() - started_s))
        policy.model.zero_grad()


CPU = torch.device("cpu")


def contenders(group: Sequence[TrainingTrajectory], share: int) -> dict[str, Contender]:
    packed = micro_batches([trajectory_info(one).size for one in group], MAX_TOKENS)
    turns = sorted(chain.from_iterable(map(rows_of_turns, group)), key=lambda row: len(row.prompt_ids))
    run = turns[share // 2 :: share]
    of_all, of_run = (sum(len(row.prompt_ids) + len(row.completion_ids) - 1 for row in rows) for rows in (turns, run))
    return {
        "asyncrl": Contender([[group[place] for place in places] for places in packed]),
        "row per branch": Contender([[row] for one in group for row in rows_of_branches(one)]),
        "row per turn": Contender([[row] for row in run], of_all / of_run),
    }


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.disable_progress_bar()
    with TemporaryDirectory(prefix="asyncrl-bench-") as directory:
        Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=VOCABULARY,
                hidden_size=options.hidden,
                intermediate_size=3 * options.hidden,
                num_hidden_layers=options.layers,
                num_attention_heads=options.hidden // 64,
                num_key_value_heads=options.hidden // 128,
                head_dim=64,
                tie_word_embeddings=True,
            )
        ).save_pretrained(directory)
        policy = Policy(Path(directory))
    for history in options.histories:
        found = contenders(episodes(options, history), options.share)
        for _ in range(options.rounds):
            for contender in found.values():
                contender.run(policy)
        show(options, history, found)


def show(options: argparse.Namespace, history: str, found: dict[str, Contender]) -> None:
    ours, *peers = found.values()
    for name, peer in zip(list(found)[1:], peers, strict=True):
        ours_s, peer_s = median(ours.times_s), median(peer.times_s)
        fields = {
            "bench": "tries",
            "case": f"8 episodes of 10 to 30 turns, {history}, hidden {options.hidden}, {options.layers} layers",
            "ours": round(ours_s, 2),
            "unit": "CPU-s",
            "peer": name,
            "peer_value": round(peer_s, 2),
            "ratio": round(peer_s / ours_s, 2),
            "better": "higher ratio",
            "tokens": ours.num_tokens,
            "peer_tokens": peer.num_tokens,
            "token_ratio": round(peer.num_tokens / ours.num_tokens, 2),
        }
        print(json.dumps(fields), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--histories", type=lambda text: text.split(","), default=["as_sampled", "as_template"])
    parser.add_argument("--hidden", type=int, default=512, help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--share", type=int, default=8, help="one of so many rows per turn is run")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of system prompt and policy document")
    parser.add_argument("--tool", type=int, default=48, help="tokens of a tool's output")
    parser.add_argument("--thought", type=int, default=12, help="tokens of a thought")
    parser.add_argument("--call", type=int, default=8, help="tokens of a call")
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
