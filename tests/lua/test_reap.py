"""`reap`: jobs whose workers are gone."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import GONE, LEASE, NOW, QUEUE, New, Out, Rig, Row, claim_id, hold, job_id

CLAIM = claim_id(1)
#: When the leases of jobs that were claimed at the start of a test expire.
EXPIRED = NOW + LEASE
#: The two settings of a reaper: a gap of this length since the last tick makes it hold for that long.
GAP, HOLD = LEASE // 2, LEASE // 3


def ticked(rig: Rig, until: int = EXPIRED) -> None:
    """Let a reaper tick every five seconds until just before a moment, then go there."""
    for now in range(rig.now, until, 5_000):
        rig.now = now
        rig.reap()
    rig.now = until


def reaped() -> dict[str, object]:
    """What every tick that finds leases keeps in `meta`."""
    return {"meta/reaped": str(EXPIRED)}


WOKEN = {"wake/0": "1", "wake@": "expires"}


def recovered(n: int, *, rev: int = 3, **fields: str) -> dict[str, object]:
    """What a recovery changes, and these fields."""
    return {f"job:#{n}/{name}": value for name, value in fields.items()} | {
        f"job:#{n}/rev": str(rev), f"job:#{n}/claim": "", f"leases/#{n}": GONE, f"changed/#{n}": EXPIRED,
    }  # fmt: skip


def lost(n: int = 1, *, rev: int = 3) -> dict[str, object]:
    """The record of an attempt that was lost; it counts from the claim."""
    return {f"job:#{n}/a:{rev}": f"2 1 1 lost {NOW} {EXPIRED} {CLAIM}"}


TABLE = [
    Row(name="an empty queue", call=lambda rig: rig.reap(), reply=["OK", [], 0, 0, 0]),
    Row(
        name="leases that stand",
        seed=lambda rig: (rig.running(1), ticked(rig, EXPIRED - 1)),
        call=lambda rig: rig.reap(),
        reply=["OK", [], 0, 0, 0],
        delta={"meta/reaped": str(EXPIRED - 1)},
    ),
    Row(
        name="a started job is charged a loss and keeps its place",
        seed=lambda rig: (rig.running(1), ticked(rig)),
        call=lambda rig: rig.reap(),
        reply=["OK", [["#1", "ready"]], 0, 0, 1],
        delta={**recovered(1, state="ready", losses="1"), **lost(), "ready/#1": (0, 1), **reaped(), **WOKEN},
        again=["OK", [], 0, 0, 1],
    ),
    Row(
        name="a job that merely sat in a batch is charged nothing and comes alone next time",
        seed=lambda rig: (rig.running(1, 2), rig.settle(Out(n=1, verb="succeed", claim=CLAIM)), ticked(rig)),
        call=lambda rig: rig.reap(),
        reply=["OK", [["#2", "ready"]], 0, 0, 1],
        delta={**recovered(2, state="ready", alone="1"), "ready/#2": (0, 2), **reaped(), **WOKEN},
        again=["OK", [], 0, 0, 1],
    ),
    Row(
        name="a job of a batch whose start was told is charged",
        seed=lambda rig: (rig.running(1, 2), rig.settle(Out(n=1, verb="succeed", claim=CLAIM)),
                          rig.heartbeat((2, CLAIM, "1")), ticked(rig)),
        call=lambda rig: rig.reap(),
        reply=["OK", [["#2", "ready"]], 0, 0, 1],
        delta={**recovered(2, state="ready", losses="1"), **lost(2), "ready/#2": (0, 2), **reaped(), **WOKEN},
        again=["OK", [], 0, 0, 1],
    ),
    Row(
        name="the last loss is dead",
        seed=lambda rig: (rig.running(1, losses=1), ticked(rig)),
        call=lambda rig: rig.reap(),
        reply=["OK", [["#1", "dead"]], 0, 0, 1],
        delta={**recovered(1, state="dead", losses="1", finished=str(EXPIRED), reason="lost its worker 1 time"), **lost(),
               **reaped(), **WOKEN},
        again=["OK", [], 0, 0, 1],
        delta_again={},
    ),
    Row(
        name="a job with one attempt is dead when it is lost a5",
        seed=lambda rig: (rig.running(1, attempts=1), ticked(rig)),
        call=lambda rig: rig.reap(),
        reply=["OK", [["#1", "dead"]], 0, 0, 1],
        delta={**recovered(1, state="dead", losses="1", finished=str(EXPIRED), reason="lost its worker 1 time"), **lost(),
               **reaped(), **WOKEN},
        again=["OK", [], 0, 0, 1],
    ),
    Row(
        name="a job asked to stop ends cancelled c8",
        seed=lambda rig: (rig.running(1, key="k"), rig.cancel(1), ticked(rig)),
        call=lambda rig: rig.reap(),
        reply=["OK", [["#1", "cancelled"]], 0, 0, 1],
        delta={**recovered(1, rev=4, state="cancelled", losses="1", finished=str(EXPIRED), due="",
                           reason="cancelled while running, its worker was lost"),
               "job:#1/a:4": f"2 1 1 lost {NOW} {EXPIRED} {CLAIM}", "key:k": GONE, "key:k@": GONE, **reaped(), **WOKEN},
        again=["OK", [], 0, 0, 1],
    ),
    Row(
        name="the limit is kept and more is said to be left",
        seed=lambda rig: (rig.running(1), rig.running(2, request=2), ticked(rig)),
        call=lambda rig: rig.reap(1),
        reply=["OK", [["#1", "ready"]], 1, 0, 1],
        delta={**recovered(1, state="ready", losses="1"), **lost(), "ready/#1": (0, 1), **reaped(), **WOKEN},
        again=["OK", [["#2", "ready"]], 0, 0, 2],
        delta_again={**recovered(2, state="ready", losses="1"), "ready/#2": (0, 2),
                     "job:#2/a:3": f"2 1 1 lost {NOW} {EXPIRED} {claim_id(2)}"},
    ),
    Row(
        name="waiting jobs that are due are told, and ready ones wake a worker",
        seed=lambda rig: rig.enqueue(New(n=1), New(n=2, delay=5)) and setattr(rig, "now", NOW + 5),
        call=lambda rig: rig.reap(),
        reply=["OK", [], 0, 1, 0],
        delta=WOKEN,
    ),
    Row(
        name="nobody is woken in a paused queue",
        seed=lambda rig: (rig.ready(1), rig.pause()),
        call=lambda rig: rig.reap(),
        reply=["OK", [], 0, 0, 0],
    ),
    Row(
        name="a paused queue's jobs are recovered",
        seed=lambda rig: (rig.running(1), rig.pause(), ticked(rig)),
        call=lambda rig: rig.reap(),
        reply=["OK", [["#1", "ready"]], 0, 0, 1],
        delta={**recovered(1, state="ready", losses="1"), **lost(), "ready/#1": (0, 1), **reaped(), **WOKEN},
        again=["OK", [], 0, 0, 1],
    ),
    Row(
        name="after a gap nothing is recovered",
        seed=lambda rig: (rig.running(1), ticked(rig, NOW + 5_000), setattr(rig, "now", NOW + 2 * LEASE)),
        call=lambda rig: rig.reap(),
        reply=["HELD", [], 0, 0, 0],
        delta={"meta/reaped": str(NOW + 2 * LEASE), "meta/held": str(NOW + 2 * LEASE + HOLD)},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_reap(rig: Rig, row: Row) -> None:
    hold(rig, row)


# Holding after a gap


def test_hold_ends_after_one_heartbeat_and_does_not_start_again(rig: Rig) -> None:
    rig.running(1)
    ticked(rig, NOW + 5_000)
    start = NOW + 2 * LEASE
    statuses = []
    for now in (start, start + HOLD - 1, start + HOLD):
        rig.now = now
        statuses.append(rig.reap()[:2])

    assert statuses == [["HELD", []], ["HELD", []], ["OK", [["#1", "ready"]]]]


def test_worker_that_is_alive_renews_within_the_hold(rig: Rig) -> None:
    rig.running(1)
    ticked(rig, NOW + 5_000)
    rig.now = NOW + 2 * LEASE
    assert rig.reap()[0] == "HELD"

    assert rig.heartbeat((1, CLAIM, "1")) == ["OK", [], []]

    rig.now += HOLD
    assert rig.reap()[:2] == ["OK", []]


@pytest.mark.parametrize(("gap", "status"), [(GAP, "OK"), (GAP + 1, "HELD")])
def test_only_a_gap_longer_than_half_a_lease_holds(rig: Rig, gap: int, status: str) -> None:
    rig.running(1)
    rig.reap()
    rig.now += gap

    assert rig.reap()[0] == status


def test_first_tick_of_a_queue_that_was_never_reaped_does_not_hold(rig: Rig) -> None:
    rig.running(1)
    rig.now = EXPIRED

    assert rig.reap()[:2] == ["OK", [["#1", "ready"]]]


def test_gap_that_the_caller_knows_of_holds_in_any_case(rig: Rig) -> None:
    rig.running(1)
    rig.now = EXPIRED

    assert rig.broker.reap(QUEUE, gap_ms=0, hold_ms=HOLD).held
    assert rig.reap()[:2] == ["HELD", []]
    rig.now += HOLD
    assert rig.reap()[:2] == ["OK", [["#1", "ready"]]]


def test_time_without_running_jobs_is_no_gap_that_delays_a_recovery(rig: Rig) -> None:
    rig.running(1)
    rig.reap()
    rig.settle(Out(n=1, verb="succeed", claim=CLAIM))
    rig.now = NOW + 100 * LEASE  # ticks find nothing meanwhile and write nothing
    rig.reap()
    rig.running(2, request=2)
    expires = rig.now + LEASE
    rig.now += 1_000

    assert rig.reap()[0] == "HELD"  # over long before the lease runs out
    ticked(rig, expires)
    assert rig.reap()[:2] == ["OK", [["#2", "ready"]]]


def test_damaged_times_in_meta_count_as_none(rig: Rig) -> None:
    rig.running(1)
    rig.client.hset(rig.keys.meta, mapping={"reaped": "?", "held": "?"})

    assert rig.reap()[0] == "HELD"


# Many reapers, and garbage


def test_each_job_is_recovered_once_by_several_reapers_b6(rig: Rig) -> None:
    rig.running(*range(1, 51))
    rig.now = EXPIRED

    replies = [rig.reap(20) for _ in range(5)]

    assert [len(reply[1]) for reply in replies] == [20, 20, 10, 0, 0]
    assert {job[0] for reply in replies for job in reply[1]} == {f"#{n}" for n in range(1, 51)}
    assert rig.order() == list(range(1, 51))
    assert {rig.job(n)["rev"] for n in range(1, 51)} == {"3"}


def test_garbage_among_the_leases_stops_no_recovery_a10(rig: Rig) -> None:
    rig.running(*range(1, 21))
    for n in (21, 22, 23):
        rig.damage(n)
    rig.client.set(rig.job_key(22), "no hash")
    rig.client.hset(rig.job_key(23), "state", "ready")
    bad = {b"\xff\xfe\x00 binary": 1, "": 2, "no id at all": 3, **{job_id(n): NOW for n in (21, 22, 23)}}
    rig.broker.damaged |= {"", "no id at all", "\\xff\\xfe\x00 binary"}
    rig.client.zadd(rig.keys.leases, bad)
    rig.now = EXPIRED

    reply = rig.reap()

    states = dict(reply[1])
    assert [states.pop(f"#{n}") for n in range(1, 21)] == ["ready"] * 20
    assert set(states.values()) == {"missing"} and len(states) == 6
    assert rig.client.zcard(rig.keys.leases) == 0
    assert rig.reap() == ["OK", [], 0, 0, 26]


def test_damaged_fields_of_one_job_stop_nobody_a10(rig: Rig) -> None:
    rig.running(1, 2, 3)
    rig.damage(1)
    rig.damage(2)
    for n in (1, 2):
        names = ("rev", "token", "claimed", "score", "losses", "limits", "attempts", "round")
        rig.client.hset(rig.job_key(n), mapping=dict.fromkeys(names, "?"))
    rig.client.hdel(rig.job_key(2), "claim", "score", "claimed", "ran")
    rig.now = EXPIRED

    assert dict(rig.reap()[1]) == {"#1": "dead", "#2": "ready", "#3": "ready"}


def test_lost_job_is_claimed_alone_and_then_charged_when_it_is_lost_again(rig: Rig) -> None:
    rig.running(1, 2, 3)
    rig.settle(Out(n=1, verb="succeed", claim=CLAIM))
    rig.now = EXPIRED
    assert rig.reap()[1] == [["#2", "ready"], ["#3", "ready"]]

    assert rig.claimed(2, limit=10) == [2]
    assert rig.claimed(3, limit=10) == [3]

    ticked(rig, EXPIRED + LEASE)
    rig.reap()
    assert [rig.job(n).get("losses") for n in (2, 3)] == ["1", "1"]


@pytest.mark.parametrize("values", [(0, 1, 1), (101, 1, 1), ("", 1, 1), (1, "", 1), (1, 1, "x")], ids=str)
def test_bad_arguments_are_refused(rig: Rig, values: tuple[object, ...]) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG reap takes a limit"):
        rig.run(Script.REAP, rig.keys.prefix, NOW, *values)
