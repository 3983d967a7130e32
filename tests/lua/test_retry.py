"""`retry`: new rounds, and waits that are cut short."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import GONE, NOW, Out, Rig, Row, claim_id, hold, job_id

WOKEN = {"wake/0": "1", "wake@": "expires"}
NEW_ROUND = {"job:#1/state": "ready", "job:#1/rev": "4", "job:#1/round": "2", "job:#1/attempts": "0", "job:#1/losses": "0",
             "job:#1/finished": "", "job:#1/reason": "", "job:#1/cancel": "", "job:#1/claim": "",
             "job:#1/hurried": "", "ready/#1": (0, 2), "changed/#1": NOW, "meta/seq": "2", **WOKEN}  # fmt: skip

TABLE = [
    *(
        Row(
            name=f"a {verb} job starts a new round with all its attempts and its history",
            seed=lambda rig, verb=verb: rig.ended(1, verb),
            call=lambda rig: rig.retry(1),
            reply=["OK", "ready", 4],
            delta={**NEW_ROUND, **empty},
        )
        for verb, empty in (("dead", {"job:#1/due": ""}), ("cancel", {}))
    ),
    Row(
        name="a job that is about to leave Redis stays",
        seed=lambda rig: (rig.ended(1, "dead"), rig.mirrored((1, 3))),
        call=lambda rig: rig.retry(1),
        reply=["OK", "ready", 4],
        delta={**NEW_ROUND, "job:#1/due": "", "job:#1@": GONE},
    ),
    Row(
        name="a retrying job need not wait",
        seed=lambda rig: rig.ended(1, "retry", delay=500),
        call=lambda rig: rig.retry(1),
        reply=["OK", "ready", 4],
        delta={"job:#1/state": "ready", "job:#1/rev": "4", "job:#1/due": "", "job:#1/reason": "", "job:#1/cancel": "",
               "job:#1/claim": "", "job:#1/hurried": "1", "retrying/#1": GONE, "ready/#1": (0, 2), "changed/#1": NOW,
               "meta/seq": "2", **WOKEN},
    ),
    Row(
        name="a round that is over already",
        seed=lambda rig: (rig.ended(1, "dead"), rig.retry(1), rig.claim(2)),
        call=lambda rig: rig.retry(1, seen_round=1),
        reply=["OK", "running", 5],
    ),
    Row(
        name="a paused queue's job",
        seed=lambda rig: (rig.ended(1, "dead"), rig.pause()),
        call=lambda rig: rig.retry(1),
        reply=["OK", "ready", 4],
        delta={**NEW_ROUND, "job:#1/due": ""},
    ),
    *(
        Row(name=f"a job that is {state}", seed=seed, call=lambda rig: rig.retry(1), reply=["NOT_ALLOWED", state])
        for state, seed in (
            ("ready", lambda rig: rig.ready(1)),
            ("scheduled", lambda rig: rig.ready(1, delay=5)),
            ("running", lambda rig: rig.running(1)),
            ("succeeded", lambda rig: rig.ended(1, "succeed")),
        )
    ),
    Row(name="an unknown job", call=lambda rig: rig.retry(1), reply=["NOT_FOUND"]),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_retry(rig: Rig, row: Row) -> None:
    hold(rig, row)


def test_repeated_retry_of_a_retrying_job_is_known_while_it_runs(rig: Rig) -> None:
    rig.ended(1, "retry", delay=500)
    rig.retry(1)
    rig.claim(2)

    assert rig.retry(1) == ["OK", "running", 5]

    rig.settle(Out(n=1, verb="retry", claim=claim_id(2)))
    rig.promote()

    assert rig.retry(1) == ["NOT_ALLOWED", "ready"]  # this wait was not cut short


def test_cut_short_wait_of_one_round_says_nothing_about_the_next(rig: Rig) -> None:
    rig.ended(1, "retry", delay=500)
    rig.retry(1)
    rig.claim(2)
    rig.settle(Out(n=1, verb="dead", claim=claim_id(2)))
    rig.retry(1)
    rig.claim(3)
    rig.settle(Out(n=1, verb="retry", claim=claim_id(3)))
    rig.promote()

    assert rig.retry(1, seen_round=2) == ["NOT_ALLOWED", "ready"]


def test_retried_job_comes_last_of_its_priority(rig: Rig) -> None:
    rig.ended(1, "dead", priority=3)
    rig.ready(2, priority=3)
    rig.ready(3)

    rig.retry(1)

    assert rig.order() == [2, 1, 3]


def test_new_round_has_all_attempts_and_losses(rig: Rig) -> None:
    rig.running(1, attempts=1, losses=1)
    rig.settle(Out(n=1, verb="lost", claim=claim_id(1)))
    rig.retry(1)
    rig.claim(2)

    assert rig.settle(Out(n=1, verb="retry", claim=claim_id(2)))[1] == [["OK", "dead", 6]]
    assert {name: rig.job(1)[name].split()[1:4] for name in ("a:3", "a:6")} == {
        "a:3": ["1", "1", "lost"], "a:6": ["2", "1", "failed"],
    }  # fmt: skip


def test_outcome_of_the_former_round_is_refused(rig: Rig) -> None:
    rig.running(1)
    rig.settle(Out(n=1, verb="dead", claim=claim_id(1)))
    rig.retry(1)

    assert rig.settle(Out(n=1, verb="dead", claim=claim_id(1)))[1] == [["LEASE_LOST", "ready", 4]]


def test_wrong_typed_hash_is_no_job(rig: Rig) -> None:
    rig.damage(1)
    rig.client.set(rig.job_key(1), "no hash")

    assert (rig.retry(1), rig.delta) == (["NOT_FOUND"], {})


def test_damaged_hash_is_left_alone(rig: Rig) -> None:
    rig.damage(1)
    rig.client.hset(rig.job_key(1), mapping={"rev": "?", "round": "?", "attempts": "?"})

    assert (rig.retry(1), rig.delta) == (["NOT_ALLOWED", ""], {})


def test_damaged_numbers_count_as_none(rig: Rig) -> None:
    rig.ended(1, "dead")
    rig.damage(1)
    rig.client.hset(rig.job_key(1), mapping={"rev": "?", "round": "?", "attempts": "?", "prio": "?"})

    assert rig.retry(1) == ["OK", "ready", 1]


@pytest.mark.parametrize("value", ["", "x"])
def test_round_that_is_no_number_is_refused(rig: Rig, value: str) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG retry"):
        rig.run(Script.RETRY, rig.keys.prefix, NOW, job_id(1), value)
