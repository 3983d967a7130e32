"""Scenarios that no other file shows; each test names its number. `docs/scenarios.md` lists all of them."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import uuid_utils
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.test import Client

from jobrail_django import codec, current_job, enqueue, retry, task
from jobrail_django.broker.broker import Broker
from jobrail_django.broker.keys import worker_key, workers_key
from jobrail_django.broker.records import Claim, ClaimStatus, EnqueueStatus, HeldLease, NewJob
from jobrail_django.errors import JobRailError, ScriptError
from jobrail_django.models import Attempt, Job
from jobrail_django.states import State
from jobrail_django.upkeep.mirror import Mirror
from jobrail_django.upkeep.reaper import Reaper
from jobrail_django.upkeep.workers import WorkerRegister

from ..probes import tasks
from ..probes.child import InlineChild
from .rail import Rail
from .test_mirror import drain

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parents[2]
LEASE_MS = 30_000


@pytest.fixture
def rail(broker: Broker) -> Rail:
    return Rail(broker)


class Clock:
    """The server's time as the scripts see it, moved by hand."""

    def __init__(self) -> None:
        self.ms = int(time.time() * 1000)

    def broker(self, broker: Broker) -> Broker:
        return Broker(broker.client, broker.prefix, now_ms=lambda: self.ms)


def at_once(bodies: Sequence[Callable[[], object]]) -> list[object]:
    """Run the bodies in threads that a barrier releases together; returns what they returned."""
    barrier, found, faults = threading.Barrier(len(bodies)), [], []

    def run(body: Callable[[], object]) -> None:
        barrier.wait(30)
        try:
            found.append(body())
        except BaseException as exc:
            faults.append(exc)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    return found


# (a) Lost jobs


def test_a2_delayed_job_is_in_the_store_and_with_no_worker(broker: Broker) -> None:
    clock = Clock()
    shared = clock.broker(broker)
    first, second = Rail(shared, worker="aaaaaaaa"), Rail(shared, worker="bbbbbbbb")
    (job_id,) = first.enqueue(delay_ms=10_000)

    early = first.claim(100)  # and this worker is never heard of again
    places = [
        key.decode().removeprefix(broker.keys("default").prefix)
        for key in broker.client.scan_iter(match=f"{broker.prefix}:*")
        if broker.client.type(key) == b"zset" and broker.client.zscore(key, job_id) is not None
    ]
    clock.ms += 9_999
    just_before = second.claim(100)
    clock.ms += 1
    due = second.claim(100)

    assert not early and not just_before
    assert sorted(places) == ["changed", "scheduled"]
    assert [job.id for job in due] == [job_id]


