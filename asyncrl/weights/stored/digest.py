"""Digest of a complete version, to tell that two copies are the same bit for bit."""

import hashlib
import struct

from asyncrl.weights.contents.checksum import Checksum
from asyncrl.weights.staging import Staging


def digest(staging: Staging, checksum: Checksum) -> str:
    """sha256 in hex over the layout's hash and the checksum of every bucket; see `Checksum` for what it detects."""
    sums = [checksum(bucket) for bucket in staging.buckets]
    return hashlib.sha256(bytes.fromhex(staging.layout.hash) + struct.pack(f"<{len(sums)}q", *sums)).hexdigest()
