"""`claim`: what a slot is given, and given again."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import EPOCH, GONE, LEASE, NOW, SLOT, New, Out, Rig, Row, claim_id, hold, job_id

OTHER = "0badcafe.0.1"
DUE = str(NOW + 5)


def score(seq: int, priority: int = 0) -> str:
    """Return a score of `ready` as the job's hash keeps it."""
    return str((100 - priority) * 2**44 + seq)


def given(n: int, rev: int = 2, *, payload: str = "work", cancel: str = "") -> list[object]:
    """Return a claimed job of the first round as the reply describes it."""
    return [f"#{n}", rev, 0, 0, "3,3", str(NOW), "1", cancel, payload]


def leased(n: int, seq: int, *, request: int = 1, rev: int = 2, first: bool = False) -> dict[str, object]:
    """What the claim of a job changes."""
    fields = {"state": "running", "rev": str(rev), "token": str(rev), "claim": claim_id(request), "claimed": str(NOW),
              "score": score(seq)}  # fmt: skip
    if first:
        fields["ran"] = claim_id(request)
    return {f"job:#{n}/{name}": value for name, value in fields.items()} | {
        f"ready/#{n}": GONE, f"leases/#{n}": NOW + LEASE, f"changed/#{n}": NOW,
    }  # fmt: skip


def slot(text: str) -> dict[str, object]:
    """What the slot's string holds now that it is new."""
    return {f"slot:{SLOT}": text, f"slot:{SLOT}@": "expires"}


