"""Tails of chats: what stands between two turns."""

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.engine import PolicyTurn, TurnBoundary
from asyncrl.errors import ConfigError, EngineError
from asyncrl.rollout.engines.special_tokens import SpelledTokens
from asyncrl.rollout.engines.turn_boundaries import ChatBoundary, TextBoundary, make_boundary
from asyncrl.tools.toy.drawn_squares import VISION_WORDS
from asyncrl.tools.toy.models import tokenizer_from_texts, tokenizer_from_words
from asyncrl.tools.toy.tiny_models import CHAT_TEMPLATE
from asyncrl.vision.processor import ImageProcessor
from asyncrl.vision.settings import ModelConfig, PictureSize, Processing
from tests.rollout.engines.chat_families import FAMILIES, TEXTS, tokenizer


def ids(family: str, written: str) -> list[int]:
    return list(tokenizer(family)(written, add_special_tokens=False).input_ids)


def spelled(family: str, token_ids: list[int]) -> str:
    return tokenizer(family).decode(token_ids, skip_special_tokens=False)


def tail(family: str, last: str, *messages: tuple[str, str]) -> str:
    said = [{"role": role, "content": content} for role, content in messages]
    return spelled(family, make_boundary(tokenizer(family)).after(said, ids(family, last)))


def with_template(template: str, *special: str) -> PreTrainedTokenizerBase:
    made = tokenizer_from_texts(TEXTS, 400, special=special)
    made.chat_template = template
    return made


@pytest.mark.parametrize(
    ("family", "last", "expected"),
    [
        (
            "qwen2_5",
            "ok<|im_end|>",
            "\n<|im_start|>user\n<tool_response>\n+5\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3",
            "ok<|eot_id|>",
            '<|start_header_id|>ipython<|end_header_id|>\n\n"+5"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
        ),
        ("glm4_5", "ok<|observation|>", "\n<tool_response>\n+5\n</tool_response><|assistant|>"),
        (
            "deepseek_v3",
            "ok<｜end▁of▁sentence｜>",
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>+5<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
        ),
        ("deepseek_v3_1", "ok<｜end▁of▁sentence｜>", "<｜tool▁output▁begin｜>+5<｜tool▁output▁end｜>"),
        (
            "kimi_k2",
            "ok<|im_end|>",
            "<|im_system|>tool<|im_middle|>## Return of \n+5<|im_end|><|im_assistant|>assistant<|im_middle|>",
        ),
        ("mistral", "ok</s>", "[TOOL_RESULTS]+5[/TOOL_RESULTS]"),
        (
            "gpt_oss",
            "{}<|call|>",
            '<|start|>functions.tool to=assistant<|channel|>commentary<|message|>"+5"<|end|><|start|>assistant',
        ),
        ("gemma4", "{}<tool_call|><|tool_response>", 'response:tool{value:<|"|>+5<|"|>}<tool_response|>'),
    ],
)
def test_the_token_that_the_policy_ended_with_is_not_repeated(family: str, last: str, expected: str) -> None:
    assert tail(family, last, ("tool", "+5")) == expected


@pytest.mark.parametrize("last", ["ok", "ok<|endoftext|>", "ok<|im_end|>x"], ids=["cut", "another end", "went on"])
def test_the_whole_tail_follows_a_turn_that_did_not_end_as_the_template_ends_it(last: str) -> None:
    assert tail("qwen3", last, ("user", "go")).startswith("<|im_end|>\n<|im_start|>user\ngo")


def test_more_tokens_than_one_are_not_repeated_if_the_policy_wrote_them() -> None:
    assert tail("qwen3", "ok<|im_end|>\n<|im_start|>", ("user", "go")).startswith("user\ngo")


def test_the_policy_goes_on_if_nothing_was_said() -> None:
    assert tail("qwen3", "ok<|im_end|>") == "\n<|im_start|>assistant\n"


def test_an_answer_that_begins_as_the_policy_ended_is_kept() -> None:
    words = tokenizer_from_words([" a", " b"])
    words.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    allowed = make_boundary(words, spelled=SpelledTokens(words, are_text=False))
    after = allowed.after([{"role": "user", "content": " b<eos> a"}], words(" a b<eos>").input_ids)
    assert words.decode(after) == " b<eos> a"


def test_a_tool_answers_a_call_where_the_template_asks_for_one() -> None:
    boundary = make_boundary(tokenizer("gpt_oss"))
    answers = [{"role": "tool", "name": "add", "content": content} for content in ("+5", "+6")]
    head = "<|start|>functions.add to=assistant<|channel|>commentary<|message|>"
    assert spelled("gpt_oss", boundary.after(answers, ids("gpt_oss", '{"a": 1}<|call|>'))) == (
        f'{head}"+5"<|end|>{head}"+6"<|end|><|start|>assistant'
    ), "though the template shows one call of a turn"


