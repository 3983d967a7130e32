"""Handlers that do odd things to their process: they harm themselves alone."""

from __future__ import annotations

import signal

import pytest

from jobrail_django.states import State

from .harness.probe import tasks as probe
from .harness.rig import Rig


@pytest.mark.parametrize("how", ["return", "exit", "raise"])
def test_process_that_a_handler_forks_ends_with_the_handler(rig: Rig, how: str) -> None:
    """L10: it does not settle its parent's job, and does not go on as a worker that nobody knows."""
    worker = rig.worker()
    before = set(worker.tree())

    jobs = [rig.enqueue(probe.fork, how), *rig.enqueue_many(probe.ok, [(i,) for i in range(50)])]
    rig.wait_for_end(jobs)

    assert (jobs[0].state, jobs[0].result) == (State.SUCCEEDED, "parent, attempt 1")
    assert {(job.state, job.losses) for job in jobs} == {(State.SUCCEEDED, 0)}
    assert set(worker.tree()) == before


def test_what_a_handler_starts_can_be_terminated(rig: Rig) -> None:
    """L1: the worker's own way with TERM is not handed on to programs and forks."""
    rig.worker()

    job = rig.enqueue(probe.terminate_what_it_starts)
    rig.wait_for_end([job])

    assert job.result == [-signal.SIGTERM, -signal.SIGTERM]


def test_slot_that_fails_ends_its_child_and_loses_nothing(rig: Rig) -> None:
    """C10: a fault of the worker's own does not leave a slot dead and its job running for ever."""
    worker = rig.worker()

    job = rig.enqueue(probe.break_the_slot)
    others = rig.enqueue_many(probe.ok, [(i,) for i in range(10)])
    rig.wait_for_end([job, *others])

    assert {j.state for j in (job, *others)} == {State.SUCCEEDED}
    assert "A slot failed; this child ends" in worker.log()
    assert "how=exit code 3" in worker.log()
    assert worker.is_alive()
