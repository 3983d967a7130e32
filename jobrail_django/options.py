"""The options of a task: names, ranges, and which may stand where."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict

from django.utils import timezone

from . import conf
from .backoff import Backoff
from .errors import InvalidOption, UnknownOption, UnknownPayloadVersion, UnsupportedOption, did_you_mean
from .types import Duration, seconds

#: Smallest and largest priority; a larger one runs sooner.
MIN_PRIORITY, MAX_PRIORITY = -100, 100
#: How long an idempotency key is remembered unless said otherwise, in seconds (a day).
DEFAULT_IDEMPOTENCY_WINDOW_S = 86_400.0
#: Longest idempotency key, in characters.
MAX_KEY_LENGTH = 255

#: Options that exist by name, for which this version has no machinery yet.
UNSUPPORTED = frozenset(
    {
        "durable",
        "unique_key",
        "on_conflict",
        "concurrency_key",
        "expires_after",
        "result_ttl",
        "sensitive_args",
        "atomic",
    }
)
#: Options of the function itself: only in ``@task(…)``. Classes cannot travel with a job.
DECORATOR_ONLY = frozenset({"retry_on", "discard_on", "takes_context"})
#: Options of one call: only in ``.using(…)``.
CALL_ONLY = frozenset({"run_after", "idempotency_key"})
#: Options that the worker needs to know; explicit ones travel inside the payload.
TRAVELLING = frozenset({"timeout", "backoff"})

ExceptionTypes = tuple[type[BaseException], ...]


class CallOptions(TypedDict, total=False):
    """What ``.using(…)`` takes."""

    queue_name: str
    priority: int
    run_after: datetime | Duration | None
    max_attempts: int | None
    max_losses: int | None
    backoff: Backoff | Duration | None
    timeout: Duration | None
    on_commit: bool
    using: str | None
    idempotency_key: str | None
    idempotency_window: Duration


class DecoratorOptions(CallOptions, total=False):
    """What ``@task(…)`` takes; of the call's options not `run_after` and `idempotency_key`."""

    retry_on: type[BaseException] | ExceptionTypes
    discard_on: type[BaseException] | ExceptionTypes
    takes_context: bool


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The checked options of a task; None = as the settings say, where they say something.

    Attributes:
        queue_name: Queue of its jobs.
        priority: -100 to 100, larger runs sooner.
        run_after: Not before this aware moment, or this long after the enqueue.
        max_attempts: Attempts in one round, 1 or more.
        max_losses: Deaths of a worker with this job in one round, 1 or more.
        backoff: Waits between attempts.
        retry_on: Exceptions after which another attempt is made.
        discard_on: Exceptions after which none is made; wins over `retry_on`.
        timeout: Seconds that one attempt may take.
        on_commit: Inside a transaction, enqueue when it commits.
        using: Alias of the database whose transaction counts; None = JobRail's.
        idempotency_key: A second enqueue with this key within the window is the first job.
        idempotency_window: Seconds for which the key is remembered.
        takes_context: Call the function with the running job as its first argument, named ``context``.
    """

    queue_name: str = "default"
    priority: int = 0
    run_after: datetime | timedelta | None = None
    max_attempts: int | None = None
    max_losses: int | None = None
    backoff: Backoff | None = None
    retry_on: ExceptionTypes = (Exception,)
    discard_on: ExceptionTypes = ()
    timeout: float | None = None
    on_commit: bool = True
    using: str | None = None
    idempotency_key: str | None = None
    idempotency_window: float = DEFAULT_IDEMPOTENCY_WINDOW_S
    takes_context: bool = False

    def with_decorator(self, given: Mapping[str, Any]) -> TaskOptions:
        """Return these options changed by those of ``@task(…)``.

        Raises:
            InvalidOption: One is unknown, not supported yet, out of range, or belongs into ``.using(…)``.
        """
        for name in given:
            if name in CALL_ONLY:
                raise InvalidOption(f"Option {name!r} belongs to one call: write .using({name}=…) instead", option=name)
        return replace(self, **_checked(given))

    def with_call(self, given: Mapping[str, Any]) -> TaskOptions:
        """Return these options changed by those of ``.using(…)``.

        Raises:
            InvalidOption: One is unknown, not supported yet, out of range, or belongs into ``@task(…)``.
        """
        for name in given:
            if name in DECORATOR_ONLY:
                raise InvalidOption(f"Option {name!r} belongs to the function: write @task({name}=…)", option=name)
        return replace(self, **_checked(given))

    def to_json(self, names: frozenset[str]) -> dict[str, Any]:
        """Return those of `names` that travel inside the payload, as plain JSON."""
        result: dict[str, Any] = {}
        for name in sorted(names & TRAVELLING):
            value = getattr(self, name)
            result[name] = value.to_json() if isinstance(value, Backoff) else value
        return result

    def with_json(self, data: Mapping[str, Any]) -> TaskOptions:
        """Return these options changed by what `to_json` returned.

        Raises:
            UnknownPayloadVersion: An option is not known here, so a newer JobRail wrote it.
            InvalidOption: A value is out of range.
        """
        changed = dict(data)
        for name in changed:
            if name not in TRAVELLING:
                raise UnknownPayloadVersion(f"The payload has the option {name!r}, which this version does not know")
        if isinstance(changed.get("backoff"), Mapping):
            changed["backoff"] = Backoff.from_json(changed["backoff"])
        return replace(self, **_checked(changed))


_NAMES = frozenset(item.name for item in fields(TaskOptions))


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in their stored form."""
    result = {}
    for name, value in given.items():
        if name in UNSUPPORTED:
            raise UnsupportedOption(f"Option {name!r} is not supported yet in this version; remove it", option=name)
        if name not in _NAMES:
            raise UnknownOption(
                f"Unknown option {name!r}{did_you_mean(name, _NAMES | UNSUPPORTED)} "
                f"(options are {', '.join(sorted(_NAMES))})",
                option=name,
            )
        try:
            result[name] = _PARSERS[name](value)
        except (ValueError, InvalidOption) as exc:
            raise InvalidOption(f"Option {name!r}: {exc}", option=name) from None
    return result


