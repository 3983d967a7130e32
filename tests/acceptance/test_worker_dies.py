"""A worker dies as a whole, or its supervisor does: others recover its jobs in time."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from typing import Any

import pytest

from jobrail_django.models import Attempt
from jobrail_django.states import State

from ..servers import RedisServer
from .conftest import running_rig
from .harness.probe import tasks as probe
from .harness.proxy import Proxy
from .harness.rig import LEASE_S, REAP_S, RECOVERED_S, Rig
from .harness.waiting import wait_for


def test_killed_worker_is_recovered_by_another(rig: Rig) -> None:
    """C1, A4, A5: within a lease and a reaper's tick the job runs again, or is dead if it may not."""
    first = rig.worker(threads=2)
    job = rig.enqueue(probe.sleep, 60.0, later=0.1)
    once = rig.enqueue(probe.sleep.using(max_attempts=1), 60.0)
    rig.wait_for_start(job)
    rig.wait_for_start(once)
    rig.worker(threads=2)

    killed_at = time.monotonic()
    first.kill()
    second = rig.wait_for_start(job, 2)
    rig.wait_for_end([job, once])

    assert second.at - killed_at < RECOVERED_S
    assert (job.state, job.result, job.losses) == (State.SUCCEEDED, 2, 1)
    assert (once.state, once.reason) == (State.DEAD, "lost its worker 1 time")
    assert len(rig.starts(once)) == 1
    rig.wait_until_quiet()
    assert rig.history(job) == ["lost", "succeeded"]
    attempt = Attempt.objects.get(job_id=once.id)
    assert (attempt.outcome, attempt.worker) == ("lost", first.id)


@pytest.mark.parametrize("task", [probe.sleep, probe.doze], ids=["in a system call", "in Python code"])
def test_children_end_when_their_supervisor_is_killed(rig: Rig, task: Any) -> None:
    """L14: they take nothing new, stop within a heartbeat, and nothing is orphaned."""
    first = rig.worker(processes=2, threads=1)
    running = rig.enqueue_many(task, [(30.0, 0.1)] * 2)
    for job in running:
        rig.wait_for_start(job)
    waiting = rig.enqueue(probe.ok)

    first.signal(signal.SIGKILL)
    wait_for(lambda: not first.tree(), LEASE_S / 3 + 1.0, "the children's end")

    assert rig.starts(waiting) == []
    rig.worker(processes=1, threads=3)
    for job in running:
        rig.wait_for_start(job, 2, RECOVERED_S)
    rig.wait_for_end([*running, waiting])
    assert len(rig.starts(waiting)) == 1


def test_claimed_jobs_are_safe_at_every_command(
    transactional_db: None, settings: Any, server: RedisServer, proxy: Proxy
) -> None:
    """A1: whichever command was the last that Redis had of a killed worker, no job is lost and none runs too often."""
    with running_rig(server.url, "a1", settings) as rig:
        jobs = rig.enqueue_many(probe.ok, [(i,) for i in range(200)])

        for last in range(1, 13):
            proxy.restore()
            proxy.cut_after(last)
            worker = rig.worker("--without", "upkeep", wait=False, REDIS=proxy.url)
            assert proxy.has_cut.wait(20), f"the worker has not sent {last} commands:\n{worker.log()}"
            worker.kill()
        killed_at = time.monotonic()
        rig.worker()
        wait_for(lambda: not rig.stats().running, RECOVERED_S, "the end of the dead workers' leases")
        assert time.monotonic() - killed_at < RECOVERED_S
        rig.wait_for_end(jobs)

        assert {job.state for job in jobs} == {State.SUCCEEDED}
        assert [job.result for job in jobs] == list(range(200))
        rig.wait_until_quiet()
        assert {rig.history(job)[-1] for job in jobs} == {"succeeded"}


