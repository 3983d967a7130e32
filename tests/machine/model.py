"""One queue as the rules say it behaves, in plain Python: the oracle of the state machine.

Written from DESIGN and from what the scripts' headers promise, with sorted lists instead of Redis's structures.
Every verb changes the model and returns what the script has to answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jobrail_django.broker.records import Claim, HeldLease, NewJob, Settlement

WAITING = ("ready", "scheduled", "retrying")
#: Verb of a settlement → state of the job, where nothing says otherwise.
TARGET = {
    "succeed": "succeeded", "retry": "retrying", "dead": "dead", "cancel": "cancelled", "release": "scheduled",
    "return": "ready", "strand": "ready", "lost": "ready", "park": "retrying",
}  # fmt: skip
#: Verbs that say that the handler had started and ended: they leave a record of the attempt.
RAN = ("succeed", "retry", "dead", "cancel", "release")


@dataclass(frozen=True)
class Record:
    """The record of one attempt, and the rev that the job got with it."""

    rev: int
    token: int
    claim: str
    round: int
    number: int
    outcome: str
    started_ms: int
    finished_ms: int
    error: bytes | None


@dataclass
class Job:
    """One job. `order` is its place among the ready jobs of its priority, kept while it runs."""

    new: NewJob
    state: str
    rev: int
    enqueued_ms: int
    order: int = 0
    due_ms: int | None = None
    round: int = 1
    attempts: int = 0
    losses: int = 0
    claim: str = ""
    token: int = 0
    claimed_ms: int | None = None
    expires_ms: int = 0
    started: bool = False
    alone: bool = False
    cancel_asked: bool = False
    hurried: bool = False
    finished_ms: int | None = None
    result: bytes | None = None
    reason: str = ""
    records: list[Record] = field(default_factory=list)
    tombstone_ms: int | None = None
    last_settled: tuple[str, str] | None = None
    ever_settled: set[str] = field(default_factory=set)

    @property
    def tried(self) -> int:
        return self.attempts + self.losses


@dataclass
class Answer:
    """The answer to a claim: `jobs` in order, each with the rev that is its token."""

    status: str
    jobs: list[tuple[Job, int]] = field(default_factory=list)
    next_due_ms: int | None = None
    detail: str | int = ""


@dataclass
class Queue:
    """The queue. `now` is set by the test. `executions` keeps, for ever, the claim of each attempt that was recorded."""

    tombstone_ms: int
    now: int
    jobs: dict[str, Job] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)  # id → ms of the first change not mirrored
    slots: dict[str, tuple[int, list[str], int]] = field(default_factory=dict)  # → request, ids given, end of memory
    keys: dict[str, tuple[str, str, int]] = field(default_factory=dict)  # → job, fingerprint, end of the window
    executions: dict[str, list[str]] = field(default_factory=dict)
    epoch: str = ""
    paused: bool = False
    must_wake: bool = False
    _order: int = 0
    _tick_ms: int | None = None  # of the last reaper that found leases
    _held_ms: int = 0

    # What the verbs are made of

    def _in(self, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    def ready(self) -> list[Job]:
        """List the ready jobs in the order in which they are to be claimed."""
        return sorted(self._in("ready"), key=lambda job: (-job.new.priority, job.order))

    def _by(self, attribute: str, *states: str) -> list[Job]:
        return sorted(self._in(*states), key=lambda job: (getattr(job, attribute), job.new.id))

    def _next_due(self) -> int | None:
        return min((job.due_ms for job in self._in("scheduled", "retrying") if job.due_ms is not None), default=None)

    def _move(self, job: Job, state: str, *, due_ms: int | None = None, last: bool = False) -> None:
        """Make one transition; `last` gives the job a new place behind all others of its priority."""
        job.state, job.due_ms, job.claim = state, due_ms, job.claim if state == "running" else ""
        job.rev += 1
        self.changed.setdefault(job.new.id, self.now)
        if last:
            self._order += 1
            job.order = self._order

    def _end(self, job: Job, state: str, reason: str) -> None:
        self._move(job, state)
        job.finished_ms, job.reason = self.now, reason
        held = self.keys.get(job.new.key)
        if state == "cancelled" and held and held[0] == job.new.id:
            del self.keys[job.new.key]

    def _record(self, job: Job, outcome: str, started_ms: int, error: bytes = b"") -> None:
        record = Record(
            job.rev + 1, job.token, job.claim, job.round, job.tried + 1, outcome, started_ms, self.now, error or None
        )
        job.records.append(record)
        self.executions.setdefault(job.new.id, []).append(job.claim)

    def _lose(self, job: Job, started_ms: int | None, error: bytes = b"") -> None:
        """Recover a job whose worker is gone; `started_ms` None = it had not started."""
        state, reason = "ready", job.reason
        if started_ms is None:
            job.alone = True
        else:
            self._record(job, "lost", started_ms, error)
            job.losses += 1
            job.hurried = False
            if job.losses >= min(job.new.max_losses, job.new.max_attempts):
                state, reason = "dead", f"lost its worker {job.losses} time{'s' if job.losses > 1 else ''}"
        if job.cancel_asked:
            state, reason = "cancelled", "cancelled while running, its worker was lost"
        if state == "ready":
            self._move(job, state)
        else:
            self._end(job, state, reason)

    def _promote(self, limit: int) -> int:
        moved = 0
        for state in ("retrying", "scheduled"):
            for job in [job for job in self._by("due_ms", state) if (job.due_ms or 0) <= self.now][:limit]:
                self._move(job, "ready", last=True)
                moved += 1
        return moved

    def _wake(self, cause: bool = True) -> None:
        """Say that a waiting worker has to be woken, when there is something that it can claim."""
        self.must_wake = bool(cause and not self.paused and self._in("ready"))

    # Verbs

    def enqueue(self, new_jobs: Sequence[NewJob]) -> list[tuple[str, str, str, int]]:
        answers = [self._enqueue_one(new) for new in new_jobs]
        self._wake(any(answer[0] == "NEW" and answer[2] == "ready" for answer in answers))
        return answers

    def _enqueue_one(self, new: NewJob) -> tuple[str, str, str, int]:
        known = self.jobs.get(new.id)
        if known and (known.state not in ("dead", "cancelled") or new.round <= known.round):
            return "EXISTS", new.id, known.state, known.rev
        holder, mark, _ = self.keys.get(new.key, ("", "", 0))
        if holder and holder != new.id:
            return "DUPLICATE" if mark == new.fingerprint else "CONFLICT", holder, "", 0
        if new.key:
            self.keys[new.key] = new.id, new.fingerprint, self.now + new.window_ms
        rev = max(new.rev_floor, known.rev if known else 0)
        job = Job(new, "", rev, self.now, round=new.round, records=known.records if known else [])
        job.ever_settled = known.ever_settled if known else set()
        self.jobs[new.id] = job
        due_ms = new.due_ms if new.due_ms is not None else self.now + (new.delay_ms or 0)
        later = due_ms > self.now
        self._move(job, "scheduled" if later else "ready", due_ms=due_ms if later else None, last=not later)
        return "NEW", new.id, job.state, job.rev

    def claim(self, claim: Claim) -> Answer:
        self.must_wake = False
        if claim.epoch != self.epoch:
            return Answer("NEEDS_EPOCH", detail=self.epoch)
        last, given, _ = self.slots.get(claim.slot, (0, [], 0))
        if claim.n < last:
            return Answer("STALE", detail=last)
        held = [self.jobs[i] for i in given if i in self.jobs and self.jobs[i].claim == f"{claim.slot}:{last}"]
        due_ms = self._next_due()
        if claim.n == last:
            return Answer("OK", [(job, job.token) for job in held], due_ms)
        if claim.ack < last and held:
            return self._lease(claim, held, due_ms)
        if self.paused:
            return Answer("PAUSED")
        self._promote(100)
        answer = self._lease(claim, self._next_ready(claim.limit), self._next_due())
        self._wake()
        return answer

    def _next_ready(self, limit: int) -> list[Job]:
        batch = self.ready()[:limit]
        for place, job in enumerate(batch):
            if job.alone:
                return batch[: max(place, 1)]
        return batch

    def _lease(self, claim: Claim, batch: list[Job], due_ms: int | None) -> Answer:
        for place, job in enumerate(batch):
            self._move(job, "running")
            job.claim, job.token, job.alone = f"{claim.slot}:{claim.n}", job.rev, False
            job.claimed_ms, job.expires_ms, job.started = self.now, self.now + claim.lease_ms, place == 0
        until = self.now + max(60_000, 2 * claim.lease_ms)
        self.slots[claim.slot] = claim.n, [job.new.id for job in batch], until
        return Answer("OK", [(job, job.rev) for job in batch], due_ms)

    def settle(
        self, outcomes: Sequence[Settlement], claim: Claim | None
    ) -> tuple[list[tuple[str, str, int]], Answer | None]:
        """Return for each outcome its status ("" = either is right) and, where it was applied, state and rev."""
        settled = [self._settle_one(out) for out in outcomes]
        self._wake()
        return settled, self.claim(claim) if claim else None

    def _settle_one(self, out: Settlement) -> tuple[str, str, int]:
        job = self.jobs.get(out.id)
        if job is None:
            return "NOT_FOUND", "", 0
        if job.state == "running" and job.claim == out.claim:
            self._apply(job, out)
            job.last_settled = out.claim, out.verb
            job.ever_settled.add(out.claim)
            return "OK", job.state, job.rev
        if job.last_settled == (out.claim, out.verb):
            return "OK", "", 0  # its answer was lost
        # What was settled otherwise, or before other things happened, need not be told from what was lost.
        return "" if out.claim in job.ever_settled else "LEASE_LOST", "", 0

    def _apply(self, job: Job, out: Settlement) -> None:
        state, reason = TARGET[out.verb], out.reason
        if out.verb == "lost":
            self._lose(job, self.now, out.data)
            return
        if out.verb in RAN:
            self._record(job, out.outcome, self.now, b"" if out.verb == "succeed" else out.data)
            if out.verb != "release":
                job.attempts += 1
                job.hurried = False
        if state in (*WAITING,) and job.cancel_asked:
            state, reason = "cancelled", "cancelled while running"
        elif out.verb == "retry" and job.attempts >= job.new.max_attempts:
            state = "dead"
        elif out.verb == "release" and not out.delay_ms:
            state = "ready"
        if state == "ready":
            job.alone = out.verb == "strand"
            self._move(job, state)
        elif state in WAITING:
            job.reason = reason
            self._move(job, state, due_ms=self.now + out.delay_ms)
        else:
            job.result = out.data if state == "succeeded" else job.result
            self._end(job, state, reason)

    def heartbeat(self, leases: Sequence[HeldLease], lease_ms: int) -> tuple[list[str], list[str]]:
        self.must_wake = False
        lost, cancel = [], []
        for lease in leases:
            job = self.jobs.get(lease.id)
            if job is None or job.state != "running" or job.claim != lease.claim:
                lost.append(lease.id)
                continue
            job.expires_ms = self.now + lease_ms
            job.started = job.started or lease.ran
            if job.cancel_asked:
                cancel.append(lease.id)
        return lost, cancel

    def promote(self, limit: int) -> tuple[int, int | None]:
        moved = self._promote(limit)
        self._wake(moved > 0)
        return moved, self._next_due()

    def reap(self, limit: int, gap_ms: int, hold_ms: int) -> tuple[bool, list[tuple[str, str]], bool, bool]:
        """Return whether it holds off, what was recovered, whether more has expired, whether something is due."""
        due_ms = self._next_due()
        due = due_ms is not None and due_ms <= self.now
        recovered: list[Job] = []
        expired = [job for job in self._by("expires_ms", "running") if job.expires_ms <= self.now]
        held = False
        if self._in("running"):
            if self._tick_ms is not None and self.now - self._tick_ms > gap_ms:
                self._held_ms = self.now + hold_ms
            self._tick_ms, held = self.now, self.now < self._held_ms
        if not held:
            recovered = expired[:limit]
        for job in recovered:
            self._lose(job, job.claimed_ms if job.started else None)
        self._wake()
        return held, [(job.new.id, job.state) for job in recovered], not held and len(expired) > limit, due

    def cancel(self, job_id: str, reason: str) -> tuple[str, str]:
        self.must_wake = False
        job = self.jobs.get(job_id)
        if job is None:
            return "NOT_FOUND", ""
        if job.state in WAITING:
            self._end(job, "cancelled", reason)
            return "CANCELLED", ""
        if job.state != "running":
            return "FINAL", job.state
        if not job.cancel_asked:
            job.cancel_asked = True
            self._move(job, "running")
        return "REQUESTED", ""

    def retry(self, job_id: str, seen_round: int) -> tuple[str, str]:
        self.must_wake = False
        job = self.jobs.get(job_id)
        if job is None:
            return "NOT_FOUND", ""
        if job.round > seen_round or (job.hurried and job.state in ("ready", "running")):
            return "OK", job.state
        if job.state not in ("dead", "cancelled", "retrying"):
            return "NOT_ALLOWED", job.state
        job.hurried = job.state == "retrying"
        if not job.hurried:
            job.round, job.attempts, job.losses, job.finished_ms = job.round + 1, 0, 0, None
            job.last_settled = None
        job.reason, job.cancel_asked, job.tombstone_ms = "", False, None
        self._move(job, "ready", last=True)
        self._wake()
        return "OK", "ready"

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._wake()

    def purge(self, reason: str, limit: int) -> tuple[int, int]:
        self.must_wake = False
        waiting = self.ready() + self._by("due_ms", "scheduled") + self._by("due_ms", "retrying")
        for job in waiting[:limit]:
            self._end(job, "cancelled", reason)
        return len(waiting[:limit]), len(waiting[limit:])

    def changes(self, limit: int) -> list[str]:
        self.must_wake = False
        return sorted(self.changed, key=lambda job_id: (self.changed[job_id], job_id))[:limit]

    def mirrored(self, stored: Sequence[tuple[str, int]]) -> int:
        self.must_wake = False
        same = 0
        for job_id, rev in stored:
            job = self.jobs.get(job_id)
            if job is not None and job.rev == rev and job.state in ("succeeded", "dead", "cancelled"):
                job.tombstone_ms = self.now + self.tombstone_ms
            elif job is not None:
                job.records = [record for record in job.records if record.rev > rev]
            if job is None or job.rev == rev:
                self.changed.pop(job_id, None)
                same += 1
        return same

    def open_epoch(self, proposed: str) -> tuple[str, bool]:
        self.must_wake, new = False, not self.epoch
        self.epoch = self.epoch or proposed
        return self.epoch, new

    def pass_time(self) -> list[tuple[str, str]]:
        """Forget what has come to its end by `now`; returns (kind, name) of each."""
        self.must_wake = False
        over = [("job", name) for name, job in self.jobs.items() if job.tombstone_ms and job.tombstone_ms <= self.now]
        over += [("slot", name) for name, slot in self.slots.items() if slot[2] <= self.now]
        over += [("key", name) for name, key in self.keys.items() if key[2] <= self.now]
        for kind, name in over:
            getattr(self, kind + "s").pop(name)
        return over
