"""`asyncrl keys`, as its user meets it: outputs, exit codes and files."""

import json
import re
from datetime import date
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from asyncrl.cli.keys import DURATION, as_data, table
from asyncrl.wire.keys.allow_list import AllowedKey, AllowList, owns
from asyncrl.wire.keys.key import ROLES, Key, new_key, read_key
from asyncrl.wire.keys.key_folder import AllowedKeys, KeyFolder
from tests.cli.invoke import asyncrl
from tests.wire.keys.leaks import forms_of

STRANGER = "0f" * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyFolder:
    """Folder named by ``$ASYNCRL_KEYS``, after `init`."""
    monkeypatch.setenv("ASYNCRL_KEYS", str(tmp_path / "keys"))
    assert keys("init").exit_code == 0
    return KeyFolder(tmp_path / "keys")


def keys(*arguments: object) -> Result:
    return asyncrl("keys", *arguments)


def done(*arguments: object) -> str:
    result = keys(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def refused(*arguments: object) -> str:
    result = keys(*arguments)
    assert (result.exit_code, result.stdout) == (78, "")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_init_names_the_public_key_and_the_next_command(tmp_path: Path) -> None:
    output = done("init", "--keys", tmp_path / "my keys")
    public = KeyFolder(tmp_path / "my keys").broker().public.hex()
    assert output == (
        f"made the broker's key pair {public[:16]} and an empty allow-list in {tmp_path}/my keys\n"
        f"public key: {public}\n"
        f"allow the key of a machine next:\n"
        f"  asyncrl keys add NAME --role ROLE --keys '{tmp_path}/my keys'\n"
    )


def test_the_next_command_names_no_folder_that_the_environment_names(folder: KeyFolder) -> None:
    folder.broker_file.unlink()
    folder.allow_list_file.unlink()
    assert done("init").endswith("  asyncrl keys add NAME --role ROLE\n")


def test_init_overwrites_nothing(folder: KeyFolder) -> None:
    assert "broker.key exists and is not overwritten" in refused("init")


def test_add_says_how_to_install_the_key(folder: KeyFolder) -> None:
    output = done("add", "gpu1", "--role", "rollout", "--role", "reward")
    key = read_key(folder.node_file("gpu1"))
    assert output == (
        f"gpu1 may connect as rollout or reward with the key {key.public.hex()[:16]}\n"
        f"copy its key file to its machine as /etc/asyncrl/node.key, mode 0600, such as by\n"
        f"  ssh root@MACHINE mkdir -p /etc/asyncrl\n"
        f"  scp -p {folder.path}/nodes/gpu1.key root@MACHINE:/etc/asyncrl/node.key\n"
        f"run its nodes there as services, with --supervisord where there is no root:\n"
        f"  asyncrl services install --systemd --roles rollout,reward --broker tcp://HOST:PORT "
        f"--key /etc/asyncrl/node.key --run-dir run\n"
        f"or start them by hand:\n"
        f"  asyncrl-node --role rollout --name gpu1-rollout --broker tcp://HOST:PORT --key /etc/asyncrl/node.key\n"
        f"  asyncrl-node --role reward --name gpu1-reward --broker tcp://HOST:PORT --key /etc/asyncrl/node.key\n"
    )
    assert folder.allow_list().named("gpu1").roles == ("rollout", "reward")


def test_roles_are_repeated_or_separated_by_commas(folder: KeyFolder) -> None:
    done("add", "gpu1", "--role", "rollout,reward", "--role", "rollout, spool")
    assert folder.allow_list().named("gpu1").roles == ("rollout", "reward", "spool")
    assert keys("add", "gpu2", "--role", "rollout,").exit_code == 2


def test_each_role_gets_the_command_that_uses_it(folder: KeyFolder) -> None:
    assert done("add", "disk", "--role", "spool").endswith("--key /etc/asyncrl/node.key --dir FOLDER\n")
    output = done("add", "both", "--role", "supervisor", "--role", "reward")
    assert output.endswith("  ASYNCRL_KEY_FILE=/etc/asyncrl/node.key asyncrl status tcp://HOST:PORT\n")


def test_the_key_of_an_operator_is_for_a_file_of_their_own(folder: KeyFolder) -> None:
    output = done("add", "alice", "--role", "supervisor")
    assert output.splitlines()[1:] == [
        "copy its key file to its machine, mode 0600, such as by",
        f"  scp -p {folder.path}/nodes/alice.key USER@MACHINE:alice.key",
        "look at the run from there; top, stop, drain and others take the key likewise:",
        "  ASYNCRL_KEY_FILE=alice.key asyncrl status tcp://HOST:PORT",
    ]
    assert done("rotate", "alice").endswith(" USER@MACHINE:alice.key\n")


def test_the_names_of_the_commands_are_those_of_the_key(folder: KeyFolder) -> None:
    output = done("add", "gpu1", *(word for each in ROLES for word in ("--role", each)))
    names = re.findall(r"--name (\S+)", output)
    assert len(names) == len(ROLES) - 1
    assert all(owns("gpu1", name) for name in names)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a/b", "--role", "rollout"), "asyncrl: 'a/b' cannot name a key: expected 1 to 64 letters"),
        (("broker", "--role", "rollout"), "asyncrl: 'broker' is the name of the broker's own key"),
        (
            ("b", "--role", "rollout", "--public", "xyz"),
            "asyncrl: --public: expected 64 hexadecimal digits, got 3 char",
        ),
    ],
)
def test_add_refuses_in_one_sentence(folder: KeyFolder, arguments: tuple[str, ...], error: str) -> None:
    assert refused("add", *arguments).startswith(error)
    assert len(folder.allow_list()) == 0


