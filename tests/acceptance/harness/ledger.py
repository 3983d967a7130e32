"""The ledger: a file outside of JobRail in which the probe tasks write what they do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobrail_django import current_job
from jobrail_django.context import RunningJob

#: Names the ledger's file to the probe tasks.
VARIABLE = "PROBE_LEDGER"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Attributes:
        event: start, end, or raised.
        job: id of the job.
        attempt: its number as the handler sees it.
        pid: process of the handler.
        at: `time.monotonic()`, which all processes of a machine share.
        note: name of the exception class of `raised`.
    """

    event: str
    job: str
    attempt: int
    pid: int
    at: float
    note: str = ""


def write(event: str, job: RunningJob, note: str = "") -> None:
    """Append one line in one write, so that lines of several processes do not mix."""
    line = f"{event} {job.id} {job.attempt} {os.getpid()} {time.monotonic():.6f} {note}\n"
    file = os.open(os.environ[VARIABLE], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@contextmanager
def recorded() -> Iterator[RunningJob]:
    """Record the start and the end of the handler that the block is."""
    job = current_job()
    assert job is not None
    write("start", job)
    try:
        yield job
    except BaseException as exc:
        write("raised", job, type(exc).__name__)
        raise
    write("end", job)


class Ledger:
    """Reads the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, job: str | None = None, event: str = "start") -> list[Entry]:
        """Return the lines of one event in the order of writing, of one job if its id is given."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text().split("\n")[:-1]:
            kind, job_id, attempt, pid, at, note = line.split(" ")
            if kind == event and job in (None, job_id):
                found.append(Entry(kind, job_id, int(attempt), int(pid), float(at), note))
        return found
