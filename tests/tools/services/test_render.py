"""Service files from templates and the settings of one machine."""

import msgspec
import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.services.render import SUPERVISORD, SYSTEMD, render


def changed(**fields: object) -> dict[str, str]:
    return render("systemd", msgspec.structs.replace(SYSTEMD, **fields))


def supervised(**fields: object) -> str:
    return render("supervisord", msgspec.structs.replace(SUPERVISORD, **fields))["asyncrl.conf"]


def test_nothing_is_left_to_fill_in():
    of_devices = [changed(devices=kind) for kind in ("none", "gpu", "ascend")]
    for texts in (*of_devices, render("supervisord", SUPERVISORD)):
        for name, text in texts.items():
            assert not [word for word in text.split() if word.startswith("@") and word.endswith("@")], name


def test_only_the_roles_of_this_machine_get_units():
    texts = changed(roles=("rollout",))
    assert "asyncrl-broker.service" not in texts
    assert "asyncrl@rollout.service.d/10-role.conf" in texts
    assert "asyncrl@trainer.service.d/10-role.conf" not in texts
    assert "Wants=asyncrl@rollout.service\n" in texts["asyncrl.target"]


def test_only_the_roles_of_this_machine_are_programs():
    text = supervised(roles=("broker", "rollout"))
    assert [line for line in text.splitlines() if line.startswith("[program")] == [
        "[program:broker]",
        "[program:rollout]",
    ]
    assert "continues from the newest checkpoint" not in text, "the comment of a program goes with it"
    assert "drains the others" in text


def test_devices_are_for_the_roles_that_compute():
    names = [name for name in changed(devices="gpu") if "devices" in name]
    assert names == ["asyncrl@trainer.service.d/20-devices.conf", "asyncrl@rollout.service.d/20-devices.conf"]


def test_a_home_folder_is_readable_only_if_something_lies_there():
    assert "ProtectHome=yes" in changed()["asyncrl@.service"]
    assert "ProtectHome=read-only" in changed(program="/home/me/venv/bin/asyncrl-node")["asyncrl@.service"]
    linked = changed(python=("/opt/venv", "/root/.pyenv/bin/python3"))
    assert "ProtectHome=read-only" in linked["asyncrl@.service"]
    assert "ReadWritePaths=-/home/me/runs\n" in changed(run_dir="/home/me/runs/x")["asyncrl-broker.service"]


def test_systemd_makes_its_own_state_folder_only_for_runs_in_it():
    assert "StateDirectory=asyncrl" in changed()["asyncrl@.service"]
    assert "StateDirectory" not in changed(run_dir="/data/runs/x")["asyncrl@.service"]


def test_threads_and_replicas_come_from_the_settings():
    texts = changed(rollout_threads=4, trainer_threads=16, replicas="2")
    assert '"--replicas 2" OMP_NUM_THREADS=4' in texts["asyncrl@rollout.service.d/10-role.conf"]
    assert "OMP_NUM_THREADS=16" in texts["asyncrl@trainer.service.d/10-role.conf"]


REMOTE = {
    "roles": ("spool", "trainer"),
    "address": "tcp://10.0.0.1:5570",
    "key": "/k",
    "key_name": "k1",
    "spool_dir": "/s",
}


def test_units_of_other_machines_are_open_to_them_and_have_keys():
    """A filter by address would shut out the peers of a spool and of the group that moves weights."""
    broker = changed(address="tcp://*:5570", keys="/etc/asyncrl/keys")["asyncrl-broker.service"]
    for text in (broker, *changed(**REMOTE).values()):
        assert not [line for line in text.splitlines() if line.startswith("IPAddress")]
    assert "--keys /etc/asyncrl/keys" in broker
    assert "IPAddressAllow=localhost\n" in changed()["asyncrl-broker.service"]


def test_a_node_has_the_credentials_that_its_broker_accepts():
    """LoadCredential= needs its file before the broker starts, which writes the key of its machine."""
    secret, key = "LoadCredential=asyncrl.secret:", "LoadCredential=asyncrl.key:"
    alone = changed()["asyncrl@.service"]
    beside_keys = changed(keys="/etc/asyncrl/keys")["asyncrl@.service"]
    remote = changed(**REMOTE)["asyncrl@.service"]
    assert [(secret in text, key in text) for text in (alone, beside_keys, remote)] == [
        (True, False),
        (False, False),
        (False, True),
    ]


