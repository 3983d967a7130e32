"""The mirror killed, frozen, stopped, blocked and refused: the rows end equal to Redis, and nobody waits for it."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from django.db import connection, connections

from jobrail_django.broker.broker import BATCH, Broker
from jobrail_django.broker.records import Changes
from jobrail_django.conf import get_settings
from jobrail_django.models import Attempt, Job
from jobrail_django.upkeep.loop import Upkeep
from jobrail_django.upkeep.mirror import Mirror
from tests.servers import RedisServer

from .mirror_child import STEPS, SteppedBroker
from .rail import Rail, error_record
from .test_mirror import assert_rows_equal_redis, drain

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.db_vendor, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def rail(broker: Broker) -> Rail:
    return Rail(broker)


@pytest.fixture
def mirror(broker: Broker) -> Mirror:
    return Mirror(broker, ["default"], using="default")


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"{what} within {timeout_s} s"
        time.sleep(0.005)


def rows() -> list[list[dict[str, object]]]:
    """Return all jobs and attempts, without the time of the last copy and the rows' own numbers."""
    jobs = [{**values, "mirrored_at": None} for values in Job.objects.order_by("pk").values()]
    return [jobs, [{**values, "id": None} for values in Attempt.objects.order_by("job_id", "token").values()]]


def assert_equal(rail: Rail, jobs: int, attempts: int) -> None:
    """Check that the mirror owes nothing, and that the rows are what Redis holds."""
    assert rail.unmirrored() == set()
    assert (Job.objects.count(), Attempt.objects.count()) == (jobs, attempts)
    assert_rows_equal_redis(rail.broker)


class TestKilled:
    """A process of its own, ended by SIGKILL right after one of its steps."""

    @pytest.fixture
    def killed_after(self, redis_url: str, rail: Rail) -> Callable[[str], None]:
        def run(step: str) -> None:
            names = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
            database = {name: connection.settings_dict[name] for name in names}
            database["NAME"] = str(database["NAME"])
            spec = {"url": redis_url, "prefix": rail.broker.prefix, "database": database, "fatal": step}
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.mirror_child", json.dumps(spec)],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                    "PYTHONPATH": f"{ROOT}:{ROOT}/example_project",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == f"{step}\n"
            finally:
                process.kill()
                process.communicate()

        return run

    @pytest.mark.parametrize("step", STEPS)
    def test_mirror_killed_after_any_step_loses_and_doubles_nothing(
        self, rail: Rail, mirror: Mirror, killed_after: Callable[[str], None], step: str
    ) -> None:
        ids = set(rail.enqueue(5))
        rail.fail(2, verb="retry")
        rail.succeed()
        rail.claim()

        killed_after(step)
        stored, owed = Job.objects.count(), rail.unmirrored()
        drain(mirror)

        assert stored == (0 if step in ("read", "written") else 5)
        assert owed == (set() if step == "told" else ids)
        assert_equal(rail, jobs=5, attempts=3)

    def test_mirror_killed_over_and_over_while_jobs_go_on_catches_up(
        self, rail: Rail, mirror: Mirror, killed_after: Callable[[str], None]
    ) -> None:
        rail.enqueue(12)
        for step in ("written", "committed", "told", "written", "committed"):
            rail.fail(verb="retry")
            rail.succeed()
            killed_after(step)

        drain(mirror)

        assert_equal(rail, jobs=12, attempts=10)


class Replay(Broker):
    """Hands out changes that were read earlier, as mirrors do that froze in between."""

    def __init__(self, broker: Broker, batches: list[Changes]) -> None:
        super().__init__(broker.client, broker.prefix)
        self.batches = batches

    def changes(self, queue: str, limit: int = BATCH) -> Changes:
        return self.batches.pop()


