"""Payloads, results and errors come back byte for byte on every path through the scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobrail_django.broker.records import Claim, NewJob

from .rig import EPOCH, LEASE, QUEUE, SLOT, New, Out, Rig, claim_id, job_id

#: Sizes around the borders of a piece (64 bytes) and of the compact form (512 bytes).
SIZES = (0, 1, 63, 64, 65, 128, 448, 511, 512, 513, 1_000, 100_000)

_NOISE = bytes(range(256)) + b"\r\n$3\r\n\x00*1"

JSON = {
    "large integers k9": b"[130775545883395173,9007199254740993,-9223372036854775808,1"
    + b"0" * 40
    + b",0.1,1e308,1.0]",
    "empty things k10": b'[[],{},{"a":[]},[[]],null,"",{"__proto__":{},"1":[]}]',
    "text": '{"v":1,"args":["Grüße 🚂 \\u0000"]}'.encode(),
    "no JSON": b"\x80\x04\x95 pickle, or what not",
    "a field's name": b"state",
    "digits": b"0123456789",
}

PAYLOADS = {f"{size} bytes": (_NOISE * (size // len(_NOISE) + 1))[:size] for size in SIZES} | JSON


def _again(rig: Rig, verb: str, *, delay: int = 0) -> None:
    rig.claim(1)
    rig.settle(Out(n=1, verb=verb, claim=claim_id(1), delay=delay))
    rig.now += delay
    rig.promote()


def _recovered(rig: Rig) -> None:
    rig.claim(1)
    rig.now += LEASE
    assert rig.reap()[1] == [["#1", "ready"]]


def _called_off(rig: Rig) -> None:
    rig.cancel(1)
    rig.retry(1)


PATHS: dict[str, Callable[[Rig], object]] = {
    "direct": lambda rig: None,
    "given again": lambda rig: rig.claim(1),
    "retried": lambda rig: _again(rig, "retry", delay=5),
    "released": lambda rig: _again(rig, "release"),
    "released with a delay": lambda rig: _again(rig, "release", delay=5),
    "returned": lambda rig: _again(rig, "return"),
    "parked": lambda rig: _again(rig, "park", delay=5),
    "recovered": _recovered,
    "new round": lambda rig: (_again(rig, "dead"), rig.retry(1)),
    "cancelled and retried": _called_off,
    "mirrored meanwhile": lambda rig: rig.mirrored((1, 1)),
}


def claimed_payload(rig: Rig, n: int = 2, ack: int = 0) -> bytes:
    """Claim the job and return its payload as it is."""
    claim = Claim(slot=SLOT, n=n, ack=ack, limit=1, lease_ms=LEASE, epoch=EPOCH)
    (job,) = rig.broker.claim(QUEUE, claim).jobs
    return job.payload


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("path", PATHS)
def test_payload_is_the_same_on_every_path(rig: Rig, path: str, payload: bytes) -> None:
    rig.enqueue(New(n=1, payload=payload))
    PATHS[path](rig)

    assert claimed_payload(rig) == payload
    assert claimed_payload(rig) == payload  # the repeated claim
    record = rig.broker.get(QUEUE, job_id(1))
    assert record is not None and record.payload == payload
    assert [job.payload for job in rig.broker.changes(QUEUE).jobs] == [payload]


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_payload_of_a_scheduled_job_and_of_a_bulk_is_the_same(rig: Rig, payload: bytes) -> None:
    jobs = [NewJob(id=job_id(n), payload=payload + b"%d" % n, delay_ms=5) for n in range(1, 11)]
    rig.broker.enqueue(QUEUE, jobs)
    rig.now += 5

    claimed = rig.broker.claim(QUEUE, Claim(slot=SLOT, n=1, ack=0, limit=10, lease_ms=LEASE, epoch=EPOCH)).jobs

    assert [job.payload for job in claimed] == [job.payload for job in jobs]


def test_new_round_by_enqueue_has_the_new_payload_only(rig: Rig) -> None:
    rig.ready(1, payload=b"a" * 300)
    _again(rig, "dead")
    rig.enqueue(New(n=1, round=2, payload=b"b" * 65))

    assert claimed_payload(rig) == b"b" * 65

    rig.settle(Out(n=1, verb="dead", claim=claim_id(2)))
    rig.enqueue(New(n=1, round=3, payload=b"c" * 1_000))

    assert claimed_payload(rig, 3, 2) == b"c" * 1_000


@pytest.mark.parametrize("data", PAYLOADS.values(), ids=PAYLOADS)
def test_results_and_errors_are_the_same(rig: Rig, data: bytes) -> None:
    rig.running(1, 2)
    rig.settle(
        Out(n=1, verb="succeed", claim=claim_id(1), data=data), Out(n=2, verb="dead", claim=claim_id(1), data=data)
    )

    succeeded, dead = (rig.broker.get(QUEUE, job_id(n)) for n in (1, 2))
    assert succeeded is not None and succeeded.result == data
    assert dead is not None and dead.history[0].error == (data or None)
    assert [job.result for job in rig.broker.changes(QUEUE).jobs] == [data, None]


def test_small_job_stays_in_the_compact_encoding(rig: Rig) -> None:
    rig.running(1, payload=b"x" * 512)
    rig.settle(Out(n=1, verb="succeed", claim=claim_id(1), data=b"12", reason="ok"))

    assert rig.client.object("encoding", rig.job_key(1)) == b"listpack"
