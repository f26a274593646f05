"""Random episodes: trees of turns whose contexts often begin alike, or repeat what another branch holds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Turn
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.trainer.ragged_trajectories import VOCAB

Ids = NDArray[np.int32]


def episode(
    turns: Sequence[tuple[int, Sequence[int], Sequence[int]]], prompt: Sequence[int] = (5, 6), reward: float = 1.0
) -> TrainingTrajectory:
    """An episode of (parent, context, written) turns."""
    written = [token for _, _, tokens in turns for token in tokens]
    context = [token for _, tokens, _ in turns for token in tokens]
    return TrainingTrajectory(
        group_id=7,
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=np.array(written, np.int32),
        behavior_logprobs=np.full(len(written), -3.0, np.float32),
        reward=reward,
        turns=[Turn(parent, len(read), len(wrote)) for parent, read, wrote in turns],
        context_ids=np.array(context, np.int32),
    )


def episodes(
    num_groups: int = 3, group_size: int = 3, num_turns: int = 6, seed: int = 0, vocab: int = VOCAB
) -> list[TrainingTrajectory]:
    """
    Groups of episodes with branches and roots of their own, some turns rewarded and some not trained.

    All prompts begin with the same 7 tokens.
    """
    random = np.random.default_rng(seed)
    system = _ids(random, 7, vocab)
    made = []
    for group_id in range(num_groups):
        prompt = [*system, *_ids(random, 3, vocab)]
        for index in range(group_size):
            turns = _turns(random, prompt, system, int(random.integers(1, num_turns + 1)), vocab)
            one = episode(turns, prompt, reward=float(index % 2) + 0.1 * index)
            logprobs = random.normal(-3.4, 0.6, len(one.completion_ids)).astype(np.float32)
            marked = [
                structs.replace(turn, reward=float(random.integers(0, 3)) / 4, is_trained=bool(random.random() < 0.8))
                for turn in one.turns
            ]
            made.append(replace(one, group_id=group_id, index=index, behavior_logprobs=logprobs, turns=marked))
    return made


def _turns(
    random: np.random.Generator, prompt: list[int], system: list[int], number: int, vocab: int
) -> list[tuple[int, list[int], list[int]]]:
    turns: list[tuple[int, list[int], list[int]]] = []
    texts = [prompt]
    """The prompt, and all that was read and written up to the end of each turn."""
    for place in range(number):
        parent = int(random.integers(FROM_NOTHING, place))
        context = _ids(random, int(random.integers(0, 4)), vocab)
        again = texts[random.integers(len(texts))]
        if parent == FROM_NOTHING:  # a system prompt again, or what another branch holds
            context = [*(again if random.random() < 0.5 else system), *context]
        elif parent == FROM_PROMPT and again[: len(prompt)] == prompt:
            context = [*again[len(prompt) :], *context]
        written = _ids(random, int(random.integers(1, 6)), vocab)
        turns.append((parent, context, written))
        before = [] if parent == FROM_NOTHING else texts[parent + 1]
        texts.append([*before, *context, *written])
    return turns


def rows(one: TrainingTrajectory) -> list[TrainingTrajectory]:
    """Each turn as a trajectory of its own: all that it read as the prompt, what it wrote as the completion."""
    found: list[TrainingTrajectory] = []
    num_context = num_written = 0
    texts = [one.prompt_ids]
    for turn in one.turns:
        context = one.context_ids[num_context : num_context + turn.num_context]
        own = slice(num_written, num_written + turn.num_written)
        read = context if turn.parent == FROM_NOTHING else np.concatenate((texts[turn.parent + 1], context))
        texts.append(np.concatenate((read, one.completion_ids[own])))
        found.append(
            TrainingTrajectory(
                group_id=one.group_id,
                prompt_ids=read,
                completion_ids=one.completion_ids[own],
                behavior_logprobs=one.behavior_logprobs[own],
                reward=one.reward,
                index=one.index,
            )
        )
        num_context, num_written = num_context + turn.num_context, own.stop
    return found


def num_unique(trajectories: Sequence[TrainingTrajectory]) -> int:
    """Tokens that a model must read to predict all that was written: different beginnings of all rows."""
    beginnings = set()
    for row in (row for one in trajectories for row in rows(one)):
        read = (*row.prompt_ids.tolist(), *row.completion_ids[:-1].tolist())
        beginnings |= {read[: end + 1] for end in range(len(read))}
    return len(beginnings)


def _ids(random: np.random.Generator, count: int, vocab: int) -> list[int]:
    found: list[int] = random.integers(0, vocab, count).tolist()
    return found
