"""A cancelled job does not run, whoever is there to hear it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobrail_django.states import State

from .harness.probe import tasks as probe
from .harness.rig import LEASE_S, Rig
from .harness.waiting import wait_for


def test_job_cancelled_while_no_worker_runs_never_runs(rig: Rig) -> None:
    """C14: it waits, it is due later, or it waits for its retry; and its idempotency key is free again."""
    retrying = rig.enqueue(probe.fail.using(backoff=3600))
    worker = rig.worker()
    wait_for(lambda: retrying.refresh().state is State.RETRYING, 10, "the first failure")
    worker.stop()
    ready = rig.enqueue(probe.ok.using(idempotency_key="once"))
    delayed = rig.enqueue(probe.ok.using(run_after=timedelta(seconds=1)))

    assert [job.cancel() for job in (ready, delayed, retrying)] == [True] * 3
    again = rig.enqueue(probe.ok.using(idempotency_key="once"))
    rig.worker()
    rig.wait_for_end([again])
    marker = rig.enqueue(probe.ok.using(run_after=timedelta(seconds=1.2)))  # by its end the delayed one is due
    rig.wait_for_end([marker])

    assert again.id != ready.id
    assert {job.refresh().state for job in (ready, delayed, retrying)} == {State.CANCELLED}
    assert [len(rig.starts(job)) for job in (ready, delayed, retrying)] == [0, 0, 1]
    rig.wait_until_quiet()


def test_running_job_is_stopped_at_the_next_heartbeat(rig: Rig) -> None:
    """C14: and it is not run again."""
    rig.worker()
    job = rig.enqueue(probe.doze, 60.0)
    rig.wait_for_start(job)

    assert job.cancel() is False
    took_s = rig.wait_for_end([job])

    assert took_s < LEASE_S / 3 + 1.0
    assert job.state is State.CANCELLED
    assert [entry.note for entry in rig.ledger.entries(job.id, "raised")] == ["JobCancelled"]
    rig.wait_until_quiet()
    assert rig.history(job) == ["cancelled"]
    assert len(rig.starts()) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_cancel_that_races_the_claim_is_all_or_nothing(rig: Rig, threads: int) -> None:
    """C14: the job either never starts and is cancelled, or had started when the wish came."""
    rig.worker(threads=threads)
    jobs = [rig.enqueue(probe.ok, i) for i in range(3)]
    at_once = []
    for i in range(150):
        job = rig.enqueue(probe.ok, i)
        try:
            at_once.append(job.cancel())
        except Exception as exc:
            assert "succeeded" in str(exc)
            at_once.append(None)
        jobs.append(job)
    rig.wait_for_end(jobs)

    for job, was_cancelled in zip(jobs[3:], at_once, strict=True):
        starts = len(rig.starts(job))
        if was_cancelled:
            assert (job.state, starts) == (State.CANCELLED, 0)
        elif job.state is State.SUCCEEDED:
            assert starts == 1
        else:
            assert (job.state, was_cancelled) == (State.CANCELLED, False)
            assert starts <= 1
    rig.wait_until_quiet()
