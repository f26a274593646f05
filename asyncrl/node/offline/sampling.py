"""Completions and episodes of held-out prompts, sampled without a broker, with the seeds of an evaluation."""

from collections.abc import Callable

from asyncrl.broker.leases.lease_terms import sampling_seed
from asyncrl.config.config import Config
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.rollout.engine import Engine, Request
from asyncrl.rollout.episodes.episode import Episode
from asyncrl.rollout.episodes.episodes import Episodes
from asyncrl.rollout.episodes.tool_calls.thoughts import opened_by
from asyncrl.rollout.prompt_truncation import fit
from asyncrl.rollout.results import Sampled


class OfflineSampler:
    """
    Samples with ``evaluation``'s parameters. Engine and episodes are borrowed.

    Args:
        episodes: Plays episodes; None samples one completion after each prompt.
    """

    def __init__(self, config: Config, engine: Engine, episodes: Episodes | None = None) -> None:
        self._config = config
        self._engine = engine
        self._episodes = episodes
        self._sampling = config.evaluation.sampling(config.sampling)

    async def sample(self, unit: Unit, prompt: Prompt, images: tuple[bytes, ...] = ()) -> Sampled:
        """
        Sample one completion, or play one episode.

        Args:
            unit: Its group id is the position of the prompt, from 0.
            images: Files of the prompt's pictures.

        Raises:
            EngineError: It failed, or its environment did. ``retryable`` says whether another attempt may succeed.
        """
        if self._episodes:
            return await self.episode(self._episodes, unit, prompt, images).run()
        prompt_ids, seed = self._prompt_ids(prompt), self._seed(unit)
        request = Request(prompt_ids=prompt_ids, sampling=self._sampling, seed=seed, images=images)
        completion = await self._engine.generate(request)
        text = self._engine.decode(completion.completion_ids)
        opened = opened_by(prompt_ids, self._engine.decode)
        return Sampled(prompt_ids=prompt_ids, completion=completion, text=text, opened=opened)

    def episode(
        self,
        episodes: Episodes,
        unit: Unit,
        prompt: Prompt,
        images: tuple[bytes, ...] = (),
        *,
        on_turn: Callable[[], None] = lambda: None,
    ) -> Episode:
        """An episode that is not playing yet; ``on_turn`` is called after each of its turns. Arguments as `sample`."""
        return episodes.begin(
            unit,
            prompt,
            self._prompt_ids(episodes.shown(prompt)),
            sample=self._engine.generate,
            written=self._engine.written,
            sampling=self._sampling,
            seed=self._seed(unit),
            images=images,
            on_turn=on_turn,
        )

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        data = self._config.data
        prompt_ids, has_images = self._engine.encode(prompt), bool(prompt.images)
        return fit(prompt_ids, data.max_prompt_tokens, data.truncation, has_images=has_images)

    def _seed(self, unit: Unit) -> int:
        return sampling_seed(self._config.run.seed, unit.group_id, self._config.evaluation.samples) + unit.index
