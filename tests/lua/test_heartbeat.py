"""`heartbeat`: renewed leases, and what a worker learns."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import LEASE, NOW, Out, Rig, Row, claim_id, hold, job_id

CLAIM = claim_id(1)


def later(rig: Rig) -> None:
    rig.now = NOW + 10_000


TABLE = [
    Row(
        name="a lease is renewed",
        seed=lambda rig: (rig.running(1), later(rig)),
        call=lambda rig: rig.heartbeat((1, CLAIM, "")),
        reply=["OK", [], []],
        delta={"leases/#1": NOW + 10_000 + LEASE},
    ),
    Row(
        name="the start of a job that was not the first of its batch is noted",
        seed=lambda rig: (rig.running(1, 2), later(rig)),
        call=lambda rig: rig.heartbeat((2, CLAIM, "1"), (1, CLAIM, "")),
        reply=["OK", [], []],
        delta={"leases/#1": NOW + 10_000 + LEASE, "leases/#2": NOW + 10_000 + LEASE, "job:#2/ran": CLAIM},
    ),
    Row(
        name="a lease that has expired is renewed as long as nobody has recovered the job",
        seed=lambda rig: (rig.running(1), setattr(rig, "now", NOW + 10 * LEASE)),
        call=lambda rig: rig.heartbeat((1, CLAIM, "1")),
        reply=["OK", [], []],
        delta={"leases/#1": NOW + 11 * LEASE},
    ),
    Row(
        name="a cancellation that was asked for is told",
        seed=lambda rig: (rig.running(1, 2), rig.cancel(2), later(rig)),
        call=lambda rig: rig.heartbeat((1, CLAIM, ""), (2, CLAIM, "")),
        reply=["OK", [], ["#2"]],
        delta={"leases/#1": NOW + 10_000 + LEASE, "leases/#2": NOW + 10_000 + LEASE},
    ),
    Row(
        name="leases are lost to another claim, by an end, by a return, and with the job",
        seed=lambda rig: (rig.running(1, 2, 3, 4), rig.settle(Out(n=1, verb="succeed", claim=CLAIM)),
                          rig.settle(Out(n=2, verb="return", claim=CLAIM)), rig.claim(2, ack=0), rig.damage(4),
                          rig.client.delete(rig.job_key(4)), later(rig)),
        call=lambda rig: rig.heartbeat(*((n, CLAIM, "1") for n in (1, 2, 3, 4, 9))),
        reply=["OK", ["#1", "#2", "#3", "#4", "#9"], []],
    ),
    Row(
        name="lost and held leases in one call",
        seed=lambda rig: (rig.running(1, 2), rig.settle(Out(n=1, verb="retry", claim=CLAIM, delay=5)), later(rig)),
        call=lambda rig: rig.heartbeat((1, CLAIM, "1"), (2, CLAIM, "")),
        reply=["OK", ["#1"], []],
        delta={"leases/#2": NOW + 10_000 + LEASE},
    ),
    Row(
        name="a paused queue's leases are renewed",
        seed=lambda rig: (rig.running(1), rig.pause(), later(rig)),
        call=lambda rig: rig.heartbeat((1, CLAIM, "")),
        reply=["OK", [], []],
        delta={"leases/#1": NOW + 10_000 + LEASE},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_heartbeat(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_heartbeat_of_a_reaped_job_is_refused_b11(rig: Rig) -> None:
    rig.running(1)
    rig.now += LEASE
    rig.reap()

    assert rig.heartbeat((1, CLAIM, "1")) == ["OK", ["#1"], []]
    assert rig.delta == {}


def test_wrong_typed_hash_is_a_lost_lease_and_stops_no_other(rig: Rig) -> None:
    rig.running(1, 2)
    rig.damage(1)
    rig.client.delete(rig.job_key(1))
    rig.client.set(rig.job_key(1), "no hash")

    assert rig.heartbeat((1, CLAIM, ""), (2, CLAIM, "")) == ["OK", ["#1"], []]


def test_a_hundred_leases_in_one_call(rig: Rig) -> None:
    rig.running(*range(1, 101))
    rig.now += 1

    assert rig.heartbeat(*((n, CLAIM, "1") for n in range(1, 101))) == ["OK", [], []]
    assert {rig.state()[f"leases/#{n}"] for n in range(1, 101)} == {NOW + 1 + LEASE}


@pytest.mark.parametrize("count", [0, 2, 101, "", "x"])
def test_wrong_count_is_refused(rig: Rig, count: int | str) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG heartbeat takes lease_ms and 1..100 leases"):
        rig.run(Script.HEARTBEAT, rig.keys.prefix, NOW, LEASE, count, job_id(1), CLAIM, "")


def test_lease_that_is_no_number_is_refused(rig: Rig) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG heartbeat"):
        rig.run(Script.HEARTBEAT, rig.keys.prefix, NOW, "x", 1, job_id(1), CLAIM, "")
