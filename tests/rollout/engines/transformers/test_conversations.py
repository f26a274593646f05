"""Log-probs across the turns of an episode, against one forward pass over all of its tokens."""

import asyncio
from typing import Literal

import pytest
import torch

from asyncrl.episodes.conversation import Conversation
from asyncrl.episodes.record import EpisodeLimits, EpisodeRecord, TurnContext
from asyncrl.messages.trajectory import FROM_PROMPT, Prompt, Sampling
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.weights.contents.names import checkpoint_tensors

ANSWERS = ("w9 w5", "w21", "w7 w7 w40 w11", "w33")
SWAP_BEFORE = 2
"""Turn before which the weights of version 7 are loaded."""


async def talk(engine: TransformersEngine, new_weights: dict[str, torch.Tensor]) -> EpisodeRecord:
    boundary = engine.boundary()
    record = EpisodeRecord(engine.encode(Prompt(chat=[{"role": "user", "content": "w5 w9"}])))
    limits = EpisodeLimits(max_turns=9, max_tokens=200)
    conversation = Conversation(
        record, engine.generate, boundary, sampling=Sampling(max_tokens=8), limits=limits, seed=3
    )
    place, context = FROM_PROMPT, list[int]()
    for number, answer in enumerate(ANSWERS):
        if number == SWAP_BEFORE:
            await engine.pause()
            await engine.swap(7, new_weights)
            await engine.resume()
        place = await conversation.say(TurnContext(place, context))
        context = boundary.after([{"role": "user", "content": answer}], record.turns[place].completion.completion_ids)
    return record


@pytest.mark.parametrize("kv", ["recompute", "keep"])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_logprobs_of_all_turns_are_those_of_one_pass_of_the_policy_that_wrote_them(
    make_model, tokenizer, family: str, kv: Literal["recompute", "keep"]
) -> None:
    policies = {0: make_model(family), 7: make_model(family, seed=1)}
    engine = TransformersEngine(make_model(family), tokenizer, slots=2, max_tokens_per_slot=128, kv=kv)

    record = asyncio.run(talk(engine, dict(checkpoint_tensors(policies[7]))))

    ids = record.ids_through(len(ANSWERS) - 1)
    with torch.inference_mode():
        logprobs = {
            version: model(torch.tensor([ids])).logits[0].log_softmax(-1) for version, model in policies.items()
        }
    end = len(record.prompt_ids)
    for number, turn in enumerate(record.turns):
        version = 0 if number < SWAP_BEFORE else 7
        written = turn.completion.completion_ids
        assert [span.policy_version for span in turn.completion.spans] == [version]
        start, end = end + len(turn.context_ids), end + len(turn.context_ids) + len(written)
        expected = logprobs[version][range(start - 1, end - 1), written]
        assert torch.tensor(turn.completion.behavior_logprobs).sub(expected).abs().max() <= 1e-4
        assert ids[start:end] == written
