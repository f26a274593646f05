"""Segments of each spool that are still needed, once groups are done with. Each spool numbers its own."""

from collections.abc import Iterable

from asyncrl.broker.groups.group import Group


def first_needed(done: Iterable[Group], needed: Iterable[Group]) -> dict[str, int]:
    """
    First segment that each spool must keep, by the spool's name.

    It is the oldest one with a payload of the ``needed`` groups; without any, the newest one with a payload of those
    that are ``done``, because its number must not be used again.
    """
    newest_done = {spool: max(segments) for spool, segments in _segments(done).items()}
    oldest_needed = {spool: min(segments) for spool, segments in _segments(needed).items()}
    return newest_done | oldest_needed


def _segments(groups: Iterable[Group]) -> dict[str, set[int]]:
    """Segments that hold payloads of these groups, by spool."""
    found: dict[str, set[int]] = {}
    for ref in (slot.ref for group in groups for slot in group.slots if slot.ref):
        found.setdefault(ref.spool, set()).add(ref.segment)
    return found