class TestOrder:
    def history(self, rail: Rail) -> list[Changes]:
        """Take jobs through rounds of failure, and return what a mirror would have read after each transition."""
        read = []

        def look() -> None:
            read.append(rail.broker.changes("default"))

        ids = rail.enqueue(4)
        look()
        rail.fail(2, verb="retry")
        look()
        for job_id in ids[:2]:
            rail.broker.retry("default", job_id, 1)
        jobs = rail.claim(2)
        look()
        rail.settle(jobs[:1], "dead", "failed", error_record("second"))
        rail.settle(jobs[1:], "succeed", "succeeded", b"2")
        look()
        rail.broker.retry("default", jobs[0].id, 1)
        rail.broker.cancel("default", ids[3], "changed my mind")
        look()
        rail.claim(1)
        look()
        return read

    @pytest.mark.parametrize("seed", range(8))
    def test_batches_in_any_order_and_repeated_end_as_those_in_order(self, rail: Rail, seed: int) -> None:
        batches = self.history(rail)
        shuffled = batches * 2
        random.Random(seed).shuffle(shuffled)
        revs: dict[object, int] = defaultdict(int)

        broker = Replay(rail.broker, shuffled)
        while shuffled:
            Mirror(broker, ["default"], using="default").run_once()
            for pk, rev in Job.objects.values_list("pk", "rev"):
                assert rev >= revs[pk], "a row went back"
                revs[pk] = rev

        assert_equal(rail, jobs=4, attempts=4)
        got = rows()
        Job.objects.all().delete()
        batches.reverse()
        while batches:
            Mirror(Replay(rail.broker, batches), ["default"], using="default").run_once()
        assert got == rows()

    def test_mirror_that_froze_before_it_wrote_overwrites_nothing_newer(self, rail: Rail, mirror: Mirror) -> None:
        read, thawed, faults = threading.Event(), threading.Event(), []

        def freeze(step: str) -> None:
            if step == "read":
                read.set()
                assert thawed.wait(30)

        def work() -> None:
            try:
                broker = SteppedBroker(rail.broker.client, rail.broker.prefix, freeze)
                Mirror(broker, ["default"], using="default").run_once()
            except BaseException as exc:
                faults.append(exc)
            finally:
                connections.close_all()

        (job_id,) = rail.enqueue()
        rail.fail(verb="retry")
        frozen = threading.Thread(target=work)
        frozen.start()
        assert read.wait(30)
        rail.broker.retry("default", job_id, 1)
        rail.succeed(result=b'"new"')
        drain(mirror)
        before = rows()
        thawed.set()
        frozen.join(30)

        assert faults == []
        assert rows() == before
        assert Job.objects.values_list("state", "result").get() == ("succeeded", '"new"')
        assert_equal(rail, jobs=1, attempts=2)


class TestStopped:
    """No mirror while the queue works at full load, then one that catches up."""

    def test_several_thousand_jobs_with_retries_are_caught_up_with(self, rail: Rail, mirror: Mirror) -> None:
        ids = [*rail.enqueue(3_000), *rail.enqueue(500, priority=-5, delay_ms=3_600_000)]
        expected: dict[str, list[tuple[int, str]]] = defaultdict(list)
        dice = random.Random(20)
        while jobs := rail.claim(100):
            fates = defaultdict(list)
            for job in jobs:
                fate = dice.choice(("succeed", "succeed", "retry", "dead", "release"))
                fates[fate].append(job)
                outcome = {"succeed": "succeeded", "release": "released"}.get(fate, "failed")
                expected[job.id].append((job.attempts + 1, outcome))
            for verb, group in fates.items():
                outcome = {"succeed": "succeeded", "release": "released"}.get(verb, "failed")
                rail.settle(group, verb, outcome, b"1" if verb == "succeed" else error_record())
        total = sum(map(len, expected.values()))
        assert total > 4_000

        counts = drain(mirror)

        assert (counts.jobs, counts.attempts, counts.dropped) == (3_500, total, 0)
        assert_equal(rail, jobs=len(ids), attempts=total)
        found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for job_id, number, outcome in Attempt.objects.order_by("token").values_list("job_id", "number", "outcome"):
            found[str(job_id)].append((number, outcome))
        assert found == expected
        assert Counter(Job.objects.values_list("state", flat=True))["scheduled"] == 500


