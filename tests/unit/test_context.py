"""The running job as its task sees it."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta, timezone

from jobrail_django.context import RunningJob, current_job, running


def make_job(**changed):
    return RunningJob(**{"id": "a", "task": "t", "queue": "q", "attempt": 1, "max_attempts": 3, "token": 7} | changed)


def test_outside_of_a_job_there_is_none():
    assert current_job() is None


def test_inside_of_the_block_it_is_the_job_and_after_it_the_one_before():
    outer, inner = make_job(id="outer"), make_job(id="inner")

    with running(outer):
        with running(inner):
            assert current_job() is inner
        assert current_job() is outer

    assert current_job() is None


def test_block_left_by_an_exception_restores():
    try:
        with running(make_job()):
            raise OSError
    except OSError:
        pass

    assert current_job() is None


def test_another_thread_is_outside_of_the_job():
    seen = []

    with running(make_job()):
        thread = threading.Thread(target=lambda: seen.append(current_job()))
        thread.start()
        thread.join()

    assert seen == [None]


def test_two_asyncio_tasks_have_their_own_jobs():
    async def body(name):
        with running(make_job(id=name)):
            await asyncio.sleep(0)
            return current_job().id

    async def both():
        return await asyncio.gather(body("a"), body("b"))

    assert asyncio.run(both()) == ["a", "b"]


def test_cancel_asked_for_is_seen():
    job = make_job()

    assert not job.cancelled
    job.cancel_event.set()
    assert job.cancelled


def test_deadline_is_aware_and_remaining_never_negative():
    job = make_job(deadline_s=time.monotonic() + 60)

    assert timedelta(seconds=50) < job.remaining <= timedelta(seconds=60)
    assert abs(job.deadline - datetime.now(timezone.utc) - timedelta(seconds=60)) < timedelta(seconds=5)
    assert make_job(deadline_s=time.monotonic() - 1).remaining == timedelta(0)


def test_without_timeout_there_is_no_deadline():
    assert make_job().deadline is None
    assert make_job().remaining is None
