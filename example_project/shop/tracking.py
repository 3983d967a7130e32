"""Which jobs the shop has asked for, and how they stand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobrail_django import get_job
from jobrail_django.errors import JobNotFound
from jobrail_django.job import Job as JobHandle
from jobrail_django.models import Job
from jobrail_django.states import FINAL, State
from shop.models import Order, Product, TrackedJob, Upload

#: Shown for a job that neither Redis nor the rows know (yet).
NOT_ARRIVED = "not arrived"
#: A page shows so much of a result or an error.
NOTE_CHARACTERS = 300


def track(
    job: JobHandle, *, order: Order | None = None, upload: Upload | None = None, product: Product | None = None
) -> TrackedJob:
    """Write down that the shop asked for this job; once, however often it is told."""
    subject = {"order": order, "upload": upload, "product": product}
    tracked, _ = TrackedJob.objects.get_or_create(job_id=job.id, defaults={"task": job.task, **subject})
    return tracked


def current_states(job_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return how each of these jobs stands now, by its id.

    Ended jobs are read from the rows in one query, the others one by one from the queue.

    Raises:
        BrokerUnavailable: a job has not ended and Redis does not answer.
    """
    ids = list(job_ids)
    columns = ("id", "state", "attempts", "result", "error_type", "error_message", "reason")
    rows = {str(row["id"]): row for row in Job.objects.filter(pk__in=ids).values(*columns)}
    return {job_id: standing(job_id, rows.get(job_id)) for job_id in ids}


def standing(job_id: str, row: dict[str, Any] | None) -> dict[str, Any]:
    """Return one job's state and what is known of its attempts, result and error."""
    state, attempts = (row["state"], row["attempts"]) if row else (NOT_ARRIVED, 0)
    if row is None or State(state) not in FINAL:
        try:
            job = get_job(job_id)
            state, attempts = job.state.value, job.attempts
        except JobNotFound:
            pass
    ended = state in {final.value for final in FINAL}
    return {"state": state, "ended": ended, "attempts": attempts, "note": note(row) if row else ""}


def note(row: dict[str, Any]) -> str:
    """Return in one line what the row knows of the job's outcome: its result, or its last error."""
    if row["result"] is not None:
        return str(row["result"])[:NOTE_CHARACTERS]
    error = ": ".join(text for text in (row["error_type"], row["error_message"]) if text)
    return (error or row["reason"])[:NOTE_CHARACTERS]
