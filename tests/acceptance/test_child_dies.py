"""A child of the worker dies: its jobs are back at once, and only what had started is charged."""

from __future__ import annotations

import os
import signal
import time

import pytest

from jobrail_django import pause_queue, resume_queue
from jobrail_django.models import Attempt
from jobrail_django.states import State

from .harness.probe import tasks as probe
from .harness.rig import Rig


def test_killed_child_gives_its_job_back_within_a_second(rig: Rig) -> None:
    """A4: the next attempt starts at once, and the death is charged as one loss."""
    worker = rig.worker(processes=2)
    job = rig.enqueue(probe.sleep, 1.0)
    first = rig.wait_for_start(job)

    killed_at = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    second = rig.wait_for_start(job, 2)

    assert second.at - killed_at < 1.0
    rig.wait_for_end([job])
    assert (job.state, job.result, job.attempts, job.losses) == (State.SUCCEEDED, 2, 1, 1)
    rig.wait_until_quiet()
    assert rig.history(job) == ["lost", "succeeded"]
    assert "how=signal 9" in worker.log()
    assert worker.is_alive()


def test_unstarted_jobs_of_a_dead_child_are_not_charged(rig: Rig) -> None:
    """A6: what sat in the dead child's batch goes back as it was, and the poison job alone is charged."""
    worker = rig.worker()
    rig.wait_for_end(rig.enqueue_many(probe.ok, [(i,) for i in range(60)]))  # now the child takes batches
    pause_queue("default")
    poison = rig.enqueue(probe.die.using(max_losses=1))
    others = rig.enqueue_many(probe.ok, [(i,) for i in range(30)])

    resume_queue("default")
    rig.wait_for_end([poison, *others])

    assert "as=strand" in worker.log()  # the batch was larger than one
    assert (poison.state, poison.losses, poison.reason) == (State.DEAD, 1, "lost its worker 1 time")
    assert {(job.state, job.losses, job.attempts) for job in others} == {(State.SUCCEEDED, 0, 1)}
    assert [len(rig.starts(job)) for job in others] == [1] * 30
    rig.wait_until_quiet()
    assert rig.history(poison) == ["lost"]


@pytest.mark.parametrize(("max_attempts", "starts"), [(3, 3), (1, 1)])
def test_poison_job_ends_dead_and_the_others_succeed(rig: Rig, max_attempts: int, starts: int) -> None:
    """D8: a job that kills its process is handed out a limited number of times."""
    workers = [rig.worker(), rig.worker()]

    poison = rig.enqueue(probe.die.using(max_attempts=max_attempts))
    others = rig.enqueue_many(probe.ok, [(i,) for i in range(100)])
    rig.wait_for_end([poison, *others])

    assert len(rig.starts(poison)) == starts
    assert (poison.state, poison.losses) == (State.DEAD, starts)
    assert poison.reason == f"lost its worker {starts} time" + ("s" if starts > 1 else "")
    assert {job.state for job in others} == {State.SUCCEEDED}
    assert [len(rig.starts(job)) for job in others] == [1] * 100
    assert all(worker.is_alive() for worker in workers)
    rig.wait_until_quiet()
    assert rig.history(poison) == ["lost"] * starts


def test_number_of_starts_is_what_the_limits_say(rig: Rig) -> None:
    """D4: attempts for exceptions and time-outs, the smaller of attempts and losses for deaths."""
    limits = (1, 2, 4)
    rig.worker(processes=3)

    jobs = {
        **{("exception", n): rig.enqueue(probe.fail.using(max_attempts=n)) for n in limits},
        **{("timeout", n): rig.enqueue(probe.spin.using(max_attempts=n, timeout=0.2), 5.0) for n in limits},
        **{("death", n): rig.enqueue(probe.die.using(max_attempts=n)) for n in limits},
    }
    rig.wait_for_end(jobs.values(), 40)

    assert {case: len(rig.starts(job)) for case, job in jobs.items()} == {
        case: min(case[1], 3) if case[0] == "death" else case[1] for case in jobs
    }
    assert {job.state for job in jobs.values()} == {State.DEAD}
    rig.wait_until_quiet()
    outcomes = {"exception": "failed", "timeout": "timed_out", "death": "lost"}
    for case, job in jobs.items():
        assert rig.history(job) == [outcomes[case[0]]] * len(rig.starts(job))


def test_every_way_of_leaving_is_recorded_and_the_next_job_runs(rig: Rig) -> None:
    """L8: an exit is a failed attempt with its text, the death of the process a lost one, and never a success."""
    worker = rig.worker(processes=2)
    expected = {
        "exit": ("failed", ""),
        "exit 0": ("failed", "0"),
        "exit text": ("failed", "a text"),
        "exit 3": ("failed", "3"),
        "KeyboardInterrupt": ("failed", "interrupted"),
        "GeneratorExit": ("failed", "generator"),
        "_exit 0": ("lost", "its process ended with exit code 0"),
        "_exit 3": ("lost", "its process ended with exit code 3"),
        "abort": ("lost", "its process ended with signal 6"),
    }
    assert set(expected) == set(probe.WAYS_TO_LEAVE)

    jobs = {}
    for how in expected:
        jobs[how] = rig.enqueue(probe.exit.using(max_attempts=1), how)
        rig.wait_for_end([jobs[how]])
        after = rig.enqueue(probe.ok, how)
        assert rig.wait_for_end([after]) < 3.0
        assert after.result == how

    assert worker.is_alive()
    assert {job.state for job in jobs.values()} == {State.DEAD}
    rig.wait_until_quiet()
    found = {how: Attempt.objects.get(job_id=job.id) for how, job in jobs.items()}
    assert {how: (attempt.outcome, attempt.error_message) for how, attempt in found.items()} == expected
