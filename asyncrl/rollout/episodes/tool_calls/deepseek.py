"""
DeepSeek-V3 and R1: a section of calls, each with its arguments in a code fence.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add
    ```json
    {"a": 1}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from asyncrl.rollout.episodes.tool_calls.found import Call, Found, Schemas, UnreadableCall, between
from asyncrl.rollout.episodes.tool_calls.json_values import end_of_json, read_object

SECTION, END_OF_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_OF_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
LONGEST_HEAD = 1000
"""Characters between the beginning of a call and its code fence."""
FENCE, END_OF_FENCE = "```json", "```"


def parse(text: str, schemas: Schemas) -> Found:
    found = between(text, CALL, END_OF_CALL, _read, end_of_value=_end)
    if not found.calls:
        return found
    return Found(found.content.replace(SECTION, "").replace(END_OF_SECTION, "").strip(), found.calls)


def _end(text: str, start: int) -> int:
    """End of the code fence with the arguments."""
    fence = text.find(FENCE, start, start + LONGEST_HEAD)
    end = end_of_json(text, fence + len(FENCE)) if fence >= 0 and CALL not in text[start:fence] else -1
    closed = text.find(END_OF_FENCE, end) if end >= 0 else -1
    return closed + len(END_OF_FENCE) if closed >= 0 and not text[end:closed].strip() else end


def _read(block: str) -> Call:
    _, separated, rest = block.partition(SEPARATOR)
    name, fenced, rest = rest.partition(FENCE)
    if not separated or not fenced or not name.strip():
        raise UnreadableCall(f"has no {SEPARATOR}name with {FENCE}")
    return name.strip(), read_object(rest.rstrip().removesuffix(END_OF_FENCE))
