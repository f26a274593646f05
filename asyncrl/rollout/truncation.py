"""
A prompt that has too many tokens, made to fit.

    10 tokens, at most 5    left    ·····56789        what was said last is kept
                            right   01234·····        what was said first is kept
                            middle  01·····789        both ends are
"""

from collections.abc import Sequence

from asyncrl.errors import PromptTooLong
from asyncrl.messages import Truncation


def fit(prompt_ids: Sequence[int], max_tokens: int, truncation: Truncation) -> list[int]:
    """
    At most ``max_tokens`` of a prompt, exactly so many if it has more.

    Args:
        prompt_ids: [L] token ids.
        truncation: What is cut off.

    Raises:
        PromptTooLong: It has more, and nothing is to be cut.
    """
    if len(prompt_ids) <= max_tokens:
        return list(prompt_ids)
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
