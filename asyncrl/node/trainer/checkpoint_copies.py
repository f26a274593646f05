"""
Checkpoints of a trainer whose machine does not see the run directory: from the broker's machine, and to it.

    no checkpoint here as new as there     fetched before the ranks start
    a checkpoint written                   copied before its steps count as saved
"""

from functools import partial

from asyncrl.client.checkpoints import CheckpointSender, fetch_newest
from asyncrl.client.handshake import Identity, spool_connector
from asyncrl.client.run_address import RunAddress
from asyncrl.client.spools import hosted_spool
from asyncrl.config.sections import from_json
from asyncrl.log import get_logger
from asyncrl.messages import Welcome
from asyncrl.node.trainer.checkpoint_folder import checkpoint_folder, shared_folder

log = get_logger()


async def fetch_checkpoint(welcome: Welcome, run: RunAddress, who: Identity) -> None:
    """
    Fetch the newest checkpoint of the broker's machine if this one has none as new.

    Raises:
        LinkError, RunFailed: It cannot be fetched, or not be stored.
    """
    if not _is_shared(welcome) and (spool := hosted_spool(welcome.spools, run.broker)):
        link = spool_connector(who, run.keys(), ".checkpoint")(spool)
        try:
            await fetch_newest(link, str(shared_folder(welcome)), checkpoint_folder(welcome))
        finally:
            await link.aclose()


def checkpoint_sender(welcome: Welcome, run: RunAddress, who: Identity) -> CheckpointSender | None:
    """Sender of the checkpoints of this machine; None if they need not, or cannot, be sent."""
    if not from_json(welcome.config).checkpoint.copy_to_broker or _is_shared(welcome):
        return None
    folder = checkpoint_folder(welcome)
    if (spool := hosted_spool(welcome.spools, run.broker)) is None:
        log.warning("checkpoint.stays", folder=str(folder), cause="broker.spool is false: no spool takes a copy of it")
        return None
    return CheckpointSender(folder, partial(spool_connector(who, run.keys(), ".checkpoints"), spool))


def _is_shared(welcome: Welcome) -> bool:
    """True if this machine sees the run directory."""
    return checkpoint_folder(welcome) == shared_folder(welcome)
