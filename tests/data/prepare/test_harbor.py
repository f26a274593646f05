"""Folders of tasks as rows, and their images by digest."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from asyncrl.cli.main import main
from asyncrl.data.prepare.harbor import HARBOR
from asyncrl.data.prepare.published import prepare
from asyncrl.data.table import Row, open_rows
from asyncrl.errors import DataError

TOML = "[verifier]\ntimeout_sec = 120.0\n[environment]\n"


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def harbor(folder: Path, toml: str = TOML) -> Path:
    return written(
        folder,
        instruction_md="Fix it.\n",
        task_toml=toml,
        environment__Dockerfile="FROM base\n",
        tests__test_sh="exit 0\n",
    )


def rows(tmp_path: Path) -> list[Row]:
    prepare(HARBOR, tmp_path / "tasks", tmp_path / "out.parquet")
    found = open_rows(tmp_path / "out.parquet")
    return [found[row] for row in range(len(found))]


def test_a_task_becomes_a_row_with_the_image_of_its_folder(tmp_path: Path) -> None:
    folder = harbor(tmp_path / "tasks" / "Fix Git")

    (row,) = rows(tmp_path)

    assert row["prompt"] == [{"role": "user", "content": "Fix it.\n"}]
    about = row["extra_info"]
    assert (about["task"], about["verifier"], about["verifier_s"]) == (str(folder), "tests/test.sh", 120.0)
    assert about["container_build"] == str(folder / "environment")
    assert about["container_image"].startswith("localhost/fix-git:")


def test_an_image_has_another_name_when_its_folder_changes(tmp_path: Path) -> None:
    folder = harbor(tmp_path / "tasks" / "a")
    before = rows(tmp_path)[0]["extra_info"]["container_image"]
    written(folder, tests__more_py="")
    assert rows(tmp_path)[0]["extra_info"]["container_image"] == before
    written(folder, environment__data_txt="x")
    assert rows(tmp_path)[0]["extra_info"]["container_image"] != before


def test_an_image_that_is_named_is_not_built(tmp_path: Path) -> None:
    harbor(tmp_path / "tasks" / "a", TOML + 'docker_image = "debian:stable"\n')

    about = rows(tmp_path)[0]["extra_info"]

    assert about["container_image"] == "debian:stable"
    assert not about.get("container_build")


def test_the_older_format_is_read_too(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    text = "instruction: |-\n  Make it\n  run.\nmax_test_timeout_sec: 30\n"
    compose = "services:\n  client:\n    build: .\n"
    folder = tmp_path / "tasks" / "old"
    written(folder, task_yaml=text, Dockerfile="FROM base\n", docker_compose_yaml=compose)
    (folder / "run-tests.sh").write_text("exit 0\n")

    about = rows(tmp_path)[0]

    assert about["prompt"][0]["content"] == "Make it\nrun."
    assert (about["extra_info"]["verifier"], about["extra_info"]["verifier_s"]) == ("run-tests.sh", 30.0)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"task_toml": "[verifier\n"}, "task.toml is not TOML"),
        ({"instruction_md": " \n"}, "its instruction is empty"),
        ({"tests__test_sh": None}, "there is no tests/test.sh"),
        ({"environment__Dockerfile": None}, "there is no environment/Dockerfile"),
    ],
)
def test_a_task_that_cannot_be_played_is_named_with_its_reason(
    tmp_path: Path, changed: dict[str, str | None], reason: str
) -> None:
    folder = harbor(tmp_path / "tasks" / "a")
    for name, text in changed.items():
        written(folder, **{name: text or ""})
        if text is None:
            (folder / name.replace("__", "/").replace("_", ".")).unlink()
    with pytest.raises(DataError, match=reason):
        rows(tmp_path)


def test_a_task_of_several_services_is_refused(tmp_path: Path) -> None:
    folder = harbor(tmp_path / "tasks" / "a")
    compose = "services:\n  main:\n    build: .\n  database:\n    image: x\n"
    (folder / "environment" / "docker-compose.yaml").write_text(compose)
    with pytest.raises(DataError, match=r"docker-compose\.yaml has several services"):
        rows(tmp_path)


def test_the_command_converts_a_folder(tmp_path: Path) -> None:
    harbor(tmp_path / "tasks" / "a")
    command = ["data", "prepare", "harbor", str(tmp_path / "tasks"), "-o", str(tmp_path / "out.parquet")]
    assert CliRunner().invoke(main, command).output == f"{tmp_path}/out.parquet: 1 of 1 rows\n"
