"""`promote`: what is due becomes ready."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import GONE, NOW, New, Out, Rig, Row, claim_id, hold

WOKEN = {"wake/0": "1", "wake@": "expires"}


def at(ms: int):
    return lambda rig: setattr(rig, "now", NOW + ms)


def promoted(n: int, seq: int, *, rev: int = 2, source: str = "scheduled", ms: int = 5) -> dict[str, object]:
    return {f"job:#{n}/state": "ready", f"job:#{n}/rev": str(rev), f"job:#{n}/due": "", f"{source}/#{n}": GONE,
            f"ready/#{n}": (0, seq), f"changed/#{n}": NOW + ms}  # fmt: skip


TABLE = [
    Row(name="nothing waits", call=lambda rig: rig.promote(), reply=["OK", 0, ""]),
    Row(
        name="nothing is due yet",
        seed=lambda rig: rig.enqueue(New(n=1, delay=5)),
        call=lambda rig: rig.promote(),
        reply=["OK", 0, str(NOW + 5)],
    ),
    Row(
        name="due jobs become ready in due order, the others wait",
        seed=lambda rig: (rig.enqueue(*(New(n=n, delay=delay) for n, delay in ((1, 5), (2, 3), (3, 6)))), at(5)(rig)),
        call=lambda rig: rig.promote(),
        reply=["OK", 2, str(NOW + 6)],
        delta={**promoted(1, 2), **promoted(2, 1), "meta/seq": "2", **WOKEN},
        again=["OK", 0, str(NOW + 6)],
    ),
    Row(
        name="a retrying job comes before a scheduled one",
        seed=lambda rig: (rig.ended(1, "retry", delay=5), rig.enqueue(New(n=2, delay=4)), at(5)(rig)),
        call=lambda rig: rig.promote(),
        reply=["OK", 2, ""],
        delta={**promoted(1, 2, rev=4, source="retrying"), **promoted(2, 3), "meta/seq": "3", **WOKEN},
        again=["OK", 0, ""],
    ),
    Row(
        name="a paused queue's jobs become ready",
        seed=lambda rig: (rig.enqueue(New(n=1, delay=5)), rig.pause(), at(5)(rig)),
        call=lambda rig: rig.promote(),
        reply=["OK", 1, ""],
        delta={**promoted(1, 1), "meta/seq": "1", **WOKEN},
        again=["OK", 0, ""],
    ),
    Row(
        name="the limit holds for each of the two, and a due time that has passed says that more is left",
        seed=lambda rig: (rig.ended(1, "retry", delay=1), rig.enqueue(*(New(n=n, delay=n) for n in (2, 3))), at(5)(rig)),
        call=lambda rig: rig.promote(1),
        reply=["OK", 2, str(NOW + 3)],
        delta={**promoted(1, 2, rev=4, source="retrying"), **promoted(2, 3), "meta/seq": "3", **WOKEN},
        again=["OK", 1, ""],
        delta_again={**promoted(3, 4), "meta/seq": "4"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_promote(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_promoted_job_keeps_its_priority(rig: Rig) -> None:
    rig.ready(1, priority=2)
    rig.enqueue(New(n=2, delay=1, priority=3), New(n=3, delay=1, priority=2), New(n=4, delay=1, priority=-7))
    rig.now += 1

    rig.promote()

    assert rig.order() == [2, 1, 3, 4]


def test_missing_and_wrong_hashes_are_dropped_and_told_to_the_mirror(rig: Rig) -> None:
    rig.enqueue(*(New(n=n, delay=1) for n in (1, 2, 3)))
    for n in (1, 2):
        rig.damage(n)
    rig.client.delete(rig.job_key(1), rig.job_key(2))
    rig.client.set(rig.job_key(2), "no hash")
    rig.quiet()
    rig.now += 1

    assert rig.promote() == ["OK", 3, ""]
    assert rig.order() == [3]
    assert {path for path in rig.state() if path.startswith("changed/")} == {"changed/#1", "changed/#2", "changed/#3"}


def test_damaged_numbers_of_one_job_stop_nobody_a10(rig: Rig) -> None:
    rig.enqueue(New(n=1, delay=1), New(n=2, delay=1))
    rig.damage(1)
    rig.client.hset(rig.job_key(1), mapping={"rev": "?", "prio": "?"})
    rig.now += 1

    assert rig.promote() == ["OK", 2, ""]
    assert rig.order() == [1, 2]


def test_key_does_not_stand_in_the_way_of_its_own_job_g7(rig: Rig) -> None:
    rig.enqueue(New(n=1, delay=1, key="k"))
    rig.now += 1
    rig.promote()
    rig.claim(1)
    rig.settle(Out(n=1, verb="retry", claim=claim_id(1), delay=1))
    rig.now += 1
    rig.promote()
    rig.claim(2)

    assert rig.settle(Out(n=1, verb="succeed", claim=claim_id(2)))[1][0][:2] == ["OK", "succeeded"]
    assert rig.state()["key:k"] == "#1 "


@pytest.mark.parametrize("limit", [0, 101, "", "x"])
def test_limit_out_of_range_is_refused(rig: Rig, limit: int | str) -> None:
    with pytest.raises(ScriptError, match=r"JOBRAILARG promote takes a limit of 1\.\.100"):
        rig.run(Script.PROMOTE, rig.keys.prefix, NOW, limit)
