"""Runs scripts on a clock that the test sets, and looks at the whole state before and after each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis

from jobrail_django.broker.broker import Broker
from jobrail_django.broker.keys import worker_key, workers_key
from jobrail_django.broker.scripts import Script, load

from .invariants import check_call, check_state

#: The rig's time at the start of each test, in ms since 1970.
NOW = 1_700_000_000_000
LEASE = 30_000
SLOT = "0badcafe.0.0"
QUEUE = "q"
EPOCH = "e1"
#: Score distance of two neighbouring priorities in `ready`.
PRIORITY_STEP = 2**44

_ID = re.compile(r"00000000-0000-7000-8000-0*(\d+)")

State = dict[str, Any]


class _Gone:
    def __repr__(self) -> str:
        return "GONE"


#: What `Rig.delta` says of something that a call has removed.
GONE = _Gone()


def job_id(number: int) -> str:
    """Return the id that reads as `#number` in states and replies."""
    return f"00000000-0000-7000-8000-{number:012d}"


def short(value: Any) -> Any:
    """Make a reply or a stored value readable: text for bytes, `#1` for job ids."""
    if isinstance(value, bytes):
        return _ID.sub(r"#\1", value.decode("utf-8", "backslashreplace"))
    return [short(item) for item in value] if isinstance(value, list) else value


def snapshot(client: redis.Redis, prefix: str) -> State:
    """Read everything under a prefix, flat: `ready/#1`, `job:#1/state`, `slot:x`, `wake/0`; `…@` where a key expires.

    A score in `ready` reads as (priority, sequence), all other scores are ms. A payload kept in pieces reads as one.
    """
    state: State = {}
    for key in client.scan_iter(match=f"{prefix}:*", count=1000):
        name = short(key).removeprefix(f"{prefix}:").removeprefix(f"{{{QUEUE}}}:")
        state |= {f"{name}{path}": value for path, value in _read(client, key, name)}
        if client.pttl(key) >= 0:
            state[f"{name}@"] = "expires"
    return state


def _read(client: redis.Redis, key: bytes, name: str) -> Iterator[tuple[str, Any]]:
    kind = client.type(key)
    if kind == b"string":
        yield "", short(client.get(key))
    elif kind == b"list":
        yield from ((f"/{i}", short(item)) for i, item in enumerate(client.lrange(key, 0, -1)))
    elif kind == b"hash":
        fields = client.hgetall(key)
        pieces = [fields.pop(piece) for piece in (b"p%d" % i for i in range(1, 9)) if piece in fields]
        if pieces:
            fields[b"payload"] = b"".join(pieces)
        yield from ((f"/{short(field)}", short(value)) for field, value in fields.items())
    elif kind == b"zset":
        for member, score in client.zrange(key, 0, -1, withscores=True):
            yield f"/{short(member)}", place(score) if name == "ready" else int(score)
    else:
        yield "", kind.decode()


def place(score: float) -> tuple[int, int]:
    """Split a score of `ready` into priority and sequence."""
    steps, seq = divmod(int(score), PRIORITY_STEP)
    return 100 - steps, seq


def difference(before: State, after: State) -> State:
    """Return what is new or other in `after`, and GONE for what it no longer has."""
    changed = {path: value for path, value in after.items() if path not in before or before[path] != value}
    return changed | {path: GONE for path in before if path not in after}


class CheckedBroker(Broker):
    """The broker; around each script it looks at the whole state and holds it to the invariants."""

    def __init__(self, client: redis.Redis, prefix: str, *, now_ms: Callable[[], int]) -> None:
        super().__init__(client, prefix, now_ms=now_ms)
        self.delta: State = {}
        self.damaged: set[str] = set()

    def _run(self, script: Script, keys: Any, args: Any) -> list[Any]:
        before = snapshot(self.client, self.prefix)
        try:
            reply = super()._run(script, keys, args)
        except Exception:
            self.delta = difference(before, snapshot(self.client, self.prefix))
            assert self.delta == {}, f"{script.value} failed after a write"
            raise
        after = snapshot(self.client, self.prefix)
        self.delta = difference(before, after)
        check_state(after, self.damaged)
        check_call(script, before, after, self.damaged)
        return reply


@dataclass(frozen=True, kw_only=True)
class New:
    """A job for `Rig.enqueue`, in the script's own terms; `n` makes its id."""

    n: int
    payload: bytes = b"work"
    priority: int | str = 0
    due: int | str = ""
    delay: int | str = ""
    attempts: int | str = 3
    losses: int | str = 3
    key: str = ""
    mark: str = ""
    window: int | str = 60_000
    floor: int | str = 0
    round: int | str = 1

    def values(self) -> tuple[Any, ...]:
        """Return the script's twelve values."""
        return (job_id(self.n), self.payload, self.priority, self.due, self.delay, self.attempts, self.losses, self.key,
                self.mark, self.window, self.floor, self.round)  # fmt: skip


