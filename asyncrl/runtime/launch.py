"""
`asyncrl run` checks everything and runs every role as a child process; `asyncrl resume` starts the same processes for a
run that stopped, whose ledger, spool and checkpoints hold its state.
"""

import asyncio
import os
import select
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import msgspec
import uvloop
from msgspec.structs import replace
from rich.console import Console

from asyncrl.broker.failures import recorded, recorded_attempts
from asyncrl.broker.metrics.batch_metrics import RunTotals
from asyncrl.config.checks.check import advice, check
from asyncrl.config.config import Config, leaves
from asyncrl.config.meanings import value_in_words
from asyncrl.config.run_file import changes, load_config, to_toml, with_absolute_paths
from asyncrl.data.prompts import resolve_steps
from asyncrl.errors import AsyncrlError, ConfigError, LedgerError, RunFailed, RunInterrupted, check_all
from asyncrl.files.access import appending, restrict_umask
from asyncrl.files.lock import locked
from asyncrl.messages.supervisor import Evaluated, Progress
from asyncrl.records.failure_sentences import bias, by_site, sentences
from asyncrl.records.formatting import counted
from asyncrl.records.run_directory import LOCK_WAIT_S, RunDirectory, RunSummary
from asyncrl.records.run_record import require_run
from asyncrl.records.trackers import check_trackers
from asyncrl.runtime.check_architecture import check_architecture, examine, refuse_certain
from asyncrl.runtime.checks import CHECKS, devices_of, resolved, where
from asyncrl.runtime.local_address import choose
from asyncrl.runtime.machine import (
    INSTALL,
    TRAIN,
    Devices,
    missing_packages,
    require_dashboard,
    require_train,
)
from asyncrl.runtime.metrics_server import TARGETS_VARIABLE, MetricsOptions
from asyncrl.runtime.model_files import with_local_copies
from asyncrl.runtime.process import handle
from asyncrl.runtime.screen import RunConsole, Screen, continuation_lines, outcome_lines, time_so_far
from asyncrl.runtime.supervisor import RunSupervisor, importing, write_report
from asyncrl.terminal import command_line, say, told_if_slow
from asyncrl.weights.groups.network_interface import interface_addresses
from asyncrl.workers.child import dies_with, module_command, why
from asyncrl.workers.forked import Importer

# ── beside ────────────────────────────────────────────────────────────────────────────────────
# The dashboard of a run that is being run: a process of its own, so that nobody's look costs the run anything.

START_S = 20.0
"""Seconds for it to print its address."""
STOP_S = 5.0
NICENESS = 10
"""The run goes first."""

LARGE_BYTES = 1 << 30
"""Weights that take longer to load than to check."""


