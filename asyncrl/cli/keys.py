"""`asyncrl keys`: key pairs of a broker and its nodes, and the list of those that may connect."""

import re
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

import click

from asyncrl.cli.parts import report_errors
from asyncrl.terminal import aligned, echo, to_json
from asyncrl.wire.keys.allow_list import AllowedKey, AllowList, utc_time
from asyncrl.wire.keys.key import BROKER, ROLES, Key, check_node_name, create_key, fingerprint, from_hex, new_key
from asyncrl.wire.keys.key_folder import KeyFolder, default_folder

# ── duration ──────────────────────────────────────────────────────────────────────────────────
# Durations on the command line: 90s, 30m, 24h, 7d.

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """A whole number and a unit, in seconds; 0 needs no unit."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float) or value == "0":
            return float(value)
        if not (found := re.fullmatch(r"(\d{1,6})([smhd])", value)):
            self.fail(f"{value!r} is no duration: expected a number and s, m, h or d, such as 24h", param, ctx)
        return float(found[1]) * UNITS_S[found[2]]


DURATION = Duration()


# ── output ────────────────────────────────────────────────────────────────────────────────────
# Output of `asyncrl keys`: what was done, and what to do next. Private keys are never in it.

NODE_FILE = "/etc/asyncrl/node.key"
"""Path at which a machine keeps its key."""
BROKER_ADDRESS = "tcp://HOST:PORT"
OPERATOR = "supervisor"
"""Role of a key that no node has."""
CUT_OFF = "a running broker cuts it off within seconds"


def added(folder: KeyFolder, key: AllowedKey, *, is_made_here: bool) -> str:
    return _lines(
        f"{key.name} may connect as {' or '.join(key.roles)} with the key {fingerprint(key.public)}",
        *(_copy(folder, key) if is_made_here else ()),
        *_use(key),
    )


def rotated(folder: KeyFolder, key: AllowedKey, *, is_made_here: bool) -> str:
    old = f"is accepted until {utc_time(key.previous_until)}" if key.previous else f"is refused; {CUT_OFF}"
    return _lines(
        f"{key.name} has the key {fingerprint(key.public)}; its previous key {old}",
        *(_copy(folder, key) if is_made_here else ()),
        *(() if _is_operator(key) else ("restart its nodes with the new file",)),
    )


def table(broker: Key, allowed: AllowList, now_s: float) -> str:
    rows = [["name", "roles", "fingerprint", "added", "state"]]
    rows += [
        [key.name, ", ".join(key.roles), fingerprint(key.public), key.added.isoformat(), _state(key, now_s)]
        for key in allowed
    ]
    return _lines(f"broker's public key: {broker.public.hex()}", "", *(aligned(rows) if len(allowed) else ["no keys"]))


def as_data(broker: Key, allowed: AllowList, now_s: float) -> dict[str, Any]:
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


# ── command ───────────────────────────────────────────────────────────────────────────────────

PATH = click.Path(path_type=Path)


_keys_option = click.option(
    "--keys",
    "path",
    type=PATH,
    metavar="DIR",
    help="Folder of keys.  [default: $ASYNCRL_KEYS, or asyncrl/keys in $XDG_CONFIG_HOME or ~/.config]",
)


def _role_option(*, required: bool) -> Callable[[Any], Any]:
    choice = click.Choice(ROLES)

    def split(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        if required and not given:
            raise click.MissingParameter(f"Choose from {', '.join(ROLES)}.", ctx, param)
        named = (choice.convert(role.strip(), param, ctx) for text in given for role in text.split(","))
        return tuple(dict.fromkeys(named))

    text = f"Roles that the node may have, of {', '.join(ROLES)}; repeatable."
    return click.option("--role", "roles", metavar="ROLE,...", multiple=True, callback=split, help=text)


def _public_option(text: str) -> Callable[[Any], Any]:
    return click.option("--public", metavar="HEX", help=text)


@click.group()
def keys() -> None:
    """
    Make and manage the keys of nodes on other machines.

    \b
    Start on the broker's machine:
      asyncrl keys init
      asyncrl keys add gpu1 --role rollout
    """


@keys.command()
@_keys_option
@report_errors
def init(path: Path | None) -> None:
    """Make the broker's key pair and an empty allow-list. Existing ones are not overwritten."""
    folder = _folder(path)
    key = folder.init()
    option = f" --keys {shlex.quote(str(path))}" if path else ""
    echo(f"made the broker's key pair {fingerprint(key.public)} and an empty allow-list in {folder.path}")
    echo(f"public key: {key.public.hex()}")
    echo("allow the key of a machine next:")
    echo(f"  asyncrl keys add NAME --role ROLE{option}")


