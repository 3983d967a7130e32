"""`stats`: one look at a queue."""

from __future__ import annotations

import pytest

from .rig import EPOCH, New, Rig, Row, hold


def at(ms: int):
    return lambda rig: setattr(rig, "now", rig.now + ms)


TABLE = [
    Row(name="an empty queue", call=lambda rig: rig.stats(), reply=["OK", 0, 0, 0, 0, 0, 0, EPOCH, "", "", ""]),
    Row(
        name="a queue that was never used",
        seed=lambda rig: rig.client.delete(rig.keys.meta),
        call=lambda rig: rig.stats(),
        reply=["OK", 0, 0, 0, 0, 0, 0, "", "", "", ""],
    ),
    Row(
        name="jobs in all places",
        seed=lambda rig: (rig.ended(1, "succeed"), rig.ended(2, "retry", delay=90, request=2), rig.running(3, 4, request=3),
                          rig.ready(5, 6, 7), rig.enqueue(New(n=8, delay=60)), at(50)(rig)),
        call=lambda rig: rig.stats(),
        reply=["OK", 3, 1, 1, 2, 0, 0, EPOCH, 10, 50, ""],
    ),
    Row(
        name="due and paused",
        seed=lambda rig: (rig.enqueue(New(n=1, delay=5)), rig.pause(), at(9)(rig)),
        call=lambda rig: rig.stats(),
        reply=["OK", 0, 1, 0, 0, 0, 1, EPOCH, 0, "", ""],
    ),
    Row(
        name="the age is that of the job that is next",
        seed=lambda rig: (rig.ready(1), at(7)(rig), rig.ready(2, priority=1), at(3)(rig)),
        call=lambda rig: rig.stats(),
        reply=["OK", 2, 0, 0, 0, 0, 0, EPOCH, "", 3, ""],
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_stats(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_changes_of_the_mirror_are_counted_and_the_oldest_tells_the_lag(rig: Rig) -> None:
    rig.ready(1)
    rig.now += 20
    rig.ready(2)
    rig.cancel(1)
    rig.now += 5

    assert rig.stats()[5] == 2
    assert rig.stats()[10] == 25


def test_clock_that_went_back_gives_no_negative_age(rig: Rig) -> None:
    rig.ready(1)
    rig.now -= 50

    assert rig.stats()[8:] == ["", 0, 0]


@pytest.mark.parametrize("damage", ["missing", "no hash", "no number"])
def test_unreadable_first_job_has_no_age(rig: Rig, damage: str) -> None:
    rig.ready(1, 2)
    rig.damage(1)
    rig.client.hset(rig.job_key(1), "at", "?")
    if damage != "no number":
        rig.client.delete(rig.job_key(1))
    if damage == "no hash":
        rig.client.set(rig.job_key(1), "text")

    assert rig.stats()[1:2] + rig.stats()[9:10] == [2, ""]
