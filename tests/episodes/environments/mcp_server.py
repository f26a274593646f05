"""A small MCP server over stdio, run under the interpreter of agents."""

import os

from mcp.server.mcpserver import MCPServer


def look(name: str) -> str:
    """Look into a box."""
    if name == "z":
        raise ValueError("there is no box z")
    if name == "end":
        os._exit(3)
    return f"{name} holds {len(name)}"


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


if __name__ == "__main__":
    server = MCPServer("boxes")
    for tool in (look, add):
        server.tool()(tool)
    server.run()
