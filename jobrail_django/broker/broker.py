"""`Broker`: one typed method per script."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import redis
from hiredis import pack_command

from .faults import translated
from .keys import QueueKeys, worker_key, workers_key
from .records import (
    CancelStatus,
    Changes,
    Claim,
    Claimed,
    ClaimedJob,
    ClaimStatus,
    Enqueued,
    EnqueueStatus,
    Heartbeat,
    HeldLease,
    JobRecord,
    NewJob,
    Promoted,
    QueueStats,
    Reaped,
    RetryStatus,
    ServerInfo,
    Settled,
    Settlement,
    SettleStatus,
    WorkerInfo,
    job_record,
    optional_ms,
    text_of,
    worker_info,
)
from .scripts import Script, load

#: Jobs, outcomes or leases in one call of a script; the scripts refuse more.
BATCH = 100

#: How long a finished job's hash stays after the mirror has it, in ms: longer than a client repeats an
#: enqueue whose reply was lost (see `conf.Settings.redis_timeout_s`).
TOMBSTONE_MS = 10_000


class Broker:
    """Talks to one Redis. Every method is one atomic script, safe to repeat, and of bounded cost.

    Threads may share it. All methods raise `BrokerUnavailable` when Redis cannot serve, `ScriptError`
    when a script fails, which is a bug or damaged data, and `BrokerError` when access is refused.

    Args:
        client: redis-py client, answering in bytes and without retries of its own.
        prefix: prefix of all keys.
        where: masked address, for messages.
        now_ms: for tests: a clock that replaces the server's.
    """

    def __init__(
        self, client: redis.Redis, prefix: str, *, where: str = "?", now_ms: Callable[[], int] | None = None
    ) -> None:
        self.client: Any = client
        self.prefix = prefix
        self.where = where
        self._now_ms = now_ms
        self._keys: dict[str, QueueKeys] = {}
        self._idle: list[Any] = []  # connections; append and pop are atomic
        self._pid = os.getpid()

    def keys(self, queue: str) -> QueueKeys:
        """Return the names of a queue's keys."""
        found = self._keys.get(queue)
        if found is None:
            found = self._keys[queue] = QueueKeys(self.prefix, queue)
        return found

    def _now(self) -> str | int:
        return "" if self._now_ms is None else self._now_ms()

    def _run(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script, once more if the connection broke, and with its text if Redis has lost it."""
        source = load(script)
        with translated(self.where):
            try:
                return self._evaluate(source.sha, source.text, keys, args)
            except redis.exceptions.ReadOnlyError:
                # The master became a replica: new connections find the new master.
                self._drop_connections()
                return self._evaluate(source.sha, source.text, keys, args)
            except (redis.exceptions.BusyLoadingError, redis.exceptions.AuthenticationError):
                raise
            except redis.ConnectionError:
                self._drop_connections()
                return self._evaluate(source.sha, source.text, keys, args)

    def _evaluate(self, sha: str, text: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return self._exchange(("EVALSHA", sha, len(keys), *keys, *args))
        except redis.exceptions.NoScriptError:
            return self._exchange(("EVAL", text, len(keys), *keys, *args))

    def _exchange(self, command: tuple[Any, ...]) -> Any:
        """Send a command and read its reply, on an idle connection or a new one.

        This takes less than half the processor time that a call of the client takes. A connection that broke while it
        was idle is noticed when it is used; `_run` then repeats the call.
        """
        if self._pid != os.getpid():  # forked: the parent goes on using these connections
            self._pid, self._idle = os.getpid(), []
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.client.connection_pool.make_connection()
        try:
            connection.send_packed_command([pack_command(command)], check_health=False)
            reply = connection.read_response()
        except redis.ResponseError:
            self._idle.append(connection)
            raise
        except BaseException:
            self._close(connection)
            raise
        self._idle.append(connection)
        return reply

    def _close(self, connection: Any) -> None:
        """Close a connection and keep the object, which connects anew when it is used: a pool makes only so many."""
        connection.disconnect()
        self._idle.append(connection)

    def _drop_connections(self) -> None:
        """Close the idle connections."""
        for _ in range(len(self._idle)):
            try:
                connection = self._idle.pop(0)
            except IndexError:  # other threads use them
                return
            self._close(connection)

    # Jobs

    def enqueue(self, queue: str, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Add jobs; the answers are in their order. More than 100 take several calls: not one transition."""
        k = self.keys(queue)
        answers: list[Enqueued] = []
        for start in range(0, len(jobs), BATCH):
            batch = jobs[start : start + BATCH]
            args: list[Any] = [k.prefix, self._now(), len(batch)]
            for job in batch:
                args += (
                    job.id,
                    job.payload,
                    job.priority,
                    "" if job.due_ms is None else job.due_ms,
                    "" if job.delay_ms is None else job.delay_ms,
                    job.max_attempts,
                    job.max_losses,
                    job.key,
                    job.fingerprint,
                    job.window_ms,
                    job.rev_floor,
                    job.round,
                )
            reply = self._run(Script.ENQUEUE, (k.ready, k.scheduled, k.changed, k.meta, k.wake), args)
            answers += (
                Enqueued(status=EnqueueStatus(status.decode()), id=text_of(job_id), state=text_of(state), rev=rev)
                for status, job_id, state, rev in reply[1:]
            )
        return answers

    def claim(self, queue: str, claim: Claim) -> Claimed:
        """Lease ready jobs to a slot. The same `claim.n` returns the same jobs."""
        k = self.keys(queue)
        keys = (k.ready, k.scheduled, k.retrying, k.leases, k.changed, k.meta, k.slot(claim.slot), k.wake)
        args = (k.prefix, self._now(), claim.slot, claim.n, claim.ack, claim.limit, claim.lease_ms, claim.epoch)
        return _claimed(self._run(Script.CLAIM, keys, args))

    def settle(
        self, queue: str, slot: str, outcomes: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Settled], Claimed]:
        """Record up to 100 outcomes, in the order given, and claim the slot's next jobs in the same step."""
        k = self.keys(queue)
        keys = (k.ready, k.scheduled, k.retrying, k.leases, k.changed, k.meta, k.slot(slot), k.wake)
        args: list[Any] = [k.prefix, self._now(), slot]
        if claim is None:
            args += ("", 0, 0, 1000, "")
        else:
            args += (claim.n, claim.ack, claim.limit, claim.lease_ms, claim.epoch)
        args.append(len(outcomes))
        now_s = time.monotonic()
        for out in outcomes:
            ago_ms = int((now_s - out.started_s) * 1000) if out.started_s else 0
            ran_ms = min(int(out.ran_s * 1000), ago_ms)
            args += (out.id, out.claim, out.verb, out.outcome, ago_ms, ran_ms, out.delay_ms, out.data, out.reason)
        reply = self._run(Script.SETTLE, keys, args)
        settled = [Settled(SettleStatus(status.decode()), text_of(state), rev) for status, state, rev in reply[1]]
        return settled, _claimed(reply[2])

    def heartbeat(self, queue: str, leases: Sequence[HeldLease], lease_ms: int) -> Heartbeat:
        """Renew leases. More than 100 take several calls."""
        k = self.keys(queue)
        lost: list[str] = []
        cancel: list[str] = []
        for start in range(0, len(leases), BATCH):
            batch = leases[start : start + BATCH]
            args: list[Any] = [k.prefix, self._now(), lease_ms, len(batch)]
            for lease in batch:
                args += (lease.id, lease.claim, "1" if lease.ran else "")
            reply = self._run(Script.HEARTBEAT, (k.leases,), args)
            lost += (text_of(job_id) for job_id in reply[1])
            cancel += (text_of(job_id) for job_id in reply[2])
        return Heartbeat(lost, cancel)

    def cancel(self, queue: str, job_id: str, reason: str) -> tuple[CancelStatus, str]:
        """Cancel a waiting job or ask a running one to stop; also the state of a FINAL one."""
        k = self.keys(queue)
        reply = self._run(
            Script.CANCEL, (k.ready, k.scheduled, k.retrying, k.changed), (k.prefix, self._now(), job_id, reason)
        )
        status = CancelStatus(reply[0].decode())
        return status, text_of(reply[1]) if status is CancelStatus.FINAL else ""

    def retry(self, queue: str, job_id: str, seen_round: int) -> tuple[RetryStatus, str]:
        """Run a dead or cancelled job in a new round, or a retrying one at once; also its state."""
        k = self.keys(queue)
        reply = self._run(
            Script.RETRY, (k.ready, k.retrying, k.changed, k.meta, k.wake), (k.prefix, self._now(), job_id, seen_round)
        )
        return RetryStatus(reply[0].decode()), text_of(reply[1]) if len(reply) > 1 else ""

    def get(self, queue: str, job_id: str) -> JobRecord | None:
        """Read a job, or None when Redis does not hold it."""
        k = self.keys(queue)
        with translated(self.where):
            fields = self.client.hgetall(k.job(job_id))
        return job_record(job_id, queue, fields) if fields else None

    def find(self, queues: Iterable[str], job_id: str) -> JobRecord | None:
        """Read a job whose queue is not known, in one round trip."""
        names = list(queues)
        with translated(self.where):
            pipeline = self.client.pipeline(transaction=False)
            for queue in names:
                pipeline.hgetall(self.keys(queue).job(job_id))
            replies = pipeline.execute()
        for queue, fields in zip(names, replies, strict=True):
            if fields:
                return job_record(job_id, queue, fields)
        return None

    def held(self, queue: str, key: str) -> tuple[str, str] | None:
        """Read who holds an idempotency key: job id and fingerprint, or None."""
        with translated(self.where):
            value = self.client.get(self.keys(queue).key(key))
        if value is None:
            return None
        job_id, _, fingerprint = text_of(value).partition(" ")
        return job_id, fingerprint

    # Queues

    def promote(self, queue: str, limit: int = BATCH) -> Promoted:
        """Make due jobs ready, up to `limit` of the scheduled and of the retrying each."""
        k = self.keys(queue)
        keys = (k.ready, k.scheduled, k.retrying, k.changed, k.meta, k.wake)
        reply = self._run(Script.PROMOTE, keys, (k.prefix, self._now(), limit))
        return Promoted(reply[1], optional_ms(reply[2]))

    def reap(self, queue: str, *, limit: int = BATCH, gap_ms: int, hold_ms: int) -> Reaped:
        """Recover expired leases. See the script for `gap_ms` and `hold_ms`."""
        k = self.keys(queue)
        keys = (k.ready, k.scheduled, k.retrying, k.leases, k.changed, k.meta, k.wake)
        reply = self._run(Script.REAP, keys, (k.prefix, self._now(), limit, gap_ms, hold_ms))
        recovered = [(text_of(job_id), text_of(state)) for job_id, state in reply[1]]
        return Reaped(reply[0] == b"HELD", recovered, bool(reply[2]), bool(reply[3]), reply[4])

    def pause(self, queue: str, paused: bool = True) -> None:
        """Stop claims of a queue, or resume them with `paused=False`."""
        k = self.keys(queue)
        self._run(Script.PAUSE, (k.ready, k.meta, k.wake), ("1" if paused else "",))

    def purge(self, queue: str, reason: str, limit: int = BATCH) -> tuple[int, int]:
        """Cancel up to `limit` waiting jobs; return how many, and how many still wait."""
        k = self.keys(queue)
        keys = (k.ready, k.scheduled, k.retrying, k.changed)
        reply = self._run(Script.PURGE, keys, (k.prefix, self._now(), limit, reason))
        return reply[1], reply[2]

    def stats(self, queue: str) -> QueueStats:
        """Count the jobs of a queue."""
        k = self.keys(queue)
        keys = (k.ready, k.scheduled, k.retrying, k.leases, k.changed, k.meta)
        reply = self._run(Script.STATS, keys, (k.prefix, self._now()))
        return QueueStats(
            ready=reply[1],
            scheduled=reply[2],
            retrying=reply[3],
            running=reply[4],
            changed=reply[5],
            paused=bool(reply[6]),
            epoch=text_of(reply[7]),
            until_due_ms=optional_ms(reply[8]),
            oldest_ready_ms=optional_ms(reply[9]),
            lag_ms=optional_ms(reply[10]),
        )

    def open_epoch(self, queue: str, proposed: str) -> tuple[str, bool]:
        """Return the queue's epoch, made from `proposed` if it has none, and whether it is new."""
        reply = self._run(Script.OPEN_EPOCH, (self.keys(queue).meta,), (proposed,))
        return text_of(reply[1]), bool(reply[2])

    def wait(self, queues: Sequence[str], timeout_s: float, stop: Callable[[], bool]) -> bool:
        """Wait until one of the queues may have something to claim.

        Args:
            queues: all of them on this Redis.
            timeout_s: longest wait in seconds, > 0.
            stop: asked every tenth of a second; the wait ends when it says so.

        Returns:
            True when something happened; it is then for the caller to claim. False after the timeout.
        """
        end = time.monotonic() + timeout_s + 1.0
        pool = self.client.connection_pool
        with translated(self.where):
            connection = pool.get_connection()
            try:
                connection.send_command("BLPOP", *(self.keys(q).wake for q in queues), f"{max(timeout_s, 0.001):.3f}")
                while not connection.can_read(timeout=0.1):
                    if stop():
                        connection.disconnect()
                        return False
                    if time.monotonic() > end:
                        raise redis.TimeoutError("no reply to BLPOP")
                return connection.read_response() is not None
            except BaseException:
                connection.disconnect()
                raise
            finally:
                pool.release(connection)

    # Mirror

    def changes(self, queue: str, limit: int = BATCH) -> Changes:
        """Read the jobs whose change has waited longest for the mirror, up to `limit` (≤ 100)."""
        k = self.keys(queue)
        reply = self._run(Script.CHANGES, (k.changed,), (k.prefix, self._now(), limit))
        jobs: list[JobRecord] = []
        gone: list[tuple[str, int]] = []
        for entry in reply[3:]:
            job_id = entry[0].decode("utf-8", "surrogateescape")  # `mirrored` turns it back
            fields = dict(zip(entry[1::2], entry[2::2], strict=True))
            try:
                jobs.append(job_record(job_id, queue, fields))
            except (KeyError, ValueError):
                rev = fields.get(b"rev", b"")
                gone.append((job_id, int(rev) if rev.isdigit() else 0))
        return Changes(reply[1], reply[2], jobs, gone)

    def mirrored(self, queue: str, stored: Sequence[tuple[str, int]]) -> int:
        """Tell Redis what the mirror has stored: (id, rev), rev 0 for data that was missing.

        Ids whose rev has not moved on leave `changed`; finished ones leave Redis after
        `TOMBSTONE_MS`. Returns how many left.
        """
        k = self.keys(queue)
        done = 0
        for start in range(0, len(stored), BATCH):
            batch = stored[start : start + BATCH]
            args: list[Any] = [k.prefix, TOMBSTONE_MS, len(batch)]
            for job_id, rev in batch:
                args += (job_id.encode("utf-8", "surrogateescape"), rev)
            done += self._run(Script.MIRRORED, (k.changed,), args)[1]
        return done

    # Server

    def server(self) -> ServerInfo | None:
        """Read what kind of server this is; None where the user may not ask."""
        with translated(self.where):
            try:
                found = self.client.info("everything")
            except redis.ResponseError:
                return None
        name = "Valkey" if "valkey_version" in found else "Redis"
        return ServerInfo(
            name=name,
            version=str(found.get("valkey_version") or found.get("redis_version", "?")),
            policy=str(found.get("maxmemory_policy", "")),
            has_append_only_file=bool(found.get("aof_enabled")),
        )

    # Workers

    def beat(self, worker: WorkerInfo, ttl_ms: int) -> None:
        """Register a worker for `ttl_ms`; 0 removes it."""
        keys = (workers_key(self.prefix), worker_key(self.prefix, worker.id))
        self._run(Script.BEAT, keys, (self._now(), worker.id, ttl_ms, json.dumps(asdict(worker))))

    def workers(self) -> list[WorkerInfo]:
        """List the workers that are registered now."""
        with translated(self.where):
            ids = [text_of(i) for i in self.client.zrange(workers_key(self.prefix), 0, -1)]
            found = self.client.mget([worker_key(self.prefix, i) for i in ids]) if ids else []
        return [worker for worker in map(worker_info, found) if worker is not None]


