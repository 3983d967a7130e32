"""The ``JOBRAIL`` setting, read lazily, checked as a whole, and held until settings change.

The only module that reads Django's settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from . import address
from .address import RedisLocation, mask_url
from .backoff import Backoff
from .errors import ConfigurationError, UnknownQueue, did_you_mean
from .types import seconds

__all__ = [
    "Problem",
    "RedisLocation",
    "Settings",
    "get_settings",
    "mask_url",
    "problems",
    "queue_name_error",
    "redis_location",
    "use_tz",
]

#: Longest lease in seconds. Whoever needs more has a heartbeat that cannot keep up, not a long job.
MAX_LEASE_S = 3600
#: Largest payload that may be allowed, in bytes: 64 MiB, an eighth of what one Redis value can hold.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
#: Largest number of attempts or losses that may be allowed.
MAX_COUNT = 1_000_000

#: Folder of the embedded server below BASE_DIR (or the working directory) unless `embedded://FOLDER` names one.
EMBEDDED_FOLDER = ".jobrail"

_QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the settings.

    Attributes:
        key: The setting inside ``JOBRAIL``; "" = ``JOBRAIL`` itself.
        text: What is wrong, with the value.
        hint: What to do; may be empty.
        id: Id of its system check, such as ``jobrail.E001``; an id with W is a warning.
    """

    key: str
    text: str
    hint: str = ""
    id: str = "jobrail.E002"

    @property
    def is_error(self) -> bool:
        """False for a warning, which does not keep JobRail from running."""
        return ".E" in self.id


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked settings; the field names carry the units."""

    redis: str | None = field(default=None, repr=False)  # may hold a password
    prefix: str = "jobrail"
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    database: str = "default"
    #: Enqueue through a database row first. This version has no such rows yet.
    durable: bool = False
    lease_ms: int = 30_000
    reap_ms: int = 1_000
    grace_s: float = 30.0
    max_attempts: int = 3
    max_losses: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    timeout_s: float | None = None
    result_ttl_s: float | None = None
    keep_days: int | None = None
    max_payload_bytes: int = 1024 * 1024
    #: Bound for one call of a client, connecting and waiting included.
    redis_timeout_s: float = 1.0
    schedules: Mapping[str, Any] = field(default_factory=dict)
    timezone: str | None = None

    def require_queue(self, name: str) -> str:
        """Return `name` if a queue of that name is declared.

        Raises:
            UnknownQueue: It is not.
        """
        if name not in self.queues:
            raise UnknownQueue(
                f"Unknown queue {name!r}{did_you_mean(name, self.queues) or '.'} JOBRAIL['QUEUES'] declares "
                f"{', '.join(map(repr, self.queues))}; add it there, or name one of these.",
                queue=name,
            )
        return name


def queue_name_error(name: object) -> str | None:
    """Return why `name` cannot name a queue, None if it can."""
    if isinstance(name, str) and _QUEUE_NAME.fullmatch(name):
        return None
    return f"{name!r} cannot name a queue; expected 1 to 64 letters, digits, '_', '-' or '.'"


# Parsers: a raw value to a checked one, or ValueError with what was expected.


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} must be a non-empty text")
    return value


def _redis(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(
            f"a value of type {type(value).__name__} must be a text: a URL, the alias of a cache, or 'embedded'"
        )
    return value or None


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} must be True or False")
    return value


def _count(value: object, *, at_most: int = MAX_COUNT) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= at_most:
        raise ValueError(f"{value!r} must be a whole number from 1 to {at_most}")
    return value


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ValueError(f"{value!r} must be 1 to 64 letters, digits, '_', '-', '.' or ':'")
    return value


def _queues(value: object) -> dict[str, Mapping[str, Any]]:
    if isinstance(value, (list, tuple)):
        value = {name: {} for name in value}
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{value!r} must be a list of names, as in ['default', 'mail'], or a dict of them")
    for name, options in value.items():
        error = queue_name_error(name)
        if error:
            raise ValueError(error)
        if not isinstance(options, Mapping):
            raise ValueError(f"the options of queue {name!r} are {options!r}; expected a dict")
        if options:
            raise ValueError(
                f"unknown option {next(iter(options))!r} of queue {name!r}; this version has none, use {{}}"
            )
    return dict(value)


def _lease_ms(value: object) -> int:
    return round(seconds(value, at_least=1, at_most=MAX_LEASE_S) * 1000)


def _reap_ms(value: object) -> int:
    return round(seconds(value, at_least=0.05, at_most=MAX_LEASE_S) * 1000)


def _positive_s(value: object) -> float:
    return seconds(value, above=0)


def _timezone(value: object) -> str:
    try:
        return ZoneInfo(_text(value)).key
    except (ZoneInfoNotFoundError, OSError):
        raise ValueError(f"{value!r} is not a known time zone; expected a name such as 'Europe/Berlin'") from None


def _schedules(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} must be a dict of schedules by name")
    return dict(value)


def _optional(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else parse(value)


#: Setting → (field of `Settings`, parser).
_KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "REDIS": ("redis", _redis),
    "PREFIX": ("prefix", _prefix),
    "QUEUES": ("queues", _queues),
    "DATABASE": ("database", _text),
    "DURABLE": ("durable", _flag),
    "LEASE_SECONDS": ("lease_ms", _lease_ms),
    "REAP_SECONDS": ("reap_ms", _reap_ms),
    "GRACE_SECONDS": ("grace_s", seconds),
    "MAX_ATTEMPTS": ("max_attempts", _count),
    "MAX_LOSSES": ("max_losses", _count),
    "BACKOFF": ("backoff", Backoff.of),
    "TIMEOUT_SECONDS": ("timeout_s", _optional(_positive_s)),
    "RESULT_TTL_SECONDS": ("result_ttl_s", _optional(_positive_s)),
    "KEEP_DAYS": ("keep_days", _optional(_count)),
    "MAX_PAYLOAD_BYTES": ("max_payload_bytes", lambda value: _count(value, at_most=MAX_PAYLOAD_BYTES)),
    "REDIS_TIMEOUT_SECONDS": ("redis_timeout_s", lambda value: seconds(value, above=0, at_most=60)),
    "SCHEDULES": ("schedules", _schedules),
    "TIMEZONE": ("timezone", _optional(_timezone)),
}


def _parse(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the checked values by field name, and what is wrong with each setting by itself."""
    values: dict[str, Any] = {}
    found: list[Problem] = []
    for key, value in raw.items():
        if key not in _KEYS:
            text = f"Unknown setting JOBRAIL[{key!r}]{did_you_mean(key, _KEYS)}"
            found.append(Problem(str(key), text, f"Settings are {', '.join(_KEYS)}.", "jobrail.E001"))
            continue
        name, parse = _KEYS[key]
        try:
            values[name] = parse(value)
        except (ValueError, ConfigurationError) as exc:
            found.append(Problem(key, f"JOBRAIL[{key!r}]: {mask_url(str(exc))}"))
    return values, found


