"""Runs one claimed job and says what is to become of it. Knows no Redis."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db import connections
from django.utils import timezone, translation

from .. import codec, registry, signals
from ..backoff import Backoff
from ..broker.records import ClaimedJob, Settlement, Verb
from ..conf import get_settings
from ..context import RunningJob, running
from ..errors import (
    DecodeError,
    InvalidOption,
    JobCancelled,
    LeaseLost,
    Release,
    Retry,
    TaskModuleError,
    TaskNotRegistered,
    TimeLimitExceeded,
    UnknownPayloadVersion,
)
from ..log import RepeatLog, extra
from ..querysets import clean
from ..states import Outcome
from ..taskdef import Task
from .failure import error_record, message, type_name
from .limits import HARD_LIMIT_AFTER_S, CoroutineRunner, Gate, own_process

logger = logging.getLogger(__name__)

#: How long a job waits that no one here can run, in ms: another release of the code may know it.
PARK_MS = 15_000

#: Longest reason that is kept with a job, in characters.
REASON_LIMIT = 200

#: Called right before the handler: moment of the start, moment at which the child is to be replaced or
#: 0.0, and the backoff in ms that then applies.
OnStart = Callable[[float, float, int], None]


@dataclass(slots=True)
class Run:
    """One execution: what the monitor needs to watch it, filled in as it goes."""

    job: ClaimedJob
    queue: str
    claim: str
    gate: Gate = field(default_factory=Gate)
    task_name: str = ""
    context: RunningJob | None = None
    started_s: float = 0.0
    soft_deadline_s: float = 0.0
    interrupted: type[BaseException] | None = None


class Executor:
    """Runs jobs, one at a time per calling thread; threads may share it.

    Whatever a handler raises or returns becomes a `Settlement`; nothing but a fault of the executor
    itself is raised.

    Args:
        coroutines: runs `async def` handlers.
    """

    def __init__(self, coroutines: CoroutineRunner) -> None:
        self._coroutines = coroutines
        self._faults = RepeatLog(logger)

    def execute(self, run: Run, on_start: OnStart) -> Settlement | None:
        """Run a job. None: the lease was lost meanwhile, so that there is nothing to report."""
        job = run.job
        try:
            envelope = codec.peek_envelope(job.payload)
            run.task_name = envelope.task
            task = registry.get(envelope.task).with_call_options(envelope.options)
        except (TaskNotRegistered, TaskModuleError, UnknownPayloadVersion) as exc:
            return self._parked(run, exc)
        except (DecodeError, InvalidOption) as exc:
            run.started_s = time.monotonic()
            on_start(run.started_s, 0.0, 0)
            reason = "payload missing" if not job.payload else f"payload unreadable: {message(exc)}"
            return self._failed(run, "dead", Outcome.FAILED, exc, reason=reason)
        if job.cancel_requested:
            return self._unstarted(run, "cancel", "cancelled before it started")
        return self._start(run, task, envelope, on_start)

    def _start(self, run: Run, task: Task[..., Any], envelope: codec.Envelope, on_start: OnStart) -> Settlement | None:
        settings = get_settings()
        backoff = task.options.backoff or settings.backoff
        self._begin(run, task, backoff, on_start)
        interrupted = True
        try:
            value = contextvars.copy_context().run(self._call, run, task, envelope)
            interrupted = False
        except BaseException as exc:
            interrupted = isinstance(exc, (TimeLimitExceeded, LeaseLost, JobCancelled))
            return self._ended(run, task, exc, backoff.delay_s)
        finally:
            run.gate.close()
            clean_up(discard=interrupted)
        if run.gate.close() is TimeLimitExceeded:
            # The handler swallowed the exception, or ended in the very moment that its time was up.
            return self._ended(run, task, TimeLimitExceeded(), backoff.delay_s)
        return self._succeeded(run, value, settings.max_payload_bytes)

    def _begin(self, run: Run, task: Task[..., Any], backoff: Backoff, on_start: OnStart) -> None:
        """Set the limits of a run and what its handler sees, and say that it starts."""
        job, timeout_s = run.job, task.options.timeout
        timeout_s = get_settings().timeout_s if timeout_s is None else timeout_s
        number = job.attempts + job.losses + 1
        run.started_s = now = time.monotonic()
        hard, delay_ms = 0.0, 0
        if timeout_s is not None:
            run.soft_deadline_s = now + timeout_s
            hard = run.soft_deadline_s + HARD_LIMIT_AFTER_S
            delay_ms = round(backoff.delay_s(job.attempts + 1) * 1000)
        run.context = RunningJob(
            id=job.id,
            task=task.name,
            queue=run.queue,
            attempt=number,
            max_attempts=job.max_attempts,
            losses=job.losses,
            round=job.round,
            token=job.rev,
            deadline_s=run.soft_deadline_s or None,
        )
        on_start(now, hard, delay_ms)
        logger.info(
            "Job started: job_id=%s task=%s attempt=%d queue=%s",
            job.id,
            task.name,
            number,
            run.queue,
            extra=extra("job_started", job_id=job.id, task=task.name, attempt=number, queue=run.queue),
        )
        if signals.job_started.has_listeners():
            signals.job_started.send_robust(sender=None, job_id=job.id, task=task.name, queue=run.queue, attempt=number)

    def _call(self, run: Run, task: Task[..., Any], envelope: codec.Envelope) -> Any:
        assert run.context is not None
        with running(run.context):
            if not task.is_async:
                run.gate.open()
            try:
                args, kwargs = envelope.arguments()
                if task.options.takes_context:
                    args = (run.context, *args)
                if task.is_async:
                    return self._coroutines.run(lambda: task.func(*args, **kwargs), run.gate, clean_up)
                with own_process():  # inside of all that the gate's lock guards: a fork may have copied it locked
                    return task.func(*args, **kwargs)
            finally:
                run.gate.close()

    # Outcomes

    def _parked(self, run: Run, exc: Exception) -> Settlement:
        """Put a job aside that no one here can run; logged for one of many."""
        text = "Job parked: job_id=%s task=%s queue=%s"
        job_id, task, queue = run.job.id, run.task_name, run.queue
        self._faults.log(
            logging.WARNING, "job_parked", text, job_id, task, queue, job_id=job_id, task=task, queue=queue
        )
        return self._unstarted(run, "park", f"parked until a worker can run it: {message(exc)}", delay_ms=PARK_MS)

    def _unstarted(self, run: Run, verb: Verb, reason: str, *, delay_ms: int = 0) -> Settlement:
        if verb == "cancel":
            run.started_s = time.monotonic()
        outcome = Outcome.CANCELLED if verb == "cancel" else ""
        reason = clean(reason, REASON_LIMIT)
        return Settlement(run.job.id, run.claim, verb, outcome, run.started_s, 0.0, delay_ms, b"", reason)

    def _succeeded(self, run: Run, value: object, limit: int) -> Settlement:
        ran_s = time.monotonic() - run.started_s
        reason = ""
        try:
            data = codec.dumps(value, root="result")
        except Exception as exc:
            # Not only EncodeError: it looks at objects of the task's own. The work is done, and running it again
            # would do it twice.
            return self._failed(run, "dead", Outcome.FAILED, exc, reason="its result cannot be stored")
        if len(data) > limit:
            reason = f"result too large to be stored: {len(data)} bytes, at most {limit} are kept"
            data = b""
        return Settlement(run.job.id, run.claim, "succeed", Outcome.SUCCEEDED, run.started_s, ran_s, 0, data, reason)

    def _failed(
        self, run: Run, verb: Verb, outcome: Outcome, exc: BaseException, *, reason: str, delay_s: float = 0.0
    ) -> Settlement:
        ran_s = time.monotonic() - run.started_s
        delay_ms = round(delay_s * 1000)
        reason = clean(reason, REASON_LIMIT)
        return Settlement(
            run.job.id, run.claim, verb, outcome, run.started_s, ran_s, delay_ms, error_record(exc), reason
        )

    def _ended(
        self, run: Run, task: Task[..., Any], exc: BaseException, backoff_s: Callable[[int], float]
    ) -> Settlement | None:
        """Decide what an exception means for the job."""
        options, number = task.options, run.job.attempts + 1
        if isinstance(exc, LeaseLost):
            return None
        if isinstance(exc, JobCancelled):
            return self._failed(run, "cancel", Outcome.CANCELLED, exc, reason="cancelled while running")
        if isinstance(exc, Release):
            delay_s = getattr(exc, "delay_s", None) or 0.0
            return self._failed(run, "release", Outcome.RELEASED, exc, reason=message(exc), delay_s=delay_s)
        what = f"{type_name(exc)}: {message(exc)}"
        if isinstance(exc, Retry):
            asked_s = getattr(exc, "delay_s", None)  # a subclass may not have called its base
            delay_s = backoff_s(number) if asked_s is None else asked_s
            return self._failed(run, "retry", Outcome.FAILED, exc, reason=message(exc) or what, delay_s=delay_s)
        if isinstance(exc, TimeLimitExceeded):
            reason = f"timed out after {time.monotonic() - run.started_s:.1f} s"
            return self._failed(run, "retry", Outcome.TIMED_OUT, exc, reason=reason, delay_s=backoff_s(number))
        if isinstance(exc, DecodeError):
            return self._failed(run, "dead", Outcome.FAILED, exc, reason=f"payload unreadable: {what}")
        if isinstance(exc, options.discard_on):
            return self._failed(run, "dead", Outcome.FAILED, exc, reason=f"discarded: {what}")
        # SystemExit and the like are no Exception, but end an attempt just as one does.
        if isinstance(exc, options.retry_on) or not isinstance(exc, Exception):
            return self._failed(run, "retry", Outcome.FAILED, exc, reason=what, delay_s=backoff_s(number))
        return self._failed(run, "dead", Outcome.FAILED, exc, reason=f"not to be retried: {what}")


def clean_up(discard: bool = False) -> None:
    """Leave nothing of a job to the next one on this thread: connections in doubt, language, time zone.

    Args:
        discard: the handler was interrupted; its connections may be in the middle of anything.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        try:
            if not discard and not connection.in_atomic_block:
                connection.close_if_unusable_or_obsolete()
                continue
        except Exception:
            logger.debug("A connection cannot be looked at: database=%s", connection.alias, exc_info=True)
        discard_connection(connection.alias)
    translation.deactivate()
    timezone.deactivate()


def discard_connection(alias: str) -> None:
    """Close this thread's connection and forget it, with whatever state it was in."""
    connection = connections[alias]
    del connections[alias]
    try:
        connection.close()
    except Exception:
        logger.debug("Closing a connection failed: database=%s", alias, exc_info=True)


def check_connections() -> None:
    """Close connections that did not survive the time in which this thread had nothing to do."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.is_usable():
            discard_connection(connection.alias)
