"""`asyncrl keys`: key pairs of a broker and its nodes, and the list of those that may connect."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from asyncrl.cli.keys import output
from asyncrl.cli.keys.duration import DURATION
from asyncrl.cli.terminal import echo, report_errors, to_json
from asyncrl.keys.key import BROKER, ROLES, check_node_name, from_hex, new_key
from asyncrl.keys.key_file import create_key
from asyncrl.keys.key_folder import KeyFolder, default_folder

PATH = click.Path(path_type=Path)


def _keys_option(command: Callable[..., None]) -> Callable[..., None]:
    text = "Folder of keys.  [default: $ASYNCRL_KEYS, or asyncrl/keys in $XDG_CONFIG_HOME or ~/.config]"
    return click.option("--keys", "path", type=PATH, metavar="DIR", help=text)(command)


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
    echo(output.made_broker(folder, folder.init(), path))


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
    echo(output.added(folder, key, is_made_here=public is None))


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
      asyncrl keys new /etc/asyncrl/node.key --name gpu1 --role rollout --broker-public 5e0f...
    """
    check_node_name(name)
    key = new_key(name, roles, from_hex(broker_public, "--broker-public"))
    create_key(file, key)
    echo(output.made_pair(file, key))


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@_keys_option
@report_errors
def list_keys(as_json: bool, path: Path | None) -> None:
    """List the keys that may connect, and the public key of the broker."""
    folder = _folder(path)
    broker, allowed, now_s = folder.broker(), folder.allow_list(), time.time()
    echo(to_json(output.as_json(broker, allowed, now_s)) if as_json else output.table(broker, allowed, now_s))


@keys.command()
@click.argument("name")
@_keys_option
@report_errors
def revoke(name: str, path: Path | None) -> None:
    """Refuse the key of a machine. A running broker closes its connections within seconds."""
    folder = _folder(path)
    echo(output.revoked(folder.revoke(name)))


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
        echo(output.rotated(folder, key, is_made_here=public is None))
    elif overlap_s or public:
        raise click.UsageError("the broker has one key pair, made here: --overlap and --public are for nodes")
    else:
        echo(output.rotated_broker(*folder.rotate_broker()))


def _folder(path: Path | None) -> KeyFolder:
    return KeyFolder(path or default_folder())


def _public(text: str | None) -> bytes | None:
    return None if text is None else from_hex(text, "--public")
