"""System checks: what can be told about the settings and tasks without any connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register

from . import conf, registry
from .errors import ConfigurationError, TaskModuleError, UnknownQueue


@register("jobrail")
def check_settings(app_configs: Sequence[Any] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Report each impossible or doubtful setting (E001 to E005, W001, W003)."""
    return [
        (Error if problem.is_error else Warning)(problem.text, hint=problem.hint or None, id=problem.id)
        for problem in conf.problems(conf.raw_settings())
    ]


@register("jobrail", Tags.database)
def check_sqlite(app_configs: Sequence[Any] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Warn about an SQLite database that is set up so that writers fail instead of taking turns (W002)."""
    try:
        alias = conf.get_settings().database
    except ConfigurationError:
        return []  # reported by check_settings
    entry = conf.database_options(alias)
    if not str(entry.get("ENGINE", "")).endswith("sqlite3"):
        return []
    options = entry.get("OPTIONS") or {}
    has_wal = "journal_mode=wal" in str(options.get("init_command", "")).lower().replace(" ", "")
    if has_wal and str(options.get("transaction_mode", "")).upper() == "IMMEDIATE":
        return []
    return [
        Warning(
            f"The database {alias!r} is SQLite without write-ahead log and immediate transactions",
            hint="Web requests and workers would meet 'database is locked'. Set DATABASES[…]['OPTIONS'] = "
            "{'transaction_mode': 'IMMEDIATE', 'init_command': 'PRAGMA journal_mode=WAL;'}.",
            id="jobrail.W002",
        )
    ]


@register("jobrail", deploy=True)
def check_deployment(app_configs: Sequence[Any] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Refuse the embedded server in production (E010)."""
    try:
        embedded = conf.redis_location().embedded
    except ConfigurationError:
        return []  # reported by check_settings
    if not embedded:
        return []
    hint = "It runs on one machine and is watched by nobody; name a Redis or Valkey server in JOBRAIL['REDIS']."
    return [Error("JOBRAIL['REDIS'] is 'embedded', which is for development", hint=hint, id="jobrail.E010")]


@register("jobrail")
def check_tasks(app_configs: Sequence[Any] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Report a task module that fails on import (E011) and tasks on a queue that no setting declares (E012)."""
    try:
        settings = conf.get_settings()
        registry.autodiscover()
    except TaskModuleError as exc:
        return [Error(str(exc), id="jobrail.E011")]
    except ConfigurationError:
        return []  # reported by check_settings
    found: list[CheckMessage] = []
    for name in registry.names():
        try:
            settings.require_queue(registry.get(name).queue_name)
        except UnknownQueue as exc:
            found.append(Error(f"Task {name!r}: {exc}", id="jobrail.E012"))
    return found
