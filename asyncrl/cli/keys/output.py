"""Output of `asyncrl keys`: what was done, and what to do next. Private keys are never in it."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

from asyncrl.cli.terminal import aligned
from asyncrl.keys.allow_list import AllowedKey, AllowList, utc_time
from asyncrl.keys.key import Key, fingerprint
from asyncrl.keys.key_folder import KeyFolder

NODE_FILE = "/etc/asyncrl/node.key"
"""Path at which a machine keeps its key."""
BROKER_ADDRESS = "tcp://HOST:PORT"
OPERATOR = "supervisor"
"""Role of a key that no node has."""
CUT_OFF = "a running broker cuts it off within seconds"


def made_broker(folder: KeyFolder, key: Key, given: Path | None) -> str:
    """Text after `init`; ``given`` is the folder if the command named it, so that the next command does too."""
    option = f" --keys {shlex.quote(str(given))}" if given else ""
    return _lines(
        f"made the broker's key pair {fingerprint(key.public)} and an empty allow-list in {folder.path}",
        f"public key: {key.public.hex()}",
        "allow the key of a machine next:",
        f"  asyncrl keys add NAME --role ROLE{option}",
    )


def added(folder: KeyFolder, key: AllowedKey, *, is_made_here: bool) -> str:
    return _lines(
        f"{key.name} may connect as {' or '.join(key.roles)} with the key {fingerprint(key.public)}",
        *(_copy(folder, key) if is_made_here else ()),
        *_use(key),
    )


def made_pair(file: Path, key: Key) -> str:
    roles = " ".join(f"--role {role}" for role in key.roles) or "--role ROLE"
    return _lines(
        f"made the key pair {fingerprint(key.public)} of {key.name} in {file}",
        "allow it on the broker's machine:",
        f"  asyncrl keys add {key.name} {roles} --public {key.public.hex()}",
    )


def revoked(key: AllowedKey) -> str:
    return f"{key.name} may not connect with the key {fingerprint(key.public)}; {CUT_OFF}"


def rotated(folder: KeyFolder, key: AllowedKey, *, is_made_here: bool) -> str:
    old = f"is accepted until {utc_time(key.previous_until)}" if key.previous else f"is refused; {CUT_OFF}"
    return _lines(
        f"{key.name} has the key {fingerprint(key.public)}; its previous key {old}",
        *(_copy(folder, key) if is_made_here else ()),
        *(() if _is_operator(key) else ("restart its nodes with the new file",)),
    )


def rotated_broker(key: Key, rewritten: Sequence[Path]) -> str:
    """Text after `rotate broker`; ``rewritten`` are the key files of nodes that name its new public key."""
    return _lines(
        f"the broker has the key pair {fingerprint(key.public)} after its next start",
        f"public key: {key.public.hex()}",
        "every machine needs its key file again:",
        *(f"  copy {path} to its machine, in place of the old one" for path in rewritten),
        f'  in a key file made by `asyncrl keys new`, set broker = "{key.public.hex()}"',
        "then restart the broker and the nodes",
    )


def table(broker: Key, allowed: AllowList, now_s: float) -> str:
    rows = [["name", "roles", "fingerprint", "added", "state"]]
    rows += [
        [key.name, ", ".join(key.roles), fingerprint(key.public), key.added.isoformat(), _state(key, now_s)]
        for key in allowed
    ]
    return _lines(f"broker's public key: {broker.public.hex()}", "", *(aligned(rows) if len(allowed) else ["no keys"]))


def as_json(broker: Key, allowed: AllowList, now_s: float) -> dict[str, Any]:
    return {
        "broker": {"public": broker.public.hex(), "fingerprint": fingerprint(broker.public)},
        "keys": [
            {
                "name": key.name,
                "roles": key.roles,
                "public": key.public.hex(),
                "fingerprint": fingerprint(key.public),
                "added": key.added,
                "state": _state(key, now_s),
            }
            for key in allowed
        ],
    }


def _state(key: AllowedKey, now_s: float) -> str:
    if key.accepts(key.previous, now_s):
        return f"allowed; {fingerprint(key.previous)} too until {utc_time(key.previous_until)}"
    return "allowed"


def _is_operator(key: AllowedKey) -> bool:
    """True for the key of a person, who keeps it in a file of their own; services read `NODE_FILE`."""
    return set(key.roles) == {OPERATOR}


def _copy(folder: KeyFolder, key: AllowedKey) -> Iterable[str]:
    file = shlex.quote(str(folder.node_file(key.name)))
    if _is_operator(key):
        yield "copy its key file to its machine, mode 0600, such as by"
        yield f"  scp -p {file} USER@MACHINE:{key.name}.key"
    else:
        yield f"copy its key file to its machine as {NODE_FILE}, mode 0600, such as by"
        yield f"  ssh root@MACHINE mkdir -p {PurePath(NODE_FILE).parent}"
        yield f"  scp -p {file} root@MACHINE:{NODE_FILE}"


def _use(key: AllowedKey) -> Iterable[str]:
    """Commands that use the key, for each of its roles; nodes are named as by `asyncrl services install`."""
    roles = [role for role in key.roles if role != OPERATOR]
    if roles:
        dirs = " --dir FOLDER" if "spool" in roles else ""
        yield "run its nodes there as services, with --supervisord where there is no root:"
        yield (
            f"  asyncrl services install --systemd --roles {','.join(roles)} --broker {BROKER_ADDRESS} "
            f"--key {NODE_FILE} --run-dir run{dirs}"
        )
        yield "or start them by hand:"
    for role in roles:
        who, folder = f"--role {role} --name {key.name}-{role}", " --dir FOLDER" if role == "spool" else ""
        yield f"  asyncrl-node {who} --broker {BROKER_ADDRESS} --key {NODE_FILE}{folder}"
    if OPERATOR in key.roles:
        file = f"{key.name}.key" if _is_operator(key) else NODE_FILE
        yield "look at the run from there; top, stop, drain and others take the key likewise:"
        yield f"  ASYNCRL_KEY_FILE={file} asyncrl status {BROKER_ADDRESS}"


def _lines(*lines: str) -> str:
    return "\n".join(lines)
