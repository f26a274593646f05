"""
Truncation of prompts that have too many tokens.

    10 tokens, at most 5    left    ·····56789        keeps the end
                            right   01234·····        keeps the beginning
                            middle  01·····789        keeps both ends
"""

from collections.abc import Sequence

from asyncrl.errors import PromptTooLong
from asyncrl.messages.words import Truncation


def fit(prompt_ids: Sequence[int], max_tokens: int, truncation: Truncation, *, has_images: bool = False) -> list[int]:
    """
    Truncate [L] token ids to ``max_tokens``.

    Raises `PromptTooLong` instead if ``truncation`` is ``error``, or if a part of a picture might be cut out.
    """
    if len(prompt_ids) <= max_tokens:
        return list(prompt_ids)
    if has_images:
        raise PromptTooLong(
            f"the prompt has {len(prompt_ids)} tokens with its pictures, more than data.max_prompt_tokens = "
            f"{max_tokens}, and pictures cannot be truncated: raise it, make them smaller, or remove the row"
        )
    match truncation:
        case "left":
            return list(prompt_ids[-max_tokens:])
        case "right":
            return list(prompt_ids[:max_tokens])
        case "middle":
            head = max_tokens // 2
            return [*prompt_ids[:head], *prompt_ids[head - max_tokens :]]
        case "error":
            raise PromptTooLong(
                f"the prompt has {len(prompt_ids)} tokens, more than data.max_prompt_tokens = {max_tokens}: raise it, "
                f"set data.truncation, or remove the row"
            )
