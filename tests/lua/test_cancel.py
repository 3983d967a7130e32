"""`cancel`: jobs that are called off."""

from __future__ import annotations

import pytest

from .rig import GONE, NOW, New, Out, Rig, Row, claim_id, hold


def cancelled(source: str, *, rev: int = 2) -> dict[str, object]:
    """What the end of a waiting job changes."""
    return {"job:#1/state": "cancelled", "job:#1/rev": str(rev), "job:#1/finished": str(NOW), "job:#1/due": "",
            "job:#1/reason": "stop", f"{source}/#1": GONE, "changed/#1": NOW}  # fmt: skip


FREED = {"key:k": GONE, "key:k@": GONE}

TABLE = [
    Row(
        name="a ready job never runs c14",
        seed=lambda rig: rig.ready(1, key="k"),
        call=lambda rig: rig.cancel(1),
        reply=["CANCELLED", 2],
        delta={**cancelled("ready"), **FREED},
        again=["FINAL", "cancelled"],
    ),
    Row(
        name="a scheduled job never runs c14",
        seed=lambda rig: rig.ready(1, key="k", delay=5),
        call=lambda rig: rig.cancel(1),
        reply=["CANCELLED", 2],
        delta={**cancelled("scheduled"), **FREED},
        again=["FINAL", "cancelled"],
    ),
    Row(
        name="a retrying job does not run again c14",
        seed=lambda rig: rig.ended(1, "retry", delay=5, key="k"),
        call=lambda rig: rig.cancel(1),
        reply=["CANCELLED", 4],
        delta={**cancelled("retrying", rev=4), **FREED},
        again=["FINAL", "cancelled"],
    ),
    Row(
        name="a running job is asked to stop and keeps its token and key",
        seed=lambda rig: rig.running(1, key="k"),
        call=lambda rig: rig.cancel(1),
        reply=["REQUESTED", 3],
        delta={"job:#1/rev": "3", "job:#1/cancel": str(NOW), "changed/#1": NOW},
    ),
    Row(
        name="a paused queue's job",
        seed=lambda rig: (rig.ready(1), rig.pause()),
        call=lambda rig: rig.cancel(1),
        reply=["CANCELLED", 2],
        delta=cancelled("ready"),
        again=["FINAL", "cancelled"],
    ),
    *(
        Row(
            name=f"a job that is {state}",
            seed=lambda rig, verb=verb: rig.ended(1, verb),
            call=lambda rig: rig.cancel(1),
            reply=["FINAL", state],
        )
        for verb, state in (("succeed", "succeeded"), ("dead", "dead"), ("cancel", "cancelled"))
    ),
    Row(name="an unknown job", call=lambda rig: rig.cancel(1), reply=["NOT_FOUND"]),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_cancel(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_key_is_free_at_once(rig: Rig) -> None:
    rig.enqueue(New(n=1, key="k", delay=5))
    rig.cancel(1)

    assert rig.enqueue(New(n=2, key="k")) == [["NEW", "#2", "ready", 1]]

    rig.retry(1)
    rig.cancel(1)  # the key is another job's now

    assert rig.state()["key:k"] == "#2 "


def test_key_of_another_type_does_not_stop_a_cancellation(rig: Rig) -> None:
    rig.ready(1, key="k")
    rig.client.delete(rig.keys.key("k"))
    rig.client.rpush(rig.keys.key("k"), "no string")

    assert rig.cancel(1) == ["CANCELLED", 2]


def test_cancelled_job_is_not_claimed(rig: Rig) -> None:
    rig.ready(1, 2)
    rig.cancel(1)

    assert rig.claimed(1, limit=10) == [2]


def test_wrong_typed_hash_is_no_job(rig: Rig) -> None:
    rig.damage(1)
    rig.client.set(rig.job_key(1), "no hash")

    assert (rig.cancel(1), rig.delta) == (["NOT_FOUND"], {})


@pytest.mark.parametrize("fields", [{"rev": "5"}, {"state": "?"}], ids=str)
def test_damaged_hash_is_left_alone(rig: Rig, fields: dict[str, str]) -> None:
    rig.damage(1)
    rig.client.hset(rig.job_key(1), mapping=fields)

    assert (rig.cancel(1), rig.delta) == (["FINAL", fields.get("state", "")], {})


def test_request_is_forgotten_in_a_new_round(rig: Rig) -> None:
    rig.running(1)
    rig.cancel(1)
    rig.settle(Out(n=1, verb="return", claim=claim_id(1)))
    rig.retry(1)
    rig.claim(2)

    assert rig.heartbeat((1, claim_id(2), "1")) == ["OK", [], []]
    assert rig.settle(Out(n=1, verb="retry", claim=claim_id(2)))[1][0][1] == "retrying"
