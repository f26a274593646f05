"""
Terminal output of a run: where it goes on, one line per step and event, with a progress bar if the console is a
terminal, and how it ended.

    RunConsole ─┬─▶ terminal or pipe, until nobody reads it any more
                └─▶ RUN/logs/screen.log, which `asyncrl attach` shows
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO, TypeVar, cast

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.files.access import appending
from asyncrl.files.checkpoints import newest_complete
from asyncrl.files.json_lines import JsonLines
from asyncrl.foreign_text import shown
from asyncrl.messages.supervisor import Evaluated, Paused, Returned, SettingsChanged
from asyncrl.messages.supervisor import Progress as Step
from asyncrl.plug_in import describe
from asyncrl.records.evaluation_metrics import failed_note, graded_reward, multi_sample_metrics
from asyncrl.records.failure_sentences import sentences
from asyncrl.records.formatting import nth, share
from asyncrl.records.resuming import pause_notes
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import changed_settings, overview
from asyncrl.records.samples import newest_file
from asyncrl.runtime.origin import copy_sentence, original_of
from asyncrl.terminal import command_line, say

T = TypeVar("T")

LEGEND = """\
columns: v policy version, reward and acc accuracy of the batch as it was sampled, loss
         of the policy (it need not fall), grad norm of the gradient (no signal: the
         rewards of each group are equal), len mean tokens,
         stale mean/max staleness in versions, kl nats per trained token from the policy
         that sampled (k3: never negative); of the last 10 steps: tok/s trained tokens
         per second, wait t/r share of time that trainer/rollouts waited; eta time left
eval     held-out prompts, greedy unless evaluation.temperature is set; a step's acc is
         of completions that were sampled at sampling.temperature"""
"""Explains the abbreviations of `step_line`; printed before the first step."""
LEGEND_OF_TURNS = "         turns mean turns of an episode"
"""Further line for episodes."""


# ── console ───────────────────────────────────────────────────────────────────────────────────


class LastingStream:
    """A text stream that outlives its reader: once a pipe or a terminal is closed, ``gone`` is called, and no more."""

    def __init__(self, stream: TextIO, gone: Callable[[], object]) -> None:
        self._stream = stream
        self._gone = gone
        self._is_gone = False
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        if not self._is_gone:
            try:
                return self._stream.write(text)
            except OSError:
                self._leave()
        return len(text)

    def flush(self) -> None:
        if not self._is_gone:
            try:
                self._stream.flush()
            except OSError:
                self._leave()

    def isatty(self) -> bool:
        return not self._is_gone and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def _leave(self) -> None:
        """Lead what is buffered nowhere, because the interpreter writes it when it ends, and fails."""
        self._is_gone = True
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), self._stream.fileno())
        self._gone()


class RunConsole(Console):
    """
    The console of a run, by default standard output, whose lines are also kept in the run directory.

    The run outlives whoever reads them. ``width`` is that of a console of rich. A quiet one keeps lines alone.
    """

    def __init__(self, stream: TextIO | None = None, *, width: int | None = None, is_quiet: bool = False) -> None:
        file = cast("TextIO", LastingStream(stream or sys.stdout, self._gone))
        # A terminal would have a bar, which also takes what the caller prints.
        super().__init__(file=file, width=width, quiet=is_quiet, force_terminal=False if is_quiet else None)
        self.pinned = ""
        """Line that stays in sight under a bar."""
        self._kept: list[str] = []
        """Lines before there is a run directory."""
        self._directory: RunDirectory | None = None

    def keep(self, directory: RunDirectory) -> None:
        """Append what was and will be printed to the screen's log of a run."""
        self._directory = directory
        lines, self._kept = self._kept, []
        self._append(lines)

    def pin(self, line: str) -> None:
        """Print a line that stays in sight."""
        self.pinned = line
        say(self, line)

    def print(self, *objects: Any, **options: Any) -> None:
        lines = [str(each) for each in objects if isinstance(each, str | Text)]  # the bar's are neither
        if self._directory:
            self._append(lines)
        else:
            self._kept += lines
        super().print(*objects, **options)

    def _append(self, lines: list[str]) -> None:
        if lines and self._directory:
            with contextlib.suppress(OSError), appending(self._directory.screen) as file:
                file.writelines(f"{line}\n".encode() for line in lines)

    def _gone(self) -> None:
        shows = f": {command_line('asyncrl', 'attach', self._directory.path)} shows the run" if self._directory else ""
        with contextlib.suppress(OSError, AttributeError):  # the bar may stand in for standard error
            sys.__stderr__.write(f"asyncrl: nobody reads this output any more{shows}\n")  # type: ignore[union-attr]
            sys.__stderr__.flush()  # type: ignore[union-attr]


