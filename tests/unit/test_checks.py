"""System checks."""

from __future__ import annotations

import pytest
from django.core import checks

from jobrail_django.checks import check_sqlite

pytestmark = [
    pytest.mark.usefixtures("own_registry"),
    pytest.mark.filterwarnings("ignore:Overriding setting DATABASES"),  # nothing here connects
]

URL = "redis://127.0.0.1:6379/9"


def ids(*, deploy=False):
    return [message.id for message in checks.run_checks(tags=["jobrail"], include_deployment_checks=deploy)]


@pytest.fixture
def sqlite(settings):
    """Give the database of JobRail other options; nothing connects to it."""

    def change(**options):
        entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": "x.sqlite3", "OPTIONS": options}
        settings.DATABASES = {"default": entry}
        settings.JOBRAIL = {"REDIS": URL}
        return [message.id for message in check_sqlite()]

    return change


@pytest.mark.parametrize(
    ("jobrail", "expected"),
    [
        ({"REDIS": URL}, []),
        ({}, ["jobrail.E003"]),
        ([], ["jobrail.E001"]),
        ({"REDIS": URL, "LEESE": 1}, ["jobrail.E001"]),
        ({"REDIS": URL, "LEASE_SECONDS": 0}, ["jobrail.E002"]),
        ({"REDIS": URL, "REAP_SECONDS": 60}, ["jobrail.E002"]),
        ({"REDIS": "nowhere"}, ["jobrail.E003"]),
        ({"REDIS": URL, "DURABLE": True}, ["jobrail.E005"]),
        ({"REDIS": URL, "KEEP_DAYS": 3}, ["jobrail.W003"]),
    ],
)
def test_settings_are_checked(settings, jobrail, expected):
    settings.JOBRAIL = jobrail

    # W002 is about the suite's own database, E012 about its own tasks.
    assert [item for item in ids() if item not in ("jobrail.W002", "jobrail.E012")] == expected


def test_cache_on_the_same_database_is_an_error(settings):
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL}}
    settings.JOBRAIL = {"REDIS": URL}

    assert "jobrail.E004" in ids()


def test_embedded_is_refused_with_deploy_only(settings):
    settings.JOBRAIL = {"REDIS": "embedded"}

    assert "jobrail.E010" not in ids()
    assert "jobrail.E010" in ids(deploy=True)


def test_sqlite_as_recommended_passes(sqlite):
    assert (
        sqlite(transaction_mode="IMMEDIATE", init_command="PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;") == []
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"transaction_mode": "IMMEDIATE"}, {"init_command": "PRAGMA journal_mode = wal"}],
    ids=["neither", "no WAL", "no IMMEDIATE"],
)
def test_sqlite_otherwise_is_a_warning(sqlite, options):
    assert sqlite(**options) == ["jobrail.W002"]


def test_task_module_that_fails_on_import_is_an_error(settings, make_app):
    make_app("checkedapp", tasks="import no_such_module")
    settings.JOBRAIL = {"REDIS": URL}

    (message,) = [m for m in checks.run_checks(tags=["jobrail"]) if m.id == "jobrail.E011"]

    assert (
        "'checkedapp.tasks' fails on import with ModuleNotFoundError: No module named 'no_such_module'" in message.msg
    )


def test_task_on_an_undeclared_queue_is_an_error(settings, make_task):
    settings.JOBRAIL = {"REDIS": URL, "QUEUES": ["mail"]}
    make_task("@task(queue_name='mial')\ndef send(): ...")

    (message,) = [m for m in checks.run_checks(tags=["jobrail"]) if m.id == "jobrail.E012" and "'made." in m.msg]

    assert "Task 'made.send': Unknown queue 'mial'; did you mean 'mail'?" in message.msg