def test_unstarted_jobs_are_not_held_by_a_worker(rig: Rig) -> None:
    """A6: a worker claims what it can start, so that an idle one gets the rest at once."""
    first = rig.worker(threads=2)
    jobs = rig.enqueue_many(probe.sleep, [(1.0,)] * 6)
    wait_for(lambda: len(rig.starts()) >= 2, 10, "two starts")
    assert (rig.stats().running, rig.stats().ready) == (2, 4)
    running = {entry.job for entry in rig.starts()}

    first.kill()
    rig.worker(threads=4)
    ready_at = time.monotonic()
    wait_for(lambda: len(rig.starts()) >= 6, 5, "six starts")

    assert max(entry.at for entry in rig.starts()) - ready_at < 1.0
    rig.wait_for_end(jobs)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert {job.id for job in jobs if len(rig.starts(job)) == 2} == running


def test_recovery_needs_no_worker_of_the_same_queue(
    transactional_db: None, settings: Any, redis_url: str, prefix: str
) -> None:
    """C7: any worker's reaper recovers the jobs of all queues, and runs those of its own only."""
    with running_rig(redis_url, prefix, settings, queues=("default", "b")) as rig:
        first = rig.worker("--queue", "default")
        rig.worker("--queue", "b")
        job = rig.enqueue(probe.sleep, 30.0)
        rig.wait_for_start(job)

        first.kill()
        wait_for(lambda: rig.stats().ready == 1, RECOVERED_S, "the job to be ready again")

        probe_of_b = rig.enqueue(probe.ok.using(queue_name="b"))
        rig.wait_for_end([probe_of_b])
        assert len(rig.starts(job)) == 1
        assert (job.refresh().state, job.losses) == (State.READY, 1)


def test_dead_workers_leave_the_list(rig: Rig) -> None:
    """C9: a stopped worker leaves at once, killed ones with their lease, and no key of them stays for ever."""
    workers = [rig.worker() for _ in range(3)]
    jobs = rig.enqueue_many(probe.ok, [(i,) for i in range(30)])
    rig.wait_for_end(jobs)
    ids = [worker.id for worker in workers]
    wait_for(lambda: {info.id for info in rig.broker.workers()} == set(ids), 5, "three registered workers")

    workers[0].stop()
    assert {info.id for info in rig.broker.workers()} == set(ids[1:])
    for worker in workers[1:]:
        worker.kill()
    wait_for(lambda: not rig.broker.workers(), LEASE_S + REAP_S, "the dead workers to leave the list")

    with rig.connect() as client:
        left = [
            key for key in client.scan_iter(match=f"{rig.jobrail['PREFIX']}:*") if any(i in key.decode() for i in ids)
        ]
        assert [key for key in left if not 0 < client.pttl(key) <= 60_000] == []
        register = f"{rig.jobrail['PREFIX']}:{{jobrail}}:workers"
        wait_for(lambda: not client.exists(register), 1, "the end of the list itself")


def test_delayed_job_is_in_no_workers_memory(rig: Rig) -> None:
    """A2: the worker that was there when a delayed job came dies, and the job runs on another at its time."""
    first = rig.worker()
    enqueued_at = time.monotonic()
    job = rig.enqueue(probe.ok.using(run_after=timedelta(seconds=3)))
    assert job.state is State.SCHEDULED

    first.kill()
    assert (rig.stats().scheduled, rig.stats().running) == (1, 0)
    second = rig.worker()
    rig.wait_for_end([job])

    (start,) = rig.starts(job)
    assert 3.0 <= start.at - enqueued_at < 4.5
    assert start.pid in second.children()


def test_cancelled_job_of_a_dead_worker_does_not_run_again(rig: Rig) -> None:
    """C8: the wish outlives the worker that was to fulfil it."""
    first = rig.worker()
    job = rig.enqueue(probe.sleep, 60.0)
    rig.wait_for_start(job)
    first.freeze()  # so that it cannot react
    assert job.cancel() is False
    first.kill()

    rig.worker()
    assert rig.wait_for_end([job]) < RECOVERED_S

    assert job.state is State.CANCELLED
    assert len(rig.starts(job)) == 1
    rig.wait_until_quiet()
    assert rig.row(job).cancel_requested