# ── screen ────────────────────────────────────────────────────────────────────────────────────


class Bar(Progress):
    """A progress bar with a line of failures under it, and one that is pinned."""

    failed = pinned = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.failed:
            yield Text(shown(self.failed), style="yellow", no_wrap=True, overflow="ellipsis")
        if self.pinned:
            yield Text(self.pinned, no_wrap=True, overflow="ellipsis")


class Screen:
    """
    Prints the progress of a run; ``steps`` is its total number of steps.

    ``on_step`` and ``on_evaluation`` are called with what is printed, until one raises, which `failure` then names.
    """

    def __init__(
        self,
        console: Console,
        steps: int,
        *,
        on_step: Callable[[Step], object] | None = None,
        on_evaluation: Callable[[Evaluated], object] | None = None,
    ) -> None:
        self.console = console
        self._steps = steps
        self._on_step = on_step
        self._on_evaluation = on_evaluation
        self.failure: RunFailed | None = None
        """Error of a function of the caller, with which the run is to end."""
        self._first: int | None = None
        """Number of the first step seen, and its time in seconds since the run's start."""
        self._bar = Bar(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("elapsed {task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar.pinned = console.pinned if isinstance(console, RunConsole) else ""
        self._is_paused = False
        self._printed = 0
        """Number of failures in the last line about them."""
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> "Screen":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        say(self.console, text)

    def waiting(self, what: str, waited_s: float) -> None:
        self.say(f"waiting for {what}: {waited_s:.0f} s so far")

    def step(self, step: Step) -> None:
        if self._first is None:
            self.say(LEGEND)
            if "turns_mean" in step.metrics:
                self.say(LEGEND_OF_TURNS)
        width = self.console.width if self.console.is_terminal else None
        self.say(step_line(step, self._eta_s(step), width) + (" (paused)" if self._is_paused else ""))
        self._bar.update(self._task, completed=step.step + 1)
        if self._on_step and not self.failure:
            self._call("on_step", self._on_step, step)

    def evaluated(self, evaluated: Evaluated) -> None:
        self.say(eval_line(evaluated))
        if self._on_evaluation and not self.failure:
            self._call("on_evaluation", self._on_evaluation, evaluated)

    def _call(self, name: str, function: Callable[[T], object], value: T) -> None:
        try:
            function(value)
        except Exception as error:  # noqa: BLE001  theirs may raise anything
            self.failure = RunFailed(f"{name} raised {describe(error, __file__)}")
            self.failure.__cause__ = error

    def failures(self, counts: Mapping[str, int], attempts: Mapping[str, int]) -> None:
        """
        Show failures under the progress bar; without a bar in lines, at the first failure and whenever they have
        doubled.
        """
        self._bar.failed = f"failed: {'; '.join(sentences(counts, attempts))}"
        total = sum(counts.values())
        if not self.console.is_terminal and total >= 2 * self._printed:
            self._printed = total
            self.say(self._bar.failed)

    def exited(self, node: str, cause: str, *, restarting: bool) -> None:
        self.say(f"{node} {cause}{'; starting it again' if restarting else ''}")

    def returned(self, returned: Returned) -> None:
        since = f", from step {nth(returned.step)}" if returned.step >= 0 else ""
        self.say(f"{returned.node} is back after {returned.away_s:.0f} s{since}")

    def paused(self, paused: Paused) -> None:
        """Show that an operator paused sampling, or let it go on."""
        self._is_paused = paused.is_paused
        self._bar.update(self._task, description="paused" if paused.is_paused else "")
        if paused.is_paused:
            self.say(f"paused by {paused.by}: no new leases; `asyncrl unpause` lets sampling go on")
        else:
            self.say(f"sampling goes on: {paused.by} ended the pause")

    def changed(self, changed: SettingsChanged) -> None:
        for key, value in changed.values.items():
            self.say(f"{key} = {value} from now on, set by {changed.by}")

    def departed(self, node: str) -> None:
        self.say(f"{node} was drained and has left")

    def _eta_s(self, step: Step) -> float | None:
        """
        Time left at the pace of the last steps; None at the first step seen and the next one.

        The first step waits for models to load, and the batch of the second may be complete by then.
        """
        if self._first is None:
            self._first = step.step
        step_s = step.metrics.get("step_recent_s")
        return None if step_s is None or step.step < self._first + 2 else step_s * (self._steps - 1 - step.step)


def eval_line(evaluated: Evaluated) -> str:
    """
    Line of an evaluation; with several completions per prompt it has pass@k and maj@k too.

    Example:
        eval v10  held-out accuracy 41.0% of 256  maj@8 52.3%  pass@8 78.1%  len 212
        eval v10  held-out accuracy 12.5% of 256  reward .48  len 31        of a reward that is not the accuracy
        eval v10  held-out accuracy: none of 256 judged
    """
    if not evaluated.num_prompts:
        return f"eval v{evaluated.policy_version}  held-out accuracy: none of {evaluated.num_failed} judged"
    extra = multi_sample_metrics(evaluated.metrics)
    shares = "".join(f"  {name} {value:.1%}" for name, value in extra.items() if not name.startswith("avg@"))
    reward = graded_reward(evaluated.accuracy, evaluated.metrics.get("reward"))
    graded = "" if reward is None else f"  reward {_short(reward)}"
    return (
        f"eval v{evaluated.policy_version}  held-out accuracy {evaluated.accuracy:.1%} of {evaluated.num_prompts}"
        f"{failed_note(evaluated.num_failed)}{graded}{shares}  len {evaluated.metrics.get('length_mean', 0):.0f}"
    )


def step_line(step: Step, eta_s: float | None, width: int | None = None) -> str:
    """
    The main metrics of a step, explained by `LEGEND`; with a ``width``, as many as fit, the most important ones.

    Example:
        step  41/60 v40 reward .512 acc .510 loss -0.0123 grad 0.41 len 38 stale 0.8/1 kl 0.0031 tok/s 21.4k wait ...
        step  41/60 reward .512 acc .510 loss -0.0123 grad 0.41 len 38 stale 0.8/1
    """
    m = step.metrics
    parts = [  # in the order of the line, each with its importance: 0 is always there
        (0, f"step {nth(step.step):>3}/{step.steps}"),
        (8, f"v{m['version']:.0f}"),
        (0, f"reward {_short(m['reward'])}"),
        (1, f"acc {_short(m['accuracy'])}"),
        (1, f"loss {m['loss']:z.4f}" if "loss" in m else ""),
        (1, f"grad {m['grad_norm']:.2f}" if "grad_norm" in m else ""),
        (1, "(no signal)" if m.get("zero_advantage_fraction") == 1 else ""),
        (2, f"len {m['length_mean']:.0f}"),
        (2, f"turns {m['turns_mean']:.1f}" if "turns_mean" in m else ""),
        (3, f"stale {m['staleness_mean']:.1f}/{m['staleness_max']:.0f}"),
        (6, f"kl {m['kl']:z.4f}" if "kl" in m else ""),
        (5, f"tok/s {_thousands(m['tokens_per_s'])}" if "tokens_per_s" in m else ""),
        (7, f"wait t/r {_percent(m, 'wait_trainer')}/{_percent(m, 'wait_rollout')}"),
        (4, "" if eta_s is None else f"eta {_clock(eta_s)}"),
    ]
    lines = (" ".join(text for rank, text in parts if text and rank <= least) for least in range(8, -1, -1))
    return next((line for line in lines if width is None or len(line) <= width), f"{parts[0][1]} {parts[2][1]}")


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if 0 <= value < 1 else f"{value:.2f}"


def _percent(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[key]:.0%}" if key in metrics else "?"


def _thousands(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ── continuation ──────────────────────────────────────────────────────────────────────────────
# Lines about where a run goes on that is resumed: its checkpoint, and the settings that were changed meanwhile.


def continuation_lines(directory: RunDirectory) -> Iterator[str]:
    """Lines for the terminal; none about a run that has just been created, or whose records are damaged."""
    if original := original_of(directory):
        yield copy_sentence(directory, original)
    try:
        last, events = JsonLines(directory.metrics).last(), directory.read_events()
    except LedgerError:  # The broker names the damage.
        return
    done = int((last or {}).get("step", -1)) + 1
    found = newest_complete(directory.checkpoints)
    steps, source = 0, "resuming from the beginning, without a checkpoint"
    if found:  # The trainer compares every byte, and says so if it has to take an older one.
        steps, source = found[0], f"resuming from checkpoint {found[1]}, if it is intact"
    if done or found:
        yield f"{source}{_repeated(steps, done)}"
    if done and not found:
        yield f"checkpoint: {overview(directory.path).no_checkpoint}"
    if changed := changed_settings(events):
        yield f"changed by `asyncrl set`: {', '.join(f'{key} = {value}' for key, value in changed.items())}"


def _repeated(steps: int, done: int) -> str:
    if steps >= done:
        return ""
    what = f"step {done} is" if done == steps + 1 else f"steps {steps + 1} to {done} are"
    return f"; {what} computed again, with the same batches"


# ── outcome ───────────────────────────────────────────────────────────────────────────────────
# The last lines of a run on the terminal: how it ended, what to look at, and where the results are.


def time_so_far(directory: RunDirectory) -> float:
    """Seconds that a run has taken up to its last record; 0 of a new one, or one whose records are damaged."""
    try:
        last = [JsonLines(path).last() or {} for path in (directory.metrics, directory.events)]
    except LedgerError:  # The broker names the damage.
        return 0.0
    return max(float(line.get("time_s") or 0.0) for line in last)


def outcome_lines(directory: RunDirectory, summary: RunSummary, before_s: float, *, can_resume: bool) -> Iterator[str]:
    """Lines about a run that has ended; ``before_s`` is what it had taken before it was resumed, 0 if it was not."""
    accuracy = ""
    if summary.base_accuracy is not None and summary.held_out_accuracy is not None:
        accuracy = f", held-out accuracy {summary.base_accuracy:.1%} -> {summary.held_out_accuracy:.1%}"
        accuracy += failed_note(summary.held_out_failed)
    resumed = f" ({summary.wall_s - before_s:.1f} s since it was resumed)" if 0 < before_s <= summary.wall_s else ""
    yield (
        f"{summary.status}: {summary.steps} of {summary.steps_planned} steps{summary.goal_note} in "
        f"{summary.wall_s:.1f} s{resumed}"
        f"{accuracy}, mean staleness {summary.staleness_mean:.2f} (max {summary.staleness_max}) policy versions"
    )
    yield from (f"failed      {sentence}" for sentence in summary.failures)
    if summary.groups_failed:
        dropped, issued = summary.groups_failed, summary.groups_issued
        yield (
            f"dropped     {dropped:,} of {issued:,} prompts ({share(dropped / issued)}), because a completion of each "
            f"failed for good: {command_line('asyncrl', 'dead-letters', directory.path)}"
        )
    if _is_all_zero(directory, summary):
        yield f"every reward was 0: look at the samples: {command_line('asyncrl', 'samples', directory.path)}"
    found = overview(directory.path)
    yield f"dashboard   {command_line('asyncrl', 'dashboard', directory.path)}"
    yield f"report      {directory.report if directory.report.exists() else 'none'}"
    if newest_file(directory.samples):
        yield f"samples     {command_line('asyncrl', 'samples', directory.path)}"
    yield f"checkpoint  {found.checkpoint or found.no_checkpoint}"
    if summary.status != "finished" and can_resume:
        yield f"resume      {command_line('asyncrl', 'resume', directory.path)}"
        yield from (f"paused      {note}" for note in pause_notes(found.paused_by, directory.path))


def _is_all_zero(directory: RunDirectory, summary: RunSummary) -> bool:
    """True if the reward of each step was 0, and the held-out accuracy too if it was measured."""
    try:
        rewards = [line.get("reward") for line in directory.read_metrics()]
    except LedgerError:
        return False
    return bool(rewards) and all(reward == 0 for reward in rewards) and not summary.held_out_accuracy
