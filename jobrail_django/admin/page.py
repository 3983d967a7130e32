"""What the page of one job shows, as plain values: the template escapes them all."""

from __future__ import annotations

from typing import Any

from ..client import live_record
from ..errors import BrokerError, ConfigurationError
from ..models import Attempt, Job, Worker
from ..querysets import cut
from ..states import FINAL
from . import display, live

#: Attempts shown, the latest ones.
SHOWN_ATTEMPTS = 50

_FINAL = {state.value for state in FINAL}


class JobPage:
    """One job's row, its attempts, and what Redis says of it. Asks both when it is made.

    Attributes:
        state: the newest state known, from Redis if it is ahead of the row.
        notice: where the row differs from Redis, None where it does not.
    """

    def __init__(self, job: Job, *, may_see_workers: bool) -> None:
        self.job = job
        self.may_see_workers = may_see_workers
        self.state, self.notice = self._live()

    def context(self) -> dict[str, Any]:
        """Return the template's values."""
        job = self.job
        return {
            "original": job,
            "job": job,
            "state": self.state,
            "pill": display.pill(job.state),
            "jobrail_notice": self.notice,
            "facts": self._facts(),
            "error": (job.error_type or job.error_message)
            and (job.error_type, cut(job.error_message or "", display.SHOWN)),
            "arguments": display.arguments(job.payload),
            "payload_size": display.size(job.payload),
            "result": None if job.result is None else display.pretty(job.result),
            "result_size": display.size(job.result),
            **self._attempts(),
        }

    def _live(self) -> tuple[str, live.Notice | None]:
        job = self.job
        try:
            record = live_record(job.queue, str(job.pk))
        except (BrokerError, ConfigurationError) as exc:
            return job.state, live.Notice(f"Redis unreachable: this page shows what was last mirrored. {exc}", True)
        except (KeyError, ValueError):
            return job.state, live.Notice("What Redis holds for this job cannot be read.", True)
        is_newer = record is not None and record.rev > job.rev
        notice = live.job_notice(record, rev=job.rev, is_final=job.state in _FINAL)
        return (record.state if record is not None and is_newer else job.state), notice

    def _facts(self) -> list[tuple[str, object]]:
        job = self.job
        facts: list[tuple[str, object]] = [
            ("Task", job.task),
            ("Queue", job.queue),
            ("Priority", job.priority),
            ("Enqueued", display.stamp(job.enqueued_at)),
            ("Not before", display.stamp(job.run_after)),
            ("Last claimed", display.stamp(job.started_at)),
            ("Ended", display.stamp(job.finished_at)),
            ("Round", job.round),
            ("Attempts", f"{job.attempts} of {job.max_attempts}"),
            ("Losses", f"{job.losses} of {job.max_losses}"),
            ("Reason", job.reason),
            ("Cancellation", "asked for" if job.cancel_requested else ""),
            ("Claim", job.claim),
            ("Transitions", job.rev),
            ("Mirrored", display.stamp(job.mirrored_at)),
        ]
        return [(name, value) for name, value in facts if value not in (None, "")]

    def _attempts(self) -> dict[str, Any]:
        using = self.job._state.db
        rows = list(Attempt.objects.using(using).filter(job_id=self.job.pk).order_by("-token")[: SHOWN_ATTEMPTS + 1])
        hosts: dict[str, str] = {}
        if self.may_see_workers:
            workers = Worker.objects.using(using).filter(pk__in={row.worker for row in rows})
            hosts = {worker.pk: worker.host for worker in workers}
        shown = [
            {
                "row": row,
                "started": display.stamp(row.started_at),
                "ended": display.stamp(row.finished_at),
                "duration": display.duration(row.started_at, row.finished_at),
                "host": hosts.get(row.worker, ""),
                "message": cut(row.error_message, display.SHOWN),
                "traceback": cut(row.traceback, display.SHOWN),
            }
            for row in rows[:SHOWN_ATTEMPTS]
        ]
        return {"attempts": shown, "has_more_attempts": len(rows) > SHOWN_ATTEMPTS}
