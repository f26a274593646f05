"""Traces of a run, sent to a collector while its broker serves it; off unless ``--traces`` is given."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from asyncrl.errors import ConfigError
from asyncrl.observe.traces.span import SendSpans

if TYPE_CHECKING:
    from asyncrl.observe.traces.exporter import SpanExport


def require_opentelemetry() -> None:
    """Raise `ConfigError` unless `opentelemetry` is installed."""
    _export()


@asynccontextmanager
async def spans_sent(run: str) -> AsyncIterator[SendSpans]:
    """
    Send spans of the run of this name until the block ends, and then those that still wait. Yields where they go.

    Raises:
        ConfigError: `opentelemetry` is not installed, or a variable of its environment is wrong.
    """
    export = _export()(run)
    try:
        yield export.send
    finally:
        await asyncio.to_thread(export.close)


def _export() -> "type[SpanExport]":
    try:
        from asyncrl.observe.traces.exporter import SpanExport  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigError("--traces needs opentelemetry: pip install 'asyncrl[traces]'") from error
    return SpanExport
