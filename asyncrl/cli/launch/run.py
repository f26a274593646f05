"""
`asyncrl run` checks everything and runs every role as a child process; `asyncrl resume` starts the same processes for a
run that stopped, whose ledger, spool and checkpoints hold its state.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import uvloop
from msgspec.structs import replace
from rich.console import Console

from asyncrl.broker.failures import recorded, recorded_attempts
from asyncrl.broker.metrics.batch_metrics import RunTotals
from asyncrl.cli.launch.beside import dashboard_beside
from asyncrl.cli.launch.checks.architecture import check_architecture
from asyncrl.cli.launch.checks.checks import CHECKS, devices_of, resolved, where
from asyncrl.cli.launch.continuation import continuation_lines
from asyncrl.cli.launch.outcome import outcome_lines, time_so_far
from asyncrl.cli.launch.screen import Screen
from asyncrl.cli.launch.supervisor import Supervisor
from asyncrl.cli.terminal import say
from asyncrl.config.checks.addresses import check_one_machine
from asyncrl.config.checks.check import advice
from asyncrl.config.config import Config
from asyncrl.config.resolve import with_absolute_paths
from asyncrl.config.run_file import changes, load_config, to_toml
from asyncrl.data.run_length import resolve_steps
from asyncrl.errors import AsyncrlError, ConfigError, LedgerError, RunFailed, RunInterrupted
from asyncrl.files.access import restrict_umask
from asyncrl.files.lock import locked
from asyncrl.node.broker.run_folder import LOCK_WAIT_S
from asyncrl.node.hub import with_local_copies
from asyncrl.node.machine.devices import Devices
from asyncrl.node.machine.machine import INSTALL, TRAIN, missing_packages, require_dashboard, require_train
from asyncrl.node.process.metrics_server import TARGETS_VARIABLE, MetricsOptions
from asyncrl.node.process.process import handle
from asyncrl.observe.failure_sentences import by_site, sentences
from asyncrl.observe.formatting import counted
from asyncrl.observe.report.report import write_report
from asyncrl.observe.run_directory import RunDirectory, RunSummary
from asyncrl.observe.trackers.catalogue import check_trackers


def run(
    config: Config,
    *,
    name: str = "run",
    is_shown: bool = False,
    metrics: MetricsOptions | None = None,
    is_traced: bool = False,
    owns_process: bool = False,
) -> RunSummary:
    """
    Run every role as a child process, to the end; then write the report and print where the results are.

    It may be called from a notebook, and from a thread. KeyboardInterrupt and SIGTERM end the run early.

    Args:
        config: Checked already; see `asyncrl.load_config`.
        name: Name of the run directory, unless ``run.name`` is set.
        is_shown: Start a dashboard of the run, and print its address.
        metrics: Where the processes serve their metrics; None serves none.
        is_traced: Send spans to the collector that the environment names.
        owns_process: This process does nothing else, so that its umask may be changed.

    Raises:
        ConfigError: The configuration cannot work; found before the start, or by a node.
        RunFailed, LinkError: The run ended early; the message is the cause.
    """
    require_train()
    if is_shown:
        require_dashboard()
    console = Console()
    config = resolve_steps(with_local_copies(config, partial(say, console)))
    trainer, shares = _check(config, console)
    config = resolved(config, shares)
    if owns_process:  # Only now: a cache that models were fetched into may belong to several users.
        restrict_umask(group_reads=config.run.share_with_group)
    directory = RunDirectory.create(
        Path(config.run.dir), config.run.name or name, group_reads=config.run.share_with_group
    )
    directory.write_config(to_toml(with_absolute_paths(config, Path.cwd())))
    with _held(directory), dashboard_beside(directory, partial(say, console)) if is_shown else nullcontext():
        return _execute(config, directory, trainer, shares, console, metrics, is_traced=is_traced)


def dry_run(config: Config, device_memory: str = "", host_memory: str = "") -> None:
    """
    Check all that `run` and its nodes check before the first step, and the memory; print what it would start.

    ``device_memory`` is that of each device, such as ``80GB``, in place of that of the devices here, and
    ``host_memory`` that of the machine.

    Raises `ConfigError` as `run` does. Without the trainer's packages, what needs them is named and not checked.
    """
    console = Console()
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
    if ".py:" in config.reward.function:
        say(console, "no reward was computed: to grade some rows, asyncrl reward try FILE with this run file")


def resume(
    path: Path,
    steps: int | None = None,
    metrics: MetricsOptions | None = None,
    *,
    skip_steps: Sequence[int] = (),
    is_shown: bool = False,
    is_traced: bool = False,
    owns_process: bool = False,
) -> None:
    """
    Continue a run that stopped, unless it is complete; or extend one to a new total of ``steps``.

    The batches of ``skip_steps`` are left out from now on. The other arguments are those of `run`. Raises as `run`, and
    `ConfigError` if there is no run, ``steps`` does not exceed the old total, or the run has no such step to skip.
    """
    require_train()
    if is_shown:
        require_dashboard()
    directory = RunDirectory(path)
    if (summary := directory.finished_summary()) and steps is None:
        say(
            Console(),
            f"{path} is complete ({summary.steps} steps): there is nothing to resume; to train it longer: "
            f"asyncrl resume {path} --steps {2 * summary.steps}",
        )
        return
    if not directory.config.is_file():
        raise ConfigError(f"no run to resume: {directory.config} does not exist")
    share = load_config(directory.config).run.share_with_group
    if owns_process:
        restrict_umask(group_reads=share)
    if was_open := directory.close(group_reads=share):
        say(Console(), was_open)
    with _held(directory):
        check_one_machine(load_config(directory.config).broker)
        if steps is not None:
            directory.write_config(to_toml(_extended(load_config(directory.config), steps)))
        if skip_steps:
            directory.write_config(to_toml(_without(load_config(directory.config), skip_steps)))
        directory = RunDirectory.reopen(path)
        directory.address.unlink(missing_ok=True)  # Address of the old broker, whose port may be in use by now.
        config = load_config(directory.config)
        check_trackers(config.trackers)
        trainer, shares = devices_of(config)
        console = Console()
        with dashboard_beside(directory, partial(say, console)) if is_shown else nullcontext():
            _execute(resolved(config, shares), directory, trainer, shares, console, metrics, is_traced=is_traced)


@contextmanager
def _held(directory: RunDirectory) -> Iterator[None]:
    """Hold a run that no other process runs or serves, before anything in it is changed; raises `LinkError`."""
    running = f"the run in {directory.path} is being run already"
    with locked(directory.supervisor_lock, running, LOCK_WAIT_S):
        with locked(directory.lock, running, LOCK_WAIT_S):
            pass  # A broker whose supervisor was killed has ended.
        yield


def _check(config: Config, console: Console) -> tuple[Devices | None, list[Devices]]:
    """Run every check that is possible before the start. Return the devices of the trainer and of each rollout."""
    check_one_machine(config.broker)
    found = devices_of(config)
    resolved(config, found[1])
    for sentence in advice(config):
        say(console, f"note: {sentence}")
    for check in CHECKS.values():
        check(config, partial(say, console))
    return found


def _extended(config: Config, steps: int) -> Config:
    if steps <= config.run.steps:
        raise ConfigError(
            f"--steps {steps}: expected more than the run's {config.run.steps} steps; a run can be extended, not "
            f"shortened"
        )
    return replace(config, run=replace(config.run, steps=steps))


def _without(config: Config, skip_steps: Sequence[int]) -> Config:
    if (last := max(skip_steps)) >= config.run.steps:
        raise ConfigError(f"--skip-step {last}: expected a step of the run, 0 to {config.run.steps - 1}")
    return replace(config, run=replace(config.run, skip_steps=sorted({*config.run.skip_steps, *skip_steps})))


def _execute(  # noqa: PLR0917  private, and all of different types
    config: Config,
    directory: RunDirectory,
    trainer: Devices | None,
    shares: list[Devices],
    console: Console,
    metrics: MetricsOptions | None,
    *,
    is_traced: bool,
) -> RunSummary:
    say(console, f"run directory {directory.path}  (logs in {directory.logs})")
    for line in continuation_lines(directory):
        say(console, line)
    if metrics:
        where = f"from {metrics.host}:{metrics.port} on" if metrics.port else f"on free ports of {metrics.host}"
        targets = os.environ.get(TARGETS_VARIABLE) or directory.path / "metrics"
        say(console, f"metrics {where}  (addresses for Prometheus in {targets})")
    before_s = time_so_far(directory)
    failure: AsyncrlError | None = RunFailed("asyncrl run itself crashed")
    try:
        with Screen(console, config.run.steps) as screen:
            _supervise(Supervisor(config, directory, screen, trainer, shares, metrics=metrics, is_traced=is_traced))
        failure = None
    except AsyncrlError as error:
        failure = error
    finally:
        summary = _ensure_summary(config, directory, str(failure or ""), console)
    try:
        write_report([directory.path], directory.report)
    except (AsyncrlError, OSError) as error:  # The outcome matters more; `asyncrl report` can write it later.
        say(console, f"no report was written: {error}")
    for line in outcome_lines(directory, summary, before_s, can_resume=not isinstance(failure, ConfigError)):
        say(console, line)
    if summary.status == "interrupted":
        raise RunInterrupted(summary.cause)
    if failure:
        raise failure
    if summary.status != "finished":
        raise RunFailed(summary.cause)
    return directory.located(summary)


def _supervise(supervisor: Supervisor) -> None:
    if _has_loop() or threading.current_thread() is not threading.main_thread():
        _supervise_in_thread(supervisor)
    else:
        uvloop.run(_until_signal(supervisor))


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _until_signal(supervisor: Supervisor) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    handle(loop, stopping.set)
    await supervisor.run(stopping)


def _supervise_in_thread(supervisor: Supervisor) -> None:
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


def _ensure_summary(config: Config, directory: RunDirectory, cause: str, console: Console) -> RunSummary:
    """The broker's summary; if it wrote none, write one from the metrics, with ``cause``."""
    if (summary := directory.read_summary()) is not None:
        return summary
    try:
        lines, events = directory.read_metrics(), directory.read_events()
    except LedgerError:  # Most likely the cause itself.
        lines, events = [], []
    totals = RunTotals(lines)
    summary = RunSummary(
        name=directory.path.name,
        status="failed",
        cause=cause or "the broker ended without writing a summary",
        seed=config.run.seed,
        steps=totals.steps,
        steps_planned=config.run.steps,
        versions=max((int(line["version"]) for line in lines), default=0),
        wall_s=max((line["time_s"] for line in lines), default=0.0),
        trained_tokens=totals.tokens,
        staleness_mean=totals.staleness_mean,
        staleness_max=totals.staleness_max,
        logprob_gap_mean=totals.logprob_gap_mean,
        logprob_gap_max=totals.logprob_gap_max,
        failed=by_site(recorded(events)),
        failures=sentences(recorded(events), recorded_attempts(events)),
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
