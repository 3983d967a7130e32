"""Redis restarts, goes silent, forgets its scripts, or loses replies: nothing is lost and nothing runs twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import pytest

from jobrail_django.errors import BrokerUnavailable, JobRailError
from jobrail_django.states import State

from ..servers import RedisServer
from .harness.probe import tasks as probe
from .harness.proxy import Proxy
from .harness.rig import Rig
from .harness.waiting import wait_for


@contextmanager
def meanwhile(step: Callable[[], object], every_s: float) -> Iterator[list[BaseException]]:
    """Take a step again and again in another thread while the block lasts; collects what the steps raise."""
    over, faults = threading.Event(), []

    def repeat() -> None:
        while not over.wait(every_s):
            try:
                step()
            except Exception as exc:
                faults.append(exc)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        over.set()
        thread.join(20)
        assert not thread.is_alive()


def test_restarts_under_load_lose_and_double_nothing(own_rig: Rig, server: RedisServer) -> None:
    """H1: starts resume by themselves within 5 s of each return, and every accepted job runs once."""
    workers = [own_rig.worker(threads=2), own_rig.worker(threads=2)]
    jobs = []

    with meanwhile(lambda: jobs.append(own_rig.enqueue(probe.sleep, 0.05)), 0.05) as refused:
        for down_s in (0.2, 1.0, 2.5):
            time.sleep(0.7)
            server.restart(down_s=down_s)
            before = len(own_rig.starts())
            wait_for(lambda before=before: len(own_rig.starts()) > before, 5, "a start after Redis is back")
    own_rig.wait_for_end(jobs)

    assert len(jobs) > 20
    assert {type(exc) for exc in refused} == {BrokerUnavailable}
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    wait_for(lambda: not own_rig.stats().ready and not own_rig.stats().running, 10, "the end of all jobs")
    started = Counter(entry.job for entry in own_rig.starts())
    assert {job.id for job in jobs} <= set(started)
    assert set(started.values()) == {1}
    assert all(worker.is_alive() and "died" not in worker.log() for worker in workers)
    own_rig.wait_until_quiet()


def test_long_job_outlives_an_outage_longer_than_its_lease(own_rig: Rig, server: RedisServer) -> None:
    """H1: a reaper that cannot know how long Redis was away waits for the heartbeats of those that are alive."""
    own_rig.worker("--without", "upkeep", threads=2)
    running = [own_rig.enqueue(probe.sleep, 9.0), own_rig.enqueue(probe.sleep, 2.0)]
    for job in running:
        own_rig.wait_for_start(job)

    server.kill()
    own_rig.worker("--only", "upkeep", wait=False, REAP_SECONDS=0.05)
    time.sleep(4.5)  # the lease is 3 s, and one of the two ends meanwhile
    server.start()
    own_rig.wait_for_end(running)

    assert [(job.state, job.result, job.losses) for job in running] == [(State.SUCCEEDED, 1, 0)] * 2
    assert len(own_rig.starts()) == 2
    own_rig.wait_until_quiet()


def test_shortest_lease_is_recovered_too(own_rig: Rig) -> None:
    """C1: with the reaper's usual second between two looks, which is a whole lease here."""
    own_rig.configure(LEASE_SECONDS=1, REAP_SECONDS=1)
    first = own_rig.worker()
    job = own_rig.enqueue(probe.sleep, 60.0, later=0.1)
    own_rig.wait_for_start(job)
    own_rig.worker()

    first.kill()

    own_rig.wait_for_start(job, 2, 1 + 1 + 2)
    own_rig.wait_for_end([job])
    own_rig.wait_until_quiet()


@pytest.mark.slow
def test_silent_link_is_noticed(own_rig: Rig, proxy: Proxy) -> None:
    """H3: with the worker idle, then with a job running; connections that say nothing any more are given up."""
    worker = own_rig.worker(threads=2, REDIS=proxy.url)
    own_rig.wait_for_end([own_rig.enqueue(probe.ok)])
    time.sleep(0.5)  # now it waits for work

    proxy.stall()
    job = own_rig.enqueue(probe.sleep, 3.0)
    own_rig.wait_for_start(job, within_s=10 + 1 + 5)
    proxy.stall()
    own_rig.wait_for_end([job])

    assert (job.state, job.result, job.losses) == (State.SUCCEEDED, 1, 0)
    assert len(own_rig.starts(job)) == 1
    own_rig.wait_until_quiet()
    assert worker.log().count("Redis does not serve") < 10  # one line a process and kind of call


def test_flushed_scripts_go_unnoticed(own_rig: Rig) -> None:
    """H5: SCRIPT FLUSH twenty times a second, under jobs that succeed, fail, wait, and are cancelled."""
    own_rig.worker(processes=2, threads=2)
    ends = {State.SUCCEEDED: [], State.DEAD: [], State.CANCELLED: []}

    with own_rig.connect() as client, meanwhile(client.script_flush, 0.05) as faults:
        for _ in range(10):
            ends[State.SUCCEEDED] += own_rig.enqueue_many(probe.ok, [(i,) for i in range(100)])
            ends[State.SUCCEEDED].append(own_rig.enqueue(probe.fail, 1))
            ends[State.SUCCEEDED].append(own_rig.enqueue(probe.ok.using(run_after=timedelta(seconds=0.5)), 1))
            ends[State.DEAD].append(own_rig.enqueue(probe.fail.using(max_attempts=2)))
            cancelled = own_rig.enqueue(probe.ok.using(run_after=timedelta(hours=1)))
            assert cancelled.cancel()
            ends[State.CANCELLED].append(cancelled)
        for state, jobs in ends.items():
            own_rig.wait_for_end(jobs)
            assert {job.state for job in jobs} == {state}

    assert faults == []
    started = Counter(entry.job for entry in own_rig.starts())
    for job in ends[State.SUCCEEDED]:
        assert started[job.id] == job.attempts
    own_rig.wait_until_quiet()


