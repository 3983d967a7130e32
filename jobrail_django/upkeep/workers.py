"""The register of workers: copies Redis's list of live workers to `Worker` rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ..broker.broker import Broker
from ..models import Worker
from .database import writing
from .rows import moment, worker_row

#: How long the row of a worker that is gone stays, so that its attempts can still be traced to a host.
KEEP = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCounts:
    """What one run has done.

    Attributes:
        alive: workers that Redis knows.
        gone: workers that were missed for the first time.
        removed: rows that were old enough to go.
    """

    alive: int = 0
    gone: int = 0
    removed: int = 0


class WorkerRegister:
    """Keeps the `Worker` rows equal to what Redis knows; several may run at once.

    Args:
        broker: where workers register.
        using: database alias of JobRail's rows.
        clock: seconds since 1970.
    """

    def __init__(self, broker: Broker, *, using: str, clock: Callable[[], float] = time.time) -> None:
        self._broker = broker
        self._using = using
        self._clock = clock

    def run_once(self) -> WorkerCounts:
        """Write the workers that are alive, mark those that are gone, remove those gone for a week.

        Raises:
            BrokerUnavailable: nothing was written; try again later.
            django.db.DatabaseError: nothing was written; try again later.
            ConfigurationError: the tables are missing.
        """
        alive = self._broker.workers()
        now = moment(int(self._clock() * 1000))
        ids = [info.id for info in alive]
        with writing(self._using):
            rows = Worker.objects.using(self._using)
            rows.upsert([worker_row(info) for info in alive], guard="seen_at")
            gone = rows.filter(gone_at=None).exclude(id__in=ids).update(gone_at=now)
            removed, _ = rows.filter(gone_at__lt=now - KEEP).delete()
        return WorkerCounts(alive=len(alive), gone=gone, removed=removed)
