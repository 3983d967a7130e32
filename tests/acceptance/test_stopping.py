"""Signals and other reasons to stop: what runs ends well or is handed back, and nothing is charged."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest

from jobrail_django.states import State

from .harness.probe import tasks as probe
from .harness.proxy import Proxy
from .harness.rig import Rig


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_signal_to_the_whole_group_lets_the_job_end(rig: Rig, number: int) -> None:
    """L1: also when a wrapper forwards a copy of it 50 ms later; nothing is claimed after it."""
    worker = rig.worker()
    job = rig.enqueue(probe.sleep, 2.0)
    rig.wait_for_start(job)
    waiting = rig.enqueue(probe.ok)

    worker.signal_group(number)
    time.sleep(0.05)
    worker.signal(number)
    took_s = worker.wait(10)

    assert worker.process.returncode == 0
    assert took_s < 2.0 + 2.0
    assert worker.tree() == []
    assert (job.refresh().state, job.result) == (State.SUCCEEDED, 1)
    assert waiting.refresh().state is State.READY
    assert rig.starts(waiting) == []
    rig.wait_until_quiet()
    assert rig.history(job) == ["succeeded"]


def test_job_longer_than_the_grace_is_handed_over_uncharged(rig: Rig) -> None:
    """L3: at every one of several deploys, though the job may be attempted only once."""
    job = rig.enqueue(probe.sleep.using(max_attempts=1, max_losses=1), 60.0)
    deploys = 4
    worker = rig.worker("--grace", "0.5")
    for number in range(1, deploys + 1):
        rig.wait_for_start(job, number)
        following = rig.worker("--grace", "0.5")

        worker.signal(signal.SIGTERM)
        took_s = worker.wait(10)
        ended_at = time.monotonic()
        start = rig.wait_for_start(job, number + 1)

        assert worker.process.returncode == 0
        assert took_s < 0.5 + 2.0
        assert start.at - ended_at < 2.0
        assert start.pid in following.children()
        worker = following
    assert job.refresh().state is State.RUNNING
    assert (job.attempts, job.losses) == (0, 0)
    rig.wait_until_quiet()
    assert rig.history(job) == ["released"] * deploys


def test_second_signal_stops_at_once(rig: Rig) -> None:
    """L3: the job is ready for others at once, and uncharged."""
    worker = rig.worker("--grace", "60")
    job = rig.enqueue(probe.sleep, 60.0)
    rig.wait_for_start(job)

    worker.signal(signal.SIGTERM)
    time.sleep(1.0)  # a copy that comes at once counts as the same signal
    assert worker.is_alive()
    worker.signal(signal.SIGTERM)
    took_s = worker.wait(10)

    assert worker.process.returncode == 0
    assert took_s < 2.0
    assert worker.tree() == []
    assert (job.refresh().state, job.attempts, job.losses) == (State.READY, 0, 0)


@pytest.mark.parametrize("how", sorted(probe.WAYS_TO_WAIT))
def test_stuck_handler_does_not_hinder_the_stop(rig: Rig, how: str) -> None:
    """L5: whatever the handler sits in, the worker ends within the grace and three seconds."""
    worker = rig.worker("--grace", "0.5")
    job = rig.enqueue(probe.block, how)
    rig.wait_for_start(job)

    worker.signal(signal.SIGTERM)

    assert worker.wait(10) < 0.5 + 3.0
    assert worker.process.returncode == 0
    assert worker.tree() == []
    assert (job.refresh().state, job.attempts, job.losses) == (State.READY, 0, 0)


def test_idle_worker_stops_within_two_seconds(rig: Rig) -> None:
    """L5: while it waits for work."""
    worker = rig.worker(processes=2, threads=4)
    rig.wait_for_end([rig.enqueue(probe.ok)])

    assert worker.stop() < 2.0


def test_worker_stops_while_redis_is_mute(own_rig: Rig, proxy: Proxy) -> None:
    """L5: with a job running and connections on which nothing comes back any more."""
    worker = own_rig.worker("--grace", "1", REDIS=proxy.url)
    job = own_rig.enqueue(probe.sleep, 60.0)
    own_rig.wait_for_start(job)
    proxy.stall(new_ones=True)

    worker.signal(signal.SIGTERM)

    assert worker.wait(20) < 10.0
    assert worker.tree() == []


def test_burst_ends_when_all_is_done(rig: Rig) -> None:
    """It waits for retries, and not for what is due later."""
    jobs = rig.enqueue_many(probe.ok, [(i,) for i in range(50)])
    retried = rig.enqueue(probe.fail, 2)
    later = rig.enqueue(probe.ok.using(run_after=timedelta(hours=1)))

    worker = rig.worker("--burst", processes=2, wait=False)
    worker.wait(20)

    assert worker.process.returncode == 0, worker.log()
    assert worker.tree() == []
    assert {job.refresh().state for job in [*jobs, retried]} == {State.SUCCEEDED}
    assert retried.result == 3
    assert later.refresh().state is State.SCHEDULED
    rig.wait_until_quiet(0)


def test_children_are_replaced_after_their_share_of_jobs(rig: Rig) -> None:
    """L11: none of the jobs is lost or run twice on the way."""
    worker = rig.worker("--max-jobs", "10", processes=2)
    jobs = []
    for _ in range(8):
        jobs += rig.enqueue_many(probe.ok, [(i,) for i in range(10)])
        rig.wait_for_end(jobs)

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert len(rig.starts()) == 80
    assert len({entry.pid for entry in rig.starts()}) >= 3
    assert "died" not in worker.log()
    rig.wait_until_quiet()
