"""
Checkpoints of a trainer whose machine does not see the run directory: from the broker's machine, and to it.

    no checkpoint here as new as there     fetched before the ranks start
    a checkpoint written                   copied before its steps count as saved
"""

from pathlib import Path

from asyncrl.client.checkpoints import CheckpointSender, fetch_newest
from asyncrl.client.handshake import Identity, hosted_links
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import from_json
from asyncrl.log import get_logger
from asyncrl.messages.session import Welcome
from asyncrl.node.trainer.checkpoint_folder import checkpoint_folder, shared_folder

log = get_logger()


async def fetch_checkpoint(welcome: Welcome, run: RunAddress, who: Identity) -> None:
    """
    Fetch the newest checkpoint of the broker's machine if this one has none as new.

    Raises:
        LinkError, RunFailed: It cannot be fetched, or not be stored.
    """
    folder, shared = checkpoint_folder(welcome), shared_folder(welcome)
    if folder != shared and (connect := hosted_links(welcome.spools, who, run, ".checkpoint")):
        link = connect()
        try:
            await fetch_newest(link, str(shared), folder)
        finally:
            await link.aclose()


def checkpoint_sender(folder: Path, welcome: Welcome, run: RunAddress, who: Identity) -> CheckpointSender | None:
    """Sender of the checkpoints in this machine's ``folder``; None if they need not, or cannot, be sent."""
    if not from_json(welcome.config).checkpoint.copy_to_broker or folder == shared_folder(welcome):
        return None
    if (connect := hosted_links(welcome.spools, who, run, ".checkpoints")) is None:
        log.warning("checkpoint.stays", folder=str(folder), cause="broker.spool is false: no spool takes a copy of it")
        return None
    return CheckpointSender(folder, connect)
