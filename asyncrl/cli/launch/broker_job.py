"""The broker's process holds the run directory, listens, and leaves its address and credentials for local nodes."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

from asyncrl.cli.launch.staleness_process import choose_staleness
from asyncrl.cli.terminal import echo
from asyncrl.client.run_address import leave_credentials, remove_credentials
from asyncrl.config.addresses import announced, bound_again, check_address, reached, tcp
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError, ToldToLeave
from asyncrl.node.machine.local_address import outward_address
from asyncrl.node.process.process import Job, Stopping
from asyncrl.observe.run_directory import RunDirectory


def broker_job(
    *,
    config_path: Path | None,
    overrides: tuple[str, ...],
    address: str | None,
    run_dir: Path | None,
    secret_file: Path | None,
    key_folder: Path | None,
    is_traced: bool = False,
) -> Job:
    """
    Job that serves the run in ``run_dir``, which is made if it does not exist.

    With ``is_traced`` it sends the spans of the run to the collector that the environment names.

    Raises:
        ConfigError: The run file is missing or wrong, or the address is.
    """
    from asyncrl.actor.sockets.tcp import require_bindable
    from asyncrl.data.run_length import resolve_steps
    from asyncrl.files.access import restrict_umask
    from asyncrl.files.atomic import replacing
    from asyncrl.files.disk import needed
    from asyncrl.node.broker.broker import raise_file_limit, raise_gc_threshold, run_broker
    from asyncrl.node.broker.broker_keys import broker_keys, require_keys
    from asyncrl.node.broker.run_folder import held_run, is_complete
    from asyncrl.node.hub import with_local_copies
    from asyncrl.node.process.traces import require_opentelemetry, spans_sent

    if is_traced:
        require_opentelemetry()

    if config_path is None:
        raise ConfigError("--config FILE is missing: the broker needs the run's configuration")
    if address:
        check_address(address, "--broker", binds=True)
        overrides = (*overrides, f'broker.bind="{address}"')
    config = resolve_steps(with_local_copies(load_config(config_path, overrides), partial(echo, err=True)))
    path = run_dir or Path(config.run.dir) / (config.run.name or config_path.stem)

    async def job(stopping: Stopping) -> None:
        if is_complete(path, config):
            echo(f"the run in {path} is complete; to train it longer, raise run.steps", err=True)
            return
        restrict_umask(group_reads=config.run.share_with_group)
        raise_gc_threshold()
        raise_file_limit()
        require_keys(config.broker, key_folder)
        if not RunDirectory(path).config.is_file():  # A broker that cannot listen leaves no new run behind.
            for binds in (config.broker.binds, config.broker.spool_binds):
                require_bindable([at for at in binds if at.startswith("tcp://")])
        with held_run(path, config, secret_file) as run:
            keys = broker_keys(run, key_folder)
            # A restarted broker listens on its old port, where its nodes look for it.
            recorded = run.directory.address
            before = recorded.read_text().split() if recorded.exists() else []
            bind = bound_again(run.config.broker.binds, before)

            def listening(bound: list[str]) -> None:
                via = tcp(outward_address(), 0)
                for_nodes = [reached(announced([at], run.config.broker.advertise), via) for at in bound]
                with needed(recorded), replacing(recorded, durable=False) as unfinished:
                    unfinished.write_text("".join(f"{at}\n" for at in for_nodes))
                for at in for_nodes:
                    leave_credentials(at, keys.credentials_file)

            try:
                async with spans_sent(run.directory.path.name) if is_traced else nullcontext() as send_spans:
                    await run_broker(
                        run.config,
                        run.directory,
                        bind=bind,
                        keys=keys,
                        listening=listening,
                        stopping=stopping,
                        choose_staleness=choose_staleness,
                        send_spans=send_spans,
                    )
            finally:
                for at in recorded.read_text().split() if recorded.exists() else []:
                    remove_credentials(at)
        if stopping.by_signal and not is_complete(path, config):
            raise ToldToLeave("a signal told the broker to stop; started again, it continues the run")

    return job
