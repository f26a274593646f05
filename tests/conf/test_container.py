"""The container file fits the package and the pods that use its image."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTAINER = (ROOT / "conf" / "container" / "Containerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_its_extras_exist() -> None:
    named = {extra for found in re.findall(r"EXTRAS=([\w,]+)", CONTAINER) for extra in found.split(",")}
    assert named
    assert named <= PROJECT["optional-dependencies"].keys()


def test_every_image_has_the_metrics_that_the_pods_serve() -> None:
    assert all("metrics" in found.split(",") for found in re.findall(r"EXTRAS=([\w,]+)", CONTAINER))


def test_its_python_is_one_that_the_package_runs_on() -> None:
    (minor,) = re.findall(r"^FROM .*python:3\.(\d+)-slim$", CONTAINER, re.MULTILINE)
    assert f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]


def test_its_user_is_that_of_the_pods() -> None:
    (user,) = re.findall(r"^USER (\d+):\1$", CONTAINER, re.MULTILINE)
    pods = (ROOT / "conf" / "kubernetes" / "trainer.yaml").read_text(encoding="utf-8")
    assert f"runAsUser: {user}\n" in pods
    assert f"--uid {user} " in CONTAINER
