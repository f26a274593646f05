"""Facts of this machine that `asyncrl doctor --cluster` compares with those of others. Imports no torch."""

import hashlib
import os
import platform
import resource
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.messages.wire import PROTOCOL
from asyncrl.node.machine.cluster.key_state import read_key_state
from asyncrl.node.machine.cluster.probe_messages import UNLIMITED, Facts, File, Look
from asyncrl.node.machine.devices import DEV, find
from asyncrl.node.machine.local_address import route_to
from asyncrl.node.machine.machine import CORE, ENGINES, TRAIN, missing_packages
from asyncrl.version import VERSION
from asyncrl.weights.groups.device import installed_version
from asyncrl.weights.groups.network_interface import interface_name

COMPARED = ("pyzmq", "msgspec", "numpy", "torch", "transformers", *ENGINES, "torch-npu")
"""Distributions whose versions are compared, beside Python and asyncrl."""
CONNECT_S = 5.0


def look(request: Look, environment: Mapping[str, str] = os.environ, dev: Path = DEV) -> Facts:
    """Facts of this machine."""
    problem = connection_problem(request.broker_host, request.broker_port)
    address = request.address or source_address(request.broker_host)
    found = {name: installed_version(name) for name in COMPARED}
    ours = {"python": platform.python_version(), "asyncrl": VERSION}
    return Facts(
        protocol=PROTOCOL,
        versions=ours | {name: version for name, version in found.items() if version},
        missing=missing_packages((*CORE, *TRAIN)),
        clock_s=time.time(),
        address=address,
        interface=_interface(address),
        broker_problem=problem,
        devices=str(find("auto", environment, dev)),
        open_files=_hard_limit(resource.RLIMIT_NOFILE),
        locked_bytes=_hard_limit(resource.RLIMIT_MEMLOCK),
        free_bytes=_free_bytes(Path(request.dir)),
        key=read_key_state(Path(request.key)) if request.key else None,
        model_config=read_state(Path(request.model) / "config.json") if request.model else None,
        lacks_model=bool(request.model) and not Path(request.model).is_dir(),
    )


def connection_problem(host: str, port: int) -> str:
    """Reason why nothing answers a TCP connection; empty if something does."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S):
            return ""
    except OSError as error:
        return reason_of(error)


def reason_of(error: OSError) -> str:
    """Text of the error's number, without the addresses that Python adds; its own text if it has no number."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def source_address(host: str) -> str:
    """IP address of this machine on its route to ``host``, as nodes find it; empty if there is no route."""
    try:
        return route_to(host)
    except ConfigError:
        return ""


def read_state(path: Path) -> File:
    """Digest of a file, or the reason why it cannot be read."""
    try:
        return File(digest=hashlib.sha256(path.read_bytes()).hexdigest())
    except OSError as error:
        return File(problem=reason_of(error))


def _interface(address: str) -> str:
    try:
        return interface_name(address) if address else ""
    except ConfigError:
        return ""


def _hard_limit(which: int) -> int:
    limit = resource.getrlimit(which)[1]
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _free_bytes(folder: Path) -> int:
    """Free space where ``folder`` is, or will be made."""
    path = folder.absolute()
    return shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
