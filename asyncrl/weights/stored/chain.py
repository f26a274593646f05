"""
Choice of the stored file that a rollout reads next.

    anchor 20 ─▶ delta 21 ─▶ delta 22 ─▶ delta 23        held 22: delta 23        held nothing, or 7: the anchor

Versions are compared by digest. After a restart of the trainer a number may stand for other weights than before, and
a delta must meet the base that it was made from.
"""

from collections.abc import Sequence

from asyncrl.errors import TransferError
from asyncrl.messages.weights import StoredWeights, WeightsFile


def next_file(
    files: Sequence[WeightsFile], policy_version: int, held: str, unfinished: StoredWeights | None = None
) -> WeightsFile | None:
    """
    The next file to read on the way to ``policy_version``; None if that version is held.

    Args:
        files: Oldest first.
        held: Digest of the complete version held; empty if there is none.
        unfinished: File that was read in part.

    Raises:
        TransferError: No stored files lead to the version.
    """
    leading = _leading(files, policy_version)
    target = leading[0].digest if leading else ""
    if target and held == target:
        return None
    deltas = [weights for weights in leading if weights.base_digest == held and not weights.is_anchor]
    anchors = [weights for weights in leading if weights.is_anchor]
    chosen = [weights for weights in leading if weights == unfinished] or deltas or anchors
    if not chosen:
        raise TransferError(f"the spool has no files that lead to version {policy_version}")
    return next(file for file in files if file.weights == chosen[0])


def _leading(files: Sequence[WeightsFile], policy_version: int) -> list[StoredWeights]:
    """Files on the way to a version: those that end at it, newest first, then those that end at their bases, ..."""
    newest_first = [file.weights for file in reversed(files)]
    targets = [weights.digest for weights in newest_first if weights.policy_version == policy_version][:1]
    leading: list[StoredWeights] = []
    while targets:
        found = [weights for weights in newest_first if weights.digest in targets and weights not in leading]
        leading += found
        targets = [weights.base_digest for weights in found if not weights.is_anchor]
    return leading
