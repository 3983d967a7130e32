"""The mirror against a real Redis and a real database."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest
import redis
from django.core.management import call_command
from django.db import OperationalError, connection, connections

from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import WorkerInfo
from jobrail_django.errors import BrokerUnavailable, ConfigurationError, ScriptError
from jobrail_django.models import Attempt, Job, Queue, Worker
from jobrail_django.upkeep.mirror import BATCH_BYTES, Mirror, MirrorCounts
from jobrail_django.upkeep.workers import KEEP, WorkerRegister

from .rail import Rail, error_record

pytestmark = [pytest.mark.db_vendor, pytest.mark.django_db]

ROW = ("state", "rev", "round", "attempts", "losses", "claim", "reason", "cancel_requested", "finished_at")


@pytest.fixture
def rail(broker: Broker) -> Rail:
    return Rail(broker)


@pytest.fixture
def mirror(broker: Broker) -> Mirror:
    return Mirror(broker, ["default"], using="default")


def drain(mirror: Mirror) -> MirrorCounts:
    """Run until nothing is left, and return what was done in all."""
    total = MirrorCounts()
    for _ in range(1_000):
        counts = mirror.run_once()
        total += counts
        if not counts.more:
            return total
    raise AssertionError("the mirror never catches up")


def row(job_id: str) -> Job:
    return Job.objects.get(pk=job_id)


def moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, timezone.utc)


def assert_rows_equal_redis(broker: Broker, queue: str = "default") -> None:
    """Compare every row with what Redis holds; a job that Redis has let go has to be final."""
    for job in Job.objects.filter(queue=queue):
        record = broker.get(queue, str(job.pk))
        if record is None:
            assert job.state in ("succeeded", "dead", "cancelled")
            continue
        expected = [moment(record.finished_ms) if name == "finished_at" else getattr(record, name) for name in ROW]
        assert [getattr(job, name) for name in ROW] == expected


class TestRows:
    def test_new_job_has_all_its_columns(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue(args=[1, "é"], priority=7, delay_ms=60_000, max_attempts=5, max_losses=2)
        record = rail.broker.get("default", job_id)

        counts = mirror.run_once()

        job = row(job_id)
        assert counts == MirrorCounts(jobs=1, attempts=0, dropped=0, lag_ms=counts.lag_ms, more=False)
        assert (job.task, job.queue, job.state, job.priority) == ("shop.tasks.send", "default", "scheduled", 7)
        assert (job.max_attempts, job.max_losses, job.attempts, job.losses, job.round) == (5, 2, 0, 0, 1)
        assert record is not None
        assert (job.enqueued_at, job.run_after) == (moment(record.enqueued_ms), moment(record.due_ms))
        assert json.loads(job.payload)["args"] == [1, "é"]
        assert (job.result, job.error_type, job.started_at, job.finished_at) == (None, None, None, None)
        assert rail.unmirrored() == set()

    def test_job_that_ended_well_has_result_and_attempt_and_leaves_redis(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue()
        rail.succeed(result=b'{"sum": 12}')

        counts = mirror.run_once()

        job, attempt = row(job_id), Attempt.objects.get()
        assert (counts.jobs, counts.attempts) == (1, 1)
        assert (job.state, job.result, job.error_type, job.attempts) == ("succeeded", '{"sum": 12}', "", 1)
        assert (str(attempt.job_id), attempt.claim, attempt.worker) == (job_id, rail.claim_id, "0badcafe")
        assert (attempt.number, attempt.round, attempt.outcome, attempt.error_type) == (1, 1, "succeeded", "")
        assert attempt.finished_at - attempt.started_at == timedelta(milliseconds=20)
        assert 0 < rail.broker.client.pttl(rail.broker.keys("default").job(job_id)) <= 10_000
        assert rail.unmirrored() == set()

    def test_failed_attempt_has_its_error_and_so_has_the_job(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue()
        rail.fail(error=error_record("row 7 <b>", kind="shop.errors.BadRow", traceback="Traceback\n  x.py"))

        mirror.run_once()

        job, attempt = row(job_id), Attempt.objects.get()
        assert (job.state, job.error_type, job.error_message) == ("dead", "shop.errors.BadRow", "row 7 <b>")
        assert (attempt.error_type, attempt.error_message, attempt.traceback) == (
            "shop.errors.BadRow",
            "row 7 <b>",
            "Traceback\n  x.py",
        )

    def test_error_stays_with_the_job_until_its_next_attempt_ends(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue()
        rail.fail(verb="retry")
        mirror.run_once()
        rail.broker.retry("default", job_id, 1)
        jobs = rail.claim()
        mirror.run_once()
        running = row(job_id)
        rail.settle(jobs, "succeed", "succeeded", b"1")
        mirror.run_once()

        assert (running.state, running.error_type) == ("running", "builtins.ValueError")
        assert (row(job_id).state, row(job_id).error_type) == ("succeeded", "")
        assert list(Attempt.objects.order_by("token").values_list("number", "outcome")) == [
            (1, "failed"),
            (2, "succeeded"),
        ]

    def test_attempts_of_several_rounds_add_up(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue()
        for current in (1, 2, 3):
            rail.fail()
            if current == 2:
                mirror.run_once()
            rail.broker.retry("default", job_id, current)

        drain(mirror)

        assert (row(job_id).state, row(job_id).round, row(job_id).attempts) == ("ready", 4, 0)
        assert list(Attempt.objects.order_by("token").values_list("round", "number")) == [(1, 1), (2, 1), (3, 1)]

    def test_text_that_postgresql_refuses_is_stored_escaped_k3(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue()
        rail.fail(error=error_record("nul \x00, half \ud800", traceback="\x00"))

        mirror.run_once()

        attempt = Attempt.objects.get()
        assert (attempt.error_message, attempt.traceback) == ("nul \\x00, half \\ud800", "\\x00")
        assert row(job_id).error_message == "nul \\x00, half \\ud800"

    def test_bytes_that_are_no_text_are_stored_escaped_k3(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue()
        rail.succeed(result=b"\xff\x00")

        mirror.run_once()

        assert row(job_id).result == "\\xff\\x00"

    def test_huge_error_is_cut_with_a_mark_k4(self, rail: Rail, mirror: Mirror) -> None:
        rail.enqueue()
        rail.fail(error=error_record("m" * 100_000 + "end", traceback="t" * 100_000 + "last line"))

        mirror.run_once()

        attempt = Attempt.objects.get()
        assert len(attempt.error_message) < 4_200
        assert attempt.error_message.endswith("end")
        assert "… 95907 characters cut …" in attempt.error_message
        assert len(attempt.traceback) < 49_300
        assert attempt.traceback.endswith("last line")

    def test_error_that_is_no_record_is_shown_as_it_is(self, rail: Rail, mirror: Mirror) -> None:
        rail.enqueue()
        rail.fail(error=b"not json")

        mirror.run_once()

        assert Attempt.objects.values_list("error_type", "error_message", "traceback").get() == ("", "not json", "")

    def test_site_without_time_zones_has_local_times(self, rail: Rail, mirror: Mirror, settings) -> None:
        settings.USE_TZ = False
        (job_id,) = rail.enqueue()
        record = rail.broker.get("default", job_id)

        mirror.run_once()

        assert record is not None
        assert row(job_id).enqueued_at == datetime.fromtimestamp(record.enqueued_ms / 1000)


class TestRepeats:
    def test_death_between_commit_and_confirmation_changes_nothing_but_the_confirmation(
        self, rail: Rail, mirror: Mirror
    ) -> None:
        ids = rail.enqueue(3)
        rail.fail(verb="retry")
        rail.succeed()
        mirror.run_once()
        before = [list(Job.objects.order_by("pk").values()), list(Attempt.objects.order_by("pk").values())]
        rail.forget_mirrored(*ids)

        counts = mirror.run_once()

        assert counts.jobs == 3
        assert [list(Job.objects.order_by("pk").values()), list(Attempt.objects.order_by("pk").values())] == before
        assert rail.unmirrored() == set()

    def test_job_that_moves_on_while_its_row_is_written_stays_to_be_mirrored(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue()
        moved = []

        def move_on(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
            if not moved and "jobrail_job" in sql and sql.startswith("INSERT"):
                moved.append(rail.claim())
            return execute(sql, params, many, context)

        with connection.execute_wrapper(move_on):
            mirror.run_once()
        after_first = row(job_id).state
        left = rail.unmirrored()
        mirror.run_once()

        assert (after_first, left) == ("ready", {job_id})
        assert (row(job_id).state, rail.unmirrored()) == ("running", set())

    def test_failing_database_leaves_everything_to_be_mirrored_again(self, rail: Rail, mirror: Mirror) -> None:
        ids = rail.enqueue(2)
        rail.succeed()

        def fail(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
            if "jobrail_attempt" in sql:
                raise OperationalError("no space left")
            return execute(sql, params, many, context)

        with connection.execute_wrapper(fail), pytest.raises(OperationalError, match="no space left"):
            mirror.run_once()
        stored = Job.objects.count()
        mirror.run_once()

        assert stored == 0
        assert {str(pk) for pk in Job.objects.values_list("pk", flat=True)} == set(ids)
        assert Attempt.objects.count() == 1

    def test_more_than_a_batch_takes_several_runs_and_says_so(self, rail: Rail, mirror: Mirror) -> None:
        rail.enqueue(250)

        runs = [mirror.run_once() for _ in range(4)]

        assert [(run.jobs, run.more) for run in runs] == [(100, True), (100, True), (50, False), (0, False)]
        assert Job.objects.count() == 250

    def test_each_queue_has_its_batch(self, broker: Broker) -> None:
        for queue in ("default", "mail"):
            Rail(broker, queue).enqueue(2)

        counts = Mirror(broker, ["default", "mail"], using="default").run_once()

        assert counts.jobs == 4
        assert set(Job.objects.values_list("queue", flat=True)) == {"default", "mail"}

    def test_large_jobs_are_written_in_several_transactions(self, rail: Rail, mirror: Mirror) -> None:
        payload = json.dumps({"v": 1, "task": "big", "args": ["x" * (BATCH_BYTES // 3)], "kwargs": {}, "options": {}})
        rail.enqueue_payloads([payload.encode()] * 7)
        statements = []

        def note(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
            if sql.startswith("INSERT") and "jobrail_job" in sql:
                statements.append(sql)
            return execute(sql, params, many, context)

        with connection.execute_wrapper(note):
            drain(mirror)

        assert len(statements) == 4
        assert Job.objects.filter(task="big").count() == 7


class TestUnreadable:
    @pytest.fixture
    def errors(self, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
        return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    def test_change_without_a_job_is_dropped_and_logged_once(self, rail: Rail, mirror: Mirror, errors) -> None:
        ids = rail.enqueue(3)
        rail.broker.client.delete(rail.broker.keys("default").job(ids[1]))

        counts = [mirror.run_once(), mirror.run_once()]

        assert [(c.jobs, c.dropped) for c in counts] == [(2, 1), (0, 0)]
        assert Job.objects.count() == 2
        assert rail.unmirrored() == set()
        assert [ids[1] in text for text in errors()] == [True]

    def test_hash_that_is_no_job_is_given_up_and_logged_once_a10(self, rail: Rail, mirror: Mirror, errors) -> None:
        ids = rail.enqueue(3)
        rail.broker.client.hset(rail.broker.keys("default").job(ids[0]), "limits", "many")

        counts = [mirror.run_once(), mirror.run_once()]

        assert [(c.jobs, c.dropped) for c in counts] == [(2, 1), (0, 0)]
        assert {str(pk) for pk in Job.objects.values_list("pk", flat=True)} == set(ids[1:])
        assert rail.unmirrored() == set()
        assert len(errors()) == 1

    @pytest.mark.parametrize(
        ("field", "value"),
        [("prio", "1" + "0" * 30), ("at", "9" * 20), ("attempts", str(2**31))],
        ids=["priority", "time", "attempts"],
    )
    def test_job_whose_numbers_fit_no_column_gets_a_row_that_says_so_a10(
        self, rail: Rail, mirror: Mirror, errors, field: str, value: str
    ) -> None:
        ids = rail.enqueue(3)
        rail.broker.client.hset(rail.broker.keys("default").job(ids[0]), field, value)

        counts = mirror.run_once()

        assert counts.jobs == 3
        assert row(ids[0]).reason.startswith("This job's record could not be stored: ")
        assert (row(ids[0]).state, row(ids[0]).task, row(ids[1]).task) == ("ready", "(unreadable)", "shop.tasks.send")
        assert rail.unmirrored() == set()
        assert len(errors()) == 1

    def test_member_that_is_no_id_is_dropped_a10(self, rail: Rail, mirror: Mirror, errors) -> None:
        (job_id,) = rail.enqueue()
        client, keys = rail.broker.client, rail.broker.keys("default")
        client.zadd(keys.changed, {"no-id": 1})
        client.hset(keys.job("no-id"), mapping=client.hgetall(keys.job(job_id)))

        counts = mirror.run_once()

        assert (counts.jobs, counts.dropped) == (1, 1)
        assert rail.unmirrored() == set()
        assert len(errors()) == 1

    @pytest.mark.parametrize(
        "payload",
        [b"", b"not json", b"[1]", b'{"v": 1}', b'{"v": 1, "task": 5}', b"\xff\xfe"],
        ids=["empty", "text", "list", "no task", "number", "bytes"],
    )
    def test_payload_that_nobody_can_read_is_stored_all_the_same(
        self, rail: Rail, mirror: Mirror, payload: bytes
    ) -> None:
        (job_id,) = rail.enqueue_payloads([payload])

        mirror.run_once()

        assert row(job_id).task == "(unreadable)"
        assert row(job_id).payload == payload.decode("utf-8", "backslashreplace")

    def test_task_of_a_newer_payload_version_is_known(self, rail: Rail, mirror: Mirror) -> None:
        (job_id,) = rail.enqueue_payloads([b'{"v": 99, "task": "shop.tasks.new", "anything": 1}'])

        mirror.run_once()

        assert row(job_id).task == "shop.tasks.new"

    def test_queue_with_a_key_of_the_wrong_type_does_not_stop_the_others(self, broker: Broker) -> None:
        broker.client.set(broker.keys("default").changed, "text")
        Rail(broker, "mail").enqueue(2)

        with pytest.raises(ScriptError):
            Mirror(broker, ["default", "mail"], using="default").run_once()

        assert Job.objects.count() == 2


@pytest.mark.django_db(transaction=True)
class TestDatabase:
    @pytest.fixture
    def no_poison(self) -> Iterator[None]:
        """Let the database refuse one task's rows."""
        if connection.vendor == "sqlite":
            add = (
                "CREATE TRIGGER no_poison BEFORE INSERT ON jobrail_job WHEN NEW.task = 'poison' "
                "BEGIN SELECT RAISE(ABORT, 'CHECK constraint failed: poison'); END"
            )
            drop = "DROP TRIGGER no_poison"
        else:
            add = "ALTER TABLE jobrail_job ADD CONSTRAINT no_poison CHECK (task <> 'poison')"
            drop = "ALTER TABLE jobrail_job DROP CONSTRAINT no_poison"
        with connection.cursor() as cursor:
            cursor.execute(add)
        yield
        with connection.cursor() as cursor:
            cursor.execute(drop)

    def test_row_that_the_database_refuses_does_not_stop_the_others_a10(
        self, rail: Rail, mirror: Mirror, no_poison: None
    ) -> None:
        before = rail.enqueue(2)
        (poison,) = rail.enqueue(task="poison")
        after = rail.enqueue(2)

        counts = mirror.run_once()

        assert counts.jobs == 5
        assert {str(pk) for pk in Job.objects.values_list("pk", flat=True)} == {*before, poison, *after}
        assert row(poison).task == "(unreadable)"
        assert "poison" in row(poison).reason
        assert rail.unmirrored() == set()

    def test_missing_tables_are_a_clear_error_i14(self, rail: Rail, mirror: Mirror) -> None:
        rail.enqueue()
        try:
            call_command("migrate", "jobrail", "zero", verbosity=0)

            with pytest.raises(ConfigurationError, match=r"run `manage\.py migrate --database default`"):
                mirror.run_once()
        finally:
            call_command("migrate", "jobrail", verbosity=0)

        mirror.run_once()
        assert Job.objects.count() == 1

    def test_connection_that_the_server_closed_is_replaced_i5(self, rail: Rail, mirror: Mirror, caplog) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("SQLite has no server")
        rail.enqueue()
        mirror.run_once()

        for turn in range(3):
            kill_connection()
            rail.enqueue()
            assert mirror.run_once().jobs == 1, turn

        assert Job.objects.count() == 4
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    def test_two_mirrors_at_once_end_with_rows_equal_to_redis(self, rail: Rail) -> None:
        rail.enqueue(300)
        stop, faults = threading.Event(), []

        def work() -> None:
            mirror = Mirror(rail.broker, ["default"], using="default")
            try:
                while not stop.is_set():
                    mirror.run_once()
            except Exception as exc:
                faults.append(exc)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(30):
            rail.enqueue(10)
            (rail.fail if turn % 3 == 0 else rail.succeed)(15)
            jobs = rail.claim(10)
            rail.settle(jobs, "retry", "failed", error_record(), delay_ms=0)
        stop.set()
        for thread in threads:
            thread.join(30)
        drain(Mirror(rail.broker, ["default"], using="default"))

        assert faults == []
        assert Job.objects.count() == 600
        assert_rows_equal_redis(rail.broker)
        assert Attempt.objects.count() == 30 * 25
        assert rail.unmirrored() == set()


