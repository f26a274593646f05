"""
Calls of tools in the text of a turn, one file for each form in which models write them.

    hermes      <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
    qwen_xml    <tool_call><function=add><parameter=a>1</parameter></function></tool_call>
    glm         <tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>
    llama_json  {"name": "add", "parameters": {"a": 1}}
    deepseek    ...<｜tool▁sep｜>add, and JSON in a code fence

Parsers are pure and total: they raise on no text and read it once. What looks like a call and cannot be read is a
`CalledTool` with a ``problem``, which its environment can answer.
"""
