"""The states of a job, the legal transitions, and the outcomes of an attempt: the one table of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """Where a job stands."""

    STAGED = "staged"  # a row exists, Redis does not know the job yet
    SCHEDULED = "scheduled"  # waits for its time
    READY = "ready"  # waits for a worker
    RUNNING = "running"  # a worker holds its lease
    RETRYING = "retrying"  # waits for its backoff
    SUCCEEDED = "succeeded"
    DEAD = "dead"  # failed and will not be tried again
    CANCELLED = "cancelled"
    IN_DOUBT = "in_doubt"  # an at-most-once effect may or may not have happened

    def __str__(self) -> str:
        """Return the stored value, the same on every Python."""
        return self.value


class Outcome(str, Enum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    RELEASED = "released"
    CANCELLED = "cancelled"

    def __str__(self) -> str:
        """Return the stored value, the same on every Python."""
        return self.value


class Verb(str, Enum):
    """Who makes a transition: the script of that name."""

    ENQUEUE = "enqueue"
    PROMOTE = "promote"
    CLAIM = "claim"
    SETTLE = "settle"
    REAP = "reap"
    CANCEL = "cancel"
    PURGE = "purge"
    RETRY = "retry"

    def __str__(self) -> str:
        """Return the stored value, the same on every Python."""
        return self.value


#: States in which a round has ended; only an explicit retry, which starts a new round, leaves them.
FINAL = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED, State.IN_DOUBT})

#: States in which a job waits in Redis without a worker.
WAITING = frozenset({State.SCHEDULED, State.READY, State.RETRYING})


@dataclass(frozen=True)
class Transition:
    """One legal change of state and the verb that makes it; a source of None is a new job."""

    source: State | None
    target: State
    by: Verb


def _table() -> tuple[Transition, ...]:
    """Return the rows by verb, each with its sources and targets."""
    due, stop = (State.SCHEDULED, State.RETRYING), (State.CANCELLED,)
    rows: tuple[tuple[Verb, tuple[State | None, ...], tuple[State, ...]], ...] = (
        (Verb.ENQUEUE, (None,), (State.READY, State.SCHEDULED)),
        (Verb.ENQUEUE, (State.DEAD, State.CANCELLED), (State.READY, State.SCHEDULED)),  # a new round
        (Verb.PROMOTE, due, (State.READY,)),
        (Verb.CLAIM, due, (State.READY,)),  # it promotes what is due first
        (Verb.CLAIM, (State.READY,), (State.RUNNING,)),
        (Verb.SETTLE, due, (State.READY,)),  # it claims the next jobs the same way
        (Verb.SETTLE, (State.READY,), (State.RUNNING,)),
        (Verb.SETTLE, (State.RUNNING,), (State.SUCCEEDED, State.RETRYING, State.DEAD, State.CANCELLED)),
        (Verb.SETTLE, (State.RUNNING,), (State.READY, State.SCHEDULED)),  # returned, or released with a delay
        (Verb.REAP, (State.RUNNING,), (State.READY, State.DEAD, State.CANCELLED)),
        (Verb.CANCEL, tuple(sorted(WAITING)), stop),  # a running job ends by its settle or reap
        (Verb.PURGE, tuple(sorted(WAITING)), stop),
        (Verb.RETRY, (State.DEAD, State.CANCELLED, State.RETRYING), (State.READY,)),
    )
    return tuple(
        Transition(source, target, by) for by, sources, targets in rows for source in sources for target in targets
    )


#: Every legal transition. The scripts' headers are held to it by a test.
TRANSITIONS: tuple[Transition, ...] = _table()


def is_legal(source: State | None, target: State, by: Verb) -> bool:
    """Tell whether `by` may take a job from `source` (None = new) to `target`."""
    return Transition(source, target, by) in TRANSITIONS
