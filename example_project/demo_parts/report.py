"""What the demo's jobs came to, from the shop's own rows and JobRail's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Count
from shop.models import BadRow, Order, PartnerCall, Product, TrackedJob, Upload
from shop.pictures import BROKEN_SAMPLES
from shop.tasks import ask_for_review, make_thumbnail
from shop.tracking import current_states

from jobrail_django.models import Job
from jobrail_django.states import FINAL, State

#: Jobs asked about at once.
BATCH = 500
#: Jobs that are named one by one when they did not end as they should.
NAMED = 20
ENDED = frozenset(state.value for state in FINAL)


class Report:
    """How every job the shop asked for stands at one moment.

    Building it asks Redis about each job that has not ended in the rows.
    """

    def __init__(self) -> None:
        self.jobs = list(self._read())

    def _read(self) -> Iterator[tuple[TrackedJob, dict[str, Any]]]:
        tracked = TrackedJob.objects.select_related("order", "upload", "product").order_by("pk").iterator()
        while batch := list(islice(tracked, BATCH)):
            states = current_states(job.job_id for job in batch)
            yield from ((job, states[job.job_id]) for job in batch)

    @property
    def open(self) -> int:
        """Return how many jobs have not ended yet, or have and the rows do not say so yet."""
        return max(sum(not found["ended"] for _, found in self.jobs), jobs_without_end())

    def table(self) -> str:
        """Return the jobs counted by task and state, as text."""
        counts = Counter((job.task, found["state"]) for job, found in self.jobs)
        states = sorted({state for _, state in counts})
        tasks = sorted({task for task, _ in counts})
        rows = [["task", "enqueued", *states]]
        for task in tasks:
            numbers = [counts[task, state] for state in states]
            rows.append([task, str(sum(numbers)), *(str(number or "") for number in numbers)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def surprises(self) -> list[str]:
        """Return a line for each job that did not end as it should, and for each thing that is missing."""
        wrong = [
            f"{job.task} {job.job_id} ({job.subject}) is {found['state']}, expected {' or '.join(wanted)} {found['note']}".rstrip()
            for job, found in self.jobs
            if found["state"] not in (wanted := expected_states(job))
        ]
        if len(wrong) > NAMED:
            wrong[NAMED:] = [f"and {len(wrong) - NAMED} more"]
        return wrong + missing_effects()


def expected_states(job: TrackedJob) -> tuple[str, ...]:
    """Return the states in which the job may end: well, but for what the visitor breaks or cancels on purpose."""
    if job.task == make_thumbnail.name and job.product and job.product.sku in BROKEN_SAMPLES:
        return (State.DEAD.value,)
    if job.task == ask_for_review.name and job.order and job.order.cancelled_at:
        return (State.CANCELLED.value, State.SUCCEEDED.value)
    return (State.SUCCEEDED.value,)


def jobs_without_end() -> int:
    """Return how many jobs have no row that says how they ended."""
    return TrackedJob.objects.count() - Job.objects.filter(state__in=ENDED).count()


def missing_effects() -> list[str]:
    """Return what the jobs say they have done and have not."""
    own = Order.objects.filter(upload=None)
    sound = Product.objects.exclude(sku__in=BROKEN_SAMPLES).filter(pk__in=TrackedJob.objects.values("product"))
    checks = {
        "jobs without a row that says how they ended": jobs_without_end(),
        "orders without a mailed receipt": own.filter(receipt_sent_at=None).count(),
        "orders the partner was not told about": own.filter(partner_told_at=None).count(),
        "articles without a thumbnail": sound.filter(thumbnail="").count(),
        "imported files without a known encoding": Upload.objects.filter(encoding="").count(),
    }
    return [f"{number} {what}" for what, number in checks.items() if number]


def effects() -> str:
    """Return what the jobs have done, as text."""
    answers = Counter(PartnerCall.objects.values_list("answer", flat=True))
    mails = sum(file.read_bytes().count(b"Message-ID:") for file in Path(settings.MAIL_DIR).glob("*.log"))
    saved = Order.objects.exclude(upload=None).count()
    retried = Job.objects.filter(attempts__gt=1).count()
    broken = Job.objects.filter(state=State.DEAD.value).count()
    lines = [
        f"{saved} orders from {Upload.objects.count()} files, {BadRow.objects.count()} bad rows reported",
        f"{Order.objects.filter(upload=None).count()} orders of visitors, {mails} mails",
        f"{Product.objects.exclude(thumbnail='').count()} thumbnails; {broken} jobs given up on broken pictures",
        "partner: " + (", ".join(f"{number} × {answer}" for answer, number in sorted(answers.items())) or "not called"),
        f"{retried} jobs took more than one attempt",
    ]
    return "\n".join(f"  {line}" for line in lines)


def progress() -> str:
    """Return one line: the jobs by state, as the rows have them."""
    asked = TrackedJob.objects.count()
    counts = Job.objects.order_by("state").values_list("state").annotate(jobs=Count("pk"))
    states = ", ".join(f"{number} {state}" for state, number in counts)
    return f"{asked} jobs asked for: {states or 'none seen yet'}"
