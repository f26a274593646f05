"""A source tree that is only on the path says its version, as an installation does."""

import subprocess
import sys

import pytest

from asyncrl.version import VERSION

NOT_INSTALLED = """
import importlib.metadata, sys

version = importlib.metadata.version

def lacking(name):
    if name == "asyncrl":
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)

importlib.metadata.version = lacking
"""

METRICS = """
from asyncrl.runtime.http_server import Exposition
print(Exposition({"role": "broker", "node": "broker"}, list).text()[0].decode())
"""

TRACES = """
from asyncrl.runtime.exporter import SpanExport
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
export = SpanExport("run", InMemorySpanExporter())
print(export._resource.attributes["service.version"])
export.close()
"""

DOCTOR = """
from asyncrl.tools.cluster.probe import look
from asyncrl.tools.cluster.probe import Look
print(look(Look(broker_host="127.0.0.1", broker_port=1)).versions["asyncrl"])
"""


@pytest.mark.parametrize(
    ("program", "package"),
    [
        ("from asyncrl.cli.main import main; main(['--version'])", "click"),
        ("from asyncrl.cli.node import main; main(['--version'])", "click"),
        ("import asyncrl; print(asyncrl.__version__)", "click"),
        (METRICS, "prometheus_client"),
        (TRACES, "opentelemetry.sdk"),
        (DOCTOR, "zmq"),
    ],
    ids=["asyncrl", "asyncrl-node", "Python", "metrics", "traces", "doctor"],
)
def test_what_is_not_installed_says_its_version(program: str, package: str) -> None:
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED + program], capture_output=True, text=True, timeout=60, check=False
    )
    assert VERSION in done.stdout, done.stderr
