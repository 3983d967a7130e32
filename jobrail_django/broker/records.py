"""What goes into the broker and comes out of it. Times are integer milliseconds of the server's clock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to enqueue.

    Attributes:
        id: canonical UUID, 36 characters, chosen by the caller so that a repeated call is recognised.
        payload: opaque bytes that no script looks into.
        priority: -100..100, larger runs sooner.
        due_ms: ms since 1970 at which it becomes ready; None = see `delay_ms`.
        delay_ms: the same in ms from the server's now; None = at once.
        max_attempts: executions that may end by an exception or a time limit, ≥ 1.
        max_losses: executions that may lose their worker, ≥ 1.
        key: digest of the idempotency key, "" = none.
        fingerprint: digest of task and arguments, compared under the same key.
        window_ms: how long the key is held.
        rev_floor: a rev that the new job's rev must exceed.
        round: 1, or more for a job that is run anew.
    """

    id: str
    payload: bytes
    priority: int = 0
    due_ms: int | None = None
    delay_ms: int | None = None
    max_attempts: int = 1
    max_losses: int = 1
    key: str = ""
    fingerprint: str = ""
    window_ms: int = 1
    rev_floor: int = 0
    round: int = 1


class EnqueueStatus(str, Enum):
    """What became of a job given to `Broker.enqueue`."""

    NEW = "NEW"
    EXISTS = "EXISTS"
    DUPLICATE = "DUPLICATE"
    CONFLICT = "CONFLICT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """The answer for one job: `id` is the existing job's for DUPLICATE and CONFLICT, whose `state` is ""."""

    status: EnqueueStatus
    id: str
    state: str
    rev: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A slot's request for jobs.

    Attributes:
        slot: name of the slot, unique to this start of its process, without spaces.
        n: number of the request; grows by one for each new request of this slot to this queue.
        ack: highest n whose reply the slot has seen, 0 = none.
        limit: 0..100 jobs.
        lease_ms: how long they are leased.
        epoch: the epoch of the queue that the worker believes in.
    """

    slot: str
    n: int
    ack: int
    limit: int
    lease_ms: int
    epoch: str


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job leased to a slot. `rev` with the claim's id is its token; `attempts` and `losses` are those before."""

    id: str
    rev: int
    attempts: int
    losses: int
    max_attempts: int
    max_losses: int
    enqueued_ms: int
    round: int
    cancel_requested: bool
    payload: bytes


class ClaimStatus(str, Enum):
    """How a claim was answered. NONE: no claim was made."""

    OK = "OK"
    PAUSED = "PAUSED"
    STALE = "STALE"
    NEEDS_EPOCH = "NEEDS_EPOCH"
    NONE = "NONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The answer to a claim: `next_due_ms` is when the next waiting job is due, None = none waits."""

    status: ClaimStatus
    now_ms: int = 0
    next_due_ms: int | None = None
    jobs: Sequence[ClaimedJob] = ()
    epoch: str = ""
    last_n: int = 0


Verb = Literal["succeed", "retry", "dead", "cancel", "release", "return", "strand", "lost", "park"]


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a claimed job ended, as `settle.lua` takes it.

    Attributes:
        id: the job.
        claim: claim id under which it was held.
        verb: what is to become of it; see the script's header.
        outcome: of the attempt, "" where none was started.
        started_s: `time.monotonic()` at the start of the attempt, 0 where none was started.
        ran_s: how long it ran.
        delay_ms: how long it waits where the verb makes it wait.
        data: encoded result of `succeed`, error record of others.
        reason: for people.
    """

    id: str
    claim: str
    verb: Verb
    outcome: str = ""
    started_s: float = 0.0
    ran_s: float = 0.0
    delay_ms: int = 0
    data: bytes = b""
    reason: str = ""


class SettleStatus(str, Enum):
    """Whether an outcome was recorded."""

    OK = "OK"
    LEASE_LOST = "LEASE_LOST"
    NOT_FOUND = "NOT_FOUND"


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer for one outcome; `state` is the job's state after the call."""

    status: SettleStatus
    state: str
    rev: int


@dataclass(frozen=True, slots=True)
class HeldLease:
    """One lease to renew. `ran`: the handler has started."""

    id: str
    claim: str
    ran: bool


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Ids of leases that are lost, and of jobs whose cancellation was asked for."""

    lost: Sequence[str]
    cancel: Sequence[str]


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a reaper's tick found.

    Attributes:
        held: nothing was recovered, to let workers renew after an outage.
        recovered: job id and its new state, or "missing".
        more: expired leases are left.
        due: waiting jobs are due to be promoted.
        changed: ids that the mirror has not stored.
    """

    held: bool
    recovered: Sequence[tuple[str, str]]
    more: bool
    due: bool
    changed: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """How many jobs became ready, and when the next is due (a time that has passed: more are left)."""

    moved: int
    next_due_ms: int | None


class CancelStatus(str, Enum):
    """What `cancel` did."""

    CANCELLED = "CANCELLED"
    REQUESTED = "REQUESTED"
    FINAL = "FINAL"
    NOT_FOUND = "NOT_FOUND"