def kill_connection() -> None:
    """End this thread's database connection from another one, as a server does after a time-out."""
    sql = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(sql)
        number = cursor.fetchone()[0]
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)" if other.vendor == "postgresql" else "KILL %s", [number])
    finally:
        other.close()


def test_redis_away_raises_and_writes_nothing() -> None:
    broker = Broker(redis.Redis(host="127.0.0.1", port=1, socket_connect_timeout=0.2), "away")

    with pytest.raises(BrokerUnavailable):
        Mirror(broker, ["default"], using="default").run_once()

    assert Queue.objects.count() == 0


class TestQueueRow:
    def test_row_has_the_figures_of_the_queue(self, rail: Rail, mirror: Mirror) -> None:
        rail.enqueue(3)
        rail.enqueue(2, delay_ms=60_000)
        rail.claim()
        rail.broker.pause("default")

        mirror.run_once()

        queue = Queue.objects.get()
        assert (queue.name, queue.paused, queue.epoch, queue.lag_ms) == ("default", True, "e1", 0)
        assert (queue.ready, queue.scheduled, queue.retrying, queue.running) == (2, 2, 0, 1)

    def test_row_is_written_once_a_second_at_most_and_not_without_changes(self, rail: Rail, mirror: Mirror) -> None:
        rail.enqueue()
        mirror.run_once()
        first = Queue.objects.get().mirrored_at

        rail.enqueue()
        mirror.run_once()
        mirror.run_once()

        assert Queue.objects.get().mirrored_at == first
        assert Queue.objects.get().ready == 1