def test_a8_job_whose_body_was_evicted_stops_no_other(rail: Rail, caplog: pytest.LogCaptureFixture) -> None:
    jobs = [enqueue(tasks.ok, n) for n in range(10)]
    keys = rail.broker.keys("default")
    rail.broker.client.delete(keys.job(jobs[4].id))

    with InlineChild():
        assert all(job.wait(20) for job in jobs if job is not jobs[4])
    counts = drain(Mirror(rail.broker, ["default"], using="default"))

    assert [job.result for job in jobs if job is not jobs[4]] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert (counts.jobs, counts.dropped) == (9, 1)
    for key in (keys.ready, keys.leases, keys.changed):
        assert rail.broker.client.zcard(key) == 0
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_a10_reaper_is_stopped_by_no_unreadable_lease(
    broker: Broker, rail: Rail, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    reaper = Reaper(clock.broker(broker), ["default"], LEASE_MS)
    ids = rail.enqueue(20)
    rail.claim(20)
    keys = broker.keys("default")
    broker.client.zadd(keys.leases, {b"\x80\xff no id": 1, str(uuid_utils.uuid7()): 2})
    clock.ms += LEASE_MS + 1_000
    reaper.run_once()  # the first look of a reaper waits for heartbeats
    clock.ms += LEASE_MS // 3

    counts = reaper.run_once()

    assert counts.recovered == 22
    assert {broker.get("default", job_id).state for job_id in ids} == {"ready"}  # type: ignore[union-attr]
    assert broker.client.zcard(keys.leases) == 0
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 22
    assert reaper.run_once().recovered == 0


# (b) Duplicate or concurrent execution


def test_b2_delay_longer_than_the_lease_does_not_multiply_a_job(broker: Broker) -> None:
    clock = Clock()
    shared = clock.broker(broker)
    workers = [Rail(shared, worker=f"{n:08x}") for n in range(4)]
    reaper = Reaper(shared, ["default"], LEASE_MS)
    due = clock.ms + 5 * LEASE_MS
    ids = workers[0].enqueue(50, delay_ms=5 * LEASE_MS)
    starts: list[tuple[str, int]] = []

    for tick in range(2 * 5 * LEASE_MS // 2_000):
        reaper.run_once()
        for worker in workers:
            jobs = worker.claim(5)
            starts += [(job.id, clock.ms) for job in jobs]
            worker.settle(jobs, "succeed", "succeeded")
        if tick % (LEASE_MS // 2_000) == 0:
            workers[0] = Rail(shared, worker=f"{tick + 10:08x}")  # restarted
        clock.ms += 2_000

    assert Counter(job_id for job_id, _ in starts) == Counter(ids)
    assert all(due <= at <= due + 6_000 for _, at in starts)


def test_b6_five_reapers_recover_500_expired_leases_once_each(broker: Broker, rail: Rail) -> None:
    clock = Clock()
    ids = rail.enqueue(500)
    for _ in range(5):
        jobs = rail.claim(100)
        broker.heartbeat("default", [HeldLease(job.id, rail.claim_id, True) for job in jobs], LEASE_MS)
    reapers = [Reaper(clock.broker(broker), ["default"], LEASE_MS) for _ in range(5)]
    clock.ms += LEASE_MS + 1_000
    for reaper in reapers:
        reaper.run_once()
    clock.ms += LEASE_MS // 3

    counts = at_once([reaper.run_once for reaper in reapers])

    assert sum(count.recovered for count in counts) == 500  # type: ignore[attr-defined]
    assert broker.stats("default").ready == 500
    records = [broker.get("default", job_id) for job_id in ids]
    assert {(r.state, r.losses, r.attempts, r.rev, len(r.history)) for r in records if r} == {("ready", 1, 0, 3, 1)}
    drain(Mirror(broker, ["default"], using="default"))
    assert Attempt.objects.filter(outcome="lost").count() == Attempt.objects.count() == 500


def test_b7_several_promoters_at_once_double_nothing(broker: Broker, rail: Rail) -> None:
    clock = Clock()
    shared = clock.broker(broker)
    ids = rail.enqueue(3_000, delay_ms=1)
    clock.ms += 60_000

    counts = at_once([Reaper(shared, ["default"], LEASE_MS).run_once for _ in range(4)])
    started: list[str] = []
    while jobs := rail.claim(100):
        started += [job.id for job in jobs]

    assert sum(count.promoted for count in counts) == 3_000  # type: ignore[attr-defined]
    assert Counter(started) == Counter(ids)


@pytest.mark.parametrize(
    "values",
    [{"LEASE_SECONDS": 0}, {"LEASE_SECONDS": 2, "REAP_SECONDS": 3}, {"TIMEOUT_SECONDS": -1}, {"LEASE_SECONDS": -30}],
    ids=str,
)
def test_b8_times_in_the_wrong_order_are_check_errors_and_no_worker_starts(jobrail, values) -> None:  # type: ignore[no-untyped-def]
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, **values}

    with pytest.raises(SystemCheckError, match=r"jobrail\.E\d+"):
        call_command("check")
    with pytest.raises(Exception, match="|".join(values)) as caught:
        call_command("jobrail_worker", "--burst", skip_checks=False)
    assert type(caught.value).__name__ in ("SystemCheckError", "CommandError", "ConfigurationError")


# (g) Idempotency


def test_g1_fifty_threads_with_one_key_make_one_job_a_round(broker: Broker) -> None:
    def call(key: str) -> Callable[[], object]:
        return lambda: tasks.ok.using(idempotency_key=key).enqueue(1).id

    for number in range(20):
        assert len(set(at_once([call(f"round {number}")] * 50))) == 1

    assert broker.stats("default").ready == 20


def test_g7_keyed_job_passes_its_own_key_after_delay_failure_and_loss(broker: Broker) -> None:
    clock = Clock()
    rail = Rail(clock.broker(broker))
    payload = codec.dumps_envelope("shop.tasks.send", (), {}, {})

    def keyed(key: str, **values: int) -> NewJob:
        options = {"max_attempts": 3, "max_losses": 3, "window_ms": 86_400_000, **values}
        return NewJob(id=str(uuid_utils.uuid7()), payload=payload, key=key, fingerprint="f", **options)

    jobs = [keyed("lost"), keyed("delay and failure", delay_ms=3_000, priority=9)]
    rail.broker.enqueue("default", jobs)
    lost = rail.claim(1)
    reaper = Reaper(rail.broker, ["default"], LEASE_MS)
    clock.ms += LEASE_MS + 1_000
    reaper.run_once()
    clock.ms += LEASE_MS // 3
    reaper.run_once()
    failed = rail.claim(1)
    rail.settle(failed, "retry", "failed", delay_ms=1_000)
    clock.ms += 1_000
    ended = [job.id for _ in range(2) for job in rail.succeed()]
    again = rail.broker.enqueue("default", [keyed("lost"), keyed("delay and failure")])

    assert [job.id for job in (*lost, *failed)] == [job.id for job in jobs]
    assert sorted(ended) == sorted(job.id for job in jobs)
    assert [(answer.status, answer.id) for answer in again] == [(EnqueueStatus.DUPLICATE, job.id) for job in jobs]


@pytest.mark.parametrize("key", ["", "k"])
def test_g10_enqueue_repeated_after_a_lost_reply_is_one_job(broker: Broker, key: str) -> None:
    for number in range(20):
        job = NewJob(
            id=str(uuid_utils.uuid7()), payload=b"{}", key=key and f"{key}{number}", fingerprint="f", window_ms=60_000
        )
        first, second = broker.enqueue("default", [job]), broker.enqueue("default", [job])

        assert [first[0].status, second[0].status] == [EnqueueStatus.NEW, EnqueueStatus.EXISTS]
        assert first[0].id == second[0].id == job.id

    assert broker.stats("default").ready == 20


# (k) Serialization


EXACT = [
    130775545883395173, 2**53 + 1, -(2**63), 10**40, 0.1, 1e308, 1.0,
    [], {}, {"a": []}, [[]], None, "", {"__proto__": {"1": [[], {}]}, "1": None}, Decimal("1.10"),
]  # fmt: skip


@task(max_attempts=2, backoff=0)
def echo_on_the_second_attempt(*args: object) -> list[object]:
    if current_job().attempt == 1:
        raise ValueError("once")
    return list(args)


@task(max_attempts=1)
def echo_in_the_second_round(*args: object) -> list[object]:
    if not args[0]:
        raise ValueError("dead first")
    return list(args)


@pytest.mark.db_vendor
def test_k9_k10_arguments_are_the_same_after_a_retry_and_from_the_row(broker: Broker) -> None:
    retried = enqueue(echo_on_the_second_attempt, *EXACT)
    dead = enqueue(tasks.die, "k9")
    payload = codec.dumps_envelope("tests.probes.tasks.echo", tuple(EXACT), {}, {})
    rail = Rail(broker, "mail")
    (from_row,) = rail.enqueue_payloads([payload], max_attempts=1)
    rail.fail()
    mirror = Mirror(broker, ["default", "mail"], using="default")
    drain(mirror)
    broker.client.delete(broker.keys("mail").job(from_row))  # its tombstone's time is over

    revived = retry(from_row)
    with InlineChild():
        assert retried.wait(20) and dead.wait(20) and revived.wait(20)
    drain(mirror)

    assert retried.result == EXACT
    assert [type(value) for value in retried.result] == [type(value) for value in EXACT]
    arrived, named = revived.result
    assert (arrived, named) == (EXACT, {})
    assert [type(value) for value in arrived] == [type(value) for value in EXACT]
    assert revived.round == 2


def test_k8_a_thousand_datetimes_survive_every_path(broker: Broker) -> None:
    dice = random.Random(8)
    zones = [None, timezone.utc, ZoneInfo("Europe/Berlin"), timezone(timedelta(hours=5, minutes=45)), ZoneInfo("UTC")]
    moments = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]
    for _ in range(998):
        naive = datetime(1900, 1, 1) + timedelta(microseconds=dice.randrange(200 * 365 * 86_400 * 10**6))
        moments.append(naive.replace(tzinfo=dice.choice(zones), fold=dice.randrange(2)))
    jobs = [
        enqueue(tasks.echo, *moments),
        tasks.echo.using(run_after=0.05).enqueue(*moments),
        enqueue(echo_on_the_second_attempt, *moments),
    ]

    with InlineChild():
        assert all(job.wait(30) for job in jobs)

    for arrived in (jobs[0].result[0], jobs[1].result[0], jobs[2].result):
        for sent, found in zip(moments, arrived, strict=True):
            assert (found.tzinfo is None) is (sent.tzinfo is None)
            assert found.replace(tzinfo=None) == sent.replace(tzinfo=None)
            assert found.utcoffset() == sent.utcoffset()


@task(max_attempts=1)
def nul(text: str, **named: str) -> str:
    if text.endswith("!"):
        raise ValueError(f"\0 and \ud800 in {text}")
    return text + "\0result"


@pytest.mark.db_vendor
def test_k3_nul_everywhere_ends_right_in_both_stores(broker: Broker) -> None:
    good = nul.using(idempotency_key="k\0").enqueue("a\0b", **{"n\0": "\0"})
    bad = enqueue(nul, "\0!")

    with InlineChild():
        assert good.wait(20) and bad.wait(20)
    drain(Mirror(broker, ["default"], using="default"))

    assert (good.state, good.result, bad.state) == (State.SUCCEEDED, "a\0b\0result", State.DEAD)
    stored = {str(row.pk): row for row in Job.objects.all()}
    assert stored[good.id].state == "succeeded"
    assert stored[bad.id].error_message == "\\x00 and \\ud800 in \\x00!"
    assert codec.loads(stored[good.id].result.encode()) == "a\0b\0result"


@task(max_attempts=1)
def huge_error(kind: str) -> None:
    if kind == "recursion":
        huge_error(kind)
    if kind == "message":
        raise ValueError("m" * 50_000_000)
    fault: Exception = ValueError("first")
    for n in range(500):
        following = ValueError(f"cause {n}")
        following.__cause__ = fault
        fault = following
    raise fault


@pytest.mark.db_vendor
def test_k4_huge_errors_are_cut_before_they_are_stored(broker: Broker) -> None:
    jobs = [enqueue(huge_error, kind) for kind in ("recursion", "message", "chain")]

    with InlineChild():
        assert all(job.wait(60) for job in jobs)
    sizes = [broker.client.memory_usage(broker.keys("default").job(job.id), samples=0) for job in jobs]
    drain(Mirror(broker, ["default"], using="default"))

    assert {job.state for job in jobs} == {State.DEAD}
    assert max(sizes) < 100_000
    for attempt in Attempt.objects.all():
        assert len(attempt.error_message) + len(attempt.traceback) < 64_000
    assert set(Attempt.objects.values_list("error_type", flat=True)) == {
        "builtins.RecursionError",
        "builtins.ValueError",
    }


def test_k11_worker_in_the_c_locale_takes_any_text(broker: Broker, redis_url: str) -> None:
    texts = ["🚂 emoji", "עברית", "e\u0301 combining", "𝄞 four bytes"]
    good, bad = enqueue(tasks.echo, *texts, ключ="🔑"), enqueue(tasks.die, "".join(texts))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHON"))}
    env |= {"LANG": "C", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    env |= {"DJANGO_SETTINGS_MODULE": "tests.probes.settings", "PYTHONPATH": str(ROOT)}
    env["PROBES_JOBRAIL"] = json.dumps({"REDIS": redis_url, "PREFIX": broker.prefix, "QUEUES": ["default", "mail"]})
    entry = {name: connection.settings_dict[name] for name in ("USER", "PASSWORD", "HOST", "PORT")}
    env["PROBES_DATABASE"] = json.dumps(entry | {"NAME": str(connection.settings_dict["NAME"])})

    run = subprocess.run(
        [sys.executable, "-m", "django", "jobrail_worker", "--burst", "-p", "1"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=90,
    )

    output = run.stdout.decode()
    assert run.returncode == 0, output
    assert (good.refresh().state, good.result) == (State.SUCCEEDED, [texts, {"ключ": "🔑"}])
    assert bad.refresh().state is State.DEAD
    assert "UnicodeEncodeError" not in output
    attempt = Attempt.objects.get(job_id=bad.id)
    assert attempt.error_message == "".join(texts)


# (n) Security


class Evil:
    """Makes a file where anything unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


JOB_FIELDS = [
    "state",
    "rev",
    "round",
    "prio",
    "limits",
    "at",
    "due",
    "attempts",
    "losses",
    "claim",
    "token",
    "claimed",
    "score",
    "ran",
    "alone",
    "cancel",
    "left",
    "key",
    "started",
    "finished",
    "result",
    "reason",
    "payload",
    "p1",
    "a:1",
    "e:1",
]


def poison_job(rail: Rail, field: str, poison: bytes) -> None:
    job_id = enqueue(tasks.ok, 1).id
    rail.broker.client.hset(rail.broker.keys("default").job(job_id), field, poison)


def poison_meta(rail: Rail, field: str, poison: bytes) -> None:
    rail.broker.client.hset(rail.broker.keys("default").meta, field, poison)


def poison_member(rail: Rail, name: str, poison: bytes) -> None:
    rail.broker.client.zadd(getattr(rail.broker.keys("default"), name), {poison: 1})


def poison_slot(rail: Rail, _: str, poison: bytes) -> None:
    rail.broker.client.set(rail.broker.keys("default").slot(rail.slot), poison)
    with suppress(JobRailError):  # refused or answered: both are right
        rail.claim(1)


def poison_key(rail: Rail, _: str, poison: bytes) -> None:
    tasks.ok.using(idempotency_key="n1").enqueue(1)
    (key,) = rail.broker.client.scan_iter(match=f"{rail.broker.prefix}:*:key:*")
    rail.broker.client.set(key, poison)
    with pytest.raises(Exception):  # noqa: B017
        tasks.ok.using(idempotency_key="n1").enqueue(1)
        raise LookupError("an answer is as good")


def poison_worker(rail: Rail, _: str, poison: bytes) -> None:
    rail.broker.client.zadd(workers_key(rail.broker.prefix), {"0badcafe": 2**45})
    rail.broker.client.set(worker_key(rail.broker.prefix, "0badcafe"), poison)


def poison_workers(rail: Rail, _: str, poison: bytes) -> None:
    rail.broker.client.zadd(workers_key(rail.broker.prefix), {poison: 2**45})


PLACES = [
    *((poison_job, field) for field in JOB_FIELDS),
    *((poison_meta, field) for field in ("paused", "reaped", "held")),
    *((poison_member, name) for name in ("ready", "scheduled", "retrying", "leases", "changed")),
    (poison_slot, ""),
    (poison_key, ""),
    (poison_worker, ""),
    (poison_workers, ""),
]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return tmp_path / "made"


@pytest.fixture
def poison(made: Path) -> bytes:
    """Return a pickle that makes the file `made` when it is loaded."""
    poison = pickle.dumps(Evil(made))
    pickle.loads(poison).close()
    assert made.exists(), "the poison works"
    made.unlink()
    return poison


@pytest.mark.parametrize(
    ("put", "field"),
    PLACES,
    ids=lambda value: value if isinstance(value, str) else value.__name__.removeprefix("poison_"),
)
def test_n1_pickle_in_any_field_is_never_loaded_and_stops_nobody(
    rail: Rail, made: Path, poison: bytes, admin_client: Client, put: Callable[[Rail, str, bytes], None], field: str
) -> None:
    put(rail, field, poison)
    good = tasks.ok.using(priority=-50).enqueue("good")

    Reaper(rail.broker, ["default"], LEASE_MS).run_once()
    with InlineChild():
        assert good.wait(20)
    drain(Mirror(rail.broker, ["default"], using="default"))
    WorkerRegister(rail.broker, using="default").run_once()
    pages = [f"/admin/jobrail/{name}/" for name in ("job", "queue", "worker")]
    pages += [f"/admin/jobrail/job/{job.pk}/change/" for job in Job.objects.all()]

    assert [admin_client.get(page).status_code for page in pages] == [200] * len(pages)
    assert good.state is State.SUCCEEDED
    assert Job.objects.get(pk=good.id).state == "succeeded"
    assert not made.exists()


def test_n1_pickle_as_the_queues_counter_refuses_jobs_whole(rail: Rail, made: Path, poison: bytes) -> None:
    """Nobody can say where a new job stands: the call fails, and nothing of the job is written."""
    poison_meta(rail, "seq", poison)
    before = set(rail.broker.client.scan_iter(match=f"{rail.broker.prefix}:*"))

    with pytest.raises(ScriptError):
        tasks.ok.using(idempotency_key="n1").enqueue(1)

    assert set(rail.broker.client.scan_iter(match=f"{rail.broker.prefix}:*")) == before
    assert not made.exists()


def test_n1_pickle_as_the_queues_epoch_is_only_ever_compared(rail: Rail, made: Path, poison: bytes) -> None:
    poison_meta(rail, "epoch", poison)
    rail.enqueue()

    claimed = rail.broker.claim("default", Claim(slot="w.1.0", n=1, ack=0, limit=1, lease_ms=1000, epoch="e"))

    assert (claimed.status, list(claimed.jobs)) == (ClaimStatus.NEEDS_EPOCH, [])
    assert not made.exists()
