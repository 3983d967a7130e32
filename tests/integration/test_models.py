"""Models, their migration, and the bulk writes that never move a row backwards."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from io import StringIO

import pytest
import uuid_utils
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction

from jobrail_django.models import Attempt, Job
from jobrail_django.querysets import Row, tables_missing, task_prefix

NOW = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=timezone.utc)

PROBE = """
import sys
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "jobrail_django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    JOBRAIL={"REDIS": "redis://127.0.0.1:1/0"},
    DEFAULT_AUTO_FIELD="django.db.models." + sys.argv[1],
    LANGUAGE_CODE=sys.argv[2],
    USE_TZ=sys.argv[3] == "tz",
    USE_I18N=True,
)
import django
from django.core.management import call_command
django.setup()
call_command("makemigrations", check=True, dry_run=True)
"""


def new_id() -> str:
    return str(uuid_utils.uuid7())


def job_values(job_id: str | None = None, **changes: object) -> Row:
    return {
        "id": job_id or new_id(),
        "task": "shop.tasks.send",
        "queue": "default",
        "state": "ready",
        "rev": 1,
        "round": 1,
        "priority": 0,
        "run_after": None,
        "enqueued_at": NOW,
        "started_at": None,
        "finished_at": None,
        "attempts": 0,
        "losses": 0,
        "max_attempts": 3,
        "max_losses": 3,
        "payload": "{}",
        "result": None,
        "reason": "",
        "error_type": None,
        "error_message": None,
        "claim": "",
        "cancel_requested": False,
        "mirrored_at": NOW,
        **changes,
    }


def attempt_values(job_id: str, **changes: object) -> Row:
    return {
        "job_id": uuid.UUID(job_id),
        "token": 2,
        "claim": "0badcafe.0.0:1",
        "round": 1,
        "number": 1,
        "outcome": "failed",
        "started_at": NOW,
        "finished_at": NOW + timedelta(milliseconds=1500),
        "worker": "0badcafe",
        "error_type": "builtins.ValueError",
        "error_message": "bad",
        "traceback": "Traceback",
        **changes,
    }


def upsert(*rows: Row, keep: tuple[str, ...] = ()) -> None:
    Job.objects.upsert(rows, guard="rev", keep=keep)


@pytest.mark.parametrize("auto_field", ["AutoField", "BigAutoField"])
@pytest.mark.parametrize(("language", "tz"), [("en", "tz"), ("de", "naive")])
def test_makemigrations_finds_nothing_whatever_the_settings_i12(auto_field: str, language: str, tz: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE, auto_field, language, tz],
        capture_output=True,
        text=True,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": ""},
        timeout=60,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "No changes detected" in run.stdout
    assert "W042" not in run.stderr


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_migration_goes_back_to_zero_and_forward_again_i12() -> None:
    assert not tables_missing("default")
    try:
        call_command("migrate", "jobrail", "zero", verbosity=0)
        assert tables_missing("default")
    finally:
        call_command("migrate", "jobrail", verbosity=0, stdout=StringIO())

    assert not tables_missing("default")
    upsert(job_values())
    assert Job.objects.count() == 1


@pytest.mark.db_vendor
@pytest.mark.django_db
class TestUpsert:
    def test_new_row_has_every_value_as_given(self) -> None:
        values = job_values(
            state="dead",
            rev=7,
            round=2,
            priority=-100,
            run_after=NOW + timedelta(days=1),
            attempts=3,
            losses=1,
            result='{"a": [1, 2]}',
            reason="ValueError: bad",
            error_type="ValueError",
            error_message="naïve ☃ 🎉",
            claim="0badcafe.0.0:12",
            cancel_requested=True,
            started_at=NOW,
            finished_at=NOW,
        )

        upsert(values)

        row = Job.objects.get(pk=values["id"])
        assert {name: getattr(row, name) for name in values} == {**values, "id": uuid.UUID(str(values["id"]))}

    def test_higher_rev_overwrites_and_lower_or_equal_leaves_the_whole_row(self) -> None:
        job_id = new_id()
        upsert(job_values(job_id, state="running", rev=5, claim="a:1"))

        upsert(job_values(job_id, state="succeeded", rev=6, claim="a:1", result="1"))
        for rev in (6, 5, 1):
            upsert(job_values(job_id, state="running", rev=rev, claim="b:2", mirrored_at=NOW + timedelta(1)))

        row = Job.objects.get()
        assert (row.state, row.rev, row.claim, row.result, row.mirrored_at) == ("succeeded", 6, "a:1", "1", NOW)

    def test_one_batch_of_old_and_new_rows_decides_for_each_by_itself(self) -> None:
        known = [new_id() for _ in range(6)]
        upsert(*(job_values(job_id, rev=rev, state="ready") for rev, job_id in enumerate(known)))

        upsert(*(job_values(job_id, rev=3, state="dead") for job_id in [*known, new_id()]))

        states = dict(Job.objects.values_list("pk", "state"))
        assert [states[uuid.UUID(job_id)] for job_id in known] == ["dead"] * 3 + ["ready"] * 3
        assert len(states) == 7

    def test_none_in_a_kept_column_leaves_what_is_there_and_text_replaces_it(self) -> None:
        job_id, keep = new_id(), ("error_type", "error_message")
        upsert(job_values(job_id, rev=1, error_type="OSError", error_message="away"), keep=keep)

        upsert(job_values(job_id, rev=2, reason="waits"), keep=keep)
        kept = Job.objects.values_list("error_type", "error_message", "reason").get()
        upsert(job_values(job_id, rev=3, error_type="", error_message=""), keep=keep)

        assert kept == ("OSError", "away", "waits")
        assert Job.objects.values_list("error_type", "error_message").get() == ("", "")

    def test_more_rows_than_one_statement_may_have_parameters(self) -> None:
        rows = [job_values(rev=1) for _ in range(2_000)]

        upsert(*rows)

        assert Job.objects.count() == 2_000

    def test_nothing_to_write_is_no_statement(self, django_assert_num_queries) -> None:
        with django_assert_num_queries(0):
            upsert()

    @pytest.mark.parametrize(
        ("given", "stored"),
        [
            ("a\x00b", "a\\x00b"),
            ("a\ud800b", "a\\ud800b"),
            ("\udfff\x00é", "\\udfff\\x00é"),
            ("%s %(x)s '\"\\ {}", "%s %(x)s '\"\\ {}"),
        ],
        ids=["nul", "surrogate", "both", "quotes"],
    )
    def test_text_that_a_database_refuses_is_stored_escaped_in_every_text_column_k3(
        self, given: str, stored: str
    ) -> None:
        columns = ("task", "queue", "state", "payload", "result", "reason", "error_type", "error_message", "claim")

        upsert(job_values(**dict.fromkeys(columns, given)))

        assert Job.objects.values_list(*columns).get() == (stored,) * len(columns)

    def test_too_long_text_is_cut_with_a_mark(self) -> None:
        upsert(job_values(task="t" * 300, reason="é" * 255, claim="c" * 101))

        row = Job.objects.get()
        assert (row.task, row.reason, row.claim) == ("t" * 254 + "…", "é" * 255, "c" * 99 + "…")

    def test_number_out_of_range_raises_and_writes_nothing_of_the_statement(self) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("SQLite stores any 64-bit number in any integer column")

        with pytest.raises(DatabaseError), transaction.atomic():
            upsert(job_values(), job_values(priority=1_000_000))

        assert Job.objects.count() == 0


@pytest.mark.db_vendor
@pytest.mark.django_db
class TestInsertMissing:
    KEY = ("job_id", "claim")

    def test_attempt_already_there_stays_as_it_is_and_others_are_added(self) -> None:
        job_id = new_id()
        upsert(job_values(job_id))
        Attempt.objects.insert_missing([attempt_values(job_id)], key=self.KEY)

        again = [
            attempt_values(job_id, outcome="lost", token=9),
            attempt_values(job_id, claim="0badcafe.0.0:2", number=2, token=4),
        ]
        Attempt.objects.insert_missing(again, key=self.KEY)
        Attempt.objects.insert_missing(again, key=self.KEY)

        found = Attempt.objects.order_by("token").values_list("token", "outcome", "number")
        assert list(found) == [(2, "failed", 1), (4, "failed", 2)]

    def test_other_faults_are_not_swallowed(self) -> None:
        job_id = new_id()
        upsert(job_values(job_id))

        with pytest.raises(DatabaseError), transaction.atomic():
            Attempt.objects.insert_missing([attempt_values(job_id, outcome=None)], key=self.KEY)


@pytest.mark.db_vendor
@pytest.mark.django_db
class TestTaskPrefix:
    @pytest.fixture(autouse=True)
    def jobs(self) -> None:
        upsert(
            *(job_values(task=task) for task in ("shop.a", "shop.ab", "shop.b", "shopxa", "100%_sure.x", "100%asure.x"))
        )

    @pytest.mark.parametrize(
        ("prefix", "found"),
        [
            ("shop.a", {"shop.a", "shop.ab"}),
            ("shop.", {"shop.a", "shop.ab", "shop.b"}),
            ("100%_", {"100%_sure.x"}),
            ("%", set()),
            ("hop", set()),
        ],
    )
    def test_finds_names_that_begin_so_and_takes_no_character_as_a_wildcard(self, prefix: str, found: set[str]) -> None:
        assert set(Job.objects.filter(task_prefix(prefix, "default")).values_list("task", flat=True)) == found


@pytest.fixture
def without_scans() -> Iterator[None]:
    """Make PostgreSQL use an index wherever it can, however small the table."""
    if connection.vendor == "mysql":
        pytest.skip("MariaDB reads a table of a few rows whole, whatever its indexes")
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute("SET LOCAL enable_bitmapscan = off")
    yield


@pytest.mark.db_vendor
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("condition", "index"),
    [
        ({}, None),
        ({"state": "dead"}, "jobrail_job_state"),
        ({"queue": "mail"}, "jobrail_job_queue"),
        ({"task": "shop.tasks.send"}, "jobrail_job_task"),
    ],
    ids=["all", "state", "queue", "task"],
)
def test_list_and_each_filter_read_an_index_in_order_j1(
    without_scans: None, condition: dict[str, str], index: str | None
) -> None:
    upsert(*(job_values() for _ in range(50)))

    plan = Job.objects.filter(**condition).order_by("-pk")[:10].explain().lower()

    assert "seq scan" not in plan
    assert "sort" not in plan and "temp b-tree" not in plan
    assert (index or ("autoindex" if connection.vendor == "sqlite" else "pkey")) in plan


@pytest.mark.db_vendor
@pytest.mark.django_db
def test_prefix_reads_an_index_j1(without_scans: None) -> None:
    upsert(*(job_values() for _ in range(50)))

    plan = Job.objects.filter(task_prefix("shop.tasks.nothing", "default")).order_by("task")[:10].explain().lower()

    assert "jobrail_job_task" in plan
    assert "task" in plan.split("jobrail_job_task", 1)[1]