#: The outcome of an attempt that goes with a verb.
OUTCOMES = {"succeed": "succeeded", "retry": "failed", "dead": "failed", "cancel": "cancelled", "release": "released"}


@dataclass(frozen=True, kw_only=True)
class Out:
    """An outcome for `Rig.settle`, in the script's own terms."""

    n: int
    verb: str
    claim: str
    ago: int | str = 50
    ran: int | str = 40
    delay: int | str = 0
    data: bytes = b""
    reason: str = ""

    def values(self) -> tuple[Any, ...]:
        """Return the script's nine values."""
        outcome = OUTCOMES.get(self.verb, "")
        return job_id(self.n), self.claim, self.verb, outcome, self.ago, self.ran, self.delay, self.data, self.reason


@dataclass
class Rig:
    """One queue with its epoch, and the scripts as short calls that return readable replies.

    `delta` is what the last call changed in the whole state; `damaged` names jobs that a test has broken by hand.
    """

    client: redis.Redis
    prefix: str
    now: int = NOW
    broker: CheckedBroker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = CheckedBroker(self.client, self.prefix, now_ms=lambda: self.now)
        self.broker.open_epoch(QUEUE, EPOCH)

    @property
    def delta(self) -> State:
        """What the last call has changed."""
        return self.broker.delta

    def state(self) -> State:
        """Read the whole state."""
        return snapshot(self.client, self.prefix)

    def job(self, n: int) -> dict[str, str]:
        """Read the fields of a job's hash."""
        start = f"job:#{n}/"
        return {path.removeprefix(start): value for path, value in self.state().items() if path.startswith(start)}

    def places(self, n: int) -> list[str]:
        """Name the zsets, but for `changed`, that hold a job."""
        zsets = ("ready", "scheduled", "retrying", "leases")
        return [name for name in zsets if f"{name}/#{n}" in self.state()]

    def order(self) -> list[int]:
        """Return the numbers of the ready jobs in the order in which they will be claimed."""
        return [int(short(member)[1:]) for member in self.client.zrange(self.keys.ready, 0, -1)]

    # By hand

    @property
    def keys(self) -> Any:
        """Names of the queue's keys."""
        return self.broker.keys(QUEUE)

    def job_key(self, n: int) -> str:
        """Name a job's hash."""
        return str(self.keys.job(job_id(n)))

    def key_of(self, script: Script, position: int, slot: str = SLOT) -> str:
        """Name the real key that a script takes as KEYS[position], by what its header calls it."""
        name = load(script).header.keys[position - 1][0]
        own = {
            "slot": self.keys.slot(slot),
            "workers": workers_key(self.prefix),
            "worker": worker_key(self.prefix, "w"),
        }
        return str(own.get(name) or getattr(self.keys, name))

    def damage(self, n: int) -> None:
        """Say that a job is broken on purpose, so that the invariants do not count for it."""
        self.broker.damaged.add(f"#{n}")

    def quiet(self) -> None:
        """Empty `changed` and `wake`, so that what the next call puts there is seen."""
        self.client.delete(self.keys.changed, self.keys.wake)

    # Calls

    def run(self, script: Script, *args: Any, slot: str = SLOT) -> Any:
        """Run a script with its keys as the header names them."""
        keys = [self.key_of(script, i + 1, slot) for i in range(len(load(script).header.keys))]
        return short(self.broker._run(script, keys, args))

    def enqueue(self, *jobs: New) -> Any:
        """Enqueue jobs; returns the answers."""
        values = [value for job in jobs for value in job.values()]
        return self.run(Script.ENQUEUE, self.keys.prefix, self.now, len(jobs), *values)[1:]

    def claim(self, n: int, *, ack: int | None = None, limit: int = 1, slot: str = SLOT, epoch: str = EPOCH) -> Any:
        """Claim; `ack` is the request before unless given."""
        args = (slot, n, n - 1 if ack is None else ack, limit, LEASE, epoch)
        return self.run(Script.CLAIM, self.keys.prefix, self.now, *args, slot=slot)

    def claimed(self, n: int, **options: Any) -> list[int]:
        """Claim, and return the numbers of the jobs."""
        reply = self.claim(n, **options)
        assert reply[0] == "OK", reply
        return [int(entry[0][1:]) for entry in reply[3:]]

    def settle(self, *outs: Out, n: int | str = "", ack: int | None = None, limit: int = 1, slot: str = SLOT) -> Any:
        """Settle, and claim as request `n` unless that is ""."""
        if ack is None:
            ack = n - 1 if isinstance(n, int) else 0
        values = [value for out in outs for value in out.values()]
        args = (slot, n, ack, limit, LEASE, EPOCH, len(outs), *values)
        return self.run(Script.SETTLE, self.keys.prefix, self.now, *args, slot=slot)

    def heartbeat(self, *leases: tuple[int, str, str]) -> Any:
        """Renew leases, each (job, claim id, "1" or "")."""
        values = [value for n, claim, ran in leases for value in (job_id(n), claim, ran)]
        return self.run(Script.HEARTBEAT, self.keys.prefix, self.now, LEASE, len(leases), *values)

    def promote(self, limit: int = 100) -> Any:
        """Promote what is due."""
        return self.run(Script.PROMOTE, self.keys.prefix, self.now, limit)

    def reap(self, limit: int = 100) -> Any:
        """Recover expired leases, with the gap and hold that a worker uses."""
        return self.run(Script.REAP, self.keys.prefix, self.now, limit, LEASE // 2, LEASE // 3)

    def cancel(self, n: int, reason: str = "stop") -> Any:
        """Cancel a job."""
        return self.run(Script.CANCEL, self.keys.prefix, self.now, job_id(n), reason)

    def retry(self, n: int, seen_round: int = 1) -> Any:
        """Retry a job."""
        return self.run(Script.RETRY, self.keys.prefix, self.now, job_id(n), seen_round)

    def pause(self, paused: str = "1") -> Any:
        """Pause the queue, or resume it with ""."""
        return self.run(Script.PAUSE, paused)

    def purge(self, limit: int = 100) -> Any:
        """Cancel what waits."""
        return self.run(Script.PURGE, self.keys.prefix, self.now, limit, "purged")

    def stats(self) -> Any:
        """Count."""
        return self.run(Script.STATS, self.keys.prefix, self.now)

    def changes(self, limit: int = 100) -> Any:
        """Read what the mirror has to store."""
        return self.run(Script.CHANGES, self.keys.prefix, self.now, limit)

    def mirrored(self, *stored: tuple[int, int]) -> Any:
        """Say that the mirror has stored jobs, each (job, rev)."""
        values = [value for n, rev in stored for value in (job_id(n), rev)]
        return self.run(Script.MIRRORED, self.keys.prefix, 10_000, len(stored), *values)

    # Jobs in a state

    def ready(self, *numbers: int, **options: Any) -> None:
        """Enqueue jobs that are ready."""
        self.enqueue(*(New(n=n, **options) for n in numbers))

    def running(self, *numbers: int, request: int = 1, slot: str = SLOT, **options: Any) -> None:
        """Enqueue jobs and have a slot claim them all at once."""
        self.ready(*numbers, **options)
        assert self.claimed(request, limit=len(numbers), slot=slot) == list(numbers)

    def ended(self, n: int, verb: str, *, request: int = 1, **options: Any) -> None:
        """Enqueue a job and have it end, or go on, by an outcome."""
        delay = options.pop("delay", 0)
        self.running(n, request=request, **options)
        self.settle(Out(n=n, verb=verb, claim=claim_id(request), delay=delay, reason="as told"))

    @contextmanager
    def at(self, now: int) -> Iterator[None]:
        """Do something at another time."""
        before, self.now = self.now, now
        yield
        self.now = before


def claim_id(n: int, slot: str = SLOT) -> str:
    """Return the claim id of a slot's request."""
    return f"{slot}:{n}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a script's table.

    Attributes:
        name: what is tried, and what comes of it.
        seed: makes the state before the call.
        call: the call.
        reply: its reply.
        delta: all that it changes in the whole state.
        again: reply when it is repeated with the same arguments, None = the same.
        delta_again: what the repeated call changes.
    """

    name: str
    seed: Callable[[Rig], object] = lambda rig: None
    call: Callable[[Rig], Any]
    reply: Any
    delta: Mapping[str, Any] = field(default_factory=dict)
    again: Any = None
    delta_again: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name.replace(" ", "_")


def hold(rig: Rig, row: Row) -> None:
    """Hold a script to a line of its table: the call, then the same call once more, as after a lost reply."""
    row.seed(rig)
    rig.quiet()

    reply = row.call(rig)

    assert reply == row.reply
    assert rig.delta == row.delta

    repeated = row.call(rig)

    assert repeated == (row.reply if row.again is None else row.again)
    assert rig.delta == row.delta_again
