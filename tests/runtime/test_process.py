"""One role as a process: exit codes, signals, and one sentence on standard error."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncrl
from asyncrl.runtime.process import EPISODE_PLACES, PLACES, SHARD_PLACES, TURN_PLACES, handle

FROM_A_TERMINAL = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
"""Whatever started the tests."""
PREAMBLE = """
import asyncio
import sys

from asyncrl import errors
from asyncrl.runtime.process import handle, run_process, why_told

def say(word):
    print(word, flush=True)

"""


@pytest.fixture
def start() -> Iterator[object]:
    """Start a process whose job is the given source."""
    processes: list[subprocess.Popen[str]] = []

    def start(job: str, before: str = FROM_A_TERMINAL) -> subprocess.Popen[str]:
        source = f"{before}{PREAMBLE}async def job(stopping):\n{job}\n\nsys.exit(run_process(job, name='rollout-7'))"
        command = [sys.executable, "-c", source]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_job_that_ends_exits_with_0(start):
    process = start("    say('done')")
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [("ConfigError", 78), ("LinkRefused", 78), ("LinkReset", 69), ("EngineError", 70), ("RunFailed", 1)],
)
def test_an_error_of_ours_is_one_sentence_and_its_exit_code(start, error, code):
    process = start(f"    raise errors.{error}('this and that')")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    logged, printed = errors.splitlines()
    assert printed == "asyncrl: this and that"
    assert '"event": "node.failed"' in logged
    assert '"node": "rollout-7"' in logged


def test_an_end_that_was_asked_for_is_no_error_and_is_not_restarted(start):
    process = start("    raise errors.RunInterrupted('the run was interrupted')")
    _, errors = process.communicate(timeout=30)
    logged, printed = errors.splitlines()
    assert (process.returncode, printed) == (0, "asyncrl: the run was interrupted")
    assert json.loads(logged).items() >= {"event": "run.interrupted", "level": "info"}.items()


def test_a_bug_shows_its_traceback(start):
    process = start("    raise KeyError('a bug')")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 70, "not 1, with which a failed run ends: a service manager restarts a bug"
    assert "Traceback" in errors
    assert "KeyError: 'a bug'" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_drains(start, number):
    process = start("    say('serving')\n    await stopping.wait()\n    say(why_told(stopping))")
    assert process.stdout.readline() == "serving\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "told to stop\n")


def test_who_is_told_to_leave_a_run_that_goes_on_ends_with_a_code_of_its_own(start):
    process = start("    say('serving')\n    await stopping.wait()\n    raise errors.ToldToLeave('told to leave')")
    assert process.stdout.readline() == "serving\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    logged, printed = errors.splitlines()
    assert (process.returncode, printed) == (143, "asyncrl: told to leave")
    assert json.loads(logged).items() >= {"event": "process.told_to_leave", "level": "info"}.items()


def test_a_signal_to_a_node_that_was_drained_changes_nothing(start):
    """It leaves for good already, with what it has in hand; the first cause counts."""
    process = start("    stopping.set()\n    say('drains')\n    await asyncio.sleep(0.2)\n    say(stopping.by_signal)")
    assert process.stdout.readline() == "drains\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "False\n")


def test_a_process_under_nohup_hears_no_sighup(start):
    process = start(
        "    os.kill(os.getpid(), signal.SIGHUP)\n    say('hears nothing')\n    await stopping.wait()",
        before="import os, signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n",
    )
    assert process.stdout.readline() == "hears nothing\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_closed_terminal_counts_once_though_shell_and_kernel_send_a_hangup_each(start):
    process = start(
        "    say('serving')\n    await stopping.wait()\n    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    await asyncio.sleep(0.01)\n    say('stored')",
        before=f"{FROM_A_TERMINAL}import os, signal\n",
    )
    assert process.stdout.readline() == "serving\n"
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "stored\n")


def test_a_hangup_may_be_answered_unlike_other_signals():
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def answers() -> list[str]:
        loop = asyncio.get_running_loop()
        handle(loop, lambda: heard.put_nowait("told"), lambda: heard.put_nowait("hung up"))
        os.kill(os.getpid(), signal.SIGHUP)
        answers = [await heard.get()]
        os.kill(os.getpid(), signal.SIGTERM)
        return [*answers, await heard.get()]

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert asyncio.run(answers()) == ["hung up", "told"]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_exits_at_once(start):
    process = start(
        "    say('serving')\n    await stopping.wait()\n    say('draining')\n    await asyncio.Event().wait()"
    )
    assert process.stdout.readline() == "serving\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a child when its parent dies")
def test_a_process_whose_parent_is_killed_leaves_in_order_though_the_kernel_may_signal_for_each_of_its_threads():
    drains = "    await stopping.wait()\n    say(why_told(stopping))\n    say(await asyncio.to_thread(sys.stdin.read))"
    source = (
        f"{FROM_A_TERMINAL}{PREAMBLE}import os\nasync def job(stopping):\n    say(os.getpid())\n{drains}\n\n"
        "sys.exit(run_process(job, name='n'))"
    )
    parent = (
        "import os, subprocess, sys\nfrom asyncrl.workers.child import dies_with\n"
        f"subprocess.run([sys.executable, '-c', {source!r}], preexec_fn=dies_with(os.getpid()))"
    )
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        child = int(process.stdout.readline())
        process.kill()
        assert process.stdout.readline() == "the process that started it has died\n"
        os.kill(child, signal.SIGTERM)  # as the kernel does for one more thread
        process.stdin.write("stored")
        process.stdin.close()
        assert process.stdout.readline() == "stored\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a child when its parent dies")
@pytest.mark.parametrize("is_replica", [False, True])
def test_a_service_and_its_replicas_leave_in_order_when_supervisord_is_killed_and_say_why(is_replica):
    def process_of(job: str) -> str:
        return f"{FROM_A_TERMINAL}{PREAMBLE}async def job(stopping):\n{job}\n\nsys.exit(run_process(job, name='n'))"

    source = process_of("    say('ready')\n    await stopping.wait()\n    say(why_told(stopping))")
    if is_replica:
        source = process_of(
            f"    import subprocess\n    child = subprocess.Popen([sys.executable, '-c', {source!r}])\n"
            "    await stopping.wait()\n    child.terminate()\n    child.wait()"
        )
    supervisord = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {source!r}])"
    command, environment = [sys.executable, "-c", supervisord], os.environ | {"SUPERVISOR_ENABLED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.readline() == "the process that started it has died\n"


def test_a_log_that_cannot_be_written_changes_neither_the_work_nor_the_exit_code():
    """/dev/full takes nothing, as a full disk does."""
    job = "import structlog\n    structlog.get_logger().info('hello')\n    raise errors.RunFailed('this and that')"
    source = f"{PREAMBLE}async def job(stopping):\n    {job}\n\nsys.exit(run_process(job, name='rollout-7'))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", source], stderr=full, timeout=30, check=False)
    assert done.returncode == 1, "of RunFailed, and not of the log"


def test_workers_are_told_the_form_of_the_log():
    source = """
