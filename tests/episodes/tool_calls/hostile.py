"""Texts that no parser may fail on."""

from hypothesis import strategies

from asyncrl.episodes.call_forms import MARKS

PIECES = sorted(
    {
        *MARKS,
        *("<function=", "</function>", "<parameter=", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>"),
        *("</arg_value>", "```json", "```", '{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "parameters": {}}'),
        *('{"name"', ":", "{", "}", "[", "]", '"', "\\", "\n", ">", ";", "9" * 30, "NaN", "1e999", "\\ud800", "add"),
    }
)
texts = strategies.lists(strategies.sampled_from(PIECES) | strategies.text(max_size=5), max_size=30).map("".join)
LONG = 100_000
long_texts = [piece * LONG for piece in PIECES] + [
    "<tool_call><function=f>" + "<parameter=a>" * LONG,
    "<tool_call>" + "[" * LONG + "</tool_call>",
    '<tool_call>{"name": "f"}</tool_call>' * LONG,
    "<tool_call>f" + "<arg_key>a</arg_key>" * LONG + "</tool_call>",
    '{"name": ' + "[" * LONG,
]
"""Texts on which a parser that reads anything twice for each piece would take hours."""