def test_add_needs_a_role_that_exists(folder: KeyFolder) -> None:
    for arguments in (("gpu1",), ("gpu1", "--role", "broker")):
        result = keys("add", *arguments)
        assert result.exit_code == 2
        assert "supervisor" in result.stderr


def test_a_machine_makes_its_own_pair_and_the_broker_allows_it(folder: KeyFolder, tmp_path: Path) -> None:
    broker, file = folder.broker().public, tmp_path / "etc" / "node.key"
    output = done("new", file, "--name", "gpu1", "--role", "rollout", "--broker-public", broker.hex())
    made = read_key(file)
    assert (made.name, made.roles, made.broker) == ("gpu1", ("rollout",), broker)

    command = output.splitlines()[-1].split()
    assert command == ["asyncrl", "keys", "add", "gpu1", "--role", "rollout", "--public", made.public.hex()]
    assert "scp" not in done(*command[2:])
    owner = AllowedKeys(folder.path).owner_of(made.public)
    assert owner is not None
    assert owner.name == "gpu1"
    assert not folder.node_file("gpu1").exists()


def test_new_overwrites_nothing_and_checks_its_options(tmp_path: Path) -> None:
    file = tmp_path / "node.key"
    assert "--role ROLE --public" in done("new", file, "--name", "gpu1", "--broker-public", STRANGER)
    assert "node.key exists and is not overwritten" in refused("new", file, "--name", "a", "--broker-public", STRANGER)
    assert "--broker-public: expected 64" in refused("new", tmp_path / "x", "--name", "a", "--broker-public", "0f")
    assert "'broker' is the name" in refused("new", tmp_path / "x", "--name", "broker", "--broker-public", STRANGER)
    assert not (tmp_path / "x").exists()


