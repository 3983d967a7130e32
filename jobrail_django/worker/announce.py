"""Says how an attempt ended, in the log and by signal, once Redis has recorded it or refused it."""

from __future__ import annotations

import logging

import orjson

from .. import signals
from ..broker.records import Settled, Settlement, SettleStatus
from ..log import extra
from ..states import State
from .executor import Run

logger = logging.getLogger(__name__)

#: State that a settled job is in → (log level, text, action, signal).
_ENDS = {
    State.SUCCEEDED: (logging.INFO, "Job succeeded", "job_succeeded", signals.job_succeeded),
    State.RETRYING: (logging.WARNING, "Job will be retried", "job_retrying", signals.job_retrying),
    State.DEAD: (logging.ERROR, "Job is dead", "job_dead", signals.job_dead),
    State.CANCELLED: (logging.INFO, "Job cancelled", "job_cancelled", signals.job_cancelled),
}
#: Signals that also carry the error.
_WITH_ERROR = (signals.job_retrying, signals.job_dead)


def announce_loss(run: Run) -> None:
    """Say that a job was lost to another worker, so that nothing this one did with it is recorded."""
    known = _known(run)
    logger.warning(
        "Lease lost: job_id=%s task=%s attempt=%d queue=%s",
        known["job_id"],
        known["task"],
        known["attempt"],
        known["queue"],
        extra={"action": "lease_lost", **known},
    )
    signals.lease_lost.send_robust(sender=None, **known)


def announce(answer: Settled, outcome: Settlement, run: Run) -> None:
    """Log an outcome and send its signal, or say that it was refused."""
    if answer.status is not SettleStatus.OK:
        announce_loss(run)
        return
    if not outcome.outcome:
        return  # nothing was started
    known = _known(run)
    level, text, action, signal = _ENDS.get(State(answer.state), (logging.INFO, "Job released", "job_released", None))
    if logger.isEnabledFor(level):
        logger.log(
            level,
            text + ": job_id=%s task=%s attempt=%d queue=%s duration=%.3fs reason=%s",
            known["job_id"],
            known["task"],
            known["attempt"],
            known["queue"],
            outcome.ran_s,
            outcome.reason or "-",
            extra=extra(action, duration_s=outcome.ran_s, **known),  # type: ignore[arg-type]
        )
    if signal is not None and signal.has_listeners():
        error = {"error": _error(outcome.data)} if signal in _WITH_ERROR else {}
        signal.send_robust(sender=None, **known, **error)


def _known(run: Run) -> dict[str, object]:
    return {
        "job_id": run.job.id,
        "task": run.task_name,
        "queue": run.queue,
        "attempt": run.job.attempts + run.job.losses + 1,
    }


def _error(record: bytes) -> str:
    """Shorten an error record to the type and the message."""
    if not record:
        return ""
    error = orjson.loads(record)
    return f"{error['type']}: {error['message']}"
