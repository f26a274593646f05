"""`asyncrl services install` and `uninstall` on this machine."""

import getpass
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from asyncrl.cli import services as services_module
from asyncrl.cli.services import services
from asyncrl.records.run_directory import RunSummary
from asyncrl.wire.keys.key import create_key, new_key

Install = Callable[..., Result]


@pytest.fixture
def install(tmp_path, monkeypatch) -> Install:
    """Run the command in an empty folder with a run file."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "asyncrl-node"
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    create_key(tmp_path / "node.key", new_key("gpu1", ("spool", "rollout", "reward"), bytes(32)))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").touch()
    (tmp_path / "t").touch()
    (tmp_path / "my.toml").write_text('[model]\npath = "m"\n[data]\ntrain = "t"\n[rollout]\nthreads = 3\n')

    def install(*options: str) -> Result:
        return CliRunner().invoke(services, ["install", "--config", "my.toml", "--to", "files", *options])

    return install


@pytest.mark.parametrize("manager", ["--systemd", "--supervisord"])
def test_files_secret_and_folders_are_made_once(install: Install, tmp_path, manager):
    first = install(manager)
    assert first.exit_code == 0, first.output
    assert f"wrote {tmp_path}/files/asyncrl" in first.output
    run = tmp_path / "runs" / "my"
    made = {path.name: path.read_bytes() if path.is_file() else b"" for path in run.iterdir()}
    assert set(made) == ({"secret"} if manager == "--systemd" else {"logs"}), "the broker makes the rest"
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in run.iterdir()} == {0}
    second = install(manager)
    assert second.exit_code == 0, second.output
    assert "nothing to change" in second.output
    assert made == {path.name: path.read_bytes() if path.is_file() else b"" for path in run.iterdir()}


@pytest.mark.parametrize(
    ("manager", "kept"), [("--systemd", "the secret of the run"), ("--supervisord", "logs of the services")]
)
def test_uninstalling_names_what_it_removes_and_what_there_is_of_the_run(install: Install, tmp_path, manager, kept):
    install(manager)
    run = set((tmp_path / "runs").rglob("*"))
    done = CliRunner().invoke(services, ["uninstall", manager, "--to", "files"])
    assert done.exit_code == 0, done.output
    assert f"removed  {tmp_path}/files/asyncrl" in done.output
    assert f"kept     {tmp_path}/runs/my: {kept}\n" in done.output
    assert not (tmp_path / "files").exists()
    assert set((tmp_path / "runs").rglob("*")) == run
    again = CliRunner().invoke(services, ["uninstall", manager, "--to", "files"])
    assert f"nothing of `asyncrl services install {manager}` in {tmp_path}/files" in again.output


@pytest.mark.parametrize("manager", ["--systemd", "--supervisord"])
def test_a_detour_in_a_path_is_neither_written_nor_said(install: Install, tmp_path, manager):
    (tmp_path / "x").mkdir()
    done = install(manager, "--config", "x/../my.toml", "--run-dir", "x/../run", "--to", "x/../files")
    assert done.exit_code == 0, done.output
    texts = [done.output, *(path.read_text() for path in (tmp_path / "files").rglob("*") if path.is_file())]
    assert not any("/../" in text for text in texts)


def test_the_files_name_this_machine(install: Install, tmp_path):
    assert install("--systemd", "--broker", "tcp://127.0.0.1:7000", "--replicas", "3").exit_code == 0
    unit = (tmp_path / "files" / "asyncrl-broker.service").read_text()
    assert f"ExecStart={tmp_path}/asyncrl-node --role broker --config {tmp_path}/my.toml" in unit
    assert f"--run-dir {tmp_path}/runs/my --broker tcp://127.0.0.1:7000 " in unit
    assert f"WorkingDirectory={tmp_path}\n" in unit
    assert f"User={getpass.getuser()}\n" in unit
    role = (tmp_path / "files" / "asyncrl@rollout.service.d" / "10-role.conf").read_text()
    assert '"--replicas 3" OMP_NUM_THREADS=3' in role


@pytest.mark.parametrize(("devices", "replicas"), [("none", "4"), ("gpu", "auto"), ("ascend", "auto")])
def test_the_number_of_rollouts_follows_the_devices_that_are_named(install: Install, tmp_path, devices, replicas):
    (tmp_path / "my.toml").write_text(
        (tmp_path / "my.toml").read_text().replace("[rollout]", "[rollout]\nreplicas = 4")
    )
    assert install("--systemd", "--devices", devices).exit_code == 0
    role = (tmp_path / "files" / "asyncrl@rollout.service.d" / "10-role.conf").read_text()
    assert f'"--replicas {replicas}"' in role


def test_the_next_commands_are_said(install: Install, tmp_path):
    output = install("--systemd").output
    assert (
        f"sudo cp -r {tmp_path}/files/asyncrl*.service* {tmp_path}/files/asyncrl.target /etc/systemd/system/" in output
    )
    assert "systemctl enable --now asyncrl.target" in output
    assert f"-c {tmp_path}/files/asyncrl.conf" in install("--supervisord").output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--systemd", "--roles", "broker,cook"], "--roles has 'cook': expected some of broker, spool, reward"),
        (["--supervisord", "--user", "nobody-here"], "--user 'nobody-here': there is no such user"),
        (["--systemd", "--run-dir", "my runs/x"], "service files can hold letters, digits"),
        (["--systemd", "--replicas", "two"], "--replicas is 'two': expected auto or a number of at least 1"),
        (["--systemd", "--broker", "localhost"], "--broker is 'localhost': expected tcp://HOST:PORT"),
        (["--systemd", "--broker", "tcp://10.0.0.1:5570"], "its connections need keys; give --keys DIR"),
        (["--systemd", "--roles", "reward", "--broker", "tcp://10.0.0.1:5570"], "need keys; give --key FILE"),
        (["--systemd", "--roles", "reward", "--keys", "k"], "--keys is for the machine of the broker"),
        (["--systemd", "--keys", "k"], "--keys k: there is no such folder; make it with `asyncrl keys init --keys k`"),
        (["--systemd", "--broker", "tcp://127.0.0.1:1", "--key", "k"], "--key k: no such key file: "),
        (["--systemd", "--roles", "reward", "--key", "k"], "--key k is for the broker of another machine: give its"),
        (
            ["--systemd", "--broker", "tcp://10.0.0.1:5570", "--key", "k"],
            "give --keys DIR, which `asyncrl keys init --keys DIR` makes, or, where --key FILE is for nodes without "
            "the broker, name them with --roles ROLE,...",
        ),
        (
            ["--systemd", "--roles", "reward,trainer", "--broker", "tcp://127.0.0.1:1", "--key", "node.key"],
            "node.key is for spool, rollout, reward, not",
        ),
        (["--systemd", "--roles", "spool"], "--dir DIR and the role spool belong together"),
    ],
)
def test_a_bad_option_is_one_sentence_and_nothing_is_written(install: Install, tmp_path, options, sentence):
    result = install(*options)
    assert result.exit_code == 78
    assert sentence in result.stderr
    assert not (tmp_path / "files").exists()
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def remote() -> list[str]:
    """Options of a machine without the broker."""
    return ["--broker", "tcp://[fd00::1]:5570", "--key", "node.key"]


def test_a_machine_without_the_broker_joins_by_address_with_its_key(install: Install, tmp_path, remote):
    done = install("--systemd", "--roles", "rollout,spool", "--dir", "spool", *remote)
    assert done.exit_code == 0, done.output
    unit = (tmp_path / "files" / "asyncrl@.service").read_text()
    assert "--name gpu1-%i --broker tcp://[fd00::1]:5570 --wait" in unit
    assert f"LoadCredential=asyncrl.key:{tmp_path}/node.key\n" in unit
    assert (tmp_path / "spool").is_dir()
    assert not (tmp_path / "runs" / "my" / "secret").exists(), "a secret made here would be of no run"


def test_a_machine_without_the_broker_needs_no_run_file(tmp_path, monkeypatch, install: Install, remote):
    command_line = ["install", "--supervisord", "--to", "files", "--roles", "reward", *remote]
    refused = CliRunner().invoke(services, command_line)
    assert refused.exit_code == 78
    assert "--config and --run-dir are missing: give one of the two" in refused.stderr
    done = CliRunner().invoke(services, [*command_line, "--run-dir", "runs/x"])
    assert done.exit_code == 0, done.output
    assert f'ASYNCRL_KEY_FILE="{tmp_path}/node.key"' in (tmp_path / "files" / "asyncrl.conf").read_text()


def test_the_broker_needs_a_run_file(install: Install, tmp_path):
    done = CliRunner().invoke(services, ["install", "--systemd", "--run-dir", "runs/x"])
    assert done.exit_code == 78
    assert "--config CONFIG is missing: the broker needs the run's configuration" in done.stderr


def test_what_the_services_would_end_with_is_refused_before_anything_is_written(install: Install, tmp_path):
    (tmp_path / "m").rename(tmp_path / "mm")
    refused = install("--systemd")
    assert refused.exit_code == 78
    assert "model.path 'm' is not on this machine: nodes cannot fetch it from here" in refused.output
    (tmp_path / "t").unlink()
    assert "no such dataset: t (data.train)" in install("--systemd").output
    assert not (tmp_path / "files").exists()


def test_a_broker_without_the_model_is_installed_where_no_other_role_loads_it_and_says_so(install: Install, tmp_path):
    (tmp_path / "m").rename(tmp_path / "mm")
    done = install("--systemd", "--roles", "broker,reward")
    assert done.exit_code == 0
    assert "note     model.path 'm' is not on this machine: nodes cannot fetch it from here, and each" in done.output


def test_a_run_file_of_a_machine_without_the_broker_may_name_what_is_elsewhere(install: Install, tmp_path, remote):
    (tmp_path / "m").rename(tmp_path / "mm")
    (tmp_path / "t").unlink()
    assert install("--systemd", "--roles", "rollout", *remote).exit_code == 0


def test_a_broker_for_other_machines_has_its_keys(install: Install, tmp_path):
    (tmp_path / "keys").mkdir(mode=0o700)
    done = install("--systemd", "--roles", "broker", "--broker", "tcp://*:5570", "--keys", "keys")
    assert done.exit_code == 0, done.output
    unit = (tmp_path / "files" / "asyncrl-broker.service").read_text()
    assert f"--broker tcp://*:5570 --keys {tmp_path}/keys $ASYNCRL_OPTIONS" in unit
    assert (tmp_path / "runs" / "my" / "secret").is_file()


@pytest.mark.parametrize("managers", [(), ("--systemd", "--supervisord")])
def test_exactly_one_manager_is_named(install: Install, tmp_path, managers):
    result = install(*managers)
    assert result.exit_code == 2
    assert "give --supervisord or --systemd, one of the two" in result.stderr
    assert not (tmp_path / "files").exists()


def test_an_environment_without_the_program_is_one_sentence(install: Install, tmp_path):
    (tmp_path / "asyncrl-node").unlink()
    result = install("--systemd")
    assert result.exit_code == 78
    assert "asyncrl-node is missing: install asyncrl into the environment of" in result.stderr


@pytest.mark.parametrize(("file", "kind"), [("nvidiactl", "gpu"), ("davinci_manager", "ascend"), ("null", "none")])
def test_devices_are_found_by_their_files(tmp_path: Path, file: str, kind: str):
    (tmp_path / file).touch()
    assert services_module.devices_here(tmp_path) == kind


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folders_belong_to_the_user_of_the_services(install: Install, tmp_path):
    assert install("--supervisord", "--user", "nobody").exit_code == 0
    assert (tmp_path / "runs" / "my" / "logs").owner() == "nobody"
    assert (tmp_path / "files" / "supervisord").owner() == "nobody"
    assert "\nuser=nobody\n" in (tmp_path / "files" / "asyncrl.conf").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs services as root")
def test_services_of_root_are_said(install: Install):
    assert "note     the services run as root; --user NAME" in install("--systemd").output
    assert "run as root" not in install("--systemd", "--user", "nobody").output


def test_a_user_whom_the_written_files_make_need_not_exist_yet(install: Install, tmp_path):
    done = install("--systemd", "--user", "asyncrl-new")
    assert done.exit_code == 0, done.output
    assert 'u asyncrl-new - "asyncrl"' in (tmp_path / "files" / "asyncrl.sysusers").read_text()
    assert "/etc/sysusers.d/asyncrl.conf && sudo systemd-sysusers asyncrl.conf" in done.output
    assert "/etc/tmpfiles.d/asyncrl.conf && sudo systemd-tmpfiles --create asyncrl.conf" in done.output


def test_files_that_the_manager_refuses_are_not_written(install: Install, tmp_path, monkeypatch):
    monkeypatch.setattr(services_module, "problems", lambda *_: ["asyncrl.conf: no"])
    done = install("--supervisord")
    assert done.exit_code == 78
    assert "the service manager refuses these files, and none was written:\nasyncrl.conf: no" in done.stderr
    assert not (tmp_path / "files" / "asyncrl.conf").exists()
    assert install("--systemd").exit_code == 78
    assert not (tmp_path / "files" / "asyncrl.target").exists()
    assert not (tmp_path / "runs" / "my" / "secret").exists()


def test_a_file_that_was_replaced_is_applied_by_a_command_that_is_said(install: Install, tmp_path):
    assert "apply" not in install("--supervisord").output
    again = install("--supervisord", "--run-dir", "runs/next").output
    assert f"ctl -c {tmp_path}/files/asyncrl.conf update" in again
    assert "apply" not in install("--supervisord", "--run-dir", "runs/next").output


def test_without_a_run_file_there_is_one_rollout_which_is_said(install: Install, tmp_path, remote):
    line = [
        "install",
        "--supervisord",
        "--devices",
        "none",
        "--roles",
        "rollout",
        "--run-dir",
        "x",
        "--to",
        "f",
        *remote,
    ]
    done = CliRunner().invoke(services, line)
    assert "note     --replicas 1 on this machine" in done.output
    assert "--replicas 1\n" in (tmp_path / "f" / "asyncrl.conf").read_text()
    assert "note     --replicas" not in CliRunner().invoke(services, [*line, "--replicas", "3"]).output


def test_services_of_a_run_that_is_complete_are_said_to_have_nothing_to_do(install: Install, tmp_path):
    assert "is complete" not in install("--systemd").output
    summary = RunSummary(
        name="my", status="finished", seed=0, steps=100, steps_planned=100, versions=100, wall_s=1.0,
        trained_tokens=1, staleness_mean=0.0, staleness_max=0,
    )  # fmt: skip
    for status, steps, is_said in (("finished", 100, True), ("finished", 101, False), ("interrupted", 100, False)):
        changed = structs.replace(summary, status=status)
        (tmp_path / "runs" / "my" / "summary.json").write_bytes(msgspec.json.encode(changed))
        text = (tmp_path / "my.toml").read_text().partition("[run]")[0]
        (tmp_path / "my.toml").write_text(f"{text}[run]\nsteps = {steps}\n")
        told = f"note     the run in {tmp_path}/runs/my is complete (100 steps), so its services end at once: raise"
        assert (told in install("--systemd").output) == is_said


def test_each_service_gets_a_port_for_its_metrics(install: Install):
    pytest.importorskip("prometheus_client")
    done = install("--supervisord", "--metrics", "9400")
    told = "metrics  broker 127.0.0.1:9400, reward 127.0.0.1:9401, trainer 127.0.0.1:9402, rollout 127.0.0.1:9403, its"
    assert told in done.output


def test_a_key_folder_that_others_can_enter_is_refused(install: Install, tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys").chmod(0o755)
    done = install("--supervisord", "--broker", "tcp://*:5570", "--keys", "keys")
    assert done.exit_code == 78
    assert "other users can enter keys (mode 0755): chmod 700 it" in done.stderr


def test_a_folder_too_long_for_the_socket_of_supervisord_is_refused(install: Install, tmp_path):
    done = install("--supervisord", "--to", "files/" + "a" * 100)
    assert done.exit_code == 78
    assert "the socket of supervisord, in the folder of --to, is 'ipc:///" in done.output
    assert "a Unix socket takes at most 107" in done.output
    assert not (tmp_path / "files").exists()


def test_a_run_file_of_a_machine_without_the_broker_is_said_to_count_little(install: Install, remote):
    note = "note     of my.toml this machine takes run.dir, run.name, rollout.replicas, rollout.threads and trainer.th"
    assert note in install("--supervisord", "--roles", "reward", *remote).output
    assert "note     of my.toml" not in install("--supervisord").output


def test_a_python_in_a_home_is_left_visible(install: Install, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/opt/venv")
    (tmp_path / "python").symlink_to("/root/.pyenv/bin/python3")
    assert install("--systemd", "--dir", "/srv/spool", "--roles", "broker,spool").exit_code == 0
    assert "\nProtectHome=read-only\n" in (tmp_path / "files" / "asyncrl-broker.service").read_text()


def test_a_python_that_the_user_cannot_reach_is_said(install: Install, tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir(mode=0o700)
    monkeypatch.setattr(sys, "prefix", f"{tmp_path}/closed/venv")
    (tmp_path / "python").symlink_to(tmp_path / "closed" / "bin" / "python")
    assert "cannot enter" not in install("--systemd").output
    output = install("--systemd", "--user", "asyncrl-new").output
    assert re.search(
        r"note     asyncrl-new cannot enter /\S+, where the Python of this command is: give --user", output
    )


def test_logs_of_supervisord_are_said(install: Install, tmp_path):
    assert f"\nlog      tail -F {tmp_path}/runs/my/logs/*.log\n" in install("--supervisord").output


def test_roles_are_repeated_or_separated_by_commas(install: Install, tmp_path, remote):
    ways = (["--roles", "reward,rollout"], ["--roles", "reward", "--roles", "rollout"])
    for folder, roles in zip("ab", ways, strict=True):  # Short, because of the path of supervisord's socket.
        done = install("--supervisord", *roles, *remote, "--to", folder)
        assert done.exit_code == 0, done.output
        text = (tmp_path / folder / "asyncrl.conf").read_text()
        assert "[program:reward]" in text
        assert "[program:rollout]" in text