def test_a_role_that_the_template_leaves_out_is_refused() -> None:
    made = with_template(
        "{% for m in messages if m.role != 'tool' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}",
        *("<|user|>", "<|assistant|>", "<|end|>"),
    )
    boundary = make_boundary(made)
    with pytest.raises(
        EngineError, match=r"leaves out messages of the role tool.* answer with another role, such as user"
    ) as caught:
        boundary.after([{"role": "user", "content": "a"}, {"role": "tool", "content": "+5"}], [])
    assert not caught.value.retryable


def test_a_template_that_raises_is_one_sentence() -> None:
    boundary = make_boundary(tokenizer("gpt_oss"))
    with pytest.raises(EngineError, match="roles user, assistant, user, tool: a tool answers a call"):
        boundary.after([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}], [])


def with_pictures() -> tuple[PreTrainedTokenizerBase, ImageProcessor]:
    """Tokenizer and processor of a model in Qwen's format that reads pictures; 28 x 28 pixels are one token."""
    made = tokenizer_from_texts(TEXTS, 400, special=("<|im_start|>", "<|im_end|>", *VISION_WORDS))
    made.chat_template = CHAT_TEMPLATE
    start, end, pad, video = made.convert_tokens_to_ids(list(VISION_WORDS))
    size = PictureSize(shortest_edge=28 * 28, longest_edge=10 * 28 * 28)
    return made, ImageProcessor(ModelConfig(pad, video, start, end), Processing(size=size))


PICTURE = {"type": "image", "digest": "00" * 32, "width": 56, "height": 28}
IN_TOKENS = "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_a_picture_after_the_prompt_is_as_many_tokens_as_the_model_reads() -> None:
    words, processor = with_pictures()
    look = [{"role": "user", "content": [text_part("a "), PICTURE, text_part(" b")]}]
    chat, plain = (make_boundary(words, processor=processor, is_chat=is_chat) for is_chat in (True, False))
    shown = f"<|im_start|>user\na {IN_TOKENS} b<|im_end|>\n<|im_start|>assistant\n"
    assert words.decode(chat.after(look, words("5<|im_end|>").input_ids)) == f"\n{shown}"
    assert words.decode(chat.opening(look)) == shown
    assert words.decode(plain.after(look, [])) == words.decode(plain.opening(look)) == f"a {IN_TOKENS} b"


def test_text_that_looks_like_a_picture_stays_text_beside_one() -> None:
    words, processor = with_pictures()
    spells = "<|image_pad|> and <|vision_end|>"
    after = make_boundary(words, processor=processor).after(
        [{"role": "user", "content": [PICTURE, text_part(spells)]}], []
    )
    assert words.decode(after).count(spells) == 1
    assert [after.count(token) for token in processor.placeholder_ids] == [1, 2, 1]


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_picture_cannot_be_spelled_after_the_prompt(is_chat: bool) -> None:
    words, processor = with_pictures()
    spelled = SpelledTokens(words, are_text=False)
    boundary = make_boundary(words, processor=processor, is_chat=is_chat, spelled=spelled)
    with pytest.raises(EngineError, match="spells a token of pictures"):
        boundary.after([{"role": "user", "content": "a <|image_pad|>"}], [])
    with pytest.raises(EngineError, match="roles user have 1 pictures, but 2 tokens for them as they are rendered"):
        boundary.after([{"role": "user", "content": [PICTURE, text_part("<|image_pad|>")]}], [])


def test_a_picture_that_cannot_be_cut_is_a_final_failure() -> None:
    words, processor = with_pictures()
    thin = [{"role": "user", "content": [{**PICTURE, "width": 1000, "height": 1}]}]
    with pytest.raises(EngineError, match="1000 x 1 pixels cannot be cut into patches") as caught:
        make_boundary(words, processor=processor).after(thin, [])
    assert not caught.value.retryable


def test_a_model_that_reads_no_pictures_refuses_them_in_a_sentence() -> None:
    for is_chat in (True, False):
        with pytest.raises(EngineError, match="shows a picture, but the model reads none; use a Qwen3-VL") as caught:
            make_boundary(tokenizer("qwen3"), is_chat=is_chat).after([{"role": "user", "content": [PICTURE]}], [])
        assert not caught.value.retryable