def _relations(made: Settings) -> list[Problem]:
    """Return what is wrong between settings, and what this version cannot do yet."""
    found = []
    if made.reap_ms > made.lease_ms:
        text = (
            f"JOBRAIL['REAP_SECONDS'] ({made.reap_ms / 1000:g}) is larger than LEASE_SECONDS ({made.lease_ms / 1000:g})"
        )
        found.append(Problem("REAP_SECONDS", text, "Look for expired leases at least once per lease; 1 is usual."))
    databases = django_settings.DATABASES
    if made.database not in databases:
        text = (
            f"JOBRAIL['DATABASE'] is {made.database!r}, no alias in DATABASES{did_you_mean(made.database, databases)}"
        )
        found.append(Problem("DATABASE", text, f"Aliases are {', '.join(map(repr, databases))}."))
    for key, is_used in {"DURABLE": made.durable, "SCHEDULES": bool(made.schedules)}.items():
        if is_used:
            text = f"JOBRAIL[{key!r}] is not supported yet in this version"
            found.append(Problem(key, text, "Remove it; jobs would not be what it promises.", "jobrail.E005"))
    for key, value in {
        "RESULT_TTL_SECONDS": made.result_ttl_s,
        "KEEP_DAYS": made.keep_days,
        "TIMEZONE": made.timezone,
    }.items():
        if value is not None:
            text = f"JOBRAIL[{key!r}] has no effect yet in this version"
            found.append(Problem(key, text, "Rows are kept until you delete them.", "jobrail.W003"))
    return found


