"""`enqueue`: new jobs, and those that are there already."""

from __future__ import annotations

import random

import pytest
import uuid_utils

from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import Claim, NewJob
from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import EPOCH, GONE, NOW, QUEUE, New, Out, Rig, Row, claim_id, hold

WOKEN = {"wake/0": "1", "wake@": "expires"}


def fresh(n: int, state: str, **fields: str) -> dict[str, object]:
    """What a new job adds: its hash and its change, not its place."""
    values = {"state": state, "rev": "1", "limits": "3,3", "at": str(NOW), "payload": "work", **fields}
    return {f"job:#{n}/{name}": value for name, value in values.items()} | {f"changed/#{n}": NOW}


TABLE = [
    Row(
        name="a job without a due time is ready and wakes a worker",
        call=lambda rig: rig.enqueue(New(n=1)),
        reply=[["NEW", "#1", "ready", 1]],
        delta={**fresh(1, "ready"), "ready/#1": (0, 1), "meta/seq": "1", **WOKEN},
        again=[["EXISTS", "#1", "ready", 1]],
    ),
    Row(
        name="a priority is stored and sorts",
        call=lambda rig: rig.enqueue(New(n=1, priority=-100)),
        reply=[["NEW", "#1", "ready", 1]],
        delta={**fresh(1, "ready", prio="-100"), "ready/#1": (-100, 1), "meta/seq": "1", **WOKEN},
        again=[["EXISTS", "#1", "ready", 1]],
    ),
    Row(
        name="limits, floor and round are stored",
        call=lambda rig: rig.enqueue(New(n=1, attempts=7, losses=2, floor=41, round=3)),
        reply=[["NEW", "#1", "ready", 42]],
        delta={**fresh(1, "ready", limits="7,2", rev="42", round="3"), "ready/#1": (0, 1), "meta/seq": "1", **WOKEN},
        again=[["EXISTS", "#1", "ready", 42]],
    ),
    Row(
        name="a due time in the future schedules and wakes who has to wait less long now",
        call=lambda rig: rig.enqueue(New(n=1, due=NOW + 1)),
        reply=[["NEW", "#1", "scheduled", 1]],
        delta={**fresh(1, "scheduled", due=str(NOW + 1)), "scheduled/#1": NOW + 1, **WOKEN},
        again=[["EXISTS", "#1", "scheduled", 1]],
    ),
    Row(
        name="a later due time wakes nobody",
        seed=lambda rig: rig.enqueue(New(n=2, due=NOW + 1)),
        call=lambda rig: rig.enqueue(New(n=1, due=NOW + 2)),
        reply=[["NEW", "#1", "scheduled", 1]],
        delta={**fresh(1, "scheduled", due=str(NOW + 2)), "scheduled/#1": NOW + 2},
        again=[["EXISTS", "#1", "scheduled", 1]],
    ),
    Row(
        name="a due time that has come is now",
        call=lambda rig: rig.enqueue(New(n=1, due=NOW)),
        reply=[["NEW", "#1", "ready", 1]],
        delta={**fresh(1, "ready"), "ready/#1": (0, 1), "meta/seq": "1", **WOKEN},
        again=[["EXISTS", "#1", "ready", 1]],
    ),
    Row(
        name="a delay counts from the server's now",
        call=lambda rig: rig.enqueue(New(n=1, delay=250)),
        reply=[["NEW", "#1", "scheduled", 1]],
        delta={**fresh(1, "scheduled", due=str(NOW + 250)), "scheduled/#1": NOW + 250, **WOKEN},
        again=[["EXISTS", "#1", "scheduled", 1]],
    ),
    Row(
        name="ready and scheduled jobs in one call",
        call=lambda rig: rig.enqueue(New(n=1), New(n=2, delay=5), New(n=3, delay=0)),
        reply=[["NEW", "#1", "ready", 1], ["NEW", "#2", "scheduled", 1], ["NEW", "#3", "ready", 1]],
        delta={
            **fresh(1, "ready"), "ready/#1": (0, 1), **fresh(2, "scheduled", due=str(NOW + 5)), "scheduled/#2": NOW + 5,
            **fresh(3, "ready"), "ready/#3": (0, 2), "meta/seq": "2", **WOKEN,
        },
        again=[["EXISTS", "#1", "ready", 1], ["EXISTS", "#2", "scheduled", 1], ["EXISTS", "#3", "ready", 1]],
    ),
    Row(
        name="the same id twice in one call is one job",
        call=lambda rig: rig.enqueue(New(n=1), New(n=1, payload=b"other")),
        reply=[["NEW", "#1", "ready", 1], ["EXISTS", "#1", "ready", 1]],
        delta={**fresh(1, "ready"), "ready/#1": (0, 1), "meta/seq": "1", **WOKEN},
        again=[["EXISTS", "#1", "ready", 1], ["EXISTS", "#1", "ready", 1]],
    ),
    Row(
        name="a key is held for its window",
        call=lambda rig: rig.enqueue(New(n=1, key="k", mark="m")),
        reply=[["NEW", "#1", "ready", 1]],
        delta={
            **fresh(1, "ready", key="k"), "ready/#1": (0, 1), "meta/seq": "1", "key:k": "#1 m", "key:k@": "expires", **WOKEN,
        },
        again=[["EXISTS", "#1", "ready", 1]],
    ),
    Row(
        name="the same key in one call is one job when the mark is the same",
        call=lambda rig: rig.enqueue(*(New(n=n, key="k", mark=mark) for n, mark in ((1, "m"), (2, "m"), (3, "other")))),
        reply=[["NEW", "#1", "ready", 1], ["DUPLICATE", "#1", "", 0], ["CONFLICT", "#1", "", 0]],
        delta={
            **fresh(1, "ready", key="k"), "ready/#1": (0, 1), "meta/seq": "1", "key:k": "#1 m", "key:k@": "expires", **WOKEN,
        },
        again=[["EXISTS", "#1", "ready", 1], ["DUPLICATE", "#1", "", 0], ["CONFLICT", "#1", "", 0]],
    ),
    Row(
        name="a key held since another call gives its job, or the conflict",
        seed=lambda rig: rig.enqueue(New(n=1, key="k", mark="m")),
        call=lambda rig: rig.enqueue(New(n=2, key="k", mark="m"), New(n=3, key="k", mark="")),
        reply=[["DUPLICATE", "#1", "", 0], ["CONFLICT", "#1", "", 0]],
    ),
    Row(
        name="a key without a mark matches a key without a mark",
        seed=lambda rig: rig.enqueue(New(n=1, key="k")),
        call=lambda rig: rig.enqueue(New(n=2, key="k")),
        reply=[["DUPLICATE", "#1", "", 0]],
    ),
    Row(
        name="a job whose data was lost is not kept out by its own key",
        seed=lambda rig: (rig.enqueue(New(n=1, key="k", delay=9)), rig.client.delete(rig.job_key(1), rig.keys.scheduled)),
        call=lambda rig: rig.enqueue(New(n=1, key="k", floor=5)),
        reply=[["NEW", "#1", "ready", 6]],
        delta={**fresh(1, "ready", key="k", rev="6"), "ready/#1": (0, 1), "meta/seq": "1", **WOKEN},
        again=[["EXISTS", "#1", "ready", 6]],
    ),
    Row(
        name="a paused queue takes jobs",
        seed=lambda rig: rig.pause(),
        call=lambda rig: rig.enqueue(New(n=1)),
        reply=[["NEW", "#1", "ready", 1]],
        delta={**fresh(1, "ready"), "ready/#1": (0, 1), "meta/seq": "1", **WOKEN},
        again=[["EXISTS", "#1", "ready", 1]],
    ),
    Row(
        name="a new round of a job that has ended keeps history that nobody has stored and raises the rev",
        seed=lambda rig: (rig.ended(1, "dead", key="k", mark="m"), rig.client.pexpire(rig.job_key(1), 10_000)),
        call=lambda rig: rig.enqueue(New(n=1, round=2, payload=b"new", attempts=1)),
        reply=[["NEW", "#1", "ready", 4]],
        delta={
            "job:#1/state": "ready", "job:#1/rev": "4", "job:#1/round": "2", "job:#1/limits": "1,3", "job:#1/payload": "new",
            "job:#1@": GONE, "changed/#1": NOW, "ready/#1": (0, 2), "meta/seq": "2", **WOKEN,
            **dict.fromkeys(
                (f"job:#1/{name}" for name in ("token", "claim", "claimed", "score", "ran", "attempts", "finished", "reason", "key")),
                GONE,
            ),
        },
        again=[["EXISTS", "#1", "ready", 4]],
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_enqueue(rig: Rig, row: Row) -> None:
    hold(rig, row)


SEEDS = {
    "ready": lambda rig: rig.ready(1),
    "scheduled": lambda rig: rig.ready(1, delay=5),
    "running": lambda rig: rig.running(1),
    "retrying": lambda rig: rig.ended(1, "retry", delay=5),
    "succeeded": lambda rig: rig.ended(1, "succeed"),
    "dead": lambda rig: rig.ended(1, "dead"),
    "cancelled": lambda rig: rig.ended(1, "cancel"),
}


@pytest.mark.parametrize("state", SEEDS)
def test_enqueue_of_a_job_that_is_there_changes_nothing(rig: Rig, state: str) -> None:
    SEEDS[state](rig)
    rev = int(rig.job(1)["rev"])

    reply = rig.enqueue(New(n=1, payload=b"other", priority=9, key="k"))

    assert (reply, rig.delta) == ([["EXISTS", "#1", state, rev]], {})


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "retrying", "succeeded"])
def test_enqueue_of_a_later_round_leaves_a_job_alone_that_did_not_fail(rig: Rig, state: str) -> None:
    SEEDS[state](rig)

    reply = rig.enqueue(New(n=1, round=2))

    assert (reply[0][0], reply[0][2], rig.delta) == ("EXISTS", state, {})


