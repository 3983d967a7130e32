"""From the broker's records to the values of rows."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from uuid import UUID

import orjson

from .. import conf
from ..broker.records import AttemptRecord, JobRecord, QueueStats, WorkerInfo
from ..querysets import Row, cut

#: Task name of a job whose payload nobody can read.
UNREADABLE = "(unreadable)"

#: Characters of an error's message and of a traceback in a row. The worker cuts before it stores; this holds for
#: whatever else wrote the record.
MESSAGE_CHARACTERS, TRACEBACK_CHARACTERS = 4_096, 49_152


def moment(ms: int) -> datetime:
    """Turn ms since 1970 into the kind of datetime that the site's rows hold.

    Aware, or the site's local time where `USE_TZ` is off.

    Raises:
        ValueError, OverflowError, OSError: outside the years 1 to 9999.
    """
    return datetime.fromtimestamp(ms / 1000, timezone.utc if conf.use_tz() else None)


def optional_moment(ms: int | None) -> datetime | None:
    """Turn a time that may be missing into a datetime; see `moment`."""
    return None if ms is None else moment(ms)


def job_row(record: JobRecord, stored_at: datetime) -> Row:
    """Build a job's row.

    The error is None, "keep what the row has", when the record has no attempt that the row might not have.

    Raises:
        ValueError, OverflowError, OSError: a number or a time that no column takes, or an id that is no UUID.
    """
    error_type, error_message = None, None
    if record.history:
        error_type, error_message, _ = _error(record.history[-1].error)
    return {
        "id": UUID(record.id),
        "task": _task_name(record.payload),
        "queue": record.queue,
        "state": record.state,
        "rev": _fits(record.rev, 64),
        "round": _fits(record.round, 32),
        "priority": _fits(record.priority, 16),
        "run_after": optional_moment(record.due_ms),
        "enqueued_at": moment(record.enqueued_ms),
        "started_at": optional_moment(record.claimed_ms),
        "finished_at": optional_moment(record.finished_ms),
        "attempts": _fits(record.attempts, 32),
        "losses": _fits(record.losses, 32),
        "max_attempts": _fits(record.max_attempts, 32),
        "max_losses": _fits(record.max_losses, 32),
        "payload": _text(record.payload),
        "result": None if record.result is None else _text(record.result),
        "reason": record.reason,
        "error_type": error_type,
        "error_message": error_message,
        "claim": record.claim,
        "cancel_requested": record.cancel_requested,
        "mirrored_at": stored_at,
    }


def unreadable_row(record: JobRecord, fault: Exception, stored_at: datetime) -> Row:
    """Build the row of a job whose record does not fit into one, so that it is not lost from sight.

    Raises:
        ValueError: its id or its rev cannot be stored either.
    """
    return {
        "id": UUID(record.id),
        "task": UNREADABLE,
        "queue": record.queue,
        "state": record.state,
        "rev": _fits(record.rev, 64),
        "round": 1,
        "priority": 0,
        "run_after": None,
        "enqueued_at": stored_at,
        "started_at": None,
        "finished_at": None,
        "attempts": 0,
        "losses": 0,
        "max_attempts": 1,
        "max_losses": 1,
        "payload": "",
        "result": None,
        "reason": f"This job's record could not be stored: {fault}",
        "error_type": None,
        "error_message": None,
        "claim": record.claim,
        "cancel_requested": record.cancel_requested,
        "mirrored_at": stored_at,
    }


def attempt_row(job_id: str, record: AttemptRecord) -> Row:
    """Build an attempt's row.

    Raises:
        ValueError, OverflowError, OSError: a number or a time that no column takes.
    """
    error_type, message, traceback = _error(record.error)
    return {
        "job_id": UUID(job_id),
        "token": _fits(record.token, 64),
        "claim": record.claim,
        "round": _fits(record.round, 32),
        "number": _fits(record.number, 32),
        "outcome": record.outcome,
        "started_at": moment(record.started_ms),
        "finished_at": moment(record.finished_ms),
        "worker": record.worker,
        "error_type": error_type,
        "error_message": message,
        "traceback": traceback,
    }


def queue_row(name: str, stats: QueueStats, looked_at: datetime) -> Row:
    """Build a queue's row."""
    return {
        "name": name,
        "paused": stats.paused,
        "ready": stats.ready,
        "scheduled": stats.scheduled,
        "retrying": stats.retrying,
        "running": stats.running,
        "epoch": stats.epoch,
        "lag_ms": stats.lag_ms or 0,
        "mirrored_at": looked_at,
    }


def worker_row(info: WorkerInfo) -> Row:
    """Build the row of a worker that Redis knows."""
    return {
        "id": info.id,
        "name": info.name,
        "host": info.host,
        "pid": info.pid,
        "queues": ", ".join(info.queues),
        "processes": info.processes,
        "threads": info.threads,
        "version": info.version,
        "started_at": moment(info.started_ms),
        "seen_at": moment(info.seen_ms),
        "gone_at": None,
    }


def _task_name(payload: bytes) -> str:
    """Read the task's name from an encoded job of any version, `UNREADABLE` where that fails."""
    try:
        name = orjson.loads(payload)["task"]
    except (ValueError, KeyError, TypeError):
        return UNREADABLE
    return name if isinstance(name, str) else UNREADABLE


def _error(data: bytes | None) -> tuple[str, str, str]:
    """Read type, message and traceback of an attempt's error record; all "" where there is none."""
    if not data:
        return "", "", ""
    try:
        error = json.loads(data)
        found = (error["type"], error["message"], error["traceback"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", cut(_text(data), MESSAGE_CHARACTERS), ""
    kind, message, traceback = (part if isinstance(part, str) else repr(part) for part in found)
    return kind, cut(message, MESSAGE_CHARACTERS), cut(traceback, TRACEBACK_CHARACTERS)


def _text(data: bytes) -> str:
    """Decode stored bytes, bytes that are no UTF-8 as visible escapes."""
    return data.decode("utf-8", "backslashreplace")


def _fits(value: int, bits: int) -> int:
    """Return `value` if a signed column of so many bits holds it.

    Raises:
        ValueError: it does not.
    """
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"the number {value} does not fit into {bits} bits")
    return value
