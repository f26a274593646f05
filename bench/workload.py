"""Workload shared by all contenders of `loop.py`: config, prompts of each step, reward function and evaluation."""

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from asyncrl.config.config import Config
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.engine import Completion, Request
from asyncrl.messages.trajectory import Prompt
from asyncrl.messages.words import FinishReason
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import verdict_of, verifier_input
from asyncrl.rollout.engines.transformers.engine import TransformersEngine

Weights = Mapping[str, Any]
"""Tensors by Hugging Face name; tied tensors occur once."""


class Workload:
    """Prompts, rewards and evaluation of a run config. The verifier must be synchronous."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._stream = train_stream(config.data, config.run.seed)
        self._verifier = resolve(config.reward.function, config.reward.options)

    def prompts(self, step: int) -> list[Prompt]:
        """Prompts of one step, in the order in which asyncrl admits them."""
        count = self.config.schedule.groups_per_step
        return [self._stream.at(step * count + i).prompt for i in range(count)]

    def reward(self, prompt: Prompt, completion: str, num_tokens: int, finish_reason: FinishReason) -> float:
        inputs = verifier_input(prompt, completion, num_tokens=num_tokens, finish_reason=finish_reason)
        score: float = verdict_of(self._verifier(inputs)).reward
        return score

    def reward_of(self, engine: TransformersEngine, prompt: Prompt, completion: Completion) -> float:
        ids = completion.completion_ids
        return self.reward(prompt, engine.decode(ids), len(ids), completion.finish_reason)

    def engine(self) -> TransformersEngine:
        """An engine with as many slots as all rollouts of the config together."""
        config = self.config
        return TransformersEngine.load(
            config.model.path,
            slots=config.rollout.slots * config.rollout.replicas,
            max_tokens_per_slot=config.data.max_prompt_tokens + config.sampling.max_tokens,
            kv=config.rollout.kv,
            dtype=config.model.dtype,
            overrides=config.model.overrides,
            chat_template_kwargs=config.data.chat_template_kwargs,
        )

    def accuracies(self, policies: Iterable[Weights]) -> list[float]:
        """Held-out accuracy of each policy, with the evaluation settings of the config (greedy decoding by default)."""
        return asyncio.run(self._accuracies(policies))

    async def _accuracies(self, policies: Iterable[Weights]) -> list[float]:
        engine = self.engine()
        try:
            return [await self._accuracy(engine, weights) for weights in policies]
        finally:
            await engine.aclose()

    async def _accuracy(self, engine: TransformersEngine, weights: Weights) -> float:
        await engine.pause()
        await engine.swap(0, weights)
        await engine.resume()
        sampling = self.config.evaluation.sampling(self.config.sampling)
        stream = held_out_stream(self.config.data, self.config.evaluation.max_prompts)
        prompts = [draw.prompt for draw in islice(stream.since(0), stream.limit)]
        requests = [Request(prompt_ids=engine.encode(prompt), sampling=sampling, seed=0) for prompt in prompts]
        completions = await asyncio.gather(*map(engine.generate, requests))
        rewards = [self.reward_of(engine, *pair) for pair in zip(prompts, completions, strict=True)]
        return sum(rewards) / len(prompts)
