"""Recovers jobs whose workers are gone, and makes due jobs ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..broker.broker import BATCH, Broker
from ..log import extra

logger = logging.getLogger(__name__)

#: Most batches that one run spends on one queue, so that no queue keeps the others waiting.
BATCHES = 50


@dataclass(frozen=True, slots=True)
class ReapCounts:
    """What one run did, over all queues.

    Attributes:
        recovered: jobs whose lease had expired.
        promoted: jobs that became ready because they were due.
        unmirrored: jobs that wait for the mirror.
    """

    recovered: int
    promoted: int
    unmirrored: int


class Reaper:
    """Looks after the leases and the due times of queues. Any number may work at once, with or without the same queues.

    Args:
        broker: the connection.
        queues: names of queues; those without workers of their own too.
        lease_ms: length of a lease.
        clock: seconds that only grow.
    """

    def __init__(
        self, broker: Broker, queues: Sequence[str], lease_ms: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._looked_s: dict[str, float] = {}
        self._queues = queues
        self._gap_ms = lease_ms // 2
        self._hold_ms = lease_ms // 3

    def run_once(self) -> ReapCounts:
        """Go through all queues once.

        When its own last look at a queue is older than half a lease, or there was none, Redis or this reaper was away,
        and so perhaps were the heartbeats: then nothing of that queue is recovered for the length of one heartbeat.

        Raises:
            BrokerError: Redis failed; the queues before the failure have been served.
        """
        recovered = promoted = unmirrored = 0
        for queue in self._queues:
            was_away = self._clock() - self._looked_s.get(queue, float("-inf")) > self._gap_ms / 1000
            gap_ms = 0 if was_away else self._gap_ms
            for _ in range(BATCHES):
                reaped = self._broker.reap(queue, limit=BATCH, gap_ms=gap_ms, hold_ms=self._hold_ms)
                self._looked_s[queue], gap_ms = self._clock(), self._gap_ms
                recovered += len(reaped.recovered)
                self._report(queue, reaped.recovered)
                if not reaped.more:
                    break
            unmirrored += reaped.changed
            if reaped.due:
                promoted += self._promote(queue)
        return ReapCounts(recovered, promoted, unmirrored)

    def _promote(self, queue: str) -> int:
        total = 0
        for _ in range(BATCHES):
            moved = self._broker.promote(queue, BATCH).moved
            total += moved
            if moved < BATCH:
                break
        return total

    def _report(self, queue: str, recovered: Sequence[tuple[str, str]]) -> None:
        for job_id, state in recovered:
            logger.warning(
                "Job recovered, its lease had expired: job_id=%s queue=%s state=%s",
                job_id,
                queue,
                state,
                extra=extra("job_recovered", job_id=job_id, queue=queue, state=state),
            )
