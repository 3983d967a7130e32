"""The memory through which supervisor and children see what is held."""

from __future__ import annotations

import os
import uuid

import pytest

from jobrail_django.worker.shared import CANCEL, ENTRIES, LOST, Held, PendingClaim, SharedMemory


@pytest.fixture
def memory() -> SharedMemory:
    return SharedMemory(3, 2)


def job_id() -> str:
    return str(uuid.uuid4())


def test_fresh_memory_holds_nothing(memory):
    for child in range(3):
        assert memory.last_sign(child) == (0.0, 0)
        for slot in range(2):
            assert memory.slot(child, slot).held() == []
            assert memory.slot(child, slot).pending_claim() is None
    assert (memory.stopping, memory.upkeep_stopping) == (False, False)


def test_flags_are_told_apart(memory):
    memory.upkeep_stopping = True
    assert (memory.stopping, memory.upkeep_stopping) == (False, True)

    memory.stopping, memory.upkeep_stopping = True, False
    assert (memory.stopping, memory.upkeep_stopping) == (True, False)


def test_job_goes_from_held_to_started_to_dropped(memory):
    slot, one = memory.slot(1, 1), job_id()

    slot.hold(4, one, 2**40, 3, 100.5)
    assert slot.held() == [Held(4, one, 2**40, 3, 100.5, 0.0, 0.0, 0)]

    slot.start(4, 101.5, 0.0, 0)
    assert slot.held() == [Held(4, one, 2**40, 3, 100.5, 101.5, 0.0, 0)]

    slot.drop(4)
    assert slot.held() == []


def test_start_with_a_limit_keeps_the_rest(memory):
    slot, one = memory.slot(0, 0), job_id()
    slot.hold(0, one, 7, 1, 100.5)

    slot.start(0, 101.5, 130.0, 4_000_000_000)

    assert slot.held() == [Held(0, one, 7, 1, 100.5, 101.5, 130.0, 4_000_000_000)]


def test_places_do_not_overlap(memory):
    ids = {}
    for child in range(3):
        memory.sign_of_life(child, float(child + 1), child + 10)
        for slot in range(2):
            memory.slot(child, slot).begin_claim(child + 1, slot + 1, 5)
            for index in range(ENTRIES):
                ids[child, slot, index] = job_id()
                memory.slot(child, slot).hold(index, ids[child, slot, index], 1 + index, 0, 1.0)
                memory.slot(child, slot).notify(index, 1 + index, CANCEL)
    memory.stopping = True

    for child in range(3):
        assert memory.last_sign(child) == (float(child + 1), child + 10)
        for slot in range(2):
            found = memory.slot(child, slot).held()
            assert [held.job_id for held in found] == [ids[child, slot, index] for index in range(ENTRIES)]
            assert memory.slot(child, slot).pending_claim() == PendingClaim(child + 1, slot + 1, 5)


def test_reset_forgets_one_child_only(memory):
    for child in range(3):
        memory.slot(child, 1).hold(0, job_id(), 1, 0, 1.0)
        memory.slot(child, 1).begin_claim(1, 0, 0)
        memory.sign_of_life(child, 5.0, 1)

    memory.reset_child(1)

    assert [len(memory.slot(child, 1).held()) for child in range(3)] == [1, 0, 1]
    assert memory.slot(1, 1).pending_claim() is None
    assert memory.last_sign(1) == (0.0, 0)
    assert memory.last_sign(2) == (5.0, 1)


def test_notice_is_for_one_claim_of_an_entry(memory):
    slot = memory.slot(0, 1)
    slot.hold(3, job_id(), 8, 0, 1.0)

    slot.notify(3, 8, LOST)

    assert slot.notice(3, 8) == LOST
    assert slot.notice(3, 7) == slot.notice(3, 9) == 0, "a notice about another claim is not for this job"
    assert slot.notice(2, 8) == 0


def test_notice_survives_the_start_of_its_job(memory):
    slot = memory.slot(0, 0)
    slot.hold(0, job_id(), 8, 0, 1.0)
    slot.notify(0, 8, CANCEL)

    slot.start(0, 2.0, 30.0, 5)

    assert slot.notice(0, 8) == CANCEL


def test_claim_is_pending_until_its_end(memory):
    slot = memory.slot(2, 0)

    slot.begin_claim(9, 8, 1)
    assert slot.pending_claim() == PendingClaim(9, 8, 1)

    slot.end_claim()
    assert slot.pending_claim() is None


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_a_process_wrote_is_seen_after_its_death(memory):
    one = job_id()
    pid = os.fork()
    if not pid:
        memory.slot(1, 0).hold(0, one, 5, 0, 1.5)
        memory.slot(1, 0).start(0, 2.5, 0.0, 0)
        os._exit(0)

    os.waitpid(pid, 0)

    assert memory.slot(1, 0).held() == [Held(0, one, 5, 0, 1.5, 2.5, 0.0, 0)]
