"""Calls of tools as a tokenizer's own response template finds them (`PreTrainedTokenizerBase.parse_response`)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from asyncrl.plug_in import describe
from asyncrl.rollout.engines.turn_reader import Find
from asyncrl.rollout.episodes.tool_calls.found import MAX_CALLS, TOO_MANY, Call, Found, problematic, to_call
from asyncrl.rollout.episodes.tool_calls.json_values import as_object, named_call


def has_response_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    return getattr(tokenizer, "response_template", None) is not None


def by_response_template(
    tokenizer: PreTrainedTokenizerBase, generation_prompt: str, tools: Sequence[dict[str, Any]]
) -> Find:
    """
    Find calls by the response template.

    Args:
        generation_prompt: Text before a turn of the policy, which may open a thought.
    """

    def find(token_ids: Sequence[int]) -> Found:
        spoken: str = tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        try:
            message = tokenizer.parse_response(spoken, prefix=generation_prompt, tools=list(tools))
        except Exception as error:  # noqa: BLE001  patterns and JSON of a model directory, on a text of the policy
            return Found(spoken, [problematic(f"the turn cannot be read: {describe(error, __file__)}")])
        content, calls = message.get("content"), message.get("tool_calls") or []
        found = [to_call(partial(_read, call)) for call in calls[:MAX_CALLS]]
        too_many = [problematic(TOO_MANY)] if len(calls) > MAX_CALLS else []
        return Found(content if isinstance(content, str) else "", found + too_many)

    return find


def _read(call: Any) -> Call:
    value = as_object(call)
    return named_call(as_object(value.get("function", value)), "arguments")
