"""`settle`: how attempts end, and the claim that goes with it."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script
from jobrail_django.errors import ScriptError

from .rig import EPOCH, GONE, LEASE, NOW, OUTCOMES, SLOT, New, Out, Rig, Row, claim_id, hold, job_id

CLAIM = claim_id(1)
OTHER = "0badcafe.0.1"
CANCEL_ASKED = {"state": "cancelled", "finished": str(NOW), "reason": "cancelled while running"}
#: Verbs that end an attempt, and those for a job that had not started.
STARTED, UNSTARTED = ["succeed", "retry", "dead", "cancel", "release"], ["return", "strand", "park"]


def out(verb: str, n: int = 1, **options: object) -> Out:
    """Return an outcome of the first claim."""
    return Out(n=n, verb=verb, **{"claim": CLAIM, "reason": "as told", **options})  # type: ignore[arg-type]


def attempt(outcome: str, n: int = 1, *, rev: int = 3, number: int = 1, error: str = "") -> dict[str, object]:
    """The record of an attempt that started 50 ms ago and ran for 40 ms."""
    record = {f"job:#{n}/a:{rev}": f"{rev - 1} 1 {number} {outcome} {NOW - 50} {NOW - 10} {CLAIM}"}
    return record | ({f"job:#{n}/e:{rev}": error} if error else {})


def settled(n: int = 1, *, rev: int = 3, **fields: str) -> dict[str, object]:
    """What any accepted outcome changes, and these fields."""
    return {f"job:#{n}/{name}": value for name, value in fields.items()} | {
        f"job:#{n}/rev": str(rev), f"leases/#{n}": GONE, f"changed/#{n}": NOW,
    }  # fmt: skip


WOKEN = {"wake/0": "1", "wake@": "expires"}
BACK = {"ready/#1": (0, 1), **WOKEN}

TABLE = [
    Row(
        name="succeed",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("succeed", data=b'{"sum":3}', reason="")),
        reply=["OK", [["OK", "succeeded", 3]], []],
        delta={**settled(state="succeeded", finished=str(NOW), result='{"sum":3}', attempts="1", reason=""),
               **attempt("succeeded")},
    ),
    Row(
        name="succeed without a result, and with a reason for it",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("succeed", reason="too large")),
        reply=["OK", [["OK", "succeeded", 3]], []],
        delta={**settled(state="succeeded", finished=str(NOW), result="", attempts="1", reason="too large"),
               **attempt("succeeded")},
    ),
    Row(
        name="retry waits",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("retry", delay=700, data=b"error")),
        reply=["OK", [["OK", "retrying", 3]], []],
        delta={**settled(state="retrying", due=str(NOW + 700), attempts="1", reason="as told", left=f"{CLAIM} retry"),
               **attempt("failed", error="error"), "retrying/#1": NOW + 700},
    ),
    Row(
        name="retry with its attempts used up is dead",
        seed=lambda rig: rig.running(1, attempts=1),
        call=lambda rig: rig.settle(out("retry", delay=700, data=b"error")),
        reply=["OK", [["OK", "dead", 3]], []],
        delta={**settled(state="dead", finished=str(NOW), attempts="1", reason="as told"), **attempt("failed", error="error")},
    ),
    Row(
        name="dead",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("dead", data=b"error")),
        reply=["OK", [["OK", "dead", 3]], []],
        delta={**settled(state="dead", finished=str(NOW), attempts="1", reason="as told"), **attempt("failed", error="error")},
    ),
    Row(
        name="cancel frees the key",
        seed=lambda rig: rig.running(1, key="k"),
        call=lambda rig: rig.settle(out("cancel")),
        reply=["OK", [["OK", "cancelled", 3]], []],
        delta={**settled(state="cancelled", finished=str(NOW), due="", attempts="1", reason="as told"), **attempt("cancelled"),
               "key:k": GONE, "key:k@": GONE},
    ),
    Row(
        name="release without a delay is ready at its place and costs nothing",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("release", data=b"why")),
        reply=["OK", [["OK", "ready", 3]], []],
        delta={**settled(state="ready", claim="", left=f"{CLAIM} release"), **attempt("released", error="why"), **BACK},
    ),
    Row(
        name="release with a delay is scheduled and costs nothing",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("release", delay=9)),
        reply=["OK", [["OK", "scheduled", 3]], []],
        delta={**settled(state="scheduled", due=str(NOW + 9), reason="as told", left=f"{CLAIM} release"),
               **attempt("released"), "scheduled/#1": NOW + 9},
    ),
    Row(
        name="return leaves no attempt",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("return")),
        reply=["OK", [["OK", "ready", 3]], []],
        delta={**settled(state="ready", claim="", left=f"{CLAIM} return"), **BACK},
    ),
    Row(
        name="strand comes alone next time",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("strand")),
        reply=["OK", [["OK", "ready", 3]], []],
        delta={**settled(state="ready", claim="", alone="1", left=f"{CLAIM} strand"), **BACK},
    ),
    Row(
        name="park waits and costs nothing",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("park", delay=9)),
        reply=["OK", [["OK", "retrying", 3]], []],
        delta={**settled(state="retrying", due=str(NOW + 9), reason="as told", left=f"{CLAIM} park"), "retrying/#1": NOW + 9},
    ),
    Row(
        name="lost is charged and keeps its place",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("lost")),
        reply=["OK", [["OK", "ready", 3]], []],
        delta={**settled(state="ready", claim="", losses="1", left=f"{CLAIM} lost"), **BACK,
               "job:#1/a:3": f"2 1 1 lost {NOW - 50} {NOW} {CLAIM}"},
    ),
    Row(
        name="lost as often as it may is dead",
        seed=lambda rig: rig.running(1, losses=1),
        call=lambda rig: rig.settle(out("lost")),
        reply=["OK", [["OK", "dead", 3]], []],
        delta={**settled(state="dead", finished=str(NOW), claim="", losses="1", left=f"{CLAIM} lost",
                         reason="lost its worker 1 time"), "job:#1/a:3": f"2 1 1 lost {NOW - 50} {NOW} {CLAIM}"},
    ),
    Row(
        name="an unknown job",
        call=lambda rig: rig.settle(out("succeed")),
        reply=["OK", [["NOT_FOUND", "", 0]], []],
    ),
    Row(
        name="a job that others hold",
        seed=lambda rig: rig.running(1, slot=OTHER),
        call=lambda rig: rig.settle(out("succeed")),
        reply=["OK", [["LEASE_LOST", "running", 2]], []],
    ),
    Row(
        name="an older claim of the same slot",
        seed=lambda rig: (rig.running(1), rig.claim(2, ack=0)),
        call=lambda rig: rig.settle(out("succeed")),
        reply=["OK", [["LEASE_LOST", "running", 3]], []],
    ),
    Row(
        name="nothing to settle and nothing to claim wakes who is to take what is ready",
        seed=lambda rig: rig.ready(1),
        call=lambda rig: rig.settle(),
        reply=["OK", [], []],
        delta=WOKEN,
    ),
    Row(
        name="several outcomes, some of them refused",
        seed=lambda rig: (rig.running(1, 2, 3), rig.settle(out("return", 2)), rig.claimed(1, slot=OTHER)),
        call=lambda rig: rig.settle(out("succeed", 1), out("succeed", 2), out("dead", 3), out("succeed", 4)),
        reply=["OK", [["OK", "succeeded", 3], ["LEASE_LOST", "running", 4], ["OK", "dead", 3], ["NOT_FOUND", "", 0]], []],
        delta={**settled(1, state="succeeded", finished=str(NOW), result="", attempts="1", reason="as told"),
               **attempt("succeeded", 1),
               **settled(3, state="dead", finished=str(NOW), attempts="1", reason="as told"), **attempt("failed", 3)},
    ),
    Row(
        name="the same outcome twice in one call is one outcome",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("succeed"), out("succeed")),
        reply=["OK", [["OK", "succeeded", 3], ["OK", "succeeded", 3]], []],
        delta={**settled(state="succeeded", finished=str(NOW), result="", attempts="1", reason="as told"),
               **attempt("succeeded")},
    ),
    Row(
        name="two outcomes for one job in one call: the first counts",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("dead"), out("succeed")),
        reply=["OK", [["OK", "dead", 3], ["OK", "dead", 3]], []],
        delta={**settled(state="dead", finished=str(NOW), attempts="1", reason="as told"), **attempt("failed")},
    ),
    Row(
        name="settle and claim in one step",
        seed=lambda rig: (rig.running(1), rig.ready(2, 3)),
        call=lambda rig: rig.settle(out("succeed"), n=2),
        reply=["OK", [["OK", "succeeded", 3]], ["OK", NOW, "", ["#2", 2, 0, 0, "3,3", str(NOW), "1", "", "work"]]],
        delta={**settled(state="succeeded", finished=str(NOW), result="", attempts="1", reason="as told"),
               **attempt("succeeded"), "job:#2/state": "running", "job:#2/rev": "2", "job:#2/token": "2",
               "job:#2/claim": claim_id(2), "job:#2/claimed": str(NOW), "job:#2/score": str(100 * 2**44 + 2),
               "job:#2/ran": claim_id(2), "ready/#2": GONE, "leases/#2": NOW + LEASE, "changed/#2": NOW,
               f"slot:{SLOT}": "2 #2", **WOKEN},
    ),
    Row(
        name="a released job may be what is claimed in the same step",
        seed=lambda rig: rig.running(1),
        call=lambda rig: rig.settle(out("release"), n=2),
        reply=["OK", [["OK", "ready", 3]], ["OK", NOW, "", ["#1", 4, 0, 0, "3,3", str(NOW), "1", "", "work"]]],
        delta={"job:#1/rev": "4", "job:#1/token": "4", "job:#1/claim": claim_id(2), "job:#1/ran": claim_id(2),
               "job:#1/left": f"{CLAIM} release", **attempt("released"), "changed/#1": NOW, f"slot:{SLOT}": "2 #1"},
        again=["OK", [["OK", "running", 4]], ["OK", NOW, "", ["#1", 4, 0, 0, "3,3", str(NOW), "1", "", "work"]]],
    ),
    Row(
        name="outcomes are taken where the claim is refused: paused",
        seed=lambda rig: (rig.running(1), rig.ready(2), rig.pause()),
        call=lambda rig: rig.settle(out("succeed"), n=2),
        reply=["OK", [["OK", "succeeded", 3]], ["PAUSED"]],
        delta={**settled(state="succeeded", finished=str(NOW), result="", attempts="1", reason="as told"),
               **attempt("succeeded")},
    ),
    Row(
        name="outcomes are taken where the claim is refused: another epoch",
        seed=lambda rig: (rig.running(1), rig.client.hset(rig.keys.meta, "epoch", "e9")),
        call=lambda rig: rig.settle(out("succeed"), n=2),
        reply=["OK", [["OK", "succeeded", 3]], ["NEEDS_EPOCH", "e9"]],
        delta={**settled(state="succeeded", finished=str(NOW), result="", attempts="1", reason="as told"),
               **attempt("succeeded")},
    ),
    Row(
        name="outcomes are taken where the claim is refused: stale",
        seed=lambda rig: (rig.running(1), rig.claim(9)),
        call=lambda rig: rig.settle(out("succeed"), n=2),
        reply=["OK", [["OK", "succeeded", 3]], ["STALE", "9"]],
        delta={**settled(state="succeeded", finished=str(NOW), result="", attempts="1", reason="as told"),
               **attempt("succeeded")},
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_settle(rig: Rig, row: Row) -> None:
    hold(rig, row)


# A cancellation that was asked for


@pytest.mark.parametrize("verb", ["retry", "release", "return", "strand", "park", "lost"])
@pytest.mark.parametrize("delay", [0, 5])
def test_job_asked_to_stop_ends_cancelled_where_it_would_run_again(rig: Rig, verb: str, delay: int) -> None:
    rig.running(1, key="k")
    rig.cancel(1)

    reply = rig.settle(out(verb, delay=delay))

    assert reply[1] == [["OK", "cancelled", 4]]
    assert rig.job(1)["reason"].startswith("cancelled while running")
    assert rig.places(1) == []
    assert rig.client.get(rig.keys.key("k")) is None
    assert rig.settle(out(verb, delay=delay))[1] == [["OK", "cancelled", 4]]


@pytest.mark.parametrize(("verb", "state"), [("succeed", "succeeded"), ("dead", "dead"), ("cancel", "cancelled")])
def test_job_asked_to_stop_ends_as_it_ended(rig: Rig, verb: str, state: str) -> None:
    rig.running(1)
    rig.cancel(1)

    assert rig.settle(out(verb))[1] == [["OK", state, 4]]
    assert rig.job(1)["reason"] == "as told"


def test_last_retry_of_a_job_asked_to_stop_is_cancelled_not_dead(rig: Rig) -> None:
    rig.running(1, attempts=1)
    rig.cancel(1)

    assert rig.settle(out("retry"))[1] == [["OK", "cancelled", 4]]


def test_last_loss_of_a_job_asked_to_stop_is_cancelled_not_dead(rig: Rig) -> None:
    rig.running(1, losses=1)
    rig.cancel(1)

    assert rig.settle(out("lost"))[1] == [["OK", "cancelled", 4]]


# What is charged


@pytest.mark.parametrize("verb", STARTED)
def test_attempt_is_recorded_with_the_error_unless_it_succeeded(rig: Rig, verb: str) -> None:
    rig.running(1)

    rig.settle(out(verb, data=b"data"))

    job = rig.job(1)
    assert job["a:3"].split()[3] == OUTCOMES[verb]
    assert job.get("e:3") == (None if verb == "succeed" else "data")
    assert job.get("attempts") == (None if verb == "release" else "1")


@pytest.mark.parametrize("verb", UNSTARTED)
def test_job_that_had_not_started_is_charged_nothing(rig: Rig, verb: str) -> None:
    rig.running(1)

    rig.settle(out(verb, data=b"data"))

    assert not {"attempts", "losses", "a:3", "e:3"} & set(rig.job(1))


@pytest.mark.parametrize(
    ("attempts", "losses", "lost"), [(3, 3, 3), (3, 2, 2), (2, 3, 2), (1, 3, 1), (5, 1, 1)], ids=str
)
def test_lost_job_is_dead_when_its_losses_reach_the_smaller_limit_d4(
    rig: Rig, attempts: int, losses: int, lost: int
) -> None:
    rig.ready(1, attempts=attempts, losses=losses)
    states = []
    for n in range(1, lost + 1):
        assert rig.claimed(n) == [1]
        states.append(rig.settle(out("lost", claim=claim_id(n)))[1][0][1])

    assert states == ["ready"] * (lost - 1) + ["dead"]
    assert rig.job(1)["reason"] == f"lost its worker {lost} time" + ("s" if lost > 1 else "")
    assert sorted(name for name in rig.job(1) if name.startswith("a:")) == [
        f"a:{1 + 2 * n}" for n in range(1, lost + 1)
    ]


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_failing_job_has_exactly_as_many_attempts_as_it_may_d4(rig: Rig, limit: int) -> None:
    rig.ready(1, attempts=limit)
    states = []
    for n in range(1, limit + 1):
        assert rig.claimed(n) == [1]
        states.append(rig.settle(out("retry", claim=claim_id(n)))[1][0][1])

    assert states == ["retrying"] * (limit - 1) + ["dead"]
    assert [rig.job(1)[f"a:{rev}"].split()[2] for rev in (3 * n for n in range(1, limit + 1))] == [
        str(n) for n in range(1, limit + 1)
    ]


def test_losses_use_up_no_attempts_and_attempts_no_losses(rig: Rig) -> None:
    rig.ready(1, attempts=2, losses=2)
    for n, verb, state in ((1, "lost", "ready"), (2, "retry", "retrying"), (3, "retry", "dead")):
        rig.claimed(n)
        assert rig.settle(out(verb, claim=claim_id(n)))[1][0][1] == state

    assert (rig.job(1)["attempts"], rig.job(1)["losses"]) == ("2", "1")
    assert [rig.job(1)[f"a:{rev}"].split()[2] for rev in (3, 5, 8)] == ["1", "2", "3"]


def test_attempt_before_the_epoch_of_the_clock_starts_at_zero(rig: Rig) -> None:
    rig.running(1)
    rig.now = 10

    rig.settle(out("succeed", ago=50, ran=40))

    assert rig.job(1)["a:3"].split()[4:6] == ["0", "40"]


# Old tokens, lost replies


@pytest.mark.parametrize("verb", [*STARTED, *UNSTARTED, "lost"])
def test_outcome_of_a_recovered_job_is_refused_b4(rig: Rig, verb: str) -> None:
    rig.running(1)
    with rig.at(NOW + LEASE):
        assert rig.reap()[1] == [["#1", "ready"]]
    before = rig.state()

    assert rig.settle(out(verb))[1] == [["LEASE_LOST", "ready", 3]]
    assert rig.state() == before | {"wake/0": "1", "wake@": "expires"}

    rig.claimed(1, slot=OTHER)

    assert rig.settle(out(verb))[1] == [["LEASE_LOST", "running", 4]]
    assert rig.delta == {}


@pytest.mark.parametrize("verb", [*STARTED, *UNSTARTED, "lost"])
def test_outcome_of_a_dead_job_that_was_reaped_is_refused(rig: Rig, verb: str) -> None:
    rig.running(1, losses=1)
    with rig.at(NOW + LEASE):
        assert rig.reap()[1] == [["#1", "dead"]]

    assert rig.settle(out(verb))[1] == [["LEASE_LOST", "dead", 3]]


@pytest.mark.parametrize("verb", ["retry", "release", "return", "strand", "park", "lost"])
def test_repeated_outcome_is_known_after_another_slot_has_the_job(rig: Rig, verb: str) -> None:
    rig.running(1)
    rig.settle(out(verb))
    assert rig.claimed(1, slot=OTHER) == [1]

    assert rig.settle(out(verb))[1][0][:2] == ["OK", "running"]
    assert rig.delta == {}


def test_other_outcome_than_the_recorded_one_is_refused_when_the_job_was_given_back(rig: Rig) -> None:
    rig.running(1)
    rig.settle(out("return"))

    assert rig.settle(out("succeed"))[1] == [["LEASE_LOST", "ready", 3]]


def test_repeated_settle_and_claim_gives_the_same_jobs(rig: Rig) -> None:
    rig.running(1)
    rig.ready(2, 3)

    first = rig.settle(out("succeed"), n=2)
    again = rig.settle(out("succeed"), n=2)

    assert again == first
    assert rig.places(3) == ["ready"]


def test_settle_and_claim_gives_again_what_the_slot_never_saw(rig: Rig) -> None:
    rig.running(1)
    rig.ready(2)
    rig.settle(out("succeed"), n=2)

    reply = rig.settle(n=3, ack=1)

    assert [entry[:2] for entry in reply[2][3:]] == [["#2", 3]]


# Order


@pytest.mark.parametrize("verb", ["release", "return", "strand", "lost"])
def test_job_given_back_keeps_its_place(rig: Rig, verb: str) -> None:
    rig.ready(1, 2, 3)
    rig.claim(1, limit=2)
    rig.ready(4)

    rig.settle(out(verb, 2))
    rig.settle(out(verb, 1))

    assert rig.order() == [1, 2, 3, 4]


@pytest.mark.parametrize("verb", ["retry", "release", "park"])
def test_job_that_waited_comes_last_of_its_priority(rig: Rig, verb: str) -> None:
    rig.running(1)
    rig.ready(2)
    rig.ready(3, priority=-1)
    rig.settle(out(verb, delay=5))
    rig.now += 5

    rig.promote()

    assert rig.order() == [2, 1, 3]


# Damage


def test_damaged_job_stops_no_other_a10(rig: Rig) -> None:
    rig.running(1, 2)
    rig.damage(1)
    names = ("rev", "token", "attempts", "losses", "limits", "round", "score")
    rig.client.hset(rig.job_key(1), mapping=dict.fromkeys(names, "?"))

    reply = rig.settle(out("return", 1), out("succeed", 2))

    assert reply[1] == [["OK", "ready", 1], ["OK", "succeeded", 3]]


def test_key_of_another_type_stops_no_cancellation(rig: Rig) -> None:
    rig.running(1, 2, key="")
    rig.client.hset(rig.job_key(1), "key", "k")
    rig.client.rpush(rig.keys.key("k"), "no string")

    assert rig.settle(out("cancel", 1), out("succeed", 2))[1] == [["OK", "cancelled", 3], ["OK", "succeeded", 3]]


def test_key_that_another_job_has_meanwhile_stays(rig: Rig) -> None:
    rig.running(1, key="k")
    rig.client.set(rig.keys.key("k"), f"{job_id(1)}9 m")  # an id that begins like this one

    rig.settle(out("cancel"))

    assert rig.state()["key:k"] == "#19 m"


@pytest.mark.parametrize(
    "bad",
    [out("finish"), out("succeed", ago=""), out("succeed", ran="x"), out("retry", delay="soon")],
    ids=["verb", "ago", "ran", "delay"],
)
def test_bad_outcome_refuses_the_whole_call(rig: Rig, bad: Out) -> None:
    rig.running(1, 2)

    with pytest.raises(ScriptError, match="JOBRAILARG settle takes known verbs"):
        rig.settle(out("succeed", 2), bad)


@pytest.mark.parametrize("count", [0, 2, 101, "", "x"])
def test_wrong_count_is_refused(rig: Rig, count: int | str) -> None:
    args = (SLOT, "", 0, 1, LEASE, EPOCH, count, *out("succeed").values())

    with pytest.raises(ScriptError, match="JOBRAILARG settle takes 0..100 outcomes"):
        rig.run(Script.SETTLE, rig.keys.prefix, NOW, *args)


@pytest.mark.parametrize("claim", [("x", 0, 1, LEASE), (1, "", 1, LEASE), (1, 0, 101, LEASE), (1, 0, 1, "")], ids=str)
def test_bad_claim_refuses_the_outcomes_too(rig: Rig, claim: tuple[object, ...]) -> None:
    rig.running(1)

    with pytest.raises(ScriptError, match="JOBRAILARG settle takes n, ack"):
        rig.run(Script.SETTLE, rig.keys.prefix, NOW, SLOT, *claim, EPOCH, 1, *out("succeed").values())


def test_a_hundred_outcomes_and_a_hundred_jobs_in_one_call(rig: Rig) -> None:
    rig.running(*range(1, 101))
    rig.enqueue(*(New(n=n) for n in range(101, 201)))

    reply = rig.settle(*(out("succeed", n) for n in range(1, 101)), n=2, limit=100)

    assert reply[1] == [["OK", "succeeded", 3]] * 100
    assert [entry[0] for entry in reply[2][3:]] == [f"#{n}" for n in range(101, 201)]
