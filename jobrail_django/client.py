"""Everything a caller can ask: enqueue, find, cancel, retry, pause."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import uuid_utils
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import DatabaseError, connections, transaction

from . import codec, registry, signals
from .broker.broker import BATCH
from .broker.connection import get_broker
from .broker.records import CancelStatus, Enqueued, EnqueueStatus, JobRecord, NewJob, QueueStats, RetryStatus
from .conf import get_settings
from .errors import (
    BrokerUnavailable,
    DecodeError,
    DuplicateJob,
    EncodeError,
    InvalidArguments,
    InvalidOption,
    InvalidTask,
    InvalidTransition,
    JobNotFound,
    PayloadTooLarge,
    did_you_mean,
)
from .job import Group, Job
from .querysets import clean
from .states import FINAL, State
from .taskdef import Task

if TYPE_CHECKING:
    from . import models

P = ParamSpec("P")
R = TypeVar("R")

#: Bytes of payloads in one call of Redis, unless one job alone has more.
PUSH_BYTES = 1024 * 1024

#: Longest reason of a cancellation, in characters: what the database column holds.
MAX_REASON_LENGTH = 255

#: What identifies a job to a caller: its handle or its id.
JobOrId = Job | str | uuid.UUID


def enqueue(task: Task[P, R] | str, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue a job that runs the task with these arguments.

    Inside a transaction the job is enqueued when that commits, and never if it, or the savepoint that this
    call is in, rolls back; the handle has its id at once. With an idempotency key that somebody else takes in
    between, the commit turns the handle into that job's.

    Args:
        task: a task, or the dotted name of a registered one.
        *args: arguments of the function.
        **kwargs: keyword arguments of the function. Options of the job go through `task.using(…)`.

    Raises:
        InvalidTask: `task` is not a task.
        TaskNotRegistered: no task has this name.
        InvalidArguments: the function does not take these arguments.
        EncodeError: an argument cannot be stored; `PayloadTooLarge`: all of them are too large.
        UnknownQueue: the settings do not declare the task's queue.
        DuplicateJob: the idempotency key belongs to a job with other arguments.
        JobNotFound: the idempotency key belongs to a job that has ended and whose record is gone.
        BrokerUnavailable: Redis could not be reached within `REDIS_TIMEOUT_SECONDS`; nothing is enqueued,
            or the job is there all the same if only the reply was lost. Inside a transaction it is raised
            by the commit, after the database has committed.
    """
    return enqueue_task(_task(task), args, kwargs)


def enqueue_many(task: Task[P, R] | str, arguments: Iterable[Sequence[Any] | Mapping[str, Any]]) -> Group:
    """Enqueue one job per element of `arguments`, in as few calls as possible.

    All arguments are checked before any job is enqueued. Jobs go to Redis up to a hundred at a time: a failure in
    the middle leaves the first ones enqueued; repeating the whole call enqueues them again.

    Args:
        task: a task, or the dotted name of a registered one.
        arguments: for each job a tuple or list of arguments, or a mapping of keyword arguments.

    Returns:
        The jobs in the order of `arguments`.

    Raises:
        InvalidOption: the task has an idempotency key, which all jobs would share.
        As `enqueue` otherwise.
    """
    found = _task(task)
    if found.options.idempotency_key is not None:
        raise InvalidOption(
            "enqueue_many cannot use the option 'idempotency_key': all its jobs would have the same key. "
            "Enqueue them one by one.",
            option="idempotency_key",
        )
    if not isinstance(arguments, Iterable):
        raise InvalidArguments(
            f"arguments is {arguments!r}; expected one tuple or mapping for each job", task=found.name
        )
    drafts = [_draft_one_of_many(found, item, index) for index, item in enumerate(arguments)]
    _hand_over(found, drafts)
    return Group([draft.job for draft in drafts])


