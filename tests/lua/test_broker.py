"""`Broker`: what goes into the scripts, and what their replies become."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import (
    CancelStatus,
    Claim,
    ClaimedJob,
    ClaimStatus,
    Enqueued,
    EnqueueStatus,
    HeldLease,
    JobRecord,
    NewJob,
    Promoted,
    Reaped,
    RetryStatus,
    Settled,
    Settlement,
    SettleStatus,
    WorkerInfo,
)
from jobrail_django.errors import BrokerUnavailable, ConfigurationError

from ..servers import RedisServer, free_port
from .rig import EPOCH, LEASE, NOW, QUEUE, SLOT, Rig, claim_id, job_id

GAP = {"gap_ms": LEASE // 2, "hold_ms": LEASE // 3}


@pytest.fixture
def broker(rig: Rig) -> Broker:
    return rig.broker


def new(n: int, **options: object) -> NewJob:
    return NewJob(id=job_id(n), payload=b"work", max_attempts=3, max_losses=2, **options)  # type: ignore[arg-type]


def request(n: int, **options: object) -> Claim:
    values = {"slot": SLOT, "n": n, "ack": n - 1, "limit": 10, "lease_ms": LEASE, "epoch": EPOCH, **options}
    return Claim(**values)  # type: ignore[arg-type]


def outcome(n: int, verb: str, **options: object) -> Settlement:
    return Settlement(job_id(n), claim_id(1), verb, **options)  # type: ignore[arg-type]


def test_enqueue_answers_in_the_order_of_the_jobs(broker: Broker) -> None:
    answers = broker.enqueue(
        QUEUE,
        [
            new(1, key="k", fingerprint="m", window_ms=60_000),
            new(2, key="k", fingerprint="m"),
            new(3, key="k", fingerprint="other"),
            new(4, due_ms=NOW + 5),
            new(5, delay_ms=0, rev_floor=8, round=2, priority=-3),
        ],
    )

    assert answers == [
        Enqueued(status=EnqueueStatus.NEW, id=job_id(1), state="ready", rev=1),
        Enqueued(status=EnqueueStatus.DUPLICATE, id=job_id(1), state="", rev=0),
        Enqueued(status=EnqueueStatus.CONFLICT, id=job_id(1), state="", rev=0),
        Enqueued(status=EnqueueStatus.NEW, id=job_id(4), state="scheduled", rev=1),
        Enqueued(status=EnqueueStatus.NEW, id=job_id(5), state="ready", rev=9),
    ]
    assert broker.held(QUEUE, "k") == (job_id(1), "m")
    assert broker.held(QUEUE, "unknown") is None


def test_record_of_a_job_has_what_was_enqueued(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1, delay_ms=5, priority=7, round=2)])

    assert broker.get(QUEUE, job_id(1)) == JobRecord(
        id=job_id(1), queue=QUEUE, state="scheduled", rev=1, round=2, priority=7, max_attempts=3, max_losses=2, attempts=0,
        losses=0, enqueued_ms=NOW, due_ms=NOW + 5, claimed_ms=None, finished_ms=None, claim="", payload=b"work", result=None,
        reason="", cancel_requested=False, history=(),
    )  # fmt: skip


def test_job_is_found_without_its_queue(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1)])

    found = broker.find(["other", QUEUE], job_id(1))

    assert found is not None and found.queue == QUEUE
    assert broker.find(["other", QUEUE], job_id(2)) is None
    assert broker.get(QUEUE, job_id(2)) is None


def test_claim_describes_jobs(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1), new(2, delay_ms=5)])

    claimed = broker.claim(QUEUE, request(1))

    job = ClaimedJob(job_id(1), 2, 0, 0, 3, 2, NOW, 1, False, b"work")
    assert (claimed.status, claimed.now_ms, claimed.next_due_ms) == (ClaimStatus.OK, NOW, NOW + 5)
    assert list(claimed.jobs) == [job]


def test_claim_says_why_it_was_refused(broker: Broker) -> None:
    broker.claim(QUEUE, request(5))

    stale, epoch = broker.claim(QUEUE, request(4)), broker.claim(QUEUE, request(6, epoch="e0"))
    broker.pause(QUEUE)

    assert (stale.status, stale.last_n) == (ClaimStatus.STALE, 5)
    assert (epoch.status, epoch.epoch) == (ClaimStatus.NEEDS_EPOCH, EPOCH)
    assert broker.claim(QUEUE, request(6)).status is ClaimStatus.PAUSED


def test_settle_answers_outcomes_and_claim(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1), new(2)])
    broker.claim(QUEUE, request(1, limit=1))

    settled, claimed = broker.settle(
        QUEUE, SLOT, [outcome(1, "succeed", data=b"3"), outcome(2, "return"), outcome(9, "dead")], request(2)
    )

    assert settled == [
        Settled(SettleStatus.OK, "succeeded", 3),
        Settled(SettleStatus.LEASE_LOST, "ready", 1),
        Settled(SettleStatus.NOT_FOUND, "", 0),
    ]
    assert [job.id for job in claimed.jobs] == [job_id(2)]
    assert broker.settle(QUEUE, SLOT, [])[1].status is ClaimStatus.NONE


def test_times_of_an_attempt_come_from_the_monotonic_clock(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1), new(2)])
    broker.claim(QUEUE, request(1))
    started = time.monotonic() - 5.0

    broker.settle(
        QUEUE,
        SLOT,
        [
            outcome(
                1, "retry", outcome="failed", started_s=started, ran_s=0.25, delay_ms=9, data=b"error", reason="why"
            ),
            outcome(2, "dead", outcome="timed_out"),
        ],
    )

    record = broker.get(QUEUE, job_id(1))
    assert record is not None
    (attempt,) = record.history
    assert -6_000 < attempt.started_ms - NOW <= -5_000
    assert attempt.finished_ms - attempt.started_ms == 250
    assert (attempt.token, attempt.claim, attempt.worker, attempt.round, attempt.number, attempt.outcome, attempt.error) == (
        2, claim_id(1), SLOT.split(".")[0], 1, 1, "failed", b"error",
    )  # fmt: skip
    assert (record.state, record.due_ms, record.reason, record.attempts, record.claim) == (
        "retrying", NOW + 9, "why", 1, claim_id(1),
    )  # fmt: skip
    untimed = broker.get(QUEUE, job_id(2))
    assert untimed is not None and untimed.finished_ms == NOW
    assert (untimed.history[0].started_ms, untimed.history[0].finished_ms) == (NOW, NOW)


def test_attempt_never_ran_longer_than_ago(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1)])
    broker.claim(QUEUE, request(1))

    broker.settle(QUEUE, SLOT, [outcome(1, "dead", outcome="failed", started_s=time.monotonic(), ran_s=99.0)])

    record = broker.get(QUEUE, job_id(1))
    assert record is not None and record.history[0].finished_ms <= NOW


def test_heartbeat_names_lost_and_cancelled_jobs(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1), new(2)])
    broker.claim(QUEUE, request(1))
    broker.cancel(QUEUE, job_id(2), "stop")

    beat = broker.heartbeat(QUEUE, [HeldLease(job_id(n), claim_id(1), True) for n in (1, 2, 3)], LEASE)

    assert (beat.lost, beat.cancel) == ([job_id(3)], [job_id(2)])
    assert broker.heartbeat(QUEUE, [], LEASE).lost == []


def test_promote_and_reap_count(rig: Rig, broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1, delay_ms=5), new(2, delay_ms=9), new(3)])
    broker.claim(QUEUE, request(1))
    rig.now += 5

    assert broker.promote(QUEUE) == Promoted(1, NOW + 9)

    rig.now = NOW + LEASE

    assert broker.reap(QUEUE, **GAP) == Reaped(False, [(job_id(3), "ready")], False, True, 3)

    broker.claim(QUEUE, request(2))
    rig.now += 10 * LEASE

    assert broker.reap(QUEUE, **GAP).held
    assert broker.promote(QUEUE) == Promoted(0, None)


def test_cancel_and_retry_answer_with_a_state_where_it_matters(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1), new(2)])

    assert broker.cancel(QUEUE, job_id(1), "stop") == (CancelStatus.CANCELLED, "")
    assert broker.cancel(QUEUE, job_id(1), "stop") == (CancelStatus.FINAL, "cancelled")
    assert broker.cancel(QUEUE, job_id(9), "stop") == (CancelStatus.NOT_FOUND, "")
    assert broker.retry(QUEUE, job_id(1), 1) == (RetryStatus.OK, "ready")
    assert broker.retry(QUEUE, job_id(2), 1) == (RetryStatus.NOT_ALLOWED, "ready")
    assert broker.retry(QUEUE, job_id(9), 1) == (RetryStatus.NOT_FOUND, "")

    broker.claim(QUEUE, request(1))

    assert broker.cancel(QUEUE, job_id(1), "stop") == (CancelStatus.REQUESTED, "")
    record = broker.get(QUEUE, job_id(1))
    assert record is not None and record.cancel_requested


def test_stats_purge_and_pause(rig: Rig, broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1), new(2, delay_ms=5), new(3)])
    broker.pause(QUEUE)
    rig.now += 7

    stats = broker.stats(QUEUE)

    assert (stats.ready, stats.scheduled, stats.retrying, stats.running, stats.changed) == (2, 1, 0, 0, 3)
    assert (stats.paused, stats.epoch, stats.until_due_ms, stats.oldest_ready_ms, stats.lag_ms) == (
        True,
        EPOCH,
        0,
        7,
        7,
    )
    assert stats.due
    assert broker.purge(QUEUE, "purged", 2) == (2, 1)

    broker.pause(QUEUE, False)

    assert not broker.stats(QUEUE).paused
    assert broker.stats("unused").lag_ms is None
    assert not broker.stats("unused").due


def test_changes_and_mirrored(rig: Rig, broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1), new(2), new(3)])
    rig.damage(2)
    rig.damage(3)
    rig.client.hset(rig.job_key(2), "limits", "many")
    rig.client.delete(rig.job_key(3))
    rig.now += 4

    changes = broker.changes(QUEUE)

    assert (changes.lag_ms, changes.total, changes.gone) == (4, 3, [(job_id(2), 1), (job_id(3), 0)])
    assert [job.id for job in changes.jobs] == [job_id(1)]
    assert broker.mirrored(QUEUE, [(job_id(1), 1), *changes.gone]) == 3
    assert broker.changes(QUEUE).total == 0
    assert broker.mirrored(QUEUE, []) == 0


def test_epoch_is_opened_once(broker: Broker) -> None:
    broker.client.delete(broker.keys(QUEUE).meta)

    assert broker.open_epoch(QUEUE, "mine") == ("mine", True)
    assert broker.open_epoch(QUEUE, "other") == ("mine", False)


def test_workers_come_and_go(broker: Broker) -> None:
    info = WorkerInfo(id="w1", name="box", host="box", pid=7, queues=("a", "b"), processes=1, threads=2, started_ms=NOW,
                      seen_ms=NOW, version="1")  # fmt: skip
    broker.beat(info, LEASE)

    assert broker.workers() == [info]

    broker.beat(info, 0)

    assert broker.workers() == []


def test_more_than_a_hundred_take_several_calls(broker: Broker) -> None:
    numbers = range(1, 251)
    answers = Broker(broker.client, broker.prefix).enqueue(QUEUE, [new(n) for n in numbers])

    assert [answer.id for answer in answers] == [job_id(n) for n in numbers]

    leases = [HeldLease(job_id(n), "nobody:1", False) for n in numbers]

    assert broker.heartbeat(QUEUE, leases, LEASE).lost == [job_id(n) for n in numbers]
    assert broker.mirrored(QUEUE, [(job_id(n), 1) for n in numbers]) == 250


def test_queue_name_that_would_break_a_hash_tag_is_refused(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="Queue name 'a}b' is not valid"):
        broker.stats("a}b")


# Waiting


def test_wait_ends_when_a_job_comes(broker: Broker) -> None:
    broker.enqueue(QUEUE, [new(1)])

    assert broker.wait([QUEUE], 10.0, lambda: False)
    assert not broker.wait([QUEUE], 0.01, lambda: False)


def test_wait_ends_when_it_is_told_to(broker: Broker) -> None:
    started = time.monotonic()

    assert not broker.wait([QUEUE], 60.0, lambda: True)
    assert time.monotonic() - started < 10.0
    assert broker.stats(QUEUE).ready == 0  # the connection that waited is not used again


def test_wait_looks_at_several_queues(server: RedisServer) -> None:
    broker = Broker(server.client(), "p")
    broker.enqueue(QUEUE, [new(1)])

    assert broker.wait(["other", QUEUE], 10.0, lambda: False)


# Faults


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def test_call_is_repeated_once_on_a_new_connection_when_the_old_one_broke(server: RedisServer) -> None:
    client, other = server.client(), server.client()
    broker = Broker(client, "p")
    broker.enqueue(QUEUE, [new(1)])
    other.execute_command("CLIENT KILL TYPE normal SKIPME yes")

    assert broker.enqueue(QUEUE, [new(1)])[0].status is EnqueueStatus.EXISTS


def test_replica_is_no_place_for_jobs_and_a_new_master_is(server: RedisServer) -> None:
    broker = Broker(server.client(), "p", where="here")
    server.client().execute_command("REPLICAOF", "127.0.0.1", free_port())

    with pytest.raises(BrokerUnavailable, match="Redis at here is not available"):
        broker.enqueue(QUEUE, [new(1)])

    server.client().execute_command("REPLICAOF", "NO", "ONE")

    assert broker.enqueue(QUEUE, [new(1)])[0].status is EnqueueStatus.NEW


def test_server_that_is_gone_is_unavailable(server: RedisServer) -> None:
    broker = Broker(server.client(), "p")
    server.kill()

    for call in (
        lambda: broker.enqueue(QUEUE, [new(1)]),
        lambda: broker.get(QUEUE, job_id(1)),
        lambda: broker.find([QUEUE], job_id(1)),
        lambda: broker.held(QUEUE, "k"),
        broker.workers,
        lambda: broker.wait([QUEUE], 0.01, lambda: False),
    ):
        with pytest.raises(BrokerUnavailable) as raised:
            call()
        assert isinstance(raised.value.__cause__, redis.RedisError)