import os, sys
from asyncrl.runtime.process import handle, run_process
async def job(stopping):
    print(os.environ["ASYNCRL_LOG_FORMAT"])
sys.exit(run_process(job, name="reward-0", log_format=sys.argv[1]))
"""
    told = [
        subprocess.run([sys.executable, "-c", source, form], capture_output=True, text=True, check=True).stdout.strip()
        for form in ("auto", "json", "text")
    ]
    assert told == ["json", "json", "text"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_in_a_log_or_a_last_sentence_commands_a_terminal(form):
    source = """
import sys
from asyncrl.errors import RunFailed
from asyncrl.log import get_logger
from asyncrl.runtime.process import handle, run_process
ACTS = "\\x1b]0;OWNED\\x07\\x9b31m\\u202e"
async def job(stopping):
    get_logger().warning("unit.failed", reason=ACTS, nodes=[ACTS], long="x" * 90_000)
    raise RunFailed(ACTS) if sys.argv[2] == "ours" else ValueError(ACTS)
sys.exit(run_process(job, name='rollout-7', log_format=sys.argv[1]))
"""
    for whose in ("ours", "bug"):
        command = [sys.executable, "-c", source, form, whose]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stderr
        assert not {letter for letter in printed if not letter.isprintable()} - {"\n"}
        assert "OWNED" in printed.splitlines()[-1]
        assert max(map(len, printed.splitlines())) < 6000


def test_every_line_of_the_log_names_the_node_its_role_and_its_run():
    job = "about(run='try-7'); get_logger().info('lease.granted', lease_id=7)"
    source = f"""
import asyncio, sys
from asyncrl.log import about, get_logger
from asyncrl.runtime.process import handle, run_process
async def job(stopping):
    {job}
sys.exit(run_process(job, name='rollout-7', role='rollout', log_format=sys.argv[1]))
"""
    as_json, as_text = (
        subprocess.run([sys.executable, "-c", source, form], capture_output=True, text=True, check=True).stderr
        for form in ("json", "text")
    )
    (line,) = as_json.splitlines()
    fields = json.loads(line)
    del fields["timestamp"]
    assert fields == {
        "event": "lease.granted",
        "level": "info",
        "lease_id": 7,
        "node": "rollout-7",
        "role": "rollout",
        "run": "try-7",
    }
    assert "lease.granted" in as_text
    assert "node=rollout-7" in as_text
    assert "\x1b" not in as_text, "colours are for terminals"


@pytest.mark.parametrize(("mode", "expected"), [(0o700, "0o77"), (0o750, "0o27"), (0o755, "0o77")])
def test_what_a_role_writes_is_its_owners_alone_unless_its_run_is_shared(
    tmp_path: Path, mode: int, expected: str
) -> None:
    tmp_path.chmod(mode)
    source = f"""{PREAMBLE}
import os
from pathlib import Path
os.umask(0)
async def job(stopping):
    print(oct(os.umask(0)))
sys.exit(run_process(job, name="rollout-7", run_dir=Path(sys.argv[1])))
"""
    done = subprocess.run([sys.executable, "-c", source, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"


# ── failpoints ────────────────────────────────────────────────────────────────────────────────────
# The table of failpoints is the one of the code.


def test_the_places_are_those_that_the_code_passes() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(asyncrl.__file__).parent.rglob("*.py")]
    call = re.compile(r'^ +failpoint\("([a-z._]+)"\)', re.MULTILINE)
    passed = {place for source in sources for place in call.findall(source)}
    assert passed == set(PLACES + SHARD_PLACES + TURN_PLACES + EPISODE_PLACES)
