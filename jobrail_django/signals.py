"""Signals about jobs.

Each is sent with ``sender=None`` and the keywords ``task`` (its name), ``queue`` and ``job_id``. A receiver that fails
is logged and changes nothing for the job. Who sends them, in which process, and with what more, is said at each.
"""

from __future__ import annotations

from django.dispatch import Signal

#: A client's process, after Redis has accepted the job.
job_enqueued = Signal()
#: The worker's process, before the function is called; also ``attempt``.
job_started = Signal()
#: The worker's process, after the end was accepted; also ``attempt``.
job_succeeded = Signal()
#: The worker's process, after an attempt failed and another one will follow; also ``attempt``, ``error``.
job_retrying = Signal()
#: The worker's process, after the job failed for good; also ``attempt``, ``error``.
job_dead = Signal()
#: The process that cancelled a waiting job, or the worker's when the job was running.
job_cancelled = Signal()
#: The worker's process, when it learns that a job it was running is no longer its own; also ``attempt``.
lease_lost = Signal()