def test_list_shows_who_may_connect(folder: KeyFolder) -> None:
    assert done("list") == f"broker's public key: {folder.broker().public.hex()}\n\nno keys\n"
    done("add", "gpu1", "--role", "rollout", "--role", "reward")
    done("add", "big", "--role", "trainer")
    old = folder.allow_list().named("big").public.hex()
    done("rotate", "big", "--overlap", "24h")
    header, gpu1, big = done("list").splitlines()[2:]
    assert header.split() == ["name", "roles", "fingerprint", "added", "state"]
    public = folder.allow_list().named("gpu1").public.hex()
    assert re.fullmatch(rf"gpu1  rollout, reward  {public[:16]}  \d{{4}}-\d\d-\d\d  allowed", gpu1)
    assert re.search(rf"allowed; {old[:16]} too until \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", big)


def test_list_as_json_has_whole_public_keys(folder: KeyFolder) -> None:
    done("add", "gpu1", "--role", "rollout")
    key, broker = folder.allow_list().named("gpu1"), folder.broker().public.hex()
    assert json.loads(done("list", "--json")) == {
        "broker": {"public": broker, "fingerprint": broker[:16]},
        "keys": [
            {
                "name": "gpu1",
                "roles": ["rollout"],
                "public": key.public.hex(),
                "fingerprint": key.public.hex()[:16],
                "added": key.added.isoformat(),
                "state": "allowed",
            }
        ],
    }


def test_revoke_says_when_the_key_is_cut_off(folder: KeyFolder) -> None:
    done("add", "gpu1", "--role", "rollout")
    allowed, public = AllowedKeys(folder.path), folder.allow_list().named("gpu1").public
    assert done("revoke", "gpu1") == (
        f"gpu1 may not connect with the key {public.hex()[:16]}; a running broker cuts it off within seconds\n"
    )
    assert allowed.refresh() == [public]
    assert "there is no key named 'gpu1'" in refused("revoke", "gpu1")


def test_rotate_refuses_the_old_key_at_once_or_after_an_overlap(folder: KeyFolder) -> None:
    old = read_key_after(folder, "add", "gpu1", "--role", "rollout")
    allowed = AllowedKeys(folder.path)
    new = read_key_after(folder, "rotate", "gpu1")
    assert (allowed.refresh(), allowed.owner_of(new.public) is None) == ([old.public], False)

    output = done("rotate", "gpu1", "--overlap", "1h")
    newest = read_key(folder.node_file("gpu1"))
    assert allowed.refresh() == []
    assert [allowed.owner_of(key.public) is None for key in (old, new, newest)] == [True, False, False]
    assert re.match(f"gpu1 has the key {newest.public.hex()[:16]}; its previous key is accepted until .* UTC\n", output)
    assert "scp -p" in output


def read_key_after(folder: KeyFolder, *command: str) -> Key:
    done(*command)
    return read_key(folder.node_file("gpu1"))


def test_rotate_takes_the_public_key_of_a_pair_made_by_the_machine(folder: KeyFolder) -> None:
    done("add", "gpu1", "--role", "rollout")
    output = done("rotate", "gpu1", "--public", STRANGER)
    assert "its previous key is refused; a running broker cuts it off within seconds" in output
    assert "scp" not in output
    assert folder.allow_list().named("gpu1").public.hex() == STRANGER


def test_rotating_the_broker_names_every_file_that_is_due(folder: KeyFolder) -> None:
    done("add", "gpu1", "--role", "rollout")
    done("add", "gpu2", "--role", "rollout", "--public", STRANGER)
    output = done("rotate", "broker")
    public = folder.broker().public
    assert output == (
        f"the broker has the key pair {public.hex()[:16]} after its next start\n"
        f"public key: {public.hex()}\n"
        f"every machine needs its key file again:\n"
        f"  copy {folder.path}/nodes/gpu1.key to its machine, in place of the old one\n"
        f'  in a key file made by `asyncrl keys new`, set broker = "{public.hex()}"\n'
        f"then restart the broker and the nodes\n"
    )
    assert read_key(folder.node_file("gpu1")).broker == public
    for option in (("--overlap", "1h"), ("--public", STRANGER)):
        assert keys("rotate", "broker", *option).exit_code == 2


