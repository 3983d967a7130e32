"""The database is away: jobs that need none run on, and the rows catch up when it is back."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from jobrail_django.states import State

from .harness.probe import tasks as probe
from .harness.proxy import RawProxy
from .harness.rig import Rig


@contextmanager
def database_to_break() -> Iterator[tuple[dict[str, Any], Any, Any]]:
    """Give the database entry for workers, and how to break and to repair what is behind it."""
    if connection.vendor == "sqlite":
        blocker = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None, timeout=10)
        try:
            yield (
                {"OPTIONS": {**connection.settings_dict["OPTIONS"], "timeout": 0.2}},
                lambda: blocker.execute("BEGIN EXCLUSIVE"),
                lambda: blocker.execute("ROLLBACK"),
            )
        finally:
            blocker.close()
        return
    port = int(connection.settings_dict["PORT"] or {"postgresql": 5432, "mysql": 3306}[connection.vendor])
    with RawProxy(port) as proxy:
        yield {"HOST": "127.0.0.1", "PORT": str(proxy.port)}, lambda: proxy.cut(refuse=True), proxy.restore


@pytest.mark.db_vendor
def test_jobs_run_on_and_the_rows_catch_up(rig: Rig) -> None:
    """I6, C13: no job waits for the database, none runs again, and the mirror is complete 10 s after its return."""
    with database_to_break() as (entry, break_it, repair_it):
        worker = rig.worker(processes=2, database=entry)
        before = rig.enqueue(probe.ok)
        rig.wait_for_end([before])
        rig.wait_until_quiet()
        reads = [rig.enqueue(probe.db_read.using(backoff=1, max_attempts=20), before.id) for _ in range(3)]
        rig.wait_for_end(reads)

        break_it()
        jobs = rig.enqueue_many(probe.ok, [(i,) for i in range(50)])
        late = [rig.enqueue(probe.db_read.using(backoff=1, max_attempts=20), before.id) for _ in range(3)]
        took_s = rig.wait_for_end(jobs, 5)
        time.sleep(1.5)
        unmirrored = rig.stats().changed
        repair_it()
        rig.wait_for_end(late)
        rig.wait_until_quiet(10)

    assert took_s < 5.0
    assert unmirrored >= 50
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert [len(rig.starts(job)) for job in jobs] == [1] * 50
    assert {(job.state, job.result) for job in [*reads, *late]} == {(State.SUCCEEDED, "succeeded")}
    assert worker.is_alive()
    assert "died" not in worker.log()
