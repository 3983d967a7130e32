"""Workers beside each other, and jobs one after the other in the same place."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from jobrail_django.states import State

from .harness.probe import fresh
from .harness.probe import tasks as probe
from .harness.proxy import Proxy
from .harness.rig import Rig
from .harness.waiting import wait_for
from .harness.worker import cpu_s


def test_two_workers_start_each_job_once(rig: Rig) -> None:
    """B6, H1: both take part, and no job is started by both."""
    workers = [rig.worker(processes=2, threads=2), rig.worker(processes=2, threads=2)]

    jobs = rig.enqueue_many(probe.ok, [(i,) for i in range(500)])
    rig.wait_for_end(jobs, 60)

    assert [job.result for job in jobs] == list(range(500))
    started = Counter(entry.job for entry in rig.starts())
    assert len(started) == 500
    assert set(started.values()) == {1}
    pids = {entry.pid for entry in rig.starts()}
    assert all(pids & set(worker.children()) for worker in workers)
    rig.wait_until_quiet(30)


def test_job_of_the_next_release_waits_for_a_worker_that_knows_it(rig: Rig) -> None:
    """A7: it is parked, named, uncharged and never thrown away; the other jobs run on."""
    old = rig.worker()
    job = rig.enqueue(fresh.brand_new)
    others = rig.enqueue_many(probe.ok, [(i,) for i in range(20)])

    rig.wait_for_end(others)
    wait_for(lambda: job.refresh().state is State.RETRYING, 5, "the job to be parked")
    assert fresh.brand_new.name in job.reason
    assert (job.attempts, job.losses) == (0, 0)
    assert old.log().count("Job parked") == 1
    old.stop()
    rig.worker(env={"PROBE_NEW_CODE": "1"})
    job.retry()
    rig.wait_for_end([job])

    assert (job.state, job.result) == (State.SUCCEEDED, "new")
    assert len(rig.starts(job)) == 1
    rig.wait_until_quiet()
    assert rig.history(job) == ["succeeded"]


def test_language_and_time_zone_stay_with_their_job(rig: Rig) -> None:
    """I11: the next job on the same thread finds the site's own."""
    rig.worker()
    abroad = rig.enqueue(probe.speak, "de", "Asia/Tokyo")
    at_home = rig.enqueue(probe.overhear)

    rig.wait_for_end([abroad, at_home])

    assert abroad.state is State.DEAD
    assert at_home.result == ["en-gb", "Europe/Berlin"]
    assert len({entry.pid for entry in rig.starts()}) == 1


@pytest.mark.slow
def test_idle_worker_costs_two_calls_a_second(own_rig: Rig, proxy: Proxy) -> None:
    """H17: for one queue, with the default settings; and almost no processor time."""
    for name in ("LEASE_SECONDS", "REAP_SECONDS", "GRACE_SECONDS"):
        own_rig.jobrail.pop(name)
    worker = own_rig.worker(processes=2, threads=4, REDIS=proxy.url)
    own_rig.wait_for_end(own_rig.enqueue_many(probe.ok, [(i,) for i in range(20)]))
    time.sleep(2)  # let it come to rest

    before, used_s = proxy.commands.copy(), cpu_s(worker.tree())
    time.sleep(20)
    calls, used_s = proxy.commands - before, cpu_s(worker.tree()) - used_s

    assert sum(calls.values()) <= 2 * 20, calls
    assert used_s < 0.02 * 20
