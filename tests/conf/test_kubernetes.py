"""The files in conf/kubernetes: complete, confined, without secrets, and true to the command line."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli.node import main
from asyncrl.config.run_file import load_config
from asyncrl.config.sections.rollout import Rollout
from asyncrl.runtime.metrics_server import metrics_options
from asyncrl.version import VERSION

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[2] / "conf" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
ROLES = ("broker", "trainer", "rollout", "reward")
KEY_FILES = ("broker.key", "allowed.toml", "nodes/trainer.key", "nodes/rollout.key", "nodes/reward.key")
GRACE_S = {"broker": 60, "reward": 60, "trainer": 120, "rollout": Rollout().drain_s + 30}
"""Lowest time from SIGTERM to SIGKILL."""

Object = dict[str, Any]


def objects() -> list[Object]:
    return [each for name in KUSTOMIZATION["resources"] for each in yaml.safe_load_all((FOLDER / name).read_text())]


WORKLOADS = {each["metadata"]["name"]: each for each in objects() if each["kind"] in ("StatefulSet", "Deployment")}


def pod(role: str) -> Object:
    found: Object = WORKLOADS[role]["spec"]["template"]["spec"]
    return found


def container(role: str) -> Object:
    (found,) = pod(role)["containers"]
    assert isinstance(found, dict)
    return found


def names(kind: str) -> set[str]:
    """Names of the objects of a kind, with those that kustomize generates."""
    generated = {"Secret": "secretGenerator", "ConfigMap": "configMapGenerator"}.get(kind, "")
    listed = [each["metadata"]["name"] for each in objects() if each["kind"] == kind]
    return {*listed, *(each["name"] for each in KUSTOMIZATION.get(generated, []))}


def references(spec: Object) -> Iterator[tuple[str, str]]:
    """Kind and name of each object that the volumes of a pod need."""
    for volume in spec["volumes"]:
        match volume:
            case {"secret": {"secretName": name}}:
                yield "Secret", name
            case {"configMap": {"name": name}}:
                yield "ConfigMap", name
            case {"persistentVolumeClaim": {"claimName": name}}:
                yield "PersistentVolumeClaim", name


def test_every_file_is_a_resource_and_every_role_a_workload() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(KUSTOMIZATION["resources"]) == files
    assert tuple(sorted(WORKLOADS)) == tuple(sorted(ROLES))


@pytest.mark.parametrize("role", ROLES)
def test_every_object_that_a_pod_names_exists(role: str) -> None:
    for kind, name in references(pod(role)):
        assert name in names(kind), f"{kind} {name}"
    workload = WORKLOADS[role]
    if workload["kind"] == "StatefulSet":
        assert workload["spec"]["serviceName"] in names("Service")
    templates = {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])}
    volumes = {volume["name"] for volume in pod(role)["volumes"]} | templates
    mounts = [
        mount["name"] for each in (container(role), *pod(role)["initContainers"]) for mount in each["volumeMounts"]
    ]
    assert set(mounts) == volumes, "every volume is mounted, and every mount has one"


@pytest.mark.parametrize("role", ROLES)
def test_selectors_find_the_pods_of_their_role(role: str) -> None:
    spec = WORKLOADS[role]["spec"]
    labels = {"app": "asyncrl", "role": role}
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"] == labels
    for each in objects():
        if each["metadata"]["name"] == role and each["kind"] in ("Service", "PodDisruptionBudget"):
            selector = each["spec"]["selector"]
            assert selector.get("matchLabels", selector) == labels


@pytest.mark.parametrize("role", ROLES)
def test_a_command_is_one_of_asyncrl_node(role: str) -> None:
    here = container(role)
    assert here["command"] == ["asyncrl-node"]
    options = parsed(here["args"])
    assert options["role"] == role
    if role == "broker":
        mounts = {mount["mountPath"] for mount in here["volumeMounts"]}
        assert str(options["config_path"].parent) in mounts
        assert str(options["run_dir"].parent) in mounts
        assert options["config_path"].name in KUSTOMIZATION["configMapGenerator"][0]["files"]
        assert options["address"] == f"tcp://*:{here['ports'][0]['containerPort']}"
    else:
        port, _ = container("broker")["ports"]
        assert options["address"] == f"tcp://broker:{port['containerPort']}"
        assert options["name"] == "$(POD_NAME)", "the name of its key is that of the role, with which pods' names begin"
        assert "POD_NAME" in {variable["name"] for variable in here["env"]}


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Values of the options of asyncrl-node."""
    return main.make_context("asyncrl-node", list(arguments)).params


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_has_time_to_drain(role: str) -> None:
    assert pod(role)["terminationGracePeriodSeconds"] >= GRACE_S[role]


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_is_confined(role: str) -> None:
    here = pod(role)
    assert here["securityContext"]["runAsNonRoot"] is True
    assert here["securityContext"]["runAsUser"] > 0
    assert here["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert here["automountServiceAccountToken"] is False
    for each in (*here["containers"], *here["initContainers"]):
        context = each["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("role", ROLES)
def test_a_key_is_read_by_its_user_alone_and_only_by_its_role(role: str) -> None:
    (secret,) = (volume["secret"] for volume in pod(role)["volumes"] if "secret" in volume)
    assert secret == {"secretName": "broker-keys" if role == "broker" else f"{role}-key", "defaultMode": 0o400}
    assert "secret" not in {mount["name"] for mount in container(role)["volumeMounts"]}


def test_the_copy_of_a_key_has_mode_0400_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """As in a pod: the Secret's files are links, which the group may read; the command runs twice."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "secret" / "..data").mkdir(parents=True)
    (tmp_path / "secret" / "..data" / "node.key").touch(mode=0o440)
    (tmp_path / "secret" / "node.key").symlink_to("..data/node.key")
    (init,) = pod("reward")["initContainers"]
    shell, option, script = init["command"]
    script = script.replace("/secret", f"{tmp_path}/secret").replace("/keys", f"{tmp_path}/keys")
    for _ in range(2):
        subprocess.run([shell, option, script], check=True, timeout=30)
    copy = tmp_path / "keys" / "node" / "node.key"
    assert not copy.is_symlink()
    assert (copy.stat().st_mode & 0o777, copy.parent.stat().st_mode & 0o777) == (0o400, 0o700)


def test_no_secret_is_in_the_folder() -> None:
    assert not [each for each in objects() if each["kind"] == "Secret"]
    assert {set(each) == {"name", "files"} for each in KUSTOMIZATION["secretGenerator"]} == {True}
    files = [file for each in KUSTOMIZATION["secretGenerator"] for file in each["files"]]
    assert {file.rpartition("=")[2] for file in files} == {f"keys/{name}" for name in KEY_FILES}
    assert "/keys/" in (FOLDER / ".gitignore").read_text().splitlines()


def test_only_pods_of_the_run_connect_to_its_pods() -> None:
    policy, metrics = (each["spec"] for each in objects() if each["kind"] == "NetworkPolicy")
    of_the_run = {"podSelector": {"matchLabels": {"app": "asyncrl"}}}
    assert policy == {**of_the_run, "policyTypes": ["Ingress"], "ingress": [{"from": [of_the_run]}]}
    (ingress,) = metrics["ingress"]
    assert ingress["ports"] == [{"port": 9400, "endPort": 9416}], "others reach the metrics of 16 replicas too, alone"
    assert all("namespaceSelector" in each for each in ingress["from"])


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_is_probed_at_the_pages_that_its_process_serves(role: str) -> None:
    here = container(role)
    options = parsed(here["args"])
    serving = metrics_options(options["metrics"], is_open=options["metrics_open"])
    assert serving is not None
    assert {"name": "metrics", "containerPort": serving.port} in here["ports"]
    probes = {name: here[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert probes == {
        "readinessProbe": {"path": "/readyz", "port": "metrics"},
        "livenessProbe": {"path": "/healthz", "port": "metrics"},
    }
    patience_s = here["livenessProbe"]["periodSeconds"] * here["livenessProbe"]["failureThreshold"]
    watchdog = next(each["value"] for each in here["env"] if each["name"] == "ASYNCRL_WATCHDOG_S")
    assert patience_s > float(watchdog), "imports and loading may block the loop for longer than work may"


def test_the_image_is_that_of_the_package() -> None:
    assert KUSTOMIZATION["images"] == [{"name": "asyncrl", "newTag": VERSION}]


def test_the_run_file_is_accepted_and_its_models_are_mounted() -> None:
    config = load_config(FOLDER / "run.toml")
    for role in ("broker", "trainer", "rollout"):
        mounts = [mount["mountPath"] for mount in container(role)["volumeMounts"]]
        assert any(config.model.path.startswith(f"{path}/") for path in mounts), role


def test_kustomize_accepts_the_folder_and_resolves_every_name(tmp_path: Path) -> None:
    if not (kubectl := shutil.which("kubectl")):
        pytest.skip("kubectl is not installed")
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("keys"))
    for name in KEY_FILES:
        (tmp_path / "keys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "keys" / name).write_text(name)
    done = subprocess.run([kubectl, "kustomize", tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    made = {(each["kind"], each["metadata"]["name"]) for each in found}
    used = [each for each in found if each["kind"] in ("StatefulSet", "Deployment")]
    assert len(used) == len(ROLES)
    assert {reference for each in used for reference in references(each["spec"]["template"]["spec"])} <= made
    assert {each["metadata"]["namespace"] for each in found} == {KUSTOMIZATION["namespace"]}
