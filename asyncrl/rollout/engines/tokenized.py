"""The half of an engine that knows text: prompts, pictures, turns and completions as token ids, by a tokenizer."""

from transformers import PreTrainedTokenizerBase

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.engine import TurnBoundary
from asyncrl.messages.trajectory import Prompt
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.special_tokens import SpelledTokens, special_tokens
from asyncrl.rollout.engines.turn_boundaries import make_boundary
from asyncrl.vision.processor import ImageProcessor


class TokenizedEngine:
    """`Engine.encode`, `Engine.decode` and `ConversingEngine.boundary` of an engine whose model has a tokenizer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
        split_special_tokens: bool = True,
        processor: ImageProcessor | None = None,
    ) -> None:
        """
        Keep the tokenizer.

        Args:
            chat_template_kwargs: ``data.chat_template_kwargs``.
            split_special_tokens: ``data.split_special_tokens``.
            processor: Image processor of the model; None if the model reads no pictures.
        """
        self._tokenizer = tokenizer
        self._special = special_tokens(tokenizer)
        self._template_kwargs = chat_template_kwargs
        self._spelled = SpelledTokens(tokenizer, are_text=split_special_tokens)
        self._processor = processor

    def encode(self, prompt: Prompt) -> list[int]:
        """See `Engine.encode`."""
        return text.encode(self._tokenizer, prompt, self._template_kwargs, self._processor, self._spelled)

    def decode(self, token_ids: list[int]) -> str:
        """See `Engine.decode`."""
        return text.decode(self._tokenizer, token_ids)

    def boundary(self, *, is_chat: bool = True, tools: str = "", tool_parser: ToolParser = "auto") -> TurnBoundary:
        """See `ConversingEngine.boundary`."""
        return make_boundary(
            self._tokenizer,
            self._template_kwargs,
            is_chat=is_chat,
            tools=tools,
            tool_parser=tool_parser,
            processor=self._processor,
            spelled=self._spelled,
        )

    def _stops_here(self, token_ids: list[int], stop: list[str]) -> bool:
        """True if the text of these tokens has a stop string: as it is shown, or with its special tokens spelled."""
        texts = [self.decode(token_ids)]
        if any(token_id in self._special for token_id in token_ids):
            texts.append(self._spelled.spelled(token_ids))
        return any(string in found for string in stop for found in texts)