def enqueue_task(task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job:
    """Enqueue a job of `task`; `enqueue` and `Task.enqueue` end here."""
    draft = _draft(task, args, kwargs)
    alias = _open_transaction(task) if draft.new.key and task.options.on_commit else None
    if alias is not None:
        held = _held(task, draft, alias)
        if held is not None:
            return held
    _hand_over(task, [draft])
    return draft.job


async def aenqueue_task(task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job:
    """Enqueue from a coroutine: the same in a thread that shares the caller's database connections."""
    return await sync_to_async(enqueue_task, thread_sensitive=True)(task, args, kwargs)


def get_job(job_id: str | uuid.UUID) -> Job:
    """Find a job by its id, in Redis and then in the database.

    Raises:
        JobNotFound: neither knows it; also for a text that is not a UUID.
        BrokerUnavailable: Redis cannot be asked and the database has no row.
    """
    job = Job(id=_canonical(job_id), task="", queue="", state=State.STAGED)
    refresh(job)
    return job


def refresh(job: Job) -> None:
    """Look at a job again and update its handle. A staged job that nobody knows yet stays as it is.

    Raises:
        JobNotFound: neither Redis nor the database knows it.
        BrokerUnavailable: Redis cannot be asked and the database has no row.
    """
    unavailable: BrokerUnavailable | None = None
    try:
        record = _record(job.id, job.queue)
    except BrokerUnavailable as exc:
        record, unavailable = None, exc
    if record is not None:
        job.task = job.task or _task_name(record.payload)
        job.queue, job.state, job.reason = record.queue, State(record.state), record.reason
        job.attempts, job.losses, job.round = record.attempts, record.losses, record.round
        job._result = record.result
        return
    row = _row(job.id)
    if row is not None:
        job.task, job.queue, job.state, job.reason = row.task, row.queue, State(row.state), row.reason
        job.attempts, job.losses, job.round, job._result = row.attempts, row.losses, row.round, row.result
        return
    if unavailable is not None:
        raise unavailable
    if not job.task or job.state is not State.STAGED:
        raise _not_found(job.id)


def cancel(job: JobOrId, *, reason: str = "cancelled") -> bool:
    """Cancel a job: one that waits never runs; one that runs is told to stop and does not run again.

    Args:
        job: a handle or an id.
        reason: kept with the job, for people; more than 255 characters are cut.

    Returns:
        True when the job is cancelled now, False when it is running and was asked to stop: its handler gets
        `JobCancelled` at the next heartbeat, and may still end well before.

    Raises:
        InvalidTransition: the job has succeeded or is dead, or its transaction has not committed.
        JobNotFound: no such job.
        BrokerUnavailable: Redis cannot be asked.
    """
    record = _to_cancel(job)
    if record is None:
        if isinstance(job, Job):
            job.refresh()
        return True
    status, state = get_broker().cancel(record.queue, record.id, clean(reason, MAX_REASON_LENGTH))
    if status is CancelStatus.NOT_FOUND:
        raise _not_found(record.id)
    if status is CancelStatus.FINAL and state != State.CANCELLED:
        raise _wrong_state(record.id, state, "cancelled", "only a job that waits or runs can be")
    if isinstance(job, Job):
        job.refresh()
    if status is CancelStatus.CANCELLED:
        signals.job_cancelled.send_robust(
            sender=None, job_id=record.id, task=_task_name(record.payload), queue=record.queue
        )
    return status is not CancelStatus.REQUESTED


def retry(job: JobOrId) -> Job:
    """Run a dead or cancelled job again, in a new round with all its attempts; or a retrying one at once.

    The job keeps its id, arguments and history. A job that Redis has lost, because it lost its data, is run again from
    its row; where it was running, the former execution may still go on.

    Raises:
        InvalidTransition: the job waits, runs or has succeeded.
        JobNotFound: no such job.
        BrokerUnavailable: Redis cannot be asked.
    """
    job_id = _id_of(job)
    record = _record(job_id, job.queue if isinstance(job, Job) else "")
    if record is not None:
        status, state = get_broker().retry(record.queue, job_id, record.round)
        if status is RetryStatus.NOT_ALLOWED:
            raise _wrong_state(job_id, state, "retried", "only a dead, cancelled or retrying job can be")
        if status is RetryStatus.NOT_FOUND:
            record = None
    if record is None:
        _run_anew(job)
    if isinstance(job, Job):
        return job.refresh()
    return get_job(job_id)


def pause_queue(name: str) -> None:
    """Stop claiming from a queue; running jobs go on, and jobs can be enqueued.

    Raises:
        UnknownQueue: the settings declare no such queue.
        BrokerUnavailable: Redis cannot be asked.
    """
    get_broker().pause(get_settings().require_queue(name))


def resume_queue(name: str) -> None:
    """Claim from a paused queue again. Errors as `pause_queue`."""
    get_broker().pause(get_settings().require_queue(name), paused=False)


def purge_queue(name: str) -> int:
    """Cancel all jobs that wait in a queue, a hundred at a time; running ones go on. Returns how many.

    Jobs enqueued meanwhile may be cancelled too. Stopped half-way, it can be called again.

    Raises:
        UnknownQueue: the settings declare no such queue.
        BrokerUnavailable: Redis cannot be asked.
    """
    broker, queue, total = get_broker(), get_settings().require_queue(name), 0
    while True:
        cancelled, left = broker.purge(queue, "purged")
        total += cancelled
        if not left or not cancelled:
            return total


def queue_stats() -> dict[str, QueueStats]:
    """Count the jobs of every declared queue by state; each queue is one consistent look.

    Raises:
        BrokerUnavailable: Redis cannot be asked.
    """
    broker = get_broker()
    return {queue: broker.stats(queue) for queue in get_settings().queues}


def live_record(queue: str, job_id: str) -> JobRecord | None:
    """Read all that Redis holds of a job, None when it holds no such job.

    Raises:
        BrokerUnavailable: Redis cannot be asked.
        KeyError, ValueError: what it holds is no job.
    """
    return get_broker().get(queue, job_id)


# Making jobs


@dataclass(frozen=True, slots=True)
class _Draft:
    """A job that is checked and encoded, and not yet in Redis."""

    job: Job
    new: NewJob


def _task(task: object) -> Task[Any, Any]:
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        return registry.get(task)
    raise InvalidTask(f"{task!r} is not a task; expected a function with @task, or the dotted name of one")


def _split(item: object, index: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, (tuple, list)):
        return tuple(item), {}
    raise InvalidArguments(
        f"arguments[{index}] is {item!r}; expected a tuple of arguments, as in (1,), or a mapping of keyword arguments"
    )


def _draft_one_of_many(task: Task[Any, Any], item: object, index: int) -> _Draft:
    args, kwargs = _split(item, index)
    try:
        return _draft(task, args, kwargs)
    except (InvalidArguments, EncodeError) as exc:
        exc.args = (f"arguments[{index}]: {exc}",)
        raise


def _draft(task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Draft:
    settings = get_settings()
    options = task.options
    settings.require_queue(options.queue_name)
    task.check_arguments(args, kwargs)
    payload = codec.dumps_envelope(task.name, args, kwargs, task.call_options())
    if len(payload) > settings.max_payload_bytes:
        raise PayloadTooLarge(
            f"The arguments for {task.name!r} take {len(payload)} bytes; at most {settings.max_payload_bytes} are "
            f"allowed (JOBRAIL['MAX_PAYLOAD_BYTES']). Store the data and pass its key.",
            size=len(payload),
            limit=settings.max_payload_bytes,
        )
    job_id = str(uuid_utils.uuid7())
    run_after = options.run_after
    key = options.idempotency_key
    new = NewJob(
        id=job_id,
        payload=payload,
        priority=options.priority,
        due_ms=round(run_after.timestamp() * 1000) if isinstance(run_after, datetime) else None,
        delay_ms=None
        if run_after is None or isinstance(run_after, datetime)
        else round(run_after.total_seconds() * 1000),
        max_attempts=options.max_attempts or settings.max_attempts,
        max_losses=options.max_losses or settings.max_losses,
        key="" if key is None else hashlib.blake2b(key.encode(), digest_size=16).hexdigest(),
        fingerprint="" if key is None else codec.fingerprint(payload),
        window_ms=max(1, round(options.idempotency_window * 1000)),
    )
    return _Draft(Job(id=job_id, task=task.name, queue=options.queue_name, state=State.STAGED), new)


def _hand_over(task: Task[Any, Any], drafts: Sequence[_Draft]) -> None:
    """Push the drafts now, or when the transaction commits that they belong to."""
    if not drafts:
        return
    alias = _open_transaction(task) if task.options.on_commit else None
    if alias is None:
        _push(task, drafts)
    else:
        transaction.on_commit(_PushOnCommit(task, drafts), using=alias)


@dataclass(frozen=True, slots=True)
class _PushOnCommit:
    """What a transaction calls when it commits; Django drops it with its savepoint."""

    task: Task[Any, Any]
    drafts: Sequence[_Draft]

    def __call__(self) -> None:
        _push(self.task, self.drafts)


def _open_transaction(task: Task[Any, Any]) -> str | None:
    """Name the database whose open transaction an enqueue belongs to, or None.

    It is the one of `using=`, else JobRail's own if it is in a transaction, else the only one open.
    """
    using = task.options.using
    if using is not None:
        if using not in connections:
            known = list(connections)
            raise InvalidOption(
                f"Option 'using': no database has the alias {using!r}{did_you_mean(using, known) or '.'} "
                f"DATABASES has {', '.join(map(repr, known))}.",
                option="using",
            )
        return using if connections[using].in_atomic_block else None
    open_ones = [c.alias for c in connections.all(initialized_only=True) if c.in_atomic_block]
    own = get_settings().database
    if own not in open_ones and _is_manual(own):
        raise InvalidOption(
            f"Database {own!r} is in manual transaction management (autocommit is off): nobody can say when its "
            f"transaction commits. Use transaction.atomic(), or enqueue with on_commit=False after the commit.",
            option="on_commit",
        )
    if own in open_ones:
        return own
    if len(open_ones) > 1:
        raise InvalidOption(
            f"Transactions are open on the databases {sorted(open_ones)}, and none is JobRail's own ({own!r}): it is not "
            f"clear which commit the job belongs to. Name it: {task.name}.using(using={open_ones[0]!r}).",
            option="using",
        )
    return open_ones[0] if open_ones else None


def _is_manual(alias: str) -> bool:
    """Tell whether this thread has a connection on which the caller commits by hand."""
    opened = (c for c in connections.all(initialized_only=True) if c.alias == alias and c.connection is not None)
    return any(not connection.autocommit for connection in opened)


def _push(task: Task[Any, Any], drafts: Sequence[_Draft]) -> None:
    for part in _parts(drafts):
        answers = get_broker().enqueue(task.options.queue_name, [draft.new for draft in part])
        for draft, answer in zip(part, answers, strict=True):
            _note(task, draft.job, answer)


def _parts(drafts: Sequence[_Draft]) -> Iterator[Sequence[_Draft]]:
    """Cut drafts into what one script takes: 100 jobs, and not so many bytes that a call outlasts its bound."""
    start, size = 0, 0
    for i, draft in enumerate(drafts):
        weight = len(draft.new.payload)
        if i > start and (i - start == BATCH or size + weight > PUSH_BYTES):
            yield drafts[start:i]
            start, size = i, 0
        size += weight
    yield drafts[start:]


def _note(task: Task[Any, Any], job: Job, answer: Enqueued) -> None:
    if answer.status is EnqueueStatus.CONFLICT:
        raise _duplicate(task, answer.id)
    if answer.status is EnqueueStatus.DUPLICATE:
        _turn_into(task, job, answer.id)
        return
    job.state = State(answer.state)
    if answer.status is EnqueueStatus.NEW:
        signals.job_enqueued.send_robust(sender=None, job_id=job.id, task=task.name, queue=job.queue)


def _held(task: Task[Any, Any], draft: _Draft, alias: str) -> Job | None:
    """Return the job that has the draft's key already, so that a transaction gets its id and not a new one.

    It may be in Redis, or staged by the same transaction.

    Raises:
        DuplicateJob: that job is another one, which is better said now than by the commit.
    """
    for _, call, *_ in connections[alias].run_on_commit:
        for other in call.drafts if isinstance(call, _PushOnCommit) else ():
            if (other.job.queue, other.new.key) == (draft.job.queue, draft.new.key):
                if other.new.fingerprint != draft.new.fingerprint:
                    raise _duplicate(task, other.job.id)
                return other.job
    held = get_broker().held(draft.job.queue, draft.new.key)
    if held is None:
        return None
    job_id, fingerprint = held
    if fingerprint != draft.new.fingerprint:
        raise _duplicate(task, job_id)
    return _turn_into(task, draft.job, job_id)


def _turn_into(task: Task[Any, Any], job: Job, job_id: str) -> Job:
    """Make a handle that of the job that holds its key."""
    job.id, job.state = job_id, State.READY
    try:
        return job.refresh()
    except JobNotFound:
        raise JobNotFound(
            f"The idempotency key {task.options.idempotency_key!r} belongs to job {job_id}, which has ended and whose "
            f"record is gone; use another key, or an idempotency_window in which records are kept.",
            job_id=job_id,
        ) from None


def _duplicate(task: Task[Any, Any], job_id: str) -> DuplicateJob:
    return DuplicateJob(
        f"The idempotency key {task.options.idempotency_key!r} belongs to job {job_id}, which has another task or "
        f"other arguments than this call of {task.name!r}; use another key.",
        job_id=job_id,
    )


# Finding jobs


def _id_of(job: JobOrId) -> str:
    return job.id if isinstance(job, Job) else _canonical(job)


def _canonical(job_id: str | uuid.UUID) -> str:
    try:
        return str(uuid.UUID(str(job_id)))
    except ValueError:
        shown = repr(job_id)[:100]
        raise JobNotFound(f"{shown} is not the id of a job; expected a UUID", job_id=str(job_id)[:100]) from None


def _record(job_id: str, queue: str) -> JobRecord | None:
    broker = get_broker()
    return broker.get(queue, job_id) if queue else broker.find(get_settings().queues, job_id)


def _row(job_id: str) -> models.Job | None:
    database = get_settings().database
    try:
        row: models.Job | None = apps.get_model("jobrail", "Job").objects.using(database).filter(pk=job_id).first()
        return row
    except DatabaseError:
        # Redis is the truth about a live job; without tables or a database there is just no more to learn.
        if connections[database].in_atomic_block:
            raise
        return None


def _task_name(payload: bytes) -> str:
    try:
        return codec.peek_envelope(payload).task
    except DecodeError:
        return ""


def _to_cancel(job: JobOrId) -> JobRecord | None:
    """Find the job in Redis; None for one that was cancelled so long ago that only its row is left."""
    job_id = _id_of(job)
    record = _record(job_id, job.queue if isinstance(job, Job) else "")
    if record is not None:
        return record
    row = _row(job_id)
    if row is None:
        raise _unknown(job, "cancelled", "roll its transaction back instead; once that commits, it can be")
    if row.state != State.CANCELLED:
        rule = "it has ended" if State(row.state) in FINAL else "Redis has lost it, and it runs only if it is retried"
        raise _wrong_state(job_id, row.state, "cancelled", rule)
    return None


def _unknown(job: JobOrId, participle: str, rule: str) -> JobNotFound | InvalidTransition:
    """Return the error for a job that neither Redis nor the database knows: perhaps its transaction is still open."""
    if isinstance(job, Job) and job.state is State.STAGED:
        return _wrong_state(job.id, State.STAGED, participle, rule)
    return _not_found(_id_of(job))


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"No job {job_id} is known, in Redis or in the database.", job_id=job_id)


def _wrong_state(job_id: str, state: str, participle: str, rule: str) -> InvalidTransition:
    return InvalidTransition(f"Job {job_id} is {state} and cannot be {participle}: {rule}.", job_id=job_id, state=state)


def _run_anew(job: JobOrId) -> None:
    """Put a job that Redis does not hold back into its queue, from its row, in a new round.

    Redis lets go of jobs that have ended. One whose row says that it has not ended was lost with Redis's data.
    """
    job_id = _id_of(job)
    row = _row(job_id)
    if row is None:
        raise _unknown(job, "retried", "it is enqueued when its transaction commits")
    if row.state == State.SUCCEEDED:
        raise _wrong_state(job_id, row.state, "retried", "only a job that has not succeeded can be")
    new = NewJob(
        id=job_id,
        payload=row.payload.encode(),
        priority=row.priority,
        max_attempts=row.max_attempts,
        max_losses=row.max_losses,
        rev_floor=row.rev,
        round=row.round + 1,
    )
    get_broker().enqueue(get_settings().require_queue(row.queue), [new])
