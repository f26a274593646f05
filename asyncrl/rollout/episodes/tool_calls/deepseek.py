"""
DeepSeek-V3 and R1: a section of calls, each with its arguments in a code fence.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add
    ```json
    {"a": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from asyncrl.rollout.episodes.tool_calls.found import Call, Found, Schemas, UnreadableCall, between
from asyncrl.rollout.episodes.tool_calls.json_values import read_object

SECTION, END_OF_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_OF_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCE, END_OF_FENCE = "```json", "```"


def parse(text: str, schemas: Schemas) -> Found:
    found = between(text, CALL, END_OF_CALL, _read)
    return Found(found.content.replace(SECTION, "").strip(), found.calls) if found.calls else found


def _read(block: str) -> Call:
    _, separated, rest = block.partition(SEPARATOR)
    name, fenced, rest = rest.partition(FENCE)
    if not separated or not fenced or not name.strip():
        raise UnreadableCall(f"has no {SEPARATOR}name with {FENCE}")
    return name.strip(), read_object(rest.rstrip().removesuffix(END_OF_FENCE))