@contextmanager
def dashboard_beside(directory: RunDirectory, say: Callable[[str], None]) -> Iterator[None]:
    """
    Serve the run's dashboard until the block ends, and say its address first.

    Raises:
        ConfigError: It did not start; the message is its own.
    """
    command = module_command("asyncrl", "dashboard", str(directory.path))
    log = directory.logs / "dashboard.log"
    with appending(log) as output:
        process = subprocess.Popen(
            ["nice", "-n", str(NICENESS), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the run, which ends this process in order
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509  takes no lock between fork and exec
        )
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        url = process.stdout.readline().decode().strip() if ready else ""
        if not url:  # It has ended, or takes too long.
            _end(process)
            raise ConfigError(why(log.read_bytes()) or f"no dashboard within {START_S:g} s")
        say(f"dashboard {url}")
        yield
    finally:
        _end(process)
        if process.stdout is not None:
            process.stdout.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if it does not end; nothing if it has ended."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ── run ───────────────────────────────────────────────────────────────────────────────────────

Began = Callable[[RunDirectory], object]


def run(
    config: Config | str | os.PathLike[str],
    *overrides: str | Sequence[str],
    name: str = "",
    is_shown: bool = False,
    is_quiet: bool = False,
    metrics: MetricsOptions | None = None,
    is_traced: bool = False,
    owns_process: bool = False,
    began: Began | None = None,
    on_step: Callable[[Progress], object] | None = None,
    on_evaluation: Callable[[Evaluated], object] | None = None,
) -> RunSummary:
    """
    Run every role as a child process, to the end; then write the report and print where the results are.

    It may be called from a notebook, and from a thread. KeyboardInterrupt and SIGTERM end the run early.

    Args:
        config: Path of a run file, or what `asyncrl.load_config` has made of one.
        overrides: With a path: ``"section.key=value"``, as after ``--set``, several or a list of them.
        name: Name of the run directory, unless ``run.name`` is set; empty takes that of the run file.
        is_shown: Start a dashboard of the run, and print its address.
        is_quiet: Print nothing; the run directory has the lines all the same, in ``logs/screen.log``.
        metrics: Where the processes serve their metrics; None serves none.
        is_traced: Send spans to the collector that the environment names.
        owns_process: This process does nothing else, so that its umask may be changed.
        began: Called once the run has its directory, and nothing is left that is checked before it starts.
        on_step: Called after each step, with its `Progress`. If it raises, the run ends with a checkpoint.
        on_evaluation: Called after each evaluation, likewise.

    Raises:
        ConfigError: The configuration cannot work; found before the start, or by a node.
        RunFailed, LinkError: The run ended early; the message is the cause.
    """
    if not isinstance(config, Config):
        path, config = config, load_config(config, overrides)
        name = name or Path(path).stem
    elif overrides:
        raise ConfigError(f"overrides such as {overrides[0]!r} are for the path of a run file, and this is a Config")
    require_train()
    if is_shown:
        require_dashboard()
    console = RunConsole(is_quiet=is_quiet)
    trainer, shares = devices_of(config)
    with importing(config, trainer, shares) as importer:  # while everything is checked
        config = resolve_steps(with_local_copies(config, partial(say, console)))
        _check(config, console)
        config = resolved(config, shares)
        if is_slow_to_load(config, [trainer, *shares]):
            _look_at_model(config, partial(say, console))
        settings = to_toml(with_absolute_paths(config, Path.cwd()))
        if owns_process:  # Only now: a cache that models were fetched into may belong to several users.
            restrict_umask(group_reads=config.run.share_with_group)
        directory = RunDirectory.create(
            Path(config.run.dir), config.run.name or name or "run", group_reads=config.run.share_with_group
        )
        directory.write_config(settings)
        if directory.path.name != (named := config.run.name or name or "run"):
            again = command_line("asyncrl", "resume", directory.path.with_name(named))
            say(console, f"note: a run {named!r} is there: this one is new, and `{again}` goes on with that one")
        with _held(directory), dashboard_beside(directory, console.pin) if is_shown else nullcontext():
            console.keep(directory)
            screen = Screen(console, config.run.steps, on_step=on_step, on_evaluation=on_evaluation)
            return _execute(
                config, directory, trainer, shares, screen, metrics, is_traced=is_traced, began=began, importer=importer
            )


def dry_run(config: Config, device_memory: str = "", host_memory: str = "") -> None:
    """
    Check all that `run` and its nodes check before the first step, and the memory; print what it would start.

    ``device_memory`` is that of each device, such as ``80GB``, in place of that of the devices here, and
    ``host_memory`` that of the machine.

    Raises `ConfigError` as `run` does. Without the trainer's packages, what needs them is named and not checked.
    """
    console = RunConsole()
    config = with_local_copies(config, partial(say, console))
    epochs, config = config.run.epochs, resolve_steps(config)
    trainer, shares = _check(config, console)
    config = resolved(config, shares)
    if missing := missing_packages(TRAIN):
        unchecked = "the advantage, memory and what trainer and rollouts can compute of model.path were not checked"
        say(console, f"{unchecked}: {', '.join(missing)} not installed here ({INSTALL})")
    else:
        for line in check_architecture(config, device_memory, host_memory):
            say(console, f"{line.name}: {line.what}")
    say(console, "\n".join([*changes(config), "(all others have their defaults: asyncrl config show FILE)", ""]))
    if epochs is not None:
        say(console, f"run.epochs = {epochs:g} is {config.run.steps} steps with the rows of data.train")
    say(console, _plan(config, trainer, shares))
    if any(".py:" in name for name in (config.reward.function, config.reward.group)):
        say(console, "no reward was computed: to grade some rows, asyncrl reward try FILE with this run file")


def begun(config: Config, name: str) -> Path | None:
    """
    Directory of the newest run of this configuration, for `resume`; None if there is none of its name.

    Raises `ConfigError` if the newest run of its name has other settings.
    """
    config = resolve_steps(with_local_copies(config, partial(say, RunConsole())))
    directory = RunDirectory.newest(Path(config.run.dir), config.run.name or name)
    if directory is None:
        return None
    wanted = with_absolute_paths(resolved(config, devices_of(config)[1]), Path.cwd())
    theirs = dict(leaves(msgspec.to_builtins(load_config(directory.config))))
    for key, value in leaves(msgspec.to_builtins(wanted)):
        if value != theirs.get(key):
            going_on = command_line("asyncrl", "resume", directory.path)
            raise ConfigError(
                f"--resume: {directory.path} was begun with {key} = {value_in_words(theirs.get(key))}, and here it is "
                f"{value_in_words(value)}; {going_on} goes on with its own settings, and without --resume a new run "
                f"begins"
            )
    if others := RunDirectory.numbered(directory.path.parent, config.run.name or name)[:-1]:
        newest = f"--resume goes on with {directory.path}, the newest of this name"
        say(RunConsole(), f"{newest}; {command_line('asyncrl', 'resume', others[-1])} with the one before it")
    return directory.path


def resume(
    path: Path,
    steps: int | None = None,
    metrics: MetricsOptions | None = None,
    *,
    skip_steps: Sequence[int] = (),
    stop_when: str | None = None,
    is_shown: bool = False,
    is_traced: bool = False,
    owns_process: bool = False,
    began: Began | None = None,
) -> None:
    """
    Continue a run that stopped, unless it is complete; or extend one to a new total of ``steps``.

    The batches of ``skip_steps`` are left out from now on, and ``stop_when`` takes the place of ``run.stop_when``,
    which may have ended the run. The other arguments are those of `run`. Raises as `run`, and `ConfigError` if there is
    no run, ``steps`` does not exceed the old total, or the run has no such step to skip.
    """
    require_train()
    if is_shown:
        require_dashboard()
    directory = require_run(path)
    summary = directory.finished_summary()
    if summary and stop_when in (None, summary.goal) and (summary.goal or steps is None):
        options = ("--stop-when", "") if summary.goal else ("--steps", 2 * summary.steps)
        longer = command_line("asyncrl", "resume", path, *options)
        if directory.local_key.exists():
            longer = (
                f"change {'run.stop_when' if summary.goal else 'run.steps'} in its run file, and restart its services"
            )
        say(
            RunConsole(),
            f"{path} is complete ({summary.steps} steps{summary.goal_note}): there is nothing to resume; to train it "
            f"longer: {longer}",
        )
        return
    if directory.local_key.exists():
        raise ConfigError(
            f"{path} was served with keys, which `asyncrl resume` has not: restart its services, or start asyncrl-node "
            f"--role broker --keys DIR; remove {directory.local_key} to go on without other machines"
        )
    share = load_config(directory.config).run.share_with_group
    if owns_process:
        restrict_umask(group_reads=share)
    if was_open := directory.close(group_reads=share):
        say(RunConsole(), was_open)
    with _held(directory):
        load_config(directory.config).broker.check_one_machine()
        if steps is not None:
            directory.write_config(to_toml(_extended(load_config(directory.config), steps)))
        if stop_when is not None:
            directory.write_config(to_toml(_until(load_config(directory.config), stop_when)))
        if skip_steps:
            directory.write_config(to_toml(_without(load_config(directory.config), skip_steps)))
        directory = RunDirectory.reopen(path)
        directory.address.unlink(missing_ok=True)  # Address of the old broker, whose port may be in use by now.
        config = load_config(directory.config)
        check_trackers(config.trackers)
        trainer, shares = devices_of(config)
        console = RunConsole()
        with dashboard_beside(directory, console.pin) if is_shown else nullcontext():
            config = resolved(config, shares)
            console.keep(directory)
            screen = Screen(console, config.run.steps)
            with importing(config, trainer, shares) as importer:
                _execute(
                    config,
                    directory,
                    trainer,
                    shares,
                    screen,
                    metrics,
                    is_traced=is_traced,
                    began=began,
                    importer=importer,
                )


@contextmanager
def _held(directory: RunDirectory) -> Iterator[None]:
    """Hold a run that no other process runs or serves, before anything in it is changed; raises `LinkError`."""
    running = f"the run in {directory.path} is being run already"
    remedy = "`asyncrl attach` shows it, and `asyncrl unpause` ends a pause"
    with locked(directory.supervisor_lock, running, LOCK_WAIT_S, remedy=remedy):
        with locked(directory.lock, running, LOCK_WAIT_S, remedy=remedy):
            pass  # A broker whose supervisor was killed has ended.
        yield


def _check(config: Config, console: Console) -> tuple[Devices | None, list[Devices]]:
    """Run every check that is possible before the start. Return the devices of the trainer and of each rollout."""
    config.broker.check_one_machine()
    found = devices_of(config)
    resolved(config, found[1])
    if wanted := config.weights.interface:
        choose(wanted, "weights.interface", interface_addresses())
    for sentence in advice(config):
        say(console, f"note: {sentence}")
    check_all(partial(look, config, partial(say, console)) for look in CHECKS.values())
    return found


def _look_at_model(config: Config, note: Callable[[str], object]) -> None:
    """Refuse a model that cannot be computed; if the check itself fails, that is a note, and the run shows more."""
    try:
        with told_if_slow(f"checking the architecture and the memory of {config.model.path}"):
            lines = examine(config)
    except ConfigError as error:
        note(f"note: {error}")
        return
    refuse_certain(lines, lambda problem: note(f"note: {problem}"))


def is_slow_to_load(config: Config, devices: Iterable[Devices | None]) -> bool:
    """
    True if what needs torch is checked before a run starts, which takes seconds: on devices, and for large models.

    The processes of a small run on CPUs find the same mistakes themselves, as soon as they have imported torch.
    """
    weights = sum(file.stat().st_size for file in Path(config.model.path).glob("*.safetensors"))
    return weights > LARGE_BYTES or any(each.ids for each in devices if each)


def _extended(config: Config, steps: int) -> Config:
    if steps <= config.run.steps:
        raise ConfigError(
            f"--steps {steps}: expected more than the run's {config.run.steps} steps; a run can be extended, not "
            f"shortened"
        )
    return replace(config, run=replace(config.run, steps=steps))


def _until(config: Config, stop_when: str) -> Config:
    config = replace(config, run=replace(config.run, stop_when=stop_when))
    check(config)
    return config


def _without(config: Config, skip_steps: Sequence[int]) -> Config:
    if (last := max(skip_steps)) > config.run.steps:
        raise ConfigError(f"--skip-step {last}: expected a step of the run, 1 to {config.run.steps}")
    return replace(config, run=replace(config.run, skip_steps=sorted({*config.run.skip_steps, *skip_steps})))


def _execute(  # noqa: PLR0917  private, and all of different types
    config: Config,
    directory: RunDirectory,
    trainer: Devices | None,
    shares: list[Devices],
    screen: Screen,
    metrics: MetricsOptions | None,
    *,
    is_traced: bool,
    began: Began | None,
    importer: Importer | None,
) -> RunSummary:
    console = screen.console
    _say_beginning(directory, console, metrics)
    if began:
        began(directory)
    before_s = time_so_far(directory)
    failure: AsyncrlError | None = RunFailed("asyncrl run itself crashed")
    try:
        with screen:
            supervisor = RunSupervisor(
                config, directory, screen, trainer, shares, metrics=metrics, is_traced=is_traced, importer=importer
            )
            if _has_loop() or threading.current_thread() is not threading.main_thread():
                _supervise_in_thread(supervisor)
            else:
                stays = config.run.on_hangup == "continue"
                uvloop.run(_until_signal(supervisor, partial(screen.say, STAYS) if stays else None))
        failure = None
    except AsyncrlError as error:
        failure = error
    except KeyboardInterrupt:
        failure = RunInterrupted("the run was interrupted before its processes started")
    finally:
        summary = _summary(config, directory, failure, console)
    if no_report := write_report(directory):  # The outcome matters more; `asyncrl report` can write it later.
        say(console, f"no report was written: {no_report}")
    for line in outcome_lines(directory, summary, before_s, can_resume=not isinstance(failure, ConfigError)):
        say(console, line)
    if screen.failure:
        raise screen.failure
    if summary.status == "interrupted":
        raise RunInterrupted(summary.cause)
    if failure:
        raise failure
    if summary.status != "finished":
        raise RunFailed(summary.cause)
    return directory.located(summary)


def _say_beginning(directory: RunDirectory, console: Console, metrics: MetricsOptions | None) -> None:
    say(console, f"run directory {directory.path}  (logs in {directory.logs})")
    for line in continuation_lines(directory):
        say(console, line)
    if metrics:
        where = f"from {metrics.host}:{metrics.port} on" if metrics.port else f"on free ports of {metrics.host}"
        targets = os.environ.get(TARGETS_VARIABLE) or directory.path / "metrics"
        say(console, f"metrics {where}  (addresses for Prometheus in {targets})")


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


STAYS = "the terminal has hung up, and the run goes on without it (run.on_hangup = 'continue')"


async def _until_signal(supervisor: RunSupervisor, on_hangup: Callable[[], object] | None) -> None:
    stopping = asyncio.Event()
    handle(asyncio.get_running_loop(), stopping.set, on_hangup)
    await supervisor.run(stopping)


def _supervise_in_thread(supervisor: RunSupervisor) -> None:
    """Run the supervisor in a thread: an event loop runs here already, or signals cannot be handled here."""
    stop: Future[Callable[[], object]] = Future()

    async def main() -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        stop.set_result(lambda: loop.call_soon_threadsafe(stopping.set))
        await supervisor.run(stopping)

    with ThreadPoolExecutor(1, thread_name_prefix="asyncrl-run") as executor:
        running = executor.submit(lambda: asyncio.run(main()))
        try:
            running.result()
        except KeyboardInterrupt:
            stop.result()()
            running.result()


def _summary(config: Config, directory: RunDirectory, failure: AsyncrlError | None, console: Console) -> RunSummary:
    """The broker's summary; if it wrote none, write one from the metrics, with the cause of ``failure``."""
    if (summary := directory.read_summary()) is not None:
        return summary
    try:
        lines, events = directory.read_metrics(), directory.read_events()
    except LedgerError:  # Most likely the cause itself.
        lines, events = [], []
    totals, counts, attempts = RunTotals(lines), recorded(events), recorded_attempts(events)
    summary = RunSummary(
        name=directory.path.name,
        status="interrupted" if isinstance(failure, RunInterrupted) else "failed",
        cause=str(failure or "the broker ended without writing a summary"),
        seed=config.run.seed,
        steps=totals.steps,
        steps_planned=config.run.steps,
        versions=max((int(line["version"]) for line in lines), default=0),
        wall_s=max((line["time_s"] for line in lines), default=0.0),
        **totals.as_summary(),
        failed=by_site(counts),
        failures=[*sentences(counts, attempts), *bias(counts, attempts)],
    )
    try:
        directory.write_summary(summary)
    except RunFailed as error:
        say(console, f"no summary was written: {error}")
    return summary


def _plan(config: Config, trainer: Devices | None, shares: list[Devices]) -> str:
    steps, schedule = config.run.steps, config.schedule
    sampling = where(shares) + (", shared with the trainer" if shares[0].is_shared else "")
    ranks = f" of {config.trainer.ranks} ranks" if config.trainer.ranks > 1 else ""
    return (
        f"would start: 1 broker (with spool), {counted(len(shares), 'rollout')}, 1 reward, 1 trainer{ranks}\n"
        f"rollouts sample with {config.rollout.engine} on {sampling}, the trainer computes on {trainer or 'the CPU'}\n"
        f"{steps} steps of {schedule.groups_per_step} groups of {schedule.group_size} trajectories, "
        f"{steps * schedule.groups_per_step * schedule.group_size} trajectories in total; at most {schedule.window} "
        f"groups open at once"
    )
