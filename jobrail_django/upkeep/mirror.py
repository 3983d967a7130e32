"""The mirror: copies what changed in Redis to the database's rows.

Redis keeps, for each queue, the ids that have changed since they were last stored. The mirror takes a
batch of them, writes the rows in one transaction, and only then tells Redis what it has stored. So it
has no position to lose: killed at any step, run twice or beside other mirrors, it writes the same rows, and a
row never goes back to an older `rev`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import DataError, IntegrityError

from ..broker.broker import Broker
from ..broker.records import Changes, JobRecord
from ..errors import ScriptError
from ..log import extra
from ..models import Attempt, Job, Queue
from ..querysets import Row
from .database import writing
from .rows import attempt_row, job_row, moment, queue_row, unreadable_row

log = logging.getLogger(__name__)

#: Jobs of one queue in one run.
BATCH = 100

#: Bytes of payloads, results and errors in one transaction. Keeps a statement below MariaDB's packet limit of 16 MiB,
#: and a transaction short on SQLite, where it keeps all other writers waiting.
BATCH_BYTES = 2 * 1024 * 1024

#: Seconds between two writes of a queue's own row while the mirror has not caught up.
QUEUE_ROW_S = 1.0

#: Ids named in one log line.
NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorCounts:
    """What one run has done.

    Attributes:
        jobs: jobs stored; a job that had been stored before counts as well.
        attempts: attempts stored, likewise.
        dropped: changes given up, because Redis has no such job or nobody can read it.
        lag_ms: age of the oldest change over all queues, before this run.
        more: a queue has changes that this run did not read.
    """

    jobs: int = 0
    attempts: int = 0
    dropped: int = 0
    lag_ms: int = 0
    more: bool = False

    def __add__(self, other: MirrorCounts) -> MirrorCounts:
        """Count two runs as one."""
        return MirrorCounts(
            jobs=self.jobs + other.jobs,
            attempts=self.attempts + other.attempts,
            dropped=self.dropped + other.dropped,
            lag_ms=max(self.lag_ms, other.lag_ms),
            more=self.more or other.more,
        )


@dataclass(frozen=True, slots=True)
class _Item:
    """One job's record and its rows."""

    record: JobRecord
    job: Row
    attempts: Sequence[Row]


class Mirror:
    """Writes the changed jobs of some queues to the database.

    Used by one thread at a time; any number of mirrors may work on the same queues.

    Args:
        broker: where the queues are.
        queues: names of the queues.
        using: database alias of JobRail's rows.
        clock: seconds since 1970.
    """

    def __init__(
        self, broker: Broker, queues: Iterable[str], *, using: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._broker = broker
        self._using = using
        self._clock = clock
        self._queues = {queue: _QueueRow() for queue in queues}

    def run_once(self) -> MirrorCounts:
        """Store up to 100 changed jobs of each queue.

        Safe to repeat, and to be killed at any point. A job that does not fit into a row gets a row that says so;
        a change without a readable job is dropped. Neither stops the others.

        Raises:
            BrokerUnavailable: try again later; what was stored stays stored.
            ScriptError: of one of the queues; the others were done.
            django.db.DatabaseError: try again later.
            ConfigurationError: the tables are missing.
        """
        total, fault = MirrorCounts(), None
        for queue in self._queues:
            try:
                total += self._run_queue(queue)
            except ScriptError as exc:
                fault = fault or exc
        if fault:
            raise fault
        return total

    def _run_queue(self, queue: str) -> MirrorCounts:
        changes = self._broker.changes(queue, BATCH)
        counts = self._mirror(queue, changes) if changes.total else MirrorCounts()
        self._note_queue(queue, counts)
        return counts

    def _mirror(self, queue: str, changes: Changes) -> MirrorCounts:
        stored_at = moment(int(self._clock() * 1000))
        dropped = list(changes.gone)
        items = []
        for record in changes.jobs:
            item = _item(record, stored_at)
            if item is None:
                dropped.append((record.id, record.rev))
            else:
                items.append(item)
        for part in _parts(items):
            self._store(part, stored_at)
            self._broker.mirrored(queue, [(item.record.id, item.record.rev) for item in part])
        if dropped:
            ids = [job_id for job_id, _ in dropped[:NAMED]]
            text = "mirror dropped changes of jobs that are missing or unreadable queue=%s count=%d ids=%s"
            log.error(text, queue, len(dropped), ids, extra=extra("mirror_dropped", queue=queue))
            self._broker.mirrored(queue, dropped)
        return MirrorCounts(
            jobs=len(items),
            attempts=sum(len(item.attempts) for item in items),
            dropped=len(dropped),
            lag_ms=changes.lag_ms,
            more=changes.total > len(items) + len(dropped),
        )

    def _store(self, items: Sequence[_Item], stored_at: datetime) -> None:
        """Write the rows in one transaction; where the database refuses a value, each job in its own."""
        try:
            self._write(items)
        except (DataError, IntegrityError) as exc:
            if len(items) > 1:
                for item in items:
                    self._store([item], stored_at)
                return
            record = items[0].record
            log.exception("mirror could not store a job job_id=%s", record.id, extra=extra("mirror_unreadable"))
            self._write([_Item(record, unreadable_row(record, exc, stored_at), ())])

    def _write(self, items: Sequence[_Item]) -> None:
        attempts = [row for item in items for row in item.attempts]
        with writing(self._using):
            jobs = Job.objects.using(self._using)
            jobs.upsert([item.job for item in items], guard="rev", keep=("error_type", "error_message"))
            Attempt.objects.using(self._using).insert_missing(attempts, key=("job_id", "claim"))

    def _note_queue(self, queue: str, counts: MirrorCounts) -> None:
        """Write the queue's own row after changes, at most once a second."""
        row = self._queues[queue]
        row.outdated = row.outdated or counts.jobs + counts.dropped > 0
        if not row.outdated or time.monotonic() - row.written_s < QUEUE_ROW_S:
            return
        stats = self._broker.stats(queue)
        with writing(self._using):
            values = queue_row(queue, stats, moment(int(self._clock() * 1000)))
            Queue.objects.using(self._using).upsert([values], guard="mirrored_at")
        row.outdated, row.written_s = False, time.monotonic()


@dataclass(slots=True)
class _QueueRow:
    """When a queue's row was last written, and whether anything has changed since."""

    written_s: float = 0.0
    outdated: bool = False


def _item(record: JobRecord, stored_at: datetime) -> _Item | None:
    """Build a job's rows, or a bare row where its record does not fit; None where not even that is possible."""
    try:
        job = job_row(record, stored_at)
        return _Item(record, job, [attempt_row(record.id, attempt) for attempt in record.history])
    except (ValueError, OverflowError, OSError) as exc:
        fault = exc
    try:
        bare = unreadable_row(record, fault, stored_at)
    except ValueError:
        return None
    log.error("mirror could not store a job job_id=%s: %s", record.id, fault, extra=extra("mirror_unreadable"))
    return _Item(record, bare, ())


def _parts(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Cut a batch into parts of about `BATCH_BYTES` at most, at least one job each."""
    start, size = 0, 0
    for i, item in enumerate(items):
        weight = _weight(item.record)
        if i > start and size + weight > BATCH_BYTES:
            yield items[start:i]
            start, size = i, 0
        size += weight
    if items:
        yield items[start:]


def _weight(record: JobRecord) -> int:
    return len(record.payload) + len(record.result or b"") + sum(len(a.error or b"") for a in record.history)
