"""Events go where the host wants them, and never to its standard output unasked."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import asyncrl
from asyncrl.log import get_logger

HOST = """
from asyncrl.log import get_logger
log = get_logger()
for level in ("debug", "info", "warning", "error"):
    getattr(log, level)(f"some.{level}", node="a 1", count=2)
"""


def test_without_a_configuration_nothing_is_printed() -> None:
    done = subprocess.run([sys.executable, "-c", HOST], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_host_with_standard_logging_gets_all_levels_as_it_configured_them() -> None:
    host = f"import logging; logging.basicConfig(level='INFO', format='%(name)s %(levelname)s %(message)s')\n{HOST}"
    done = subprocess.run([sys.executable, "-c", host], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == "asyncrl INFO some.info node='a 1' count=2"


def test_a_host_with_structlog_gets_events_with_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    with capture_logs() as logs, caplog.at_level(logging.DEBUG):
        get_logger().debug("some.debug", node="a")
        get_logger().warning("some.warning", percent="100%s")
    assert logs == [
        {"event": "some.debug", "node": "a", "log_level": "debug"},
        {"event": "some.warning", "percent": "100%s", "log_level": "warning"},
    ]
    assert caplog.records == []


def test_no_other_module_logs_past_it() -> None:
    package = Path(asyncrl.__file__).parent
    users = {str(path.relative_to(package)) for path in package.rglob("*.py") if "import structlog" in path.read_text()}
    assert users == {"log.py", "runtime/process.py"}


def test_fields_of_a_task_are_in_its_events_and_in_those_of_its_own_tasks() -> None:
    source = """
import asyncio, structlog
from asyncrl.log import about, get_logger
structlog.configure(processors=[structlog.contextvars.merge_contextvars, structlog.processors.KeyValueRenderer()])
async def child():
    get_logger().info("child")
async def attached():
    about(run="try-7")
    await asyncio.create_task(child())
async def main():
    await asyncio.create_task(attached())
    get_logger().info("host")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["event='child' run='try-7'", "event='host'"]