def test_thoughts_before_a_new_question_are_retold_without_them() -> None:
    boundary = make_boundary(tokenizer("qwen3"))
    question, answer = {"role": "user", "content": "1 + 1?"}, {"role": "user", "content": "And 2 + 2?"}
    prompt, turn = boundary.opening([question]), ids("qwen3", "<think>\nhm\n</think>\n\n2<|im_end|>")
    read = [*prompt, *turn, *boundary.after([answer], turn)]

    retold = boundary.retold([question, boundary.message(turn), answer], read)

    assert spelled("qwen3", retold or []) == (
        "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\nAnd 2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_nothing_is_retold_if_the_template_keeps_the_turns() -> None:
    boundary = make_boundary(tokenizer("qwen3"))
    question, answer = {"role": "user", "content": "1 + 1?"}, {"role": "tool", "content": "2"}
    prompt, turn = boundary.opening([question]), ids("qwen3", "<think>\nhm\n</think>\n\nlook<|im_end|>")
    assert (
        boundary.retold([question, boundary.message(turn), answer], [*prompt, *turn, *boundary.after([answer], turn)])
        is None
    )


OPENING = """
{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}
{{- '<|im_start|>assistant\n<think>\n' if add_generation_prompt else '' }}
"""


def test_a_thought_that_the_template_opens_is_a_part_of_the_message_that_closes_it() -> None:
    opening = with_template(OPENING, "<|im_start|>", "<|im_end|>")
    boundary = make_boundary(opening)
    question, answer = {"role": "user", "content": "1 + 1?"}, {"role": "user", "content": "And 2 + 2?"}
    turn = list(opening("hm\n</think>\n2<|im_end|>", add_special_tokens=False).input_ids)
    assert boundary.message(turn)["content"] == "<think>\nhm\n</think>\n2"
    read = [*boundary.opening([question]), *turn, *boundary.after([answer], turn)]
    assert boundary.retold([question, boundary.message(turn), answer], read) is None, "no tag is lost"


def test_a_turn_has_parts_where_a_tool_answers_a_call() -> None:
    boundary = make_boundary(tokenizer("gpt_oss"))
    call = ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'
    turn = ids("gpt_oss", f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{call}")
    question, answer = {"role": "user", "content": "1 + 1?"}, {"role": "tool", "name": "add", "content": "2"}
    message = boundary.message(turn)
    assert (message["thinking"], message["content"]) == ("hm", "")
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    read = [*boundary.opening([question]), *turn, *boundary.after([answer], turn)]
    assert boundary.retold([question, message, answer], read) is None


def test_nothing_is_retold_if_a_tool_answers_no_call_where_the_template_asks_for_one() -> None:
    boundary = make_boundary(tokenizer("gemma4"))
    question, answer = {"role": "user", "content": "1 + 1?"}, {"role": "tool", "content": "no call"}
    broken = boundary.message(ids("gemma4", "<|tool_call>call:add<tool_call|><|tool_response>"))
    assert "tool_calls" not in broken
    assert boundary.retold([question, broken, answer], []) is None
    assert boundary.retold([question, broken], []) is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_is_a_message_without_the_token_that_ended_it(family: str) -> None:
    boundary = make_boundary(tokenizer(family))
    assert boundary.message(ids(family, "ok" + FAMILIES[family].end)) == {"role": "assistant", "content": "ok"}


# ── test boundary check ───────────────────────────────────────────────────────────────────────────
# What is refused before a run begins.

JOINED = "{% for m in messages %}{{ m.content }}{% endfor %}"
WORDS = ["Tom", " a", " b", "+", "-", "=", *"0123456789", " ?", " !", " so far ", " How many now?", " #### "]


def test_words_that_never_join_need_no_special_token() -> None:
    words = tokenizer_from_words(WORDS)
    words.chat_template = JOINED
    boundary = make_boundary(words)
    assert words.decode(boundary.after([{"role": "tool", "content": "+5"}], words(" a ?").input_ids)) == "+5"


def test_tokens_that_would_join_the_answer_are_refused() -> None:
    merging = tokenizer_from_texts(TEXTS * 9, 400)
    merging.chat_template = JOINED
    with pytest.raises(
        ConfigError, match=r"no special token between a turn that ends in .* and an answer of the role user"
    ):
        make_boundary(merging)


def test_words_that_overlap_are_refused_as_well() -> None:
    words = tokenizer_from_words(["a", "b", "ab"])
    words.chat_template = JOINED
    with pytest.raises(ConfigError, match="the tokenizer would join 'b' with it"):
        make_boundary(words)


def test_a_special_token_at_the_boundary_suffices() -> None:
    merging = tokenizer_from_texts(TEXTS * 9, 400, special=["<|end|>"])
    merging.chat_template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    make_boundary(merging)


def test_a_template_without_the_role_of_tools_is_refused_if_there_are_tools() -> None:
    words = tokenizer_from_words(WORDS, special=["<|end|>"])
    words.chat_template = (
        "{{ tools | tojson if tools else '' }}<tool_call>"
        "{% for m in messages if m.role != 'tool' %}{{ m.content }}<|end|>{% endfor %}"
    )
    make_boundary(words)
    with pytest.raises(ConfigError, match="leaves out messages of the role tool"):
        make_boundary(words, tools='[{"function": {"name": "look"}}]')


def test_a_template_that_hides_the_turns_of_the_policy_is_refused() -> None:
    words = tokenizer_from_words(WORDS)
    words.chat_template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match="does not show where a turn of the policy ends"):
        make_boundary(words)


# ── test boundaries ────────────────────────────────────────────────────────────────────────────────
# Boundaries by the settings of a run.

INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = json.dumps([{"type": "function", "function": {"name": "add", "parameters": INTEGER}}])


def said(family: str, written: str, tool_parser: ToolParser = "auto") -> list[tuple[str, dict[str, Any]]]:
    boundary = make_boundary(tokenizer(family), tools=TOOLS, tool_parser=tool_parser)
    turn = boundary.said(tokenizer(family)(written, add_special_tokens=False).input_ids, "stop")
    return [(call.name, call.arguments) for call in turn.tool_calls]


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_read_in_the_form_that_the_template_shows(family: str) -> None:
    value = 5 if FAMILIES[family].form in ("glm", "qwen_xml") else "5"
    assert said(family, FAMILIES[family].call("add", "5")) == [("add", {"a": value})]


ZIP = {"type": "object", "properties": {"a": {"type": "string"}}}
OF_REQUEST = json.dumps([{"type": "function", "function": {"name": "write", "parameters": ZIP}}])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("value", ["90210", "true", "null", '{"a": 1}'])
def test_an_argument_that_the_tools_of_a_request_declare_as_text_stays_text(family: str, value: str) -> None:
    boundary, written = make_boundary(tokenizer(family)), FAMILIES[family].call("write", value)
    turn = boundary.said(tokenizer(family)(written, add_special_tokens=False).input_ids, "stop", OF_REQUEST)
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("write", {"a": value})]