@pytest.mark.parametrize("verb", ["dead", "cancel"])
def test_enqueue_of_a_later_round_can_be_scheduled(rig: Rig, verb: str) -> None:
    rig.ended(1, verb)

    reply = rig.enqueue(New(n=1, round=2, delay=10))

    assert reply == [["NEW", "#1", "scheduled", 4]]
    assert rig.places(1) == ["scheduled"]
    assert [name for name in rig.job(1) if name.startswith("a:")] == ["a:3"]


def test_enqueue_of_an_earlier_round_changes_nothing(rig: Rig) -> None:
    rig.enqueue(New(n=1, round=3))

    assert (rig.enqueue(New(n=1, round=2)), rig.delta) == ([["EXISTS", "#1", "ready", 1]], {})


def test_rev_of_a_new_round_exceeds_floor_and_former_rev(rig: Rig) -> None:
    rig.ended(1, "dead")  # rev 3

    assert rig.enqueue(New(n=1, round=2, floor=2))[0][3] == 4

    rig.claim(2)
    rig.settle(Out(n=1, verb="dead", claim=claim_id(2)))

    assert rig.enqueue(New(n=1, round=3, floor=99))[0][3] == 100


def test_key_is_free_when_its_window_is_over(rig: Rig) -> None:
    rig.enqueue(New(n=1, key="k", window=60_000))

    assert 0 < rig.client.pttl(rig.keys.key("k")) <= 60_000

    rig.client.pexpire(rig.keys.key("k"), 0)

    assert rig.enqueue(New(n=2, key="k"))[0][0] == "NEW"