@keys.command()
@click.argument("name")
@_role_option(required=True)
@_public_option("Public key of a node that made its pair by `asyncrl keys new`.")
@_keys_option
@report_errors
def add(name: str, roles: tuple[str, ...], public: str | None, path: Path | None) -> None:
    """
    Allow the key of one more machine, and say how to install it.

    Its nodes are named NAME, or NAME- and anything. Makes the key pair, in nodes/NAME.key below the folder of keys,
    unless --public gives the public key of a pair that the machine made.

    \b
    Example:
      asyncrl keys add gpu1 --role rollout,reward
    """
    folder = _folder(path)
    key = folder.add(name, roles, _public(public))
    echo(added(folder, key, is_made_here=public is None))


@keys.command()
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--name", required=True, help="Name of the key; the node is named so, or NAME- and anything.")
@click.option("--broker-public", metavar="HEX", required=True, help="Public key of the broker; `asyncrl keys list`.")
@_role_option(required=False)
@report_errors
def new(file: Path, name: str, broker_public: str, roles: tuple[str, ...]) -> None:
    """
    Make a key pair on the machine of a node.

    Its private key is never anywhere else.

    Writes FILE and prints the command that allows the key, for the broker's machine.

    \b
    Example:
      asyncrl keys new /etc/asyncrl/node.key --name gpu1 --role rollout \\
        --broker-public 5e0f...
    """
    check_node_name(name)
    key = new_key(name, roles, from_hex(broker_public, "--broker-public"))
    create_key(file, key)
    named = " ".join(f"--role {role}" for role in key.roles) or "--role ROLE"
    echo(f"made the key pair {fingerprint(key.public)} of {key.name} in {file}")
    echo("allow it on the broker's machine:")
    echo(f"  asyncrl keys add {key.name} {named} --public {key.public.hex()}")


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@_keys_option
@report_errors
def list_keys(as_json: bool, path: Path | None) -> None:
    """List the keys that may connect, and the public key of the broker."""
    folder = _folder(path)
    broker, allowed, now_s = folder.broker(), folder.allow_list(), time.time()
    echo(to_json(as_data(broker, allowed, now_s)) if as_json else table(broker, allowed, now_s))


@keys.command()
@click.argument("name")
@_keys_option
@report_errors
def revoke(name: str, path: Path | None) -> None:
    """Refuse the key of a machine. A running broker closes its connections within seconds."""
    key = _folder(path).revoke(name)
    echo(f"{key.name} may not connect with the key {fingerprint(key.public)}; {CUT_OFF}")


@keys.command()
@click.argument("name", metavar="NAME|broker")
@click.option("--overlap", "overlap_s", type=DURATION, default="0", help="Time for which the old key is accepted too.")
@_public_option("Public key of a pair that the machine made by `asyncrl keys new`.")
@_keys_option
@report_errors
def rotate(name: str, overlap_s: float, public: str | None, path: Path | None) -> None:
    """
    Replace the key pair of a machine, or that of the broker.

    The old key of a machine is refused at once, or after --overlap. A new pair of the broker needs new files on every
    machine, and a restart of the broker.

    \b
    Example:
      asyncrl keys rotate gpu1 --overlap 24h
      asyncrl keys rotate broker
    """
    folder = _folder(path)
    if name != BROKER:
        key = folder.rotate(name, overlap_s, _public(public))
        echo(rotated(folder, key, is_made_here=public is None))
    elif overlap_s or public:
        raise click.UsageError("the broker has one key pair, made here: --overlap and --public are for nodes")
    else:
        of_broker, rewritten = folder.rotate_broker()
        echo(f"the broker has the key pair {fingerprint(of_broker.public)} after its next start")
        echo(f"public key: {of_broker.public.hex()}")
        echo("every machine needs its key file again:")
        for file in rewritten:
            echo(f"  copy {file} to its machine, in place of the old one")
        echo(f'  in a key file made by `asyncrl keys new`, set broker = "{of_broker.public.hex()}"')
        echo("then restart the broker and the nodes")


def _folder(path: Path | None) -> KeyFolder:
    return KeyFolder(path or default_folder())


def _public(text: str | None) -> bytes | None:
    return None if text is None else from_hex(text, "--public")