def test_tools_of_a_request_that_the_policy_would_not_see_or_could_not_call_are_refused(monkeypatch) -> None:
    words = tokenizer("qwen3")
    shown = words.chat_template
    question = [{"role": "user", "content": "a"}]
    monkeypatch.setattr(words, "chat_template", shown.replace("tools", "gadgets"))
    with pytest.raises(EngineError, match="does not show the tool write to the policy"):
        make_boundary(words).opening(question, OF_REQUEST)
    monkeypatch.setattr(words, "chat_template", shown.replace("tool_call>", "called>"))
    with pytest.raises(EngineError, match=r"name it in environment\.tool_parser: hermes, "):
        make_boundary(words).opening(question, OF_REQUEST)


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.thought])
def test_a_thought_is_told_apart_from_the_answer_and_its_calls(family: str) -> None:
    call = FAMILIES[family].call("add", "5")
    written = FAMILIES[family].thought.format("I add.") + call
    turn = make_boundary(tokenizer(family), tools=TOOLS).said(
        tokenizer(family)(written, add_special_tokens=False).input_ids, "stop"
    )
    assert (turn.thought, turn.content, len(turn.tool_calls)) == ("I add.", "", 1)


def test_another_form_can_be_named() -> None:
    assert said("qwen3", FAMILIES["llama3"].call("add", "5"), "llama_json") == [("add", {"a": "5"})]
    assert said("qwen3", FAMILIES["qwen3"].call("add", "5"), "none") == []


def test_prompts_are_chats_or_plain_text() -> None:
    assert isinstance(make_boundary(tokenizer("qwen3")), ChatBoundary)
    assert isinstance(make_boundary(tokenizer("qwen3"), is_chat=False), TextBoundary)


def test_plain_text_has_no_place_for_tools() -> None:
    with pytest.raises(ConfigError, match="prompts of plain text have no place for them"):
        make_boundary(tokenizer("qwen3"), is_chat=False, tools=TOOLS)


def test_tools_that_the_template_does_not_show_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer("qwen3")
    monkeypatch.setattr(words, "chat_template", words.chat_template.replace("tools", "gadgets"))
    with pytest.raises(ConfigError, match="does not show the tool add to the policy"):
        make_boundary(words, tools=TOOLS)