@pytest.mark.parametrize(
    "job",
    [
        *(New(n=2, priority=value) for value in (101, -101, "high", "")),
        *(New(n=2, due=value) for value in ("soon", "1e")),
        New(n=2, delay="x"),
        *(New(n=2, attempts=value) for value in (0, "", -1)),
        *(New(n=2, losses=value) for value in (0, "")),
        *(New(n=2, window=value) for value in (0, "")),
        *(New(n=2, floor=value) for value in (-1, "")),
        *(New(n=2, round=value) for value in (0, "")),
    ],
    ids=str,
)
def test_value_out_of_range_refuses_the_whole_call(rig: Rig, job: New) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG enqueue takes numbers"):
        rig.enqueue(New(n=1), job)

    assert rig.delta == {}


@pytest.mark.parametrize("count", [0, 2, 101, "", "x"])
def test_wrong_count_is_refused(rig: Rig, count: int | str) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG enqueue takes 1..100 jobs"):
        rig.run(Script.ENQUEUE, rig.keys.prefix, rig.now, count, *New(n=1).values())


def test_a_hundred_jobs_in_one_call(rig: Rig) -> None:
    replies = rig.enqueue(*(New(n=n) for n in range(1, 101)))

    assert [reply[:3] for reply in replies] == [["NEW", f"#{n}", "ready"] for n in range(1, 101)]
    assert rig.order() == list(range(1, 101))


# Order


def test_larger_priority_is_claimed_sooner_f2(rig: Rig) -> None:
    priorities = list(range(-100, 101, 10))
    shuffled = random.Random(1).sample(priorities, len(priorities))
    rig.enqueue(*(New(n=priority + 200, priority=priority) for priority in shuffled))

    wanted = [priority + 200 for priority in sorted(priorities, reverse=True)]
    assert rig.order() == wanted
    assert rig.claimed(1, limit=100) == wanted


def test_first_in_first_out_within_a_priority_f7(redis_client, prefix: str) -> None:
    broker = Broker(redis_client, prefix, now_ms=lambda: NOW)  # a thousand jobs of one millisecond
    broker.open_epoch(QUEUE, EPOCH)
    ids = [str(uuid_utils.uuid4()) for _ in range(1000)]

    broker.enqueue(QUEUE, [NewJob(id=job_id, payload=b"") for job_id in ids])

    claimed: list[str] = []
    for n in range(1, 21):
        claim = Claim(slot="w.0.0", n=n, ack=n - 1, limit=50, lease_ms=1000, epoch=EPOCH)
        claimed += [job.id for job in broker.claim(QUEUE, claim).jobs]
    assert claimed == ids


def test_first_in_first_out_holds_within_each_priority(rig: Rig) -> None:
    rig.enqueue(*(New(n=n, priority=(n % 3) - 1) for n in range(1, 10)))
    rig.enqueue(*(New(n=n, priority=(n % 3) - 1) for n in range(10, 13)))

    assert rig.order() == [2, 5, 8, 11, 1, 4, 7, 10, 3, 6, 9, 12]


def test_order_is_exact_at_the_largest_sequence_and_the_lowest_priority(rig: Rig) -> None:
    rig.client.hset(rig.keys.meta, "seq", 2**44 - 3)
    rig.enqueue(New(n=1, priority=-100), New(n=2, priority=-100))

    assert [rig.state()[f"ready/#{n}"] for n in (1, 2)] == [(-100, 2**44 - 2), (-100, 2**44 - 1)]