TABLE = [
    Row(
        name="an empty queue gives nothing",
        call=lambda rig: rig.claim(1),
        reply=["OK", NOW, ""],
        delta=slot("1 "),
    ),
    Row(
        name="one ready job",
        seed=lambda rig: rig.ready(1),
        call=lambda rig: rig.claim(1),
        reply=["OK", NOW, "", given(1)],
        delta={**leased(1, 1, first=True), **slot("1 #1")},
    ),
    Row(
        name="a batch, of which only the first is taken to have started, and what is left wakes another",
        seed=lambda rig: rig.ready(1, 2, 3),
        call=lambda rig: rig.claim(1, limit=2),
        reply=["OK", NOW, "", given(1), given(2)],
        delta={**leased(1, 1, first=True), **leased(2, 2), **slot("1 #1 #2"), "wake/0": "1", "wake@": "expires"},
    ),
    Row(
        name="a limit of 0 takes nothing and promotes",
        seed=lambda rig: (rig.ready(1), rig.enqueue(New(n=2, delay=5)), setattr(rig, "now", NOW + 5)),
        call=lambda rig: rig.claim(1, limit=0),
        reply=["OK", NOW + 5, ""],
        delta={
            "job:#2/state": "ready", "job:#2/rev": "2", "job:#2/due": "", "scheduled/#2": GONE, "ready/#2": (0, 2),
            "changed/#2": NOW + 5, "meta/seq": "2", **slot("1 "), "wake/0": "1", "wake@": "expires",
        },
    ),
    Row(
        name="the next due time is told",
        seed=lambda rig: rig.enqueue(New(n=1, delay=9), New(n=2, delay=5)),
        call=lambda rig: rig.claim(1),
        reply=["OK", NOW, DUE],
        delta=slot("1 "),
    ),
    Row(
        name="the next due time is told with jobs",
        seed=lambda rig: rig.enqueue(New(n=1), New(n=2, delay=5)),
        call=lambda rig: rig.claim(1),
        reply=["OK", NOW, DUE, given(1)],
        delta={**leased(1, 1, first=True), **slot("1 #1")},
    ),
    Row(
        name="what is due is promoted and claimed in one step",
        seed=lambda rig: (rig.enqueue(New(n=1, due=NOW + 5)), setattr(rig, "now", NOW + 5)),
        call=lambda rig: rig.claim(1),
        reply=["OK", NOW + 5, "", given(1, 3)],
        delta={
            "job:#1/state": "running", "job:#1/rev": "3", "job:#1/token": "3", "job:#1/claim": claim_id(1), "job:#1/due": "",
            "job:#1/claimed": str(NOW + 5), "job:#1/score": score(1), "job:#1/ran": claim_id(1), "scheduled/#1": GONE,
            "leases/#1": NOW + 5 + LEASE, "changed/#1": NOW + 5, "meta/seq": "1", **slot("1 #1"),
        },
    ),
    Row(
        name="a paused queue gives nothing and keeps no record of the request",
        seed=lambda rig: (rig.ready(1), rig.pause()),
        call=lambda rig: rig.claim(1),
        reply=["PAUSED"],
    ),
    Row(
        name="another epoch",
        seed=lambda rig: rig.ready(1),
        call=lambda rig: rig.claim(1, epoch="e0"),
        reply=["NEEDS_EPOCH", EPOCH],
    ),
    Row(
        name="a queue without an epoch",
        seed=lambda rig: rig.client.delete(rig.keys.meta),
        call=lambda rig: rig.claim(1),
        reply=["NEEDS_EPOCH", ""],
    ),
    Row(
        name="an old request is stale",
        seed=lambda rig: (rig.ready(1), rig.claim(7, ack=0)),
        call=lambda rig: rig.claim(6),
        reply=["STALE", "7"],
    ),
    Row(
        name="a reply that was never seen comes again under the new claim, and nothing new, whatever the limit",
        seed=lambda rig: (rig.running(1, 2), rig.ready(3)),
        call=lambda rig: rig.claim(2, ack=0, limit=1),
        reply=["OK", NOW, "", given(1, 3), given(2, 3)],
        delta={
            f"slot:{SLOT}": "2 #1 #2", "changed/#1": NOW, "changed/#2": NOW, "job:#1/ran": claim_id(2),
            **{f"job:#{n}/{name}": value for n in (1, 2) for name, value in
               (("rev", "3"), ("token", "3"), ("claim", claim_id(2)))},
        },
    ),
    Row(
        name="a reply that was never seen comes again in a paused queue too",
        seed=lambda rig: (rig.running(1), rig.pause()),
        call=lambda rig: rig.claim(2, ack=0),
        reply=["OK", NOW, "", given(1, 3)],
        delta={
            f"slot:{SLOT}": "2 #1", "changed/#1": NOW, "job:#1/rev": "3", "job:#1/token": "3", "job:#1/claim": claim_id(2),
            "job:#1/ran": claim_id(2),
        },
    ),
    Row(
        name="of a reply that was never seen, what others have recovered does not come again",
        seed=lambda rig: (rig.running(1, 2), rig.settle(Out(n=1, verb="return", claim=claim_id(1))),
                          rig.claimed(1, slot=OTHER)),
        call=lambda rig: rig.claim(2, ack=0),
        reply=["OK", NOW, "", given(2, 3)],
        delta={
            f"slot:{SLOT}": "2 #2", "changed/#2": NOW, "job:#2/rev": "3", "job:#2/token": "3", "job:#2/claim": claim_id(2),
            "job:#2/ran": claim_id(2),
        },
    ),
    Row(
        name="a reply that was seen is not given again",
        seed=lambda rig: (rig.running(1), rig.ready(2)),
        call=lambda rig: rig.claim(2),
        reply=["OK", NOW, "", given(2)],
        delta={**leased(2, 2, request=2, first=True), f"slot:{SLOT}": "2 #2"},
    ),
    Row(
        name="a job that was lost before it started comes alone",
        seed=lambda rig: (rig.running(1, 2), rig.settle(Out(n=1, verb="strand", claim=claim_id(1))), rig.ready(3)),
        call=lambda rig: rig.claim(2, limit=10),
        reply=["OK", NOW, "", given(1, 4)],
        delta={
            "job:#1/state": "running", "job:#1/rev": "4", "job:#1/token": "4", "job:#1/claim": claim_id(2), "job:#1/alone": "",
            "job:#1/ran": claim_id(2), "ready/#1": GONE, "leases/#1": NOW + LEASE, "changed/#1": NOW,
            f"slot:{SLOT}": "2 #1", "wake/0": "1", "wake@": "expires",
        },
    ),
    Row(
        name="a batch ends before a job that comes alone",
        seed=lambda rig: (rig.ready(1), rig.running(2, slot=OTHER, request=1, priority=5),
                          rig.settle(Out(n=2, verb="strand", claim=claim_id(1, OTHER)), slot=OTHER), rig.ready(3, priority=6)),
        call=lambda rig: rig.claim(1, limit=10),
        reply=["OK", NOW, "", given(3)],
        delta={**leased(3, 3, first=True), "job:#3/score": score(3, 6), **slot("1 #3"), "wake/0": "1", "wake@": "expires"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_claim(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_repeated_claim_leaves_out_what_has_been_settled_meanwhile(rig: Rig) -> None:
    rig.running(1, 2)
    rig.settle(Out(n=1, verb="succeed", claim=claim_id(1)))

    assert rig.claim(1, limit=2) == ["OK", NOW, "", given(2)]
    assert rig.delta == {}


def test_repeated_claim_that_gave_nothing_tells_the_next_due_time_again(rig: Rig) -> None:
    rig.enqueue(New(n=1, delay=5))
    rig.claim(1)

    assert rig.claim(1) == ["OK", NOW, DUE]


def test_repeated_claim_of_a_job_whose_cancellation_was_asked_for_keeps_its_token(rig: Rig) -> None:
    rig.running(1)
    rig.cancel(1)

    assert rig.claim(1) == ["OK", NOW, "", given(1, 2, cancel=str(NOW))]


def test_claim_names_the_cancellation_of_a_job_that_comes_again(rig: Rig) -> None:
    rig.running(1)
    rig.cancel(1)

    assert rig.claim(2, ack=0) == ["OK", NOW, "", given(1, 4, cancel=str(NOW))]


def test_slots_do_not_share_their_requests(rig: Rig) -> None:
    rig.ready(1, 2)

    assert rig.claimed(5, ack=0) == [1]
    assert rig.claimed(1, ack=0, slot=OTHER) == [2]
    assert rig.claimed(5, ack=0) == [1]


def test_slot_keeps_its_record_for_two_leases_and_a_minute_at_least(rig: Rig) -> None:
    rig.claim(1)
    minute = rig.client.pttl(rig.keys.slot(SLOT))
    rig.run(Script.CLAIM, rig.keys.prefix, NOW, SLOT, 2, 1, 1, 90_000, EPOCH)

    assert 50_000 < minute <= 60_000 < 170_000 < rig.client.pttl(rig.keys.slot(SLOT)) <= 180_000


def test_promotion_in_a_claim_keeps_to_a_hundred(rig: Rig) -> None:
    rig.enqueue(*(New(n=n, delay=1) for n in range(1, 101)))
    rig.enqueue(New(n=101, delay=2))
    rig.now += 2

    reply = rig.claim(1, limit=0)

    assert reply == ["OK", NOW + 2, str(NOW + 2)]  # a due time that has passed: more is left
    assert len(rig.order()) == 100


def test_missing_and_wrong_hashes_are_dropped_and_told_to_the_mirror_a8(rig: Rig) -> None:
    rig.ready(*range(1, 11))
    for n in (2, 5):
        rig.damage(n)
    rig.client.delete(rig.job_key(2), rig.job_key(5))
    rig.client.rpush(rig.job_key(5), "no hash")
    rig.quiet()

    assert rig.claimed(1, limit=100) == [1, 3, 4, 6, 7, 8, 9, 10]
    assert {n for n in range(1, 11) if f"changed/#{n}" in rig.state()} == set(range(1, 11))
    assert rig.places(2) == rig.places(5) == []


def test_damaged_numbers_of_one_job_stop_nobody_a10(rig: Rig) -> None:
    rig.ready(1, 2)
    rig.damage(1)
    rig.client.hset(rig.job_key(1), mapping=dict.fromkeys(("rev", "attempts", "losses", "limits", "at"), "?"))

    reply = rig.claim(1, limit=2)

    assert reply[3:] == [["#1", 1, 0, 0, "?", "?", "1", "", "work"], given(2)]


def test_record_of_a_slot_that_is_no_number_counts_as_none(rig: Rig) -> None:
    rig.ready(1)
    rig.client.set(rig.keys.slot(SLOT), "?? x")

    assert rig.claimed(1) == [1]


@pytest.mark.parametrize(
    "values", [("", 0, 1, LEASE), (1, "", 1, LEASE), (1, 0, "", LEASE), (1, 0, 101, LEASE), (1, 0, 1, "x")], ids=str
)
def test_claim_refuses_what_is_no_number_or_too_many(rig: Rig, values: tuple[object, ...]) -> None:
    rig.ready(1)

    with pytest.raises(ScriptError, match="JOBRAILARG claim takes n, ack, a limit"):
        rig.run(Script.CLAIM, rig.keys.prefix, NOW, SLOT, *values, EPOCH)

    assert rig.places(1) == ["ready"]


def test_server_clock_is_used_without_a_given_time(rig: Rig) -> None:
    rig.ready(1)
    seconds, micros = rig.client.time()

    reply = rig.run(Script.CLAIM, rig.keys.prefix, "", SLOT, 1, 0, 1, LEASE, EPOCH)

    assert 0 <= reply[1] - (seconds * 1000 + micros // 1000) < 10_000
    assert rig.client.zscore(rig.keys.leases, job_id(1)) == reply[1] + LEASE
