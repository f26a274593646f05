"""
Tools ``mcp:COMMAND``: those of an MCP server, which is a child of the worker and talks over its stdin and stdout.

It needs the package ``mcp`` (version 2) in the interpreter of the environment. A server that has ended is started again
by the next call.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from typing import Any

from asyncrl.episodes.worker.schema import function_schema
from asyncrl.errors import ConfigError

START_S = 30.0
SETTING = "environment.tools"


class ToolServer:
    """One server, shared by all episodes of the worker."""

    def __init__(self, command: str, call_s: float) -> None:
        self._name = f"{SETTING} 'mcp:{command}'"
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"{self._name}: {error}") from error
        if not self._command:
            raise ConfigError(f"{self._name} names no command")
        try:
            import mcp  # noqa: F401, PLC0415  only environments with such tools need the package
        except ImportError as error:
            raise ConfigError(f"{self._name} needs the package mcp in environment.python ({error})") from error
        self._patience_s = call_s / 2
        self._connection: ServerProcess | None = None

    async def start(self) -> list[McpTool]:
        """Start the server and list its tools; raises `ConfigError` if that fails."""
        try:
            return await asyncio.wait_for(self._listed(), START_S)
        except TimeoutError as error:
            raise ConfigError(f"{self._name} did not list its tools within {START_S:g} s") from error
        except Exception as error:
            raise ConfigError(f"{self._name} could not be started: {_text(error)}") from error

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError  # noqa: PLC0415
        from mcp_types import CONNECTION_CLOSED  # noqa: PLC0415

        connection = self._connected()
        client = await asyncio.wait_for(asyncio.shield(connection.client), self._patience_s)
        try:
            return content_of(await client.call_tool(name, arguments, read_timeout_seconds=self._patience_s))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                connection.lost.set()
            return f"error: {error.message}"

    async def _listed(self) -> list[McpTool]:
        client = await self._connected().client
        tools: list[McpTool] = []
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += [McpTool(self, tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return tools

    def _connected(self) -> ServerProcess:
        if self._connection is None or self._connection.lost.is_set():
            self._connection = ServerProcess(self._command)
        return self._connection


class ServerProcess:
    """One process of a server."""

    def __init__(self, command: list[str]) -> None:
        self.client: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        self._task = asyncio.ensure_future(self._hold(command))

    async def _hold(self, command: list[str]) -> None:
        """Open and close the connection: the library wants both done by one task."""
        from mcp import Client, StdioServerParameters, stdio_client  # noqa: PLC0415

        program, *arguments = command
        parameters = StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
        try:
            async with Client(stdio_client(parameters)) as client:
                self.client.set_result(client)
                await self.lost.wait()
        except Exception as error:  # noqa: BLE001  handed to those who wait
            self.lost.set()
            if not self.client.done():
                self.client.set_exception(error)


class McpTool:
    def __init__(self, server: ToolServer, name: str, description: str, parameters: dict[str, Any]) -> None:
        self._server = server
        self._name = name
        self.schema = function_schema(name, description, parameters)

    async def call(self, arguments: dict[str, Any]) -> str:
        return await self._server.call(self._name, arguments)


def content_of(result: Any) -> str:
    """Return the text of a result; other contents are named."""
    parts = [getattr(part, "text", None) or f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    return f"error: {text}" if result.is_error else text


def _text(error: BaseException) -> str:
    """Return the innermost error of a group: the library's tasks raise groups of one."""
    while getattr(error, "exceptions", ()):
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return f"{type(error).__name__}: {str(error)[:300]}"
