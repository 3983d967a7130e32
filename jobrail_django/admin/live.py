"""What Redis says at the moment, for pages that show rows; a page never fails because Redis is away."""

from __future__ import annotations

from dataclasses import dataclass

from ..broker.records import JobRecord
from ..client import queue_stats
from ..errors import BrokerError, ConfigurationError
from .display import period

#: A lag below this, in ms, is not worth a line.
SMALL_LAG_MS = 2_000


@dataclass(frozen=True, slots=True)
class Notice:
    """A line above the page. `is_warning`: people should act, or know that what they see may be wrong."""

    text: str
    is_warning: bool


def mirror_notice() -> Notice:
    """Say how far the mirror is behind; asks Redis once for each queue, for a second at most when it is away."""
    try:
        found = queue_stats().values()
    except (BrokerError, ConfigurationError) as exc:
        return Notice(f"Redis unreachable: this page shows what was last mirrored. {exc}", True)
    lag_ms = max((stats.lag_ms or 0 for stats in found), default=0)
    changed = sum(stats.changed for stats in found)
    if lag_ms < SMALL_LAG_MS:
        return Notice("These rows are up to date with Redis.", False)
    return Notice(
        f"The mirror is {period(lag_ms / 1000)} behind Redis, with {changed} job{'' if changed == 1 else 's'} to store. "
        f"If this grows, no worker with upkeep is running.",
        True,
    )


def job_notice(record: JobRecord | None, *, rev: int, is_final: bool) -> Notice | None:
    """Say where a job's row differs from what Redis holds, None where it does not."""
    if record is None:
        if is_final:
            return None
        return Notice("Not in Redis: Redis does not hold this job, although its row says that it has not ended.", True)
    if record.rev > rev:
        return Notice(f"Redis is ahead of this row: the job is {record.state} there.", False)
    return None
