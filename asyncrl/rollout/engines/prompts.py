"""Token ids of prompts, with and without pictures. The ids are expanded: a picture has all of its image tokens."""

from transformers import PreTrainedTokenizerBase

from asyncrl.errors import DataError, EngineError
from asyncrl.messages.trajectory import Prompt
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.spelled_tokens import SpelledTokens
from asyncrl.vision.placeholders import check_marks, expand, marked_chat, marked_text
from asyncrl.vision.processor import ImageProcessor

READS_NONE = "a prompt has pictures, but the model reads none; use a Qwen3-VL or Qwen2.5-VL, or prompts of text"


def encode(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
    processor: ImageProcessor | None = None,
    spelled: SpelledTokens | None = None,
) -> list[int]:
    """
    Token ids of a prompt; ``processor`` is None if the model reads no pictures, ``spelled`` as in `text.token_ids`.

    Raises a final `EngineError` if the model cannot read the prompt's pictures, or their number is not that of marks.
    """
    if processor is None:
        if prompt.images:
            raise EngineError(READS_NONE, retryable=False)
        return text.encode(tokenizer, prompt, template_kwargs, spelled)
    try:
        counts = [processor.num_tokens(processor.grid(image.width, image.height)) for image in prompt.images]
        collapsed = _collapsed(tokenizer, prompt, template_kwargs, processor, spelled)
        return expand(collapsed, counts, processor.image_token_id)
    except DataError as error:
        raise EngineError(str(error), retryable=False) from error


def _collapsed(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    template_kwargs: text.TemplateKwargs,
    processor: ImageProcessor,
    spelled: SpelledTokens | None,
) -> list[int]:
    """Collapsed token ids: one image token for each picture."""
    if not prompt.images:
        return text.encode(tokenizer, prompt, template_kwargs, spelled)
    check_marks(prompt)
    if prompt.chat:
        return text.token_ids(tokenizer, marked_chat(prompt.chat), template_kwargs, prompt.tools, spelled)
    placeholder = "".join(tokenizer.convert_ids_to_tokens(list(processor.placeholder_ids)))
    return text.token_ids(tokenizer, marked_text(prompt.text, placeholder), template_kwargs, prompt.tools)
