"""Time limits: no handler outlives its own, whatever it is doing."""

from __future__ import annotations

import time

import pytest

from jobrail_django.states import State

from .harness.probe import tasks as probe
from .harness.rig import Rig


@pytest.mark.parametrize("how", ["recv", "sleep", "hold_gil"])
def test_handlers_that_no_exception_reaches_end_all_the_same(rig: Rig, how: str) -> None:
    """D1: four of them fill all slots; each is timed out and none is started again, and the slots are free again."""
    worker = rig.worker(threads=4)
    # The GIL lets only one of its holders start at a time.
    count = 1 if how == "hold_gil" else 4
    stuck = []
    for _ in range(count):
        stuck.append(rig.enqueue(probe.block.using(timeout=2, max_attempts=1), how))
        rig.wait_for_start(stuck[-1])
        time.sleep(0.2)  # so that their hard limits are far apart and the first one's ends all
    others = rig.enqueue_many(probe.ok, [(i,) for i in range(20)])

    rig.wait_for_end([*stuck, *others], 15)

    assert {(job.state, job.reason.split(" after ")[0]) for job in stuck} == {(State.DEAD, "timed out")}
    assert {job.state for job in others} == {State.SUCCEEDED}
    assert [len(rig.starts(job)) for job in [*stuck, *others]] == [1] * (count + 20)
    rig.wait_until_quiet()
    for job in stuck:
        attempt = rig.row(job).history.get()
        assert attempt.outcome == "timed_out"
        assert attempt.error_type == "jobrail_django.errors.TimeLimitExceeded"
        assert 2.0 < (attempt.finished_at - attempt.started_at).total_seconds() < 4.0
    slots = rig.enqueue_many(probe.sleep, [(0.5,)] * 4)
    assert rig.wait_for_end(slots) < 1.5
    assert worker.is_alive()


@pytest.mark.parametrize(("caught", "within_s"), [("Exception", 1.5), ("BaseException", 3.5)])
def test_swallowed_time_limit_is_no_success(rig: Rig, caught: str, within_s: float) -> None:
    """D2: `except Exception` does not see it, and who catches everything is ended by the hard limit."""
    rig.worker()
    job = rig.enqueue(probe.swallow.using(timeout=1, max_attempts=1), caught, 10.0)

    rig.wait_for_end([job])

    assert (job.state, job.reason.split(" after ")[0]) == (State.DEAD, "timed out")
    rig.wait_until_quiet()
    attempt = rig.row(job).history.get()
    assert attempt.outcome == "timed_out"
    assert 1.0 <= (attempt.finished_at - attempt.started_at).total_seconds() < within_s
    assert rig.ledger.entries(job.id, "end") == []


def test_time_limit_is_for_each_attempt(rig: Rig) -> None:
    """D12: attempts that take longer together than one may, and none of which takes too long."""
    rig.worker()
    job = rig.enqueue(probe.doze_and_fail.using(timeout=1, max_attempts=3), 0.6, times=2)

    rig.wait_for_end([job])

    assert (job.state, job.result) == (State.SUCCEEDED, 3)
    rig.wait_until_quiet()
    assert rig.history(job) == ["failed", "failed", "succeeded"]
