"""TCP forwarders that share one slow line, as between two data centres."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

CHUNK_BYTES = 16 << 10


class Line:
    """A line of so many bits per second in each direction, and the connections that it carries."""

    def __init__(self, bits_per_s: float) -> None:
        self._bytes_per_s = bits_per_s / 8
        self._free_s = {"up": 0.0, "down": 0.0}
        """Time at which each direction has sent what it was given."""
        self.num_bytes = {"up": 0, "down": 0}
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []

    def forward(self, port: int) -> int:
        """Forward a free port of this machine to ``port``; returns the free one."""
        return asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result(10.0)

    def cut(self) -> None:
        """Break every connection; new ones are accepted at once."""
        self._loop.call_soon_threadsafe(self._abort)

    async def _listen(self, port: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
                self._connections |= {writer, there_writer}
                await asyncio.gather(self._pump(reader, there_writer, "up"), self._pump(there_reader, writer, "down"))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._servers.append(server)
        free_port: int = server.sockets[0].getsockname()[1]
        return free_port

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                now_s = time.monotonic()
                self._free_s[direction] = max(self._free_s[direction], now_s) + len(chunk) / self._bytes_per_s
                await asyncio.sleep(self._free_s[direction] - now_s)
                writer.write(chunk)
                await writer.drain()
                self.num_bytes[direction] += len(chunk)
        except OSError:
            pass  # The connection is cut: its ends see it themselves.
        finally:
            writer.close()
            self._connections.discard(writer)

    def _abort(self) -> None:
        for writer in self._connections:
            writer.transport.abort()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.call_soon(self._loop.stop)


@contextlib.contextmanager
def slow_line(bits_per_s: float) -> Iterator[Line]:
    """A line that is served by a thread until the block ends."""
    line = Line(bits_per_s)
    thread = threading.Thread(target=line._serve, name="slow-line", daemon=True)
    thread.start()
    try:
        yield line
    finally:
        asyncio.run_coroutine_threadsafe(line._end(), line._loop)
        thread.join(10.0)