def test_a_folder_without_keys_says_how_to_begin(tmp_path: Path) -> None:
    for command in (("list",), ("add", "a", "--role", "rollout"), ("revoke", "a"), ("rotate", "a")):
        assert "asyncrl keys init" in refused(*command, "--keys", tmp_path / "nowhere")


def test_no_output_or_log_shows_a_private_key(folder: KeyFolder, tmp_path: Path) -> None:
    own, file = tmp_path / "own.key", folder.node_file("gpu1")
    private: list[str] = []
    texts: list[str] = []

    def do(*arguments: object) -> None:
        result = keys(*arguments)
        texts.extend((result.stdout, result.stderr, repr(result.exception)))
        for path in (*tmp_path.rglob("*.key"),):
            private.extend(forms_of(read_key(path)))

    with capture_logs() as logged:
        do("add", "gpu1", "--role", "rollout")
        do("new", own, "--name", "gpu2", "--broker-public", folder.broker().public.hex())
        do("add", "gpu2", "--role", "reward", "--public", read_key(own).public.hex())
        do("rotate", "gpu1", "--overlap", "1h")
        do("rotate", "broker")
        for command in (("list",), ("list", "--json"), ("init",), ("add", "gpu1", "--role", "rollout")):
            do(*command)
        AllowedKeys(folder.path).refresh()
        file.write_text(file.read_text().replace('private = "', 'private = "0'))
        damaged = keys("rotate", "broker")
        assert damaged.exit_code == 78
        texts.append(damaged.stderr)
        texts.append(keys("revoke", "gpu1").output)
    texts.append(repr(logged))

    assert len(set(private)) > 5 * 4
    assert [text for text in texts for form in private if form in text] == []


# ── test duration ─────────────────────────────────────────────────────────────────────────────


@click.command()
@click.option("--overlap", "overlap_s", type=DURATION, default="0")
def command(overlap_s: float) -> None:
    click.echo(repr(overlap_s))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0.0), ("90s", 90.0), ("30m", 1800.0), ("24h", 86400.0), ("7d", 604800.0), ("0h", 0.0)]
)
def test_a_number_and_a_unit_are_seconds(text: str, seconds: float) -> None:
    assert run("--overlap", text).output == f"{seconds!r}\n"


def test_the_default_is_converted() -> None:
    assert run().output == "0.0\n"


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1.5h", "1w", "24 h", "9999999d"])
def test_other_text_is_a_usage_error(text: str) -> None:
    result = run("--overlap", text)
    assert result.exit_code == 2
    assert "is no duration: expected a number and s, m, h or d, such as 24h" in " ".join(result.output.split())


# ── test output ───────────────────────────────────────────────────────────────────────────────

BROKER = new_key("broker", ())
NOW_S = 1_790_000_000.0
ROTATED = AllowedKey("gpu1", ("rollout",), b"a" * 32, date(2026, 9, 21), b"b" * 32, 1_790_000_060)


def state(now_s: float) -> object:
    return as_data(BROKER, AllowList([ROTATED]), now_s)["keys"][0]["state"]


def test_a_previous_key_is_part_of_the_state_until_its_overlap_ends() -> None:
    assert state(NOW_S) == "allowed; 6262626262626262 too until 2026-09-21 14:14:20 UTC"
    assert state(NOW_S + 60) == "allowed"


def test_the_columns_of_the_table_are_aligned() -> None:
    other = AllowedKey("trainer", ("trainer", "spool"), b"c" * 32, date(2026, 9, 21))
    lines = table(BROKER, AllowList([ROTATED, other]), NOW_S + 60).splitlines()
    assert lines == [
        f"broker's public key: {BROKER.public.hex()}",
        "",
        "name     roles           fingerprint       added       state",
        "gpu1     rollout         6161616161616161  2026-09-21  allowed",
        "trainer  trainer, spool  6363636363636363  2026-09-21  allowed",
    ]