def test_a_spool_has_its_folder():
    texts = changed(**REMOTE)
    assert "Wants=asyncrl@spool.service asyncrl@trainer.service\n" in texts["asyncrl.target"]
    role = texts["asyncrl@spool.service.d/10-role.conf"]
    assert 'ASYNCRL_OPTIONS="--dir /s"' in role
    assert "ReadWritePaths=-/s\n" in role


def test_a_running_supervisord_is_reached_whatever_run_its_file_names():
    """Otherwise `supervisorctl update` after an install for the next run would find no socket."""
    for logs in ("/runs/a/logs", "/runs/b/logs"):
        text = supervised(logs=logs, control="/files/supervisord")
        assert "stdout_logfile=" + logs in text
        assert "file=/files/supervisord/ctl.sock\n" in text
        assert "serverurl=unix:///files/supervisord/ctl.sock\n" in text
        assert "pidfile=/files/supervisord/supervisord.pid\n" in text


def test_supervisord_reads_files_of_the_operator_too():
    assert "[include]\nfiles=asyncrl.d/*.conf\n" in supervised()


def test_supervisord_becomes_the_user_of_the_services_with_their_home():
    assert "user=" not in supervised()
    text = supervised(user="ada", home="/home/ada")
    assert 'user=ada\nenvironment=HOME="/home/ada",USER="ada"\n' in text


METRICS = {"broker": {"ASYNCRL_METRICS": "10.0.0.1:9400", "ASYNCRL_METRICS_OPEN": "1"}}


def test_each_service_has_the_metrics_of_its_role():
    text = supervised(metrics=METRICS)
    line = 'ASYNCRL_WATCHDOG_S="60",ASYNCRL_METRICS="10.0.0.1:9400",ASYNCRL_METRICS_OPEN="1"\n'
    assert text.count("ASYNCRL_METRICS=") == 1
    assert line in text.partition("[program:reward]")[0]
    texts = changed(metrics=METRICS | {"reward": {"ASYNCRL_METRICS": "127.0.0.1:9401"}})
    broker = texts["asyncrl-broker.service"]
    assert "\nEnvironment=ASYNCRL_METRICS=10.0.0.1:9400\nEnvironment=ASYNCRL_METRICS_OPEN=1\n" in broker
    assert "IPAddressDeny=any" not in broker, "Prometheus on another machine would be shut out"
    reward = texts["asyncrl@reward.service.d/10-role.conf"]
    assert "[Service]\nEnvironment=ASYNCRL_METRICS=127.0.0.1:9401\n" in reward


def test_root_is_no_user_to_make():
    assert "asyncrl.sysusers" in changed()
    assert "asyncrl.sysusers" not in changed(user="root", group="root")


def test_only_files_of_this_machine_are_made():
    assert "d /s 0700 asyncrl asyncrl\n" in changed(**REMOTE)["asyncrl.tmpfiles"]
    assert "secret" in changed()["asyncrl.tmpfiles"]
    assert "secret" not in changed(**REMOTE)["asyncrl.tmpfiles"]


def test_nodes_with_a_key_have_its_name():
    """The broker refuses a node whose name does not begin with that of its key."""
    assert "--role %i --name k1-%i --broker tcp://10.0.0.1:5570" in changed(**REMOTE)["asyncrl@.service"]
    text = supervised(**REMOTE)
    assert "--role spool --name k1-spool --broker tcp://10.0.0.1:5570 --wait 600 --dir /s\n" in text
    assert "--role trainer --name k1-trainer --broker" in text
    assert text.count('ASYNCRL_WATCHDOG_S="60",ASYNCRL_KEY_FILE="/k"\n') == 2


def test_programs_of_several_machines_have_different_names():
    assert "host_node_name" not in supervised()
    text = supervised(roles=("reward",))
    assert "--name reward-%(host_node_name)s --broker" in text


@pytest.mark.parametrize("address", ["tcp://h:1 --secret x", "tcp://[fe80::1%eth0]:1", "tcp://$HOST:1"])
def test_an_address_that_would_change_the_meaning_of_a_file_is_refused(address):
    with pytest.raises(ConfigError, match=r"the address is .*: service files can hold tcp://HOST:PORT only"):
        changed(address=address)


@pytest.mark.parametrize("path", ["/my runs/x", "/a%b", "/a;b", '/a"b', "/a\nExecStart=/bin/sh"])
def test_a_path_that_would_change_the_meaning_of_a_file_is_refused(path):
    with pytest.raises(ConfigError, match=r"the run dir is .*: service files can hold letters, digits"):
        changed(run_dir=path)
