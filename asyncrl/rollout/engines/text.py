"""Between text and token ids: what the engine asks of a tokenizer."""

from collections.abc import Mapping
from types import MappingProxyType

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages import Prompt

TemplateKwargs = Mapping[str, str | int | float | bool]
"""``data.chat_template_kwargs``."""
NO_KWARGS: TemplateKwargs = MappingProxyType({})


def load_tokenizer(model_path: str) -> PreTrainedTokenizerBase:
    """
    That of a model directory.

    Raises:
        ConfigError: There is none.
    """
    try:
        return AutoTokenizer.from_pretrained(model_path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path {model_path!r} cannot be loaded: {error}") from error


def encode(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, template_kwargs: TemplateKwargs = NO_KWARGS
) -> list[int]:
    """
    Token ids of a prompt: plain text as the tokenizer's defaults have it, a chat through its template.

    Args:
        template_kwargs: Handed to the template.

    Raises:
        EngineError: Not retryable; the prompt is empty, has both forms, or the tokenizer has no chat template.
    """
    if bool(prompt.text) == bool(prompt.chat):
        raise EngineError(
            f"a prompt has either text or chat; this one has {'both' if prompt.text else 'neither'}", retryable=False
        )
    if prompt.text:
        return list(tokenizer(prompt.text).input_ids)
    if not tokenizer.chat_template:
        raise EngineError(
            "the tokenizer has no chat template, and the prompt is a chat; use plain text", retryable=False
        )
    encoded = tokenizer.apply_chat_template(
        prompt.chat, add_generation_prompt=True, tokenize=True, return_dict=True, **template_kwargs
    )
    return list(encoded["input_ids"])


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Text without special tokens, spaces as the model wrote them."""
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def stop_window(stop: list[str]) -> int:
    """Tokens at the end of a text that a stop string which ends there may lie in."""
    # A character has at most 4 bytes and a token at least one; the margin holds tokens that decode to nothing.
    return 4 * max(map(len, stop)) + 8


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a completion, by the word of the generation config, the model config or the tokenizer."""
    named = (model.generation_config.eos_token_id, model.config.eos_token_id, tokenizer.eos_token_id)
    found: set[int] = set()
    for ids in named:
        found.update([ids] if isinstance(ids, int) else ids or [])
    return sorted(found)
