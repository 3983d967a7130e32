"""One test's site: its Redis, its database, its workers, its ledger and its check of all jobs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import redis
from django.db import connection

from jobrail_django import enqueue, enqueue_many
from jobrail_django.broker.broker import Broker
from jobrail_django.broker.connection import get_broker
from jobrail_django.broker.records import QueueStats
from jobrail_django.job import Job
from jobrail_django.models import Attempt
from jobrail_django.models import Job as JobRow
from jobrail_django.taskdef import Task

from .conservation import Conservation
from .ledger import VARIABLE, Entry, Ledger
from .waiting import wait_for
from .worker import Worker

#: Settings of the probe site unless a test says otherwise: short leases, so that tests are short.
LEASE_S, REAP_S, GRACE_S = 3.0, 0.5, 5.0
#: Within this a lost job has started again or ended: a lease, a reaper's tick, and two seconds.
RECOVERED_S = LEASE_S + REAP_S + 2.0


class Rig:
    """Starts workers and enqueues jobs for one test, and knows all of both.

    Args:
        url: of the Redis that workers and client use.
        prefix: of all keys.
        folder: for the ledger and the logs.
        settings: pytest-django's, whose JOBRAIL it sets.
        queues: declared queues.
    """

    def __init__(
        self, url: str, prefix: str, folder: Path, settings: Any, queues: Sequence[str] = ("default",)
    ) -> None:
        self.url = url
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.workers: list[Worker] = []
        self.jobrail: dict[str, Any] = {
            "REDIS": url,
            "PREFIX": prefix,
            "QUEUES": list(queues),
            "LEASE_SECONDS": LEASE_S,
            "REAP_SECONDS": REAP_S,
            "GRACE_SECONDS": GRACE_S,
            # Generous, because a machine that runs all tests at once is slow; a test of the bound sets its own.
            "REDIS_TIMEOUT_SECONDS": 10,
        }
        self._settings = settings
        settings.JOBRAIL = self.jobrail
        self.conservation = Conservation(self.connect, prefix, queues)

    def connect(self) -> redis.Redis:
        """Return a client that goes past any fault proxy."""
        return redis.Redis.from_url(self.url, protocol=2, socket_timeout=5)

    @property
    def broker(self) -> Broker:
        """Return the test's own broker."""
        return get_broker()

    def configure(self, **values: Any) -> None:
        """Change settings of JobRail for the workers started from now on, and for the test."""
        self.jobrail = {**self.jobrail, **values}
        self._settings.JOBRAIL = self.jobrail

    # Workers

    def worker(
        self,
        *arguments: str,
        processes: int = 1,
        threads: int = 1,
        wait: bool = True,
        env: dict[str, str] | None = None,
        database: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Worker:
        """Start a worker, with other settings of JobRail, environment or database entry than the rig's if given."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBRAIL_REDIS", "DJANGO_"))}
        entry = {name: connection.settings_dict[name] for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT")}
        entry["NAME"] = str(entry["NAME"])
        more = {
            VARIABLE: str(self.ledger.path),
            "PROBE_JOBRAIL": json.dumps({**self.jobrail, **settings}),
            "PROBE_DATABASE": json.dumps(entry | (database or {})),
        }
        found = Worker(arguments, kept | more | (env or {}), self.folder, processes=processes, threads=threads)
        self.workers.append(found)
        return found.wait_until_ready() if wait else found

    # Jobs

    def enqueue(self, task: Task[Any, Any], *args: Any, **kwargs: Any) -> Job:
        """Enqueue a job, which from now on must not get lost."""
        job = enqueue(task, *args, **kwargs)
        self.conservation.accept([job.id], job.queue)
        return job

    def enqueue_many(self, task: Task[Any, Any], arguments: Iterable[Sequence[Any]]) -> list[Job]:
        """Enqueue many jobs of a task."""
        jobs = list(enqueue_many(task, [tuple(item) for item in arguments]))
        self.conservation.accept([job.id for job in jobs], task.options.queue_name)
        return jobs

    def stats(self, queue: str = "default") -> QueueStats:
        """Count a queue's jobs."""
        return self.broker.stats(queue)

    def starts(self, job: Job | None = None) -> list[Entry]:
        """Return the starts in the ledger, of one job or of all."""
        return self.ledger.entries(job.id if job else None)

    def wait_for_start(self, job: Job, number: int = 1, within_s: float = 15.0) -> Entry:
        """Wait until a job has started for the `number`-th time."""
        what = f"start {number} of {job}"
        return wait_for(lambda: self.starts(job)[number - 1 : number], within_s, what)[0]

    def wait_for_end(self, jobs: Iterable[Job], within_s: float = 20.0) -> float:
        """Wait until all jobs have ended; returns after how many seconds they had."""
        began = time.monotonic()
        for job in jobs:
            left_s = max(0.0, began + within_s - time.monotonic())
            assert job.wait(left_s), f"after {within_s:g} s {job} has not ended"
        return time.monotonic() - began

    def wait_until_quiet(self, within_s: float = 15.0) -> None:
        """Wait until the mirror has everything, and hold the rows to Redis."""
        queues = self.jobrail["QUEUES"]
        wait_for(lambda: not any(self.stats(q).changed for q in queues), within_s, "the mirror to have all changes")
        with self.connect() as client:
            self.conservation.assert_rows_equal_redis(client)

    def history(self, job: Job) -> list[str]:
        """Return the outcomes of a job's attempts in their order, as the rows have them."""
        return list(Attempt.objects.filter(job_id=job.id).order_by("token").values_list("outcome", flat=True))

    def row(self, job: Job) -> JobRow:
        """Return a job's row."""
        return JobRow.objects.get(pk=job.id)

    # The end

    def close(self) -> list[str]:
        """End all that the test has left; return what was wrong with any job at any time."""
        for worker in self.workers:
            worker.kill()
            print(f"--- {worker.log_file.name}\n{worker.log()}")
        return self.conservation.violations