class TestMemory:
    """What Redis holds while no mirror works: bounded by jobs and their attempts, not by transitions."""

    JOBS = 400

    @pytest.fixture
    def rail(self) -> Iterator[Rail]:
        with RedisServer() as server, server.client() as client:
            yield Rail(Broker(client, "mem"))

    def per_job(self, rail: Rail) -> float:
        """Return the server's used memory for each job, in bytes."""
        client = rail.broker.client
        client.execute_command("MEMORY", "PURGE")
        return client.info("memory")["used_memory"] / self.JOBS

    def test_transitions_that_start_no_attempt_take_no_memory(self, rail: Rail) -> None:
        def transitions() -> None:
            """Make five for each job."""
            for _ in range(self.JOBS // 100):
                rail.settle(rail.claim(100), "park", "", delay_ms=0)  # → running → retrying → (due) ready
            for _ in range(self.JOBS // 100):
                rail.settle(rail.claim(100), "return", "")

        rail.enqueue(self.JOBS)
        transitions()
        first = self.per_job(rail)
        for _ in range(40):
            transitions()

        assert len(rail.unmirrored()) == self.JOBS
        assert self.per_job(rail) - first < 200, "less than a byte for each of 200 transitions of a job"

    def test_attempts_take_what_their_records_need_until_they_are_mirrored(self, rail: Rail) -> None:
        error = error_record(traceback="t" * 400)

        def fail_all(times: int) -> None:
            for _ in range(times):
                for _ in range(self.JOBS // 100):
                    rail.settle(rail.claim(100), "retry", "failed", error, delay_ms=0)

        rail.enqueue(self.JOBS, max_attempts=1_000)
        fail_all(1)
        one = self.per_job(rail)
        fail_all(10)
        eleven = self.per_job(rail)
        drain(Mirror(rail.broker, ["default"], using="default"))
        mirrored = self.per_job(rail)

        assert Attempt.objects.count() == 11 * self.JOBS
        assert (eleven - one) / 10 < len(error) + 400, "bytes for an attempt"
        assert mirrored < one

    def test_jobs_that_ended_and_are_mirrored_leave_nothing(self, rail: Rail) -> None:
        rail.enqueue(self.JOBS)
        for _ in range(self.JOBS // 100):
            rail.succeed(100)
        drain(Mirror(rail.broker, ["default"], using="default"))
        client, keys = rail.broker.client, rail.broker.keys("default")
        jobs = list(client.scan_iter(match=keys.job("*")))

        assert len(jobs) == self.JOBS
        assert all(0 < client.pttl(key) <= 10_000 for key in jobs)
        left = {key.decode() for key in client.scan_iter()} - {key.decode() for key in jobs}
        assert left <= {keys.meta, keys.slot(rail.slot), keys.wake}


@contextmanager
def locked_table() -> Iterator[None]:
    """Keep everyone else from writing to the table of jobs, on a connection of its own."""
    other = connection.copy()
    begin, end = {
        "sqlite": ("BEGIN IMMEDIATE", "ROLLBACK"),
        "postgresql": ("BEGIN; LOCK TABLE jobrail_job IN EXCLUSIVE MODE", "ROLLBACK"),
        "mysql": ("LOCK TABLES jobrail_job WRITE", "UNLOCK TABLES"),
    }[connection.vendor]
    try:
        with other.cursor() as cursor:
            cursor.execute(begin)
            yield
            cursor.execute(end)
    finally:
        other.close()


def be_impatient() -> None:
    """Let this thread's connection give up a lock after a second at most."""
    orders = {
        "sqlite": ["PRAGMA busy_timeout = 200"],
        "postgresql": ["SET lock_timeout = '200ms'"],
        "mysql": ["SET SESSION lock_wait_timeout = 1", "SET SESSION innodb_lock_wait_timeout = 1"],
    }[connection.vendor]
    with connection.cursor() as cursor:
        for order in orders:
            cursor.execute(order)


def be_read_only(on: bool) -> None:
    """Let this thread's connection refuse all writes, or take them again."""
    order = {
        "sqlite": f"PRAGMA query_only = {int(on)}",
        "postgresql": f"SET default_transaction_read_only = {'on' if on else 'off'}",
        "mysql": f"SET SESSION TRANSACTION READ {'ONLY' if on else 'WRITE'}",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(order)


class Running:
    """An upkeep in a thread of its own, with its real loop.

    Args:
        rail: whose queues.
        on_read: called in the mirror's thread each time it has read changes.
    """

    def __init__(self, rail: Rail, on_read: Callable[[], None]) -> None:
        self.reads = 0
        self.on_read = on_read
        self.stop = threading.Event()
        broker = SteppedBroker(rail.broker.client, rail.broker.prefix, self.reached)
        self.upkeep = Upkeep(broker, get_settings(), self.stop.is_set)
        self.thread = threading.Thread(target=self.upkeep.run)

    def reached(self, step: str) -> None:
        if step == "read":
            self.reads += 1
            self.on_read()

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


class TestBlocked:
    """A database that is slow or takes no writes."""

    @pytest.fixture
    def messages(self, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
        """Return what was logged of the mirror: its failures, and that it works again."""
        caplog.set_level(logging.INFO, "jobrail_django")

        def found() -> list[str]:
            failures = [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "mirror_failed"]
            return failures + [text for r in caplog.records if "mirror_failed" in (text := r.getMessage())]

        return found

    def test_claims_go_on_while_the_mirror_waits_for_the_database(self, rail: Rail, mirror: Mirror) -> None:
        rail.enqueue(400)
        read = threading.Event()
        faults: list[BaseException] = []

        def work() -> None:
            try:
                broker = SteppedBroker(rail.broker.client, rail.broker.prefix, lambda step: read.set())
                Mirror(broker, ["default"], using="default").run_once()
            except BaseException as exc:
                faults.append(exc)
            finally:
                connections.close_all()

        waiting = threading.Thread(target=work)
        with locked_table():
            waiting.start()
            assert read.wait(30)
            worst = 0.0
            for _ in range(300):
                start = time.monotonic()
                rail.succeed()
                worst = max(worst, time.monotonic() - start)
            assert waiting.is_alive(), "the mirror waits for the lock all the time"
        waiting.join(30)

        assert faults == []
        assert worst < 1.0
        drain(mirror)
        assert_equal(rail, jobs=400, attempts=300)

    def test_database_that_keeps_a_lock_is_waited_for_and_caught_up_with(
        self, rail: Rail, messages: Callable[[], list[str]]
    ) -> None:
        with Running(rail, be_impatient) as running:
            with locked_table():
                rail.enqueue(150)
                rail.fail(20, verb="retry")
                eventually(lambda: bool(messages()), "a warning")
                seen = running.reads
                rail.succeed(30)
                eventually(lambda: running.reads >= seen + 2, "two more tries")
            eventually(lambda: not rail.unmirrored(), "caught up")
            eventually(lambda: len(messages()) == 2, "word of it")

        assert_equal(rail, jobs=150, attempts=50)
        assert len(messages()) == 2, "one failure, however many tries, and one word that it works again"

    def test_read_only_database_loses_nothing_and_is_caught_up_with(
        self, rail: Rail, messages: Callable[[], list[str]]
    ) -> None:
        read_only = [True]
        with Running(rail, lambda: be_read_only(read_only[0])) as running:
            ids = rail.enqueue(120)
            rail.fail(20, verb="retry")
            eventually(lambda: bool(messages()), "a warning")
            seen = running.reads
            rail.succeed(30)
            eventually(lambda: running.reads >= seen + 3, "three more tries")
            stored, owed = Job.objects.count(), rail.unmirrored()
            read_only[0] = False
            eventually(lambda: not rail.unmirrored(), "caught up")
            eventually(lambda: len(messages()) == 2, "word of it")

        assert (stored, owed) == (0, set(ids))
        assert_equal(rail, jobs=120, attempts=50)
        assert len(messages()) == 2, "one failure, however many tries, and one word that it works again"

    def test_mirror_stopped_by_its_database_keeps_no_job_from_its_recovery(self, rail: Rail) -> None:
        """The reaper needs no database: a lost lease is recovered while the mirror waits."""
        (job_id,) = rail.enqueue()
        rail.claim()
        rail.broker.client.zadd(rail.broker.keys("default").leases, {job_id: 1})

        def state() -> str:
            record = rail.broker.get("default", job_id)
            assert record is not None
            return record.state

        with Running(rail, lambda: None), locked_table():
            # The first look holds, for a third of a lease: move the hold away instead of waiting for it.
            def recovered() -> bool:
                rail.broker.client.hset(rail.broker.keys("default").meta, "held", 0)
                return state() == "ready"

            eventually(recovered, "recovered")

        assert_equal(rail, jobs=1, attempts=1)
        assert Attempt.objects.get().outcome == "lost"


def test_redis_that_goes_between_two_steps_is_taken_up_again(rail: Rail, mirror: Mirror) -> None:
    """The rows are committed and Redis hears nothing of it: the next run says it."""
    ids = rail.enqueue(3)

    def cut(step: str) -> None:
        if step == "committed":
            raise redis.ConnectionError("cut")

    with pytest.raises(redis.ConnectionError):
        Mirror(SteppedBroker(rail.broker.client, rail.broker.prefix, cut), ["default"], using="default").run_once()

    assert (Job.objects.count(), rail.unmirrored()) == (3, set(ids))
    drain(mirror)
    assert_equal(rail, jobs=3, attempts=0)