class TestWorkers:
    NOW_S = 1_800_000_000.0

    def info(self, worker_id: str, seen_ms: int = 0) -> WorkerInfo:
        return WorkerInfo(
            id=worker_id,
            name=f"w-{worker_id}",
            host="web\x001",
            pid=4711,
            queues=("default", "mail"),
            processes=2,
            threads=4,
            started_ms=1_700_000_000_000,
            seen_ms=1_700_000_000_000 + seen_ms,
            version="0.1",
        )

    def test_worker_is_written_while_alive_marked_when_gone_and_removed_after_a_week(self, broker: Broker) -> None:
        now = [self.NOW_S]
        register = WorkerRegister(broker, using="default", clock=lambda: now[0])
        for worker_id in ("0badcafe", "0badbeef"):
            broker.beat(self.info(worker_id), 60_000)
        both = register.run_once()
        broker.beat(self.info("0badcafe", 5_000), 60_000)
        broker.beat(self.info("0badbeef"), 0)
        one = register.run_once()
        rows = {row.pk: row for row in Worker.objects.all()}
        now[0] += KEEP.total_seconds() + 1
        later = register.run_once()

        assert (both.alive, both.gone, one.alive, one.gone, later.removed) == (2, 0, 1, 1, 1)
        alive = rows["0badcafe"]
        assert (alive.name, alive.host, alive.pid, alive.queues) == ("w-0badcafe", "web\\x001", 4711, "default, mail")
        assert (alive.seen_at, alive.gone_at) == (moment(1_700_000_005_000), None)
        assert rows["0badbeef"].gone_at == moment(int(self.NOW_S * 1000))
        assert list(Worker.objects.values_list("pk", flat=True)) == ["0badcafe"]

    def test_worker_that_comes_back_is_alive_again(self, broker: Broker) -> None:
        register = WorkerRegister(broker, using="default")
        broker.beat(self.info("0badcafe"), 60_000)
        register.run_once()
        broker.beat(self.info("0badcafe"), 0)
        register.run_once()
        broker.beat(self.info("0badcafe", 1_000), 60_000)

        register.run_once()

        assert Worker.objects.get().gone_at is None
