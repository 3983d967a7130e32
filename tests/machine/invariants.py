"""What holds of a queue after every step, whatever the step was. Knows nothing of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobrail_django.broker.broker import TOMBSTONE_MS
from jobrail_django.broker.records import JobRecord
from jobrail_django.states import FINAL, TRANSITIONS, State

from .view import Snapshot

#: The zset that holds the jobs of a state.
PLACE = {"ready": "ready", "scheduled": "scheduled", "retrying": "retrying", "running": "leases"}
ENDED = {state.value for state in FINAL}

#: Every field that a job's hash may have, but for the records `a:…` and `e:…` and the pieces of its payload.
FIELDS = {
    "state", "rev", "round", "prio", "limits", "at", "due", "attempts", "losses", "claim", "token", "claimed", "score",
    "ran", "alone", "cancel", "left", "hurried", "key", "result", "reason", "finished", "payload",
}  # fmt: skip


def check(found: Snapshot) -> None:
    """One place per job; running means leased and claimed; nothing is left over; what is over goes."""
    assert not found.unknown, f"no part of the data model: {found.unknown}"
    assert found.wake <= 1, f"{found.wake} elements in wake"
    for name, job in found.records.items():
        _check_place(found, name, job)
        _check_fields(name, job, found.hashes[name])
    for zset, members in found.zsets.items():
        orphans = set(members) - set(found.records)
        assert not orphans, f"{zset} holds what are no jobs: {orphans}"
    _check_ends(found)


def _check_place(found: Snapshot, name: str, job: JobRecord) -> None:
    places = [zset for zset in PLACE.values() if name in found.zsets[zset]]
    wanted = [] if job.state in ENDED else [PLACE[job.state]]
    assert places == wanted, f"{name} is {job.state} and stands in {places}"


def _check_fields(name: str, job: JobRecord, fields: Mapping[str, str]) -> None:
    strange = {
        f for f in fields if f not in FIELDS and f[:2] not in ("a:", "e:") and f not in {f"p{i}" for i in range(1, 9)}
    }
    assert not strange, f"{name} has fields of no meaning: {strange}"
    assert (job.finished_ms is not None) == (job.state in ENDED), f"{name}: {job.state}, finished {job.finished_ms}"
    assert (job.due_ms is not None) == (job.state in ("scheduled", "retrying")), (
        f"{name}: {job.state}, due {job.due_ms}"
    )
    if job.state == "running":
        assert job.claim, f"{name} runs without a claim"
        assert 0 < int(fields["token"]) <= job.rev, f"{name} runs with the token {fields['token']} at rev {job.rev}"
    assert job.attempts <= job.max_attempts and job.losses <= job.max_losses, f"{name} was tried too often"
    errors = {f[2:] for f in fields if f.startswith("e:")} - {f[2:] for f in fields if f.startswith("a:")}
    assert not errors, f"{name} has errors without attempts: {errors}"
    assert len({a.claim for a in job.history}) == len(job.history), f"{name} has two records of one claim"


def _check_ends(found: Snapshot) -> None:
    """Every key has an end: those of jobs that are over and mirrored, and all but the queue's own, expire."""
    for name in found.strings:
        assert name in found.ttl_ms, f"{name} stays for ever"
    assert not found.wake or "wake" in found.ttl_ms, "wake stays for ever"
    for name, job in found.records.items():
        left_ms = found.ttl_ms.get(f"job:{name}")
        if left_ms is None:
            assert job.state not in ENDED or name in found.zsets["changed"], f"{name} is over, mirrored, and stays"
        else:
            assert job.state in ENDED, f"{name} is {job.state} and will be deleted"
            assert name not in found.zsets["changed"], f"{name} will be deleted before it is mirrored"
            assert left_ms <= TOMBSTONE_MS, f"{name} stays for {left_ms} ms"


@dataclass
class Rows:
    """The mirror's rows, with the database's rule: a row is overwritten by a higher rev only."""

    rows: dict[str, JobRecord] = field(default_factory=dict)
    attempts: dict[str, set[str]] = field(default_factory=dict)

    def store(self, job: JobRecord) -> None:
        """Upsert the row and add the attempts that are missing."""
        if job.id not in self.rows or self.rows[job.id].rev < job.rev:
            self.rows[job.id] = job
        self.attempts.setdefault(job.id, set()).update(attempt.claim for attempt in job.history)

    def rev(self, job_id: str) -> int:
        """Return the rev of a row, 0 without one."""
        return self.rows[job_id].rev if job_id in self.rows else 0

    def check(self, found: Snapshot, executions: Mapping[str, list[str]]) -> None:
        """What the mirror does not have is noted for it, and no record of an attempt is lost."""
        for name, job in found.records.items():
            row = self.rows.get(name)
            assert name in found.zsets["changed"] or (row and row.rev == job.rev), (
                f"{name} has changed and the mirror will not learn of it: rev {job.rev}, row {row and row.rev}"
            )
            assert not row or row.rev <= job.rev, f"the row of {name} is newer than the job"
            assert not row or row.rev < job.rev or row.state == job.state, f"{name} and its row differ at one rev"
        for name, claims in executions.items():
            kept = (
                self.attempts.get(name, set()) | {a.claim for a in found.records[name].history}
                if name in found.records
                else self.attempts.get(name, set())
            )
            assert kept == set(claims), f"of the attempts of {name}, {set(claims) ^ kept} are lost or made up"
            assert len(claims) == len(set(claims)), f"{name} was executed twice under one claim: {claims}"


@dataclass
class History:
    """What has been seen of each job: revs and tokens grow, states move as the table of states says, ends are ends."""

    last: dict[str, tuple[JobRecord, int]] = field(default_factory=dict)

    def check(self, found: Snapshot, verb: str) -> None:
        """Compare with the state before; `verb` made the step."""
        for name, job in found.records.items():
            token = int(found.hashes[name].get("token", 0))
            before = self.last.get(name)
            self.last[name] = job, token
            if before is None:
                continue
            old, old_token = before
            assert job.rev >= old.rev, f"the rev of {name} fell from {old.rev} to {job.rev}"
            assert token >= old_token or token == 0, f"the token of {name} fell from {old_token} to {token}"
            if job.state == "running" and job.claim != old.claim:
                assert token > old.rev, f"{name} was claimed with the token {token} at rev {old.rev}"
            if job.rev == old.rev:
                assert job.state == old.state, f"{name} went from {old.state} to {job.state} within rev {job.rev}"
                continue
            assert job.round >= old.round, f"{name} went back to round {job.round}"
            if old.state in ENDED:
                assert job.round > old.round, f"{name} left {old.state} for {job.state} within round {job.round}"
            if job.state != old.state:
                assert _is_reachable(old.state, job.state, verb), f"{verb} took {name} from {old.state} to {job.state}"


def _is_reachable(source: str, target: str, verb: str) -> bool:
    """Tell whether a verb may go from one state to another, by up to three transitions in one call."""
    steps = {(t.source, t.target) for t in TRANSITIONS if t.by.value == verb and t.source is not None}
    reached = {State(source)}
    for _ in range(3):
        reached |= {target for start, target in steps if start in reached}
    return State(target) in reached