def _queue_name(value: object) -> object:
    error = conf.queue_name_error(value)
    if error:
        raise ValueError(error)
    return value


def _whole(low: int, high: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"{value!r} must be a whole number from {low} to {high}")
        return int(value)

    return parse


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} must be True or False")
    return value


def _run_after(value: object) -> datetime | timedelta:
    """Check a moment or a wait; a naive datetime is in TIME_ZONE where the site works with naive ones."""
    if not isinstance(value, datetime):
        return timedelta(seconds=seconds(value))
    if timezone.is_aware(value):
        return value
    if conf.use_tz():
        raise ValueError(
            f"{value!r} is naive, and USE_TZ is on; give an aware datetime (django.utils.timezone.make_aware), "
            f"or a timedelta from now"
        )
    return timezone.make_aware(value, timezone.get_default_timezone())


def _exceptions(value: object) -> ExceptionTypes:
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise ValueError(f"{item!r} is no exception class; give a tuple of classes, as in (OSError,)")
    return items


def _short_text(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_KEY_LENGTH:
        size = f" of {len(value)} characters" if isinstance(value, str) else ""
        raise ValueError(f"expected a text of 1 to {MAX_KEY_LENGTH} characters, not {type(value).__name__}{size}")
    if re.search("[\ud800-\udfff]", value):
        raise ValueError("the text has a lone surrogate, which cannot be stored")
    return value


def _optional(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else parse(value)


_PARSERS: dict[str, Callable[[object], Any]] = {
    "queue_name": _queue_name,
    "priority": _whole(MIN_PRIORITY, MAX_PRIORITY),
    "run_after": _optional(_run_after),
    "max_attempts": _optional(_whole(1, conf.MAX_COUNT)),
    "max_losses": _optional(_whole(1, conf.MAX_COUNT)),
    "backoff": _optional(Backoff.of),
    "retry_on": _exceptions,
    "discard_on": _exceptions,
    "timeout": _optional(lambda value: seconds(value, above=0)),
    "on_commit": _flag,
    "using": _optional(_short_text),
    "idempotency_key": _optional(_short_text),
    "idempotency_window": lambda value: seconds(value, above=0),
    "takes_context": _flag,
}