def test_tools_without_a_known_form_of_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer("qwen3")
    monkeypatch.setattr(words, "chat_template", words.chat_template.replace("tool_call>", "called>"))
    with pytest.raises(ConfigError, match=r"name it in environment\.tool_parser: hermes, "):
        make_boundary(words, tools=TOOLS)
    make_boundary(words, tools=TOOLS, tool_parser="none")


def test_a_response_template_must_be_there_if_it_is_named() -> None:
    with pytest.raises(ConfigError, match="but the tokenizer has none"):
        make_boundary(tokenizer("qwen3"), tool_parser="response_template")


def test_a_chat_needs_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer("qwen3"), "chat_template", None)
    with pytest.raises(ConfigError, match="the tokenizer has no chat template"):
        make_boundary(tokenizer("qwen3"))


# ── test text boundary ────────────────────────────────────────────────────────────────────────────
# Plain text: answers are tokenized alone.

WORDS_TEXT_BOUNDARY = tokenizer_from_words([" a", " b", " c"])


@pytest.fixture
def boundary() -> TurnBoundary:
    return make_boundary(WORDS_TEXT_BOUNDARY, is_chat=False)


def text_boundary_ids(tokenizer: PreTrainedTokenizerBase, written: str) -> list[int]:
    return list(tokenizer(written).input_ids)


def test_the_contents_follow_each_other(boundary: TurnBoundary) -> None:
    messages = [{"role": "tool", "content": " a b"}, {"role": "user", "content": " c"}]
    assert boundary.after(messages, text_boundary_ids(WORDS_TEXT_BOUNDARY, " c")) == text_boundary_ids(
        WORDS_TEXT_BOUNDARY, " a b c"
    )
    assert boundary.opening(messages) == text_boundary_ids(WORDS_TEXT_BOUNDARY, " a b c")
    assert boundary.after([], text_boundary_ids(WORDS_TEXT_BOUNDARY, " c")) == []


def test_nothing_is_retold(boundary: TurnBoundary) -> None:
    assert boundary.retold([{"role": "user", "content": " a"}], []) is None


def test_a_turn_is_its_text(boundary: TurnBoundary) -> None:
    assert boundary.said(text_boundary_ids(WORDS_TEXT_BOUNDARY, " a b<eos>"), "length").text == " a b"
    assert boundary.said(text_boundary_ids(WORDS_TEXT_BOUNDARY, " a b<eos>"), "length").finish_reason == "length"
    assert boundary.message(text_boundary_ids(WORDS_TEXT_BOUNDARY, " a<eos>")) == {"role": "assistant", "content": " a"}


def test_tools_have_no_place(boundary: TurnBoundary) -> None:
    with pytest.raises(EngineError, match="plain text has no place for them"):
        boundary.opening([{"role": "user", "content": " a"}], '[{"name": "add"}]')


# ── turn reader ───────────────────────────────────────────────────────────────────────────────────
# Turns as the environment gets them.


CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'


def heard(family: str, written: str) -> PolicyTurn:
    return make_boundary(tokenizer(family)).said(tokenizer(family)(written, add_special_tokens=False).input_ids, "stop")


def test_text_is_all_and_content_is_what_is_neither_thought_nor_call() -> None:
    turn = heard("qwen3", f"<think>\nhm\n</think>\n\nLook.\n{CALL}<|im_end|>")
    assert turn.text == f"<think>\nhm\n</think>\n\nLook.\n{CALL}"
    assert turn.content == "Look."
    assert [call.name for call in turn.tool_calls] == ["add"]


@pytest.mark.parametrize("written", [f"<think>{CALL}</think>no", f"<think>{CALL}"], ids=["closed", "cut"])
def test_a_call_in_a_thought_is_none(written: str) -> None:
    assert heard("qwen3", written).tool_calls == []


def test_a_thought_that_the_prompt_opened_is_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    thinking = tokenizer("qwen3").chat_template.replace("assistant\\n' if add", "assistant\\n<think>\\n' if add")
    monkeypatch.setattr(tokenizer("qwen3"), "chat_template", thinking)
    assert heard("qwen3", CALL).tool_calls == []
    assert heard("qwen3", f"hm</think>ok{CALL}").content == "ok"


def test_marks_of_calls_may_be_special_tokens() -> None:
    turn = heard("llama3", '<|python_tag|>{"name": "add", "parameters": {"a": 1}}<|eot_id|>')
    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("add", {"a": 1})]
    assert turn.content == ""
