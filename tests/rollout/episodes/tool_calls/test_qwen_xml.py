import pytest

from asyncrl.rollout.episodes.tool_calls.qwen_xml import parse

CALL = """<tool_call>
<function=write>
<parameter=text>
 two
lines
</parameter>
<parameter=times>
3
</parameter>
</function>
</tool_call>"""


def test_values_lose_the_newlines_of_their_tags_alone() -> None:
    (call,) = parse(CALL, {"write": {"text": {"type": "string"}}}).calls
    assert (call.name, call.arguments) == ("write", {"text": " two\nlines", "times": 3})


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("f", "has no <function=name> with </function>"),
        ("</function><function=f>", "has no <function=name> with </function>"),
        ("<function=></function>", "has a tag <function= without a name and >"),
        ("<function=f><parameter=a>1</function>", "of f has a parameter a that is not closed by </parameter>"),
    ],
)
def test_other_blocks_are_problems(block: str, problem: str) -> None:
    (call,) = parse(f"<tool_call>{block}</tool_call>", {}).calls
    assert call.problem == f"the call {problem}"
