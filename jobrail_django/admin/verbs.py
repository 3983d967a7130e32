"""What people may do to jobs in the admin: retry and cancel, each with its own permission."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from django.http import HttpRequest

from .. import client
from ..errors import BrokerError, InvalidTransition, JobNotFound, JobRailError
from ..job import Job as Handle
from ..states import TRANSITIONS, State
from ..states import Verb as By


def _retry(handle: Handle) -> str:
    handle.retry()
    return "Retried."


def _cancel(handle: Handle) -> str:
    return "Cancelled." if handle.cancel() else "Asked to stop: it is running."


@dataclass(frozen=True, slots=True)
class AdminVerb:
    """One thing that can be done to a job.

    Attributes:
        name: in addresses, forms and the permission `jobrail.<name>_job`.
        title: on its button.
        states: in which it is offered.
        run: does it through the client; returns what happened, for the log of the admin.
    """

    name: str
    title: str
    states: frozenset[str]
    run: Callable[[Handle], str]

    def is_allowed(self, request: HttpRequest) -> bool:
        """Tell whether the user has this verb's permission."""
        return request.user.has_perm(f"jobrail.{self.name}_job")


def _sources(by: By) -> set[str]:
    return {step.source.value for step in TRANSITIONS if step.by is by and step.source is not None}


VERBS: Mapping[str, AdminVerb] = {
    verb.name: verb
    for verb in (
        AdminVerb("retry", "Retry", frozenset(_sources(By.RETRY)), _retry),
        AdminVerb("cancel", "Cancel", frozenset(_sources(By.CANCEL) | {State.RUNNING.value}), _cancel),
    )
}


@dataclass(slots=True)
class Report:
    """What became of a list of jobs. `fault` is why the rest was not tried."""

    done: list[tuple[str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    fault: str = ""


def run(verb: AdminVerb, jobs: Sequence[tuple[str, str]]) -> Report:
    """Do one thing to some jobs, each on its own.

    Args:
        verb: what to do.
        jobs: id and the state that the user saw; a job that is in another state by now is left alone.
    """
    report = Report()
    for job_id, seen in jobs:
        try:
            handle = client.get_job(job_id)
            if handle.state != seen:
                report.refused.append(f"Job {job_id} was {seen} on the page and is {handle.state} now: look again.")
            else:
                report.done.append((job_id, verb.run(handle)))
        except (InvalidTransition, JobNotFound) as exc:
            report.refused.append(str(exc))
        except BrokerError as exc:
            report.fault = str(exc)
            break
        except JobRailError as exc:
            report.refused.append(f"Job {job_id}: {exc}")
    return report
