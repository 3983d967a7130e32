"""What a task can know about the job it runs as."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """The job that the current thread or asyncio task is running, as of the start of this attempt.

    Attributes:
        id: The job's id, 36 characters.
        task: Name of the task.
        queue: Name of its queue.
        attempt: Number of this attempt, from 1; released and lost ones are not counted.
        max_attempts: Attempts that this round allows.
        losses: How often a worker died with this job in this round.
        round: 1, and one more for each explicit retry.
        token: Number that proves the lease; every claim has a larger one.
        deadline_s: Moment on `time.monotonic` at which the timeout strikes; None = no timeout.
    """

    id: str
    task: str
    queue: str
    attempt: int
    max_attempts: int
    losses: int = 0
    round: int = 1
    token: int
    deadline_s: float | None = None
    #: Set by the worker when a cancel was asked for.
    cancel_event: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """True once somebody asked to cancel this job; a task that looks at it can stop in good order."""
        return self.cancel_event.is_set()

    @property
    def remaining(self) -> timedelta | None:
        """Time left until the timeout, never below zero; None without a timeout."""
        if self.deadline_s is None:
            return None
        return timedelta(seconds=max(0.0, self.deadline_s - time.monotonic()))

    @property
    def deadline(self) -> datetime | None:
        """Aware moment (UTC) at which the timeout strikes; None without one."""
        left = self.remaining
        return None if left is None else datetime.now(timezone.utc) + left


_current: ContextVar[RunningJob | None] = ContextVar("jobrail_current_job", default=None)


def current_job() -> RunningJob | None:
    """Return the job this code runs in, or None outside of a job (a view, a shell, a task called directly).

    Works in the task's own thread and in the asyncio tasks it starts; a thread that the task starts itself is outside
    of the job unless it runs in a copy of the context.
    """
    return _current.get()


@contextmanager
def running(job: RunningJob) -> Iterator[RunningJob]:
    """Make `job` the current job inside the block; for the executor."""
    reset = _current.set(job)
    try:
        yield job
    finally:
        _current.reset(reset)
