"""Choice of a seam for the episodes of a run."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.errors import ConfigError, EngineError
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.chat_template import PROBE, ChatTemplate
from asyncrl.rollout.engines.response_template import by_response_template, has_response_template
from asyncrl.rollout.engines.seam import ChatSeam
from asyncrl.rollout.engines.seam_check import check_seam
from asyncrl.rollout.engines.spelled_tokens import TOOL, SpelledTokens
from asyncrl.rollout.engines.text_seam import TextSeam
from asyncrl.rollout.engines.turn_reader import Find, TurnReader, by_parser
from asyncrl.rollout.episodes.seam import Seam
from asyncrl.rollout.episodes.tool_calls.forms import PARSERS, form_of, no_calls
from asyncrl.rollout.episodes.tool_calls.found import Schemas
from asyncrl.rollout.episodes.tool_calls.thoughts import opened_thought


def make_seam(
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
    *,
    is_chat: bool = True,
    tools: str = "",
    tool_parser: ToolParser = "auto",
    never: Collection[int] = (),
    spelled: SpelledTokens | None = None,
) -> Seam:
    """
    The seam of a run's episodes.

    Args:
        is_chat: Prompts are chats; otherwise plain text.
        tools: Tools of the environment, as `Prompt.tools`.
        never: Ids that no message after the prompt may contain.
        spelled: That of the tokenizer.

    Raises `ConfigError` if the chat template cannot be used for episodes, or shows no tools.
    """
    try:
        listed = text.read_tools(tools)
        if is_chat:
            template = ChatTemplate(tokenizer, template_kwargs, listed)
            _check_tools(template, listed)
            reader = TurnReader(tokenizer, _find(tokenizer, template, listed, tool_parser))
            seam = ChatSeam(tokenizer, template, reader, never, spelled)
            check_seam(seam, tokenizer, ["user", TOOL] if listed else ["user"])
            return seam
    except EngineError as error:
        raise ConfigError(f"episodes need another chat template: {error}") from error
    if listed:
        raise ConfigError(
            "the environment has tools, but prompts of plain text have no place for them; write the prompts as chats"
        )
    parse = PARSERS.get(tool_parser, no_calls)
    return TextSeam(tokenizer, TurnReader(tokenizer, by_parser(tokenizer, parse, {}, in_thought=False)))


def _find(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, tools: list[dict[str, Any]], tool_parser: ToolParser
) -> Find:
    """Finder of the calls in a turn. Raises `ConfigError` if it is unknown and needed."""
    prompt = template.generation_prompt()
    if tool_parser == "response_template" or (tool_parser == "auto" and has_response_template(tokenizer)):
        if not has_response_template(tokenizer):
            raise ConfigError(
                'environment.tool_parser is "response_template", but the tokenizer has none; name another form'
            )
        return by_response_template(tokenizer, prompt, tools)
    form = form_of(template.source) if tool_parser == "auto" else tool_parser
    if form is None and tools:
        raise ConfigError(
            "the chat template shows no form in which the policy would write calls of tools; name it in "
            f"environment.tool_parser: {', '.join(PARSERS)}"
        )
    parse = PARSERS.get(form or "none", no_calls)
    return by_parser(tokenizer, parse, _schemas(tools), in_thought=bool(opened_thought(prompt)))


def _check_tools(template: ChatTemplate, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` unless the template shows all tools."""
    shown = template.render([{"role": "user", "content": PROBE}]) if tools else ""
    if hidden := [name for tool in tools if (name := _function(tool).get("name", "")) not in shown]:
        raise ConfigError(
            f"the chat template does not show the tool {hidden[0]} to the policy; take a template with tools, or "
            f"describe them in the prompts and let an environment.function answer"
        )


def _schemas(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    functions = [_function(tool) for tool in tools]
    return {function.get("name", ""): function.get("parameters", {}).get("properties", {}) for function in functions}


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool.get("function", tool)
    return function
