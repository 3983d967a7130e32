"""A worker freezes, or its handler does: what wakes too late changes nothing, and what is alive loses nothing."""

from __future__ import annotations

import re
import signal

from jobrail_django.models import Attempt
from jobrail_django.states import State

from .harness.probe import tasks as probe
from .harness.rig import RECOVERED_S, Rig
from .harness.waiting import wait_for


def test_frozen_worker_that_wakes_changes_nothing(rig: Rig) -> None:
    """B4: the second attempt's result stands, the first is recorded as lost, and the worker goes on serving.

    One of its jobs has ended when it wakes, and one is running elsewhere.
    """
    frozen = rig.worker(threads=2)
    in_a_call = rig.enqueue(probe.sleep, 2.0, later=2.0)
    in_python = rig.enqueue(probe.doze, 60.0, later=0.2)
    for job in (in_a_call, in_python):
        rig.wait_for_start(job)

    frozen.freeze()
    other = rig.worker(threads=2)
    for job in (in_a_call, in_python):
        rig.wait_for_start(job, 2, RECOVERED_S)
    rig.wait_for_end([in_python])
    assert in_a_call.refresh().state is State.RUNNING
    frozen.thaw()
    rig.wait_for_end([in_a_call])

    wait_for(lambda: len(rig.ledger.entries(in_python.id, "raised")) == 1, 5, "an exception in the handler that woke")
    assert rig.ledger.entries(in_python.id, "raised")[0].note == "LeaseLost"
    warnings = "Outcome refused|Lease lost"  # the one in a call may end before it is told
    wait_for(lambda: len(re.findall(warnings, frozen.log())) == 2, 5, "a warning for each of the two")
    other.stop()
    after = rig.enqueue(probe.ok, "still serving")
    rig.wait_for_end([after])
    assert after.result == "still serving"
    rig.wait_until_quiet()
    for job in (in_a_call, in_python):
        job.refresh()
        assert (job.state, job.result, job.attempts, job.losses) == (State.SUCCEEDED, 2, 1, 1)
        assert rig.history(job) == ["lost", "succeeded"]
    assert Attempt.objects.get(job_id=in_a_call.id, outcome="succeeded").worker == other.id


def test_next_attempt_in_the_same_worker_keeps_its_lease(rig: Rig) -> None:
    """B4: the first attempt still sits in its call while the second runs beside it; only the first is told to go."""
    worker = rig.worker(threads=2)
    job = rig.enqueue(probe.sleep, 8.0, later=2.5)
    rig.wait_for_start(job)

    worker.signal(signal.SIGSTOP)  # the supervisor alone, so that nobody renews the lease
    rig.wait_for_start(job, 2, RECOVERED_S)
    worker.signal(signal.SIGCONT)
    rig.wait_for_end([job])

    assert (job.state, job.result, job.losses) == (State.SUCCEEDED, 2, 1)
    assert len(rig.starts(job)) == 2
    rig.wait_until_quiet()
    assert rig.history(job) == ["lost", "succeeded"]


def test_handler_that_computes_for_four_leases_runs_once(rig: Rig) -> None:
    """B3, B1: in Python code and in a C call that keeps the GIL; an idle worker stands by and gets nothing."""
    rig.configure(LEASE_SECONDS=2, REAP_SECONDS=0.5)
    busy = rig.worker(processes=2)
    jobs = [rig.enqueue(probe.spin, 8.0), rig.enqueue(probe.hold_gil, 8.0)]
    for job in jobs:
        rig.wait_for_start(job)
    idle = rig.worker()

    rig.wait_for_end(jobs)

    assert [(job.result, job.attempts, job.losses) for job in jobs] == [(1, 1, 0)] * 2
    assert len(rig.starts()) == 2
    assert "recovered" not in idle.log() + busy.log()
    rig.wait_until_quiet()