def _redis_problems(redis: str | None) -> list[Problem]:
    caches = django_settings.CACHES
    try:
        location = address.resolve(redis, caches)
    except ValueError as exc:
        missing = "Redis has no default, so that no queue ever lands in a cache by accident." if not redis else ""
        return [Problem("REDIS", f"JOBRAIL['REDIS'] {exc}", missing, "jobrail.E003")]
    other = address.clash(redis or "", location, caches)
    if other:
        text = f"JOBRAIL['REDIS'] uses the same server and database number as the cache {other!r}"
        hint = "cache.clear() there is FLUSHDB and would delete all jobs; give one of them another database number."
        return [Problem("REDIS", text, hint, "jobrail.E004")]
    if redis == "default" and not location.embedded:
        text = "JOBRAIL['REDIS'] is the cache 'default': cache.clear() there is FLUSHDB and deletes all jobs"
        hint = "Add a CACHES entry of its own for JobRail, with another database number."
        return [Problem("REDIS", text, hint, "jobrail.W001")]
    return []


def problems(raw: object) -> list[Problem]:
    """Return everything that is wrong with a ``JOBRAIL`` setting, as far as can be told without a connection."""
    if not isinstance(raw, Mapping):
        text = f"JOBRAIL is a {type(raw).__name__}; expected a dict"
        return [Problem("", text, "Write JOBRAIL = {'REDIS': …}.", "jobrail.E001")]
    values, found = _parse(raw)
    found += _relations(Settings(**values))
    if not any(problem.key == "REDIS" for problem in found):
        found += _redis_problems(values.get("redis"))
    return found


def raw_settings() -> object:
    """Return the ``JOBRAIL`` setting as it is written; an empty dict when there is none."""
    return getattr(django_settings, "JOBRAIL", {})


_cached: Settings | None = None


def get_settings() -> Settings:
    """Return the checked settings; read once, and again after they changed (``override_settings``).

    A missing ``REDIS`` is no error here, so that migrations and models work without it: see `redis_location`.

    Raises:
        ConfigurationError: A setting is unknown or impossible; the text names all of them.
    """
    global _cached
    made = _cached
    if made is None:
        raw = raw_settings()
        unset = isinstance(raw, Mapping) and not raw.get("REDIS")
        wrong = [p for p in problems(raw) if p.is_error and not (unset and p.id == "jobrail.E003")]
        if wrong:
            raise ConfigurationError("; ".join(f"{p.text}. {p.hint}".strip() for p in wrong))
        assert isinstance(raw, Mapping)
        made = _cached = Settings(**_parse(raw)[0])
    return made


def redis_location(settings: Settings | None = None) -> RedisLocation:
    """Return where Redis is, after the settings; connects to nothing.

    Raises:
        ConfigurationError: ``REDIS`` is unset or names nothing usable.
    """
    made = settings or get_settings()
    try:
        location = address.resolve(made.redis, django_settings.CACHES)
    except ValueError as exc:
        raise ConfigurationError(f"JOBRAIL['REDIS'] {exc}") from None
    if location.embedded and not location.folder:
        base = Path(getattr(django_settings, "BASE_DIR", ".")).resolve()
        return replace(location, folder=str(base / EMBEDDED_FOLDER))
    return location


def database_options(alias: str) -> Mapping[str, Any]:
    """Return the ``DATABASES`` entry of `alias`, an empty dict when there is none."""
    entry: Mapping[str, Any] = django_settings.DATABASES.get(alias, {})
    return entry


def use_tz() -> bool:
    """Tell whether the site works with aware datetimes."""
    return bool(django_settings.USE_TZ)


def _forget(*, setting: str, **_: object) -> None:
    global _cached
    if setting in {"JOBRAIL", "CACHES", "DATABASES"}:
        _cached = None


setting_changed.connect(_forget, dispatch_uid="jobrail.conf")
