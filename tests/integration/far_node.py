"""
`asyncrl-node` behind forwarders: ``far_node.py SPOOL_PORT FORWARDED_PORT FILE [asyncrl-node's options]``.

The spool's port is reached through another one. Each version that the engine has swapped in is appended to FILE, with
a digest of the engine's own parameters.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from asyncrl.cli.node import main
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.weights.contents.names import checkpoint_tensors
from asyncrl.wire import handshake
from asyncrl.wire.zmq_link import ZmqLink
from tests.integration.weights_digest import weights_digest

SWAP = TransformersEngine.swap


def instrument(spool_port: str, forwarded_port: str, file: Path) -> None:
    async def swap(self: TransformersEngine, policy_version: int, weights: Mapping[str, Tensor]) -> None:
        await SWAP(self, policy_version, weights)
        with file.open("a") as log:
            log.write(f"{policy_version} {weights_digest(dict(checkpoint_tensors(self._model)))}\n")

    def link(address: str, *arguments: Any, **options: Any) -> Any:
        return ZmqLink(address.replace(f":{spool_port}", f":{forwarded_port}"), *arguments, **options)

    TransformersEngine.swap = swap  # type: ignore[method-assign]
    handshake.ZmqLink = link  # type: ignore[attr-defined, assignment]


if __name__ == "__main__":
    _, spool_port, forwarded_port, name, *options = sys.argv
    instrument(spool_port, forwarded_port, Path(name))
    sys.argv[1:] = options
    main()
