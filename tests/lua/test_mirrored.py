"""`mirrored`: what the mirror has stored may go."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import GONE, New, Out, Rig, claim_id, job_id


def test_job_that_has_not_changed_since_leaves_changed(rig: Rig) -> None:
    rig.ready(1, 2)

    assert rig.mirrored((1, 1)) == ["OK", 1]
    assert rig.delta == {"changed/#1": GONE}
    assert rig.mirrored((1, 1)) == ["OK", 1]
    assert rig.delta == {}


def test_job_that_has_changed_since_stays(rig: Rig) -> None:
    rig.running(1)

    assert (rig.mirrored((1, 1)), rig.delta) == (["OK", 0], {})


@pytest.mark.parametrize("verb", ["succeed", "dead", "cancel"])
def test_ended_job_becomes_a_tombstone(rig: Rig, verb: str) -> None:
    rig.ended(1, verb)

    assert rig.mirrored((1, 3)) == ["OK", 1]
    assert rig.delta == {"changed/#1": GONE, "job:#1@": "expires"}
    assert 0 < rig.client.pttl(rig.job_key(1)) <= 10_000
    assert rig.enqueue(New(n=1))[0][0] == "EXISTS"
    assert rig.mirrored((1, 3)) == ["OK", 1]
    assert rig.delta == {}


@pytest.mark.parametrize("rev", [1, 2, 4])
def test_ended_job_of_which_another_rev_was_stored_stays(rig: Rig, rev: int) -> None:
    rig.ended(1, "succeed")

    assert (rig.mirrored((1, rev))[1], rig.job(1)["state"]) == (0, "succeeded")
    assert "job:#1@" not in rig.state()


def test_attempts_of_a_job_that_goes_on_leave_when_they_are_stored(rig: Rig) -> None:
    rig.running(1)
    rig.settle(Out(n=1, verb="retry", claim=claim_id(1), data=b"error"))
    rig.claim(2)  # rev 5

    assert rig.mirrored((1, 5)) == ["OK", 1]
    assert rig.delta == {"changed/#1": GONE, "job:#1/a:3": GONE, "job:#1/e:3": GONE}
    assert rig.mirrored((1, 5)) == ["OK", 1]
    assert rig.delta == {}


def test_attempt_recorded_after_the_stored_rev_stays(rig: Rig) -> None:
    rig.running(1)  # rev 2: the mirror reads now
    rig.settle(Out(n=1, verb="retry", claim=claim_id(1), data=b"error"))

    assert (rig.mirrored((1, 2)), rig.delta) == (["OK", 0], {})
    assert {"a:3", "e:3"} <= set(rig.job(1))


def test_attempt_recorded_after_a_cancellation_was_stored_stays(rig: Rig) -> None:
    rig.running(1)
    rig.cancel(1)  # rev 3: the mirror reads now; it is larger than the token of the attempt that still runs
    rig.settle(Out(n=1, verb="cancel", claim=claim_id(1), data=b"error"))

    assert (rig.mirrored((1, 3)), rig.delta) == (["OK", 0], {})
    assert {"a:4", "e:4"} <= set(rig.job(1))


def test_attempts_of_an_ended_job_stay_for_a_retry_and_leave_after_it(rig: Rig) -> None:
    rig.ended(1, "dead")
    rig.mirrored((1, 3))
    assert "a:3" in rig.job(1)
    rig.retry(1)

    rig.mirrored((1, 4))

    assert "a:3" not in rig.job(1)


def test_slow_mirror_that_stored_an_older_rev_takes_only_what_that_had(rig: Rig) -> None:
    rig.ready(1)
    for n in (1, 2):
        rig.claim(n)
        rig.settle(Out(n=1, verb="retry", claim=claim_id(n)))
        rig.promote()

    rig.mirrored((1, 5))

    assert [name for name in rig.job(1) if name.startswith("a:")] == ["a:6"]


def test_missing_and_wrong_hashes_leave_changed(rig: Rig) -> None:
    rig.ready(1, 2, 3)
    for n in (1, 2):
        rig.damage(n)
    rig.client.delete(rig.job_key(1), rig.job_key(2))
    rig.client.set(rig.job_key(2), "no hash")

    assert rig.mirrored((1, 0), (2, 0), (3, 0)) == ["OK", 2]
    assert "changed/#3" in rig.state()


@pytest.mark.parametrize("value", ["?", "", "-1", "0x10", "1.5"])
def test_job_whose_rev_is_damaged_leaves_changed(rig: Rig, value: str) -> None:
    rig.ready(1)
    rig.damage(1)
    rig.client.hset(rig.job_key(1), "rev", value)

    assert rig.mirrored((1, 0)) == ["OK", 1]


def test_job_that_was_missing_and_is_new_now_stays(rig: Rig) -> None:
    rig.ready(1)

    assert (rig.mirrored((1, 0)), rig.delta) == (["OK", 0], {})


def test_a_hundred_jobs_in_one_call(rig: Rig) -> None:
    rig.enqueue(*(New(n=n) for n in range(1, 101)))

    assert rig.mirrored(*((n, 1) for n in range(1, 101))) == ["OK", 100]


@pytest.mark.parametrize("values", [(0,), (2, job_id(1), 1), (101,), ("",), ("x", job_id(1), 1)], ids=str)
def test_wrong_count_is_refused(rig: Rig, values: tuple[object, ...]) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG mirrored takes tombstone_ms and 1..100 jobs"):
        rig.run(Script.MIRRORED, rig.keys.prefix, 10_000, *values)


def test_tombstone_time_that_is_no_number_is_refused(rig: Rig) -> None:
    with pytest.raises(ScriptError, match="JOBRAILARG mirrored"):
        rig.run(Script.MIRRORED, rig.keys.prefix, "x", 1, job_id(1), 1)