@pytest.mark.parametrize("script", ["claim", "settle", "heartbeat", "reap", "changes", "mirrored", "beat"])
def test_lost_replies_of_the_worker_change_nothing(own_rig: Rig, proxy: Proxy, script: str) -> None:
    """H12: the script has run and the worker does not know; it repeats it, and all is as after one call."""
    proxy.lose_replies({script}, 4, every=2)
    proxy.lose_replies({script}, 2, silent=True)  # then a call and the one that repeats it
    own_rig.worker(threads=2, REDIS=proxy.url)

    once, twice = [], []
    for i in range(20):
        once += own_rig.enqueue_many(probe.ok, [(i,)] * 2)
        once.append(own_rig.enqueue(probe.ok.using(run_after=timedelta(seconds=0.2))))
        once.append(own_rig.enqueue(probe.doze, 0.1))
        twice.append(own_rig.enqueue(probe.fail, 1))
        time.sleep(0.1)
    if script in ("heartbeat", "beat"):
        once.append(own_rig.enqueue(probe.doze, 5.0))  # for as long as a few of them take
    own_rig.wait_for_end([*once, *twice])

    wait_for(lambda: proxy.lost[script] >= 2, 10, f"lost replies of {script}")
    assert {(job.state, job.attempts, job.losses) for job in once} == {(State.SUCCEEDED, 1, 0)}
    assert {(job.state, job.attempts, job.losses) for job in twice} == {(State.SUCCEEDED, 2, 0)}
    started = Counter(entry.job for entry in own_rig.starts())
    assert {started[job.id] for job in once} == {1}
    assert {started[job.id] for job in twice} == {2}
    own_rig.wait_until_quiet(20)


def test_lost_replies_of_the_client_change_nothing(own_rig: Rig, server: RedisServer, proxy: Proxy) -> None:
    """H12: enqueue, cancel and retry are repeated and have happened once."""
    own_rig.configure(REDIS=proxy.url)
    proxy.lose_replies({"enqueue", "cancel", "retry"}, 1000, every=2)

    jobs = [own_rig.enqueue(probe.ok, i) for i in range(30)]
    cancelled = [job.cancel() for job in jobs]
    assert {job.retry().state for job in jobs[:10]} == {State.READY}

    assert cancelled == [True] * 30
    assert {name: proxy.lost[name] for name in ("enqueue", "cancel", "retry")} == {
        "enqueue": 30,
        "cancel": 30,
        "retry": 10,
    }
    assert (own_rig.stats().ready, own_rig.stats().changed) == (10, 30)
    own_rig.worker()
    own_rig.wait_for_end(jobs)
    assert [job.round for job in jobs] == [2] * 10 + [1] * 20
    assert len(own_rig.starts()) == 10
    own_rig.wait_until_quiet()


@pytest.mark.parametrize(("how", "times"), [("closed", 150), ("mute", 3), ("frozen", 3)])
def test_enqueue_fails_in_bounded_time(own_rig: Rig, server: RedisServer, proxy: Proxy, how: str, times: int) -> None:
    """H15: one documented error within the bound, however Redis is away and how often, and then the next call works."""
    own_rig.configure(REDIS=proxy.url, REDIS_TIMEOUT_SECONDS=1)
    own_rig.enqueue(probe.ok)
    break_it, repair_it = {
        "closed": (server.kill, server.start),
        "mute": (partial(proxy.stall, new_ones=True), proxy.restore),
        "frozen": (server.freeze, server.thaw),
    }[how]

    break_it()
    try:
        for _ in range(times):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable, match="try again later"):
                probe.ok.enqueue()
            assert time.monotonic() - began < 3.0  # three times the bound
    finally:
        repair_it()

    assert own_rig.enqueue(probe.ok).state is State.READY


def test_damaged_key_stops_the_work_and_not_the_worker(own_rig: Rig) -> None:
    """C10: errors are logged at a bounded rate, and work goes on by itself once the key is repaired.

    A child that dies meanwhile takes nothing along either.
    """
    worker = own_rig.worker(threads=2)
    running = own_rig.enqueue(probe.sleep, 60.0, later=0.1)
    first = own_rig.wait_for_start(running)
    ready = f"{own_rig.jobrail['PREFIX']}:{{default}}:ready"

    with own_rig.connect() as client:
        client.set(ready, "no zset")
        with pytest.raises(JobRailError):
            probe.ok.enqueue()
        wait_for(lambda: "WRONGTYPE" in worker.log(), 5, "a word about the damage")
        os.kill(first.pid, signal.SIGKILL)
        time.sleep(1.5)
        client.delete(ready)
    job = own_rig.enqueue(probe.ok)

    assert own_rig.wait_for_end([job, running], 5) < 5.0
    assert (running.state, running.result, running.losses) == (State.SUCCEEDED, 2, 1)
    assert worker.log().count("WRONGTYPE") < 10
    assert worker.is_alive()
    own_rig.wait_until_quiet()