def _claimed(reply: list[Any]) -> Claimed:
    if not reply:
        return Claimed(status=ClaimStatus.NONE)
    status = ClaimStatus(reply[0].decode())
    if status is ClaimStatus.OK:
        jobs = [_claimed_job(entry) for entry in reply[3:]]
        return Claimed(status=status, now_ms=reply[1], next_due_ms=optional_ms(reply[2]), jobs=jobs)
    if status is ClaimStatus.NEEDS_EPOCH:
        return Claimed(status=status, epoch=text_of(reply[1]))
    if status is ClaimStatus.STALE:
        return Claimed(status=status, last_n=int(reply[1]))
    return Claimed(status=status)


def _claimed_job(entry: list[Any]) -> ClaimedJob:
    job_id, rev, attempts, losses, limits, at, job_round, cancel, payload = entry
    # A job whose fields were damaged is handed on: its payload will not decode, which ends it as dead.
    first, _, second = limits.partition(b",")
    return ClaimedJob(
        text_of(job_id),
        rev,
        attempts,
        losses,
        int(first) if first.isdigit() else 1,
        int(second) if second.isdigit() else 1,
        int(at) if at.isdigit() else 0,
        int(job_round) if job_round.isdigit() else 1,
        bool(cancel),
        payload,
    )