class RetryStatus(str, Enum):
    """What `retry` did."""

    OK = "OK"
    NOT_ALLOWED = "NOT_ALLOWED"
    NOT_FOUND = "NOT_FOUND"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """One consistent look at a queue. Ages and `until_due_ms` are in ms; None = there is no such job."""

    ready: int
    scheduled: int
    retrying: int
    running: int
    changed: int
    paused: bool
    epoch: str
    until_due_ms: int | None
    oldest_ready_ms: int | None
    lag_ms: int | None

    @property
    def due(self) -> bool:
        """A scheduled or retrying job is due and has not been promoted."""
        return self.until_due_ms == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One started execution. `token` is the job's rev at its claim, `error` JSON of type, message, traceback."""

    token: int
    claim: str
    round: int
    number: int
    outcome: str
    started_ms: int
    finished_ms: int
    error: bytes | None

    @property
    def worker(self) -> str:
        """Id of the worker that ran it."""
        return self.claim.split(".", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as Redis holds it. `claimed_ms` is the time of its last claim, None = never claimed."""

    id: str
    queue: str
    state: str
    rev: int
    round: int
    priority: int
    max_attempts: int
    max_losses: int
    attempts: int
    losses: int
    enqueued_ms: int
    due_ms: int | None
    claimed_ms: int | None
    finished_ms: int | None
    claim: str
    payload: bytes
    result: bytes | None
    reason: str
    cancel_requested: bool
    history: tuple[AttemptRecord, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Changes:
    """Jobs that changed since the mirror stored them, oldest change first.

    Attributes:
        lag_ms: age of the oldest change.
        total: changed jobs in all.
        jobs: up to the limit asked for.
        gone: ids of that batch whose data is missing from Redis (rev 0) or cannot be read, with their revs.
    """

    lag_ms: int
    total: int
    jobs: Sequence[JobRecord]
    gone: Sequence[tuple[str, int]]


#: Oldest supported versions.
OLDEST = {"Redis": (7, 0), "Valkey": (7, 2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What kind of server holds the queues. `policy` is its `maxmemory-policy`."""

    name: str
    version: str
    policy: str
    has_append_only_file: bool

    def problems(self) -> list[str]:
        """Say what about the server puts jobs at risk, one sentence each; empty = nothing."""
        found = []
        numbers = tuple(int(part) for part in self.version.split(".")[:2] if part.isdigit())
        if numbers < OLDEST[self.name]:
            oldest = ".".join(map(str, OLDEST[self.name]))
            found.append(f"{self.name} {self.version} is too old: JobRail needs {oldest} or later.")
        if self.policy and self.policy != "noeviction":
            found.append(
                f"maxmemory-policy is {self.policy!r}: the server deletes jobs when its memory is short; "
                f"set it to 'noeviction'."
            )
        if not self.has_append_only_file:
            found.append("appendonly is off: a restart of the server may lose jobs; set it to 'yes'.")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A registered worker. `started_ms` and `seen_ms` are ms since 1970 on the worker's clock."""

    id: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    processes: int
    threads: int
    started_ms: int
    seen_ms: int
    version: str


def text_of(raw: bytes) -> str:
    """Read text that scripts answer with; bytes that are no text, which only others can have written, stay visible."""
    return raw.decode("utf-8", "backslashreplace")


def worker_info(raw: bytes | None) -> WorkerInfo | None:
    """Read what a worker said of itself; None where that is gone or is no such thing."""
    try:
        data = json.loads(raw or b"")
        return WorkerInfo(**{**data, "queues": tuple(data["queues"])})
    except (ValueError, TypeError, KeyError):
        return None


def optional_ms(value: bytes | str | int | None) -> int | None:
    """Read a time that a script gives as "" when there is none."""
    return int(float(value)) if value not in (None, b"", "") else None


def job_record(job_id: str, queue: str, fields: Mapping[bytes, bytes]) -> JobRecord:
    """Build a record from a job's hash.

    Raises:
        KeyError, ValueError: the hash lacks what every job has, or holds something else.
    """
    text = {k.decode(): v for k, v in fields.items()}
    max_attempts, max_losses = text["limits"].split(b",")
    payload = text.get("payload")
    if payload is None:
        payload = b"".join(text[f"p{i}"] for i in range(1, 9) if f"p{i}" in text)
    return JobRecord(
        id=job_id,
        queue=queue,
        state=text["state"].decode(),
        rev=int(text["rev"]),
        round=int(text.get("round", 1)),
        priority=int(text.get("prio", 0)),
        max_attempts=int(max_attempts),
        max_losses=int(max_losses),
        attempts=int(text.get("attempts", 0)),
        losses=int(text.get("losses", 0)),
        enqueued_ms=int(text["at"]),
        due_ms=optional_ms(text.get("due")),
        claimed_ms=optional_ms(text.get("claimed")),
        finished_ms=optional_ms(text.get("finished")),
        claim=text.get("claim", b"").decode(),
        payload=payload,
        result=text.get("result"),
        reason=text.get("reason", b"").decode("utf-8", "backslashreplace"),
        cancel_requested=bool(text.get("cancel")),
        history=tuple(_history(text)),
    )


def _history(text: Mapping[str, bytes]) -> list[AttemptRecord]:
    found = []
    for name, value in text.items():
        if name.startswith("a:"):
            token, job_round, number, outcome, started, finished, claim = value.decode().split(" ", 6)
            found.append(
                AttemptRecord(
                    token=int(token),
                    claim=claim,
                    round=int(job_round),
                    number=int(number),
                    outcome=outcome,
                    started_ms=int(started),
                    finished_ms=int(finished),
                    error=text.get("e:" + name[2:]),
                )
            )
    return sorted(found, key=lambda attempt: attempt.token)
