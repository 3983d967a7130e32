"""`purge`: queues that are emptied."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import GONE, NOW, New, Rig, Row, hold


def purged(n: int, source: str, *, rev: int = 2) -> dict[str, object]:
    values = {"state": "cancelled", "rev": str(rev), "finished": str(NOW), "due": "", "reason": "purged"}
    return {f"job:#{n}/{name}": value for name, value in values.items()} | {
        f"{source}/#{n}": GONE, f"changed/#{n}": NOW,
    }  # fmt: skip


TABLE = [
    Row(name="an empty queue", call=lambda rig: rig.purge(), reply=["OK", 0, 0]),
    Row(
        name="all that waits is cancelled and its keys are free; what runs and has ended stays",
        seed=lambda rig: (rig.ended(1, "succeed"), rig.ended(2, "retry", delay=5, request=2), rig.running(3, request=3),
                          rig.enqueue(New(n=4, delay=5), New(n=5, key="k"), New(n=6, key="l"))),
        call=lambda rig: rig.purge(),
        reply=["OK", 4, 0],
        delta={**purged(2, "retrying", rev=4), **purged(4, "scheduled"), **purged(5, "ready"), **purged(6, "ready"),
               "key:k": GONE, "key:k@": GONE, "key:l": GONE, "key:l@": GONE},
        again=["OK", 0, 0],
    ),
    Row(
        name="the limit is kept, ready jobs first, and what is left is counted",
        seed=lambda rig: rig.enqueue(*(New(n=n, delay=delay) for n, delay in ((1, 5), (2, 6), (3, ""), (4, "")))),
        call=lambda rig: rig.purge(3),
        reply=["OK", 3, 1],
        delta={**purged(3, "ready"), **purged(4, "ready"), **purged(1, "scheduled")},
        again=["OK", 1, 0],
        delta_again=purged(2, "scheduled"),
    ),
    Row(
        name="a paused queue",
        seed=lambda rig: (rig.ready(1), rig.pause()),
        call=lambda rig: rig.purge(),
        reply=["OK", 1, 0],
        delta=purged(1, "ready"),
        again=["OK", 0, 0],
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_purge(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_bad_jobs_stop_no_other(rig: Rig) -> None:
    rig.ready(1, 2, 3, 4, key="")
    for n in (1, 2, 3):
        rig.damage(n)
    rig.client.delete(rig.job_key(1), rig.job_key(2))
    rig.client.set(rig.job_key(2), "no hash")
    rig.client.hset(rig.job_key(3), mapping={"rev": "?", "key": "k"})
    rig.client.rpush(rig.keys.key("k"), "no string")
    rig.quiet()

    assert rig.purge() == ["OK", 4, 0]
    assert rig.job(4)["state"] == rig.job(3)["state"] == "cancelled"
    assert rig.client.zcard(rig.keys.changed) == 4


@pytest.mark.parametrize("limit", [0, 101, "", "x"])
def test_limit_out_of_range_is_refused(rig: Rig, limit: int | str) -> None:
    with pytest.raises(ScriptError, match=r"JOBRAILARG purge takes a limit of 1\.\.100"):
        rig.run(Script.PURGE, rig.keys.prefix, NOW, limit, "purged")
