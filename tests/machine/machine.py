"""The state machine: Hypothesis drives the real scripts and the model side by side.

Every rule is one call of a client, a worker, a reaper or a mirror. `_send` makes it on both sides and compares the
answers, then the whole state, then checks the invariants. A worker of this machine may lose replies, send a call twice or
again much later, freeze and wake with claims that it has lost, or settle what was never its own.

To replay a failure, paste the lines that Hypothesis prints into a test of `test_machine.py` that takes the fixture
`machine`, with `state = machine()` for the first one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import redis
from hypothesis import currently_in_test_context, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from jobrail_django.broker.broker import TOMBSTONE_MS, Broker
from jobrail_django.broker.records import Claim, Claimed, HeldLease, JobRecord, NewJob, Settled, Settlement

from . import invariants, view
from .model import TARGET, WAITING, Answer, Queue

NOW = 1_700_000_000_000
LEASE_MS = 30_000
GAP_MS, HOLD_MS = LEASE_MS // 2, LEASE_MS // 3
WINDOW_MS = 100_000
SLOTS = ("aaaaaaaa.0.0", "aaaaaaaa.0.1", "bbbbbbbb.0.0")
#: Jobs that have not ended, at a time: few, so that calls meet each other.
LIVE = 6
#: Sent calls, given claims and batches read that are remembered, to be used again.
REMEMBERED = 12
#: Outcome of an attempt that goes with a verb.
OUTCOME = {"succeed": "succeeded", "retry": "failed", "dead": "timed_out", "cancel": "cancelled", "release": "released"}

_numbers = itertools.count(1)

#: Chooses among what there is: 0 is the newest.
PICK = st.integers(0, 5)
#: The claim of the same grant, or of one before it.
OFF = st.sampled_from((0, 0, 0, 1, 2))
SLOT = st.integers(0, len(SLOTS) - 1)
LIMIT = st.sampled_from((100, 1, 2))
MOSTLY = st.sampled_from((True, True, True, False))
VERBS = st.tuples(st.sampled_from(sorted(TARGET)), st.sampled_from((0, 1, 500, 20_000)))
TIMES = st.sampled_from((1, 400, 3_000, 14_000, GAP_MS + 1, LEASE_MS, 61_000))


@dataclass(frozen=True)
class Wish:
    """What a client wants to enqueue. `job` None = a new one, else one that was there before."""

    job: int | None
    later_round: bool = False
    size: int = 3
    priority: int = 0
    when: str = "now"
    max_attempts: int = 3
    max_losses: int = 3
    key: str = ""
    fingerprint: str = "f1"


WISHES = st.builds(
    Wish,
    job=st.one_of(st.none(), st.none(), PICK),
    later_round=st.booleans(),
    size=st.sampled_from((3, 100, 600)),  # one piece of payload, some pieces, one field
    priority=st.sampled_from((0, 10, -5)),
    when=st.sampled_from(("now", "now", "now", "delay", "due", "past")),
    max_attempts=st.sampled_from((3, 1, 2)),
    max_losses=st.sampled_from((3, 1, 2)),
    key=st.sampled_from(("", "", "k1", "k2")),
    fingerprint=st.sampled_from(("f1", "f2")),
)


@dataclass
class Slot:
    """What a worker's slot knows: the number of its last request, the last reply seen, and what it was given."""

    name: str
    n: int = 0
    ack: int = 0
    last: Claim | None = None
    held: list[tuple[str, str]] = field(default_factory=list)  # job, claim id


@dataclass(frozen=True)
class Call:
    """A call that can be made again as it was: `run` makes it on both sides and compares the answers."""

    verb: str
    text: str
    run: Callable[[], None]
    claim: Claim | None = None
    new: tuple[NewJob, ...] = ()


class QueueMachine(RuleBasedStateMachine):
    """One queue; each example has its own. `on` makes the class for one server."""

    client: ClassVar[redis.Redis]
    broker: ClassVar[Broker]
    now: ClassVar[int] = NOW  # of the broker's clock
    #: Steps of all examples, and examples.
    steps: ClassVar[int] = 0
    examples: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).examples += 1
        type(self).now = NOW
        self.name = f"q{next(_numbers)}"
        self.keys = self.broker.keys(self.name)
        self.queue = Queue(TOMBSTONE_MS, NOW)
        self.history = invariants.History()
        self.rows = invariants.Rows()
        self.slots = [Slot(name) for name in SLOTS]
        self.grants: list[tuple[str, str]] = []  # (job, claim id) given to slots
        self.sent: list[Call] = []
        self.reads: list[list[JobRecord]] = []
        self.made = 0
        self.first: dict[str, NewJob] = {}  # as each id was first enqueued: its key stays its own

    @classmethod
    def on(cls, client: redis.Redis, prefix: str) -> type[QueueMachine]:
        """Make the machine for a server; its keys begin with the prefix."""
        made: type[QueueMachine] = type(cls.__name__, (cls,), {"client": client})
        made.broker = Broker(client, prefix, now_ms=lambda: made.now)
        return made

    def teardown(self) -> None:
        """Leave nothing on the server."""
        keys = self.client.keys(f"{self.keys.prefix}*")
        if keys:
            self.client.delete(*keys)

    # Around every call

    @property
    def model(self) -> Queue:
        """The model, at the machine's time."""
        self.queue.now = self.now
        return self.queue

    def _send(self, call: Call, *, twice: bool = False) -> None:
        """Make a call and check everything. `twice`: its reply was lost, and it is repeated at once."""
        self._note(call.text)
        call.run()
        self._check(call.verb)
        self.sent = [*self.sent, call][-REMEMBERED:]
        if twice:
            before = view.of_model(self.model)
            self._note("the same once more")
            call.run()
            assert view.of_model(self.model) == before, f"a repeated {call.verb} has not the result of one"
            self._check(call.verb)

    def _note(self, text: str) -> None:
        # `note` shows the lines of the failing example alone; a replay is no example of Hypothesis.
        (note if currently_in_test_context() else print)(f"    # +{self.now - NOW} ms: {text}")

    def _check(self, verb: str) -> None:
        """Compare the whole state with the model's, and check what always holds."""
        type(self).steps += 1
        found = view.read(self.client, self.keys)
        lines = view.differences(view.of_model(self.model), view.of_redis(found))
        assert not lines, f"after {verb}:\n  " + "\n  ".join(lines)
        invariants.check(found)
        self.history.check(found, verb)
        self.rows.check(found, self.model.executions)
        assert found.wake or not self.model.must_wake, f"{verb} left ready jobs and woke nobody"
        self._check_counts()

    def _check_counts(self) -> None:
        got, model = self.broker.stats(self.name), self.model
        states = [job.state for job in model.jobs.values()]
        counts = [got.ready, got.scheduled, got.retrying, got.running]
        assert counts == [states.count(state) for state in ("ready", "scheduled", "retrying", "running")], got
        assert (got.changed, got.paused, got.epoch) == (len(model.changed), model.paused, model.epoch), got
        assert got.lag_ms == (self.now - min(model.changed.values()) if model.changed else None), got
        ready = model.ready()
        assert got.oldest_ready_ms == (self.now - ready[0].enqueued_ms if ready else None), got

    # Clients

    @initialize(used=MOSTLY, wishes=st.lists(WISHES, min_size=1, max_size=4))
    def begin(self, used: bool, wishes: list[Wish]) -> None:
        """A queue that was used before has an epoch, and keeps it. Nobody finds what there is not."""
        for proposed in ("e1", "e2") if used else ():
            self._open_epoch(proposed)
        self._cancel("nobody", twice=False)
        self._retry("nobody", 1, twice=False)
        self._settle(self.slots[0], [self._outcome(("nobody", "aaaaaaaa.0.0:1"), "succeed", 0)], None, seen=True)
        self._enqueue(wishes, twice=False)
        self.sent.clear()

    def _open_epoch(self, proposed: str) -> None:
        def run() -> None:
            answer = self.broker.open_epoch(self.name, proposed)
            assert answer == self.model.open_epoch(proposed), answer

        self._send(Call("open_epoch", f"open_epoch {proposed}", run))

    @rule(wish=WISHES)
    def enqueue(self, wish: Wish) -> None:
        """A client enqueues a job."""
        self._enqueue([wish], twice=False)

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=4), twice=st.booleans())
    def enqueue_many(self, wishes: list[Wish], twice: bool) -> None:
        """A client enqueues some jobs at once; one id or key may be among them more than once."""
        self._enqueue(wishes, twice=twice)

    @precondition(lambda self: any(job.state in ("dead", "cancelled") for job in self.queue.jobs.values()))
    @rule(pick=PICK, wish=WISHES, twice=st.booleans())
    def enqueue_anew(self, pick: int, wish: Wish, twice: bool) -> None:
        """A job that has ended badly is enqueued in a later round."""
        place = list(self.model.jobs)[::-1].index(self._known(pick, "dead", "cancelled"))
        self._enqueue([replace(wish, job=place, later_round=True)], twice=twice)

    def _enqueue(self, wishes: Sequence[Wish], *, twice: bool) -> None:
        new = tuple(self._new_job(wish) for wish in wishes)

        def run() -> None:
            answers = [(a.status.value, a.id, a.state, a.rev) for a in self.broker.enqueue(self.name, new)]
            assert answers == self.model.enqueue(new), answers

        self._send(Call("enqueue", f"enqueue {new}", run, new=new), twice=twice)

    def _new_job(self, wish: Wish) -> NewJob:
        """Build a job as a client does; one that was there before as the database's sync does."""
        name = self._name(wish)
        known, row = self.model.jobs.get(name), self.rows.rows.get(name)
        seen_round, first = known.round if known else row.round if row else 0, self.first.get(name)
        new = NewJob(
            id=name,
            payload=(b"%s;%d;" % (name.encode(), next(_numbers)))[-wish.size :].ljust(wish.size, b"."),
            priority=wish.priority,
            due_ms={"due": self.now + 2_000, "past": self.now - 5}.get(wish.when),
            delay_ms=500 if wish.when == "delay" else None,
            max_attempts=wish.max_attempts,
            max_losses=wish.max_losses,
            key=first.key if first else wish.key,
            fingerprint=first.fingerprint if first else wish.fingerprint,
            window_ms=WINDOW_MS,
            rev_floor=row.rev if row else 0,
            round=seen_round + 1 if wish.later_round or not known else seen_round,
        )
        self.first.setdefault(name, new)
        return new

    def _name(self, wish: Wish) -> str:
        live = sum(job.finished_ms is None for job in self.model.jobs.values())
        # A job that Redis has forgotten is pushed again only if its row says that it may run.
        gone = [
            name for name, row in self.rows.rows.items() if name not in self.model.jobs and row.state != "succeeded"
        ]
        names = [*gone, *self.model.jobs]
        if names and (wish.job is not None or live >= LIVE):
            return names[-1 - (wish.job or 0) % len(names)]
        self.made += 1
        return f"00000000-0000-7000-8000-{self.made:012d}"

    @precondition(lambda self: self.queue.jobs)
    @rule(job=PICK, twice=st.booleans())
    def cancel(self, job: int, twice: bool) -> None:
        """Somebody cancels a job."""
        self._cancel(self._known(job), twice=twice)

    def _cancel(self, name: str, *, twice: bool) -> None:
        def run() -> None:
            status, state = self.broker.cancel(self.name, name, "called off")
            assert (status.value, state) == self.model.cancel(name, "called off"), (status, state)

        self._send(Call("cancel", f"cancel {name}", run), twice=twice)

    @precondition(lambda self: self.queue.jobs)
    @rule(job=PICK, allowed=MOSTLY, ago=st.sampled_from((0, 0, 1)), twice=st.booleans())
    def retry(self, job: int, allowed: bool, ago: int, twice: bool) -> None:
        """Somebody retries a job that they saw in its present round, or in the one before."""
        name = self._known(job, *(("dead", "cancelled", "retrying") if allowed else ()))
        self._retry(name, max(self.model.jobs[name].round - ago, 1), twice=twice)

    def _retry(self, name: str, seen_round: int, *, twice: bool) -> None:
        def run() -> None:
            status, state = self.broker.retry(self.name, name, seen_round)
            assert (status.value, state) == self.model.retry(name, seen_round), (status, state)

        self._send(Call("retry", f"retry {name}, round {seen_round}", run), twice=twice)

    @rule(paused=st.sampled_from((False, False, True)), twice=st.booleans())
    def pause(self, paused: bool, twice: bool) -> None:
        """Somebody pauses or resumes the queue."""

        def run() -> None:
            self.broker.pause(self.name, paused)
            self.model.pause(paused)

        self._send(Call("pause", f"pause {paused}", run), twice=twice)

    @precondition(lambda self: any(job.state in WAITING for job in self.queue.jobs.values()))
    @rule(limit=st.sampled_from((1, 2, 100)))
    def purge(self, limit: int) -> None:
        """Somebody purges the queue."""

        def run() -> None:
            answer = self.broker.purge(self.name, "purged", limit)
            assert answer == self.model.purge("purged", limit), answer

        self._send(Call("purge", f"purge {limit}", run))

    # Workers

    @precondition(lambda self: any(slot.held for slot in self.slots) or self.queue.ready())
    @rule(slot=SLOT, verb=VERBS, limit=LIMIT)
    def work(self, slot: int, verb: tuple[str, int], limit: int) -> None:
        """A slot settles a job that it holds and claims in the same call; without a job it claims."""
        known = self.slots[slot]
        outs = [self._outcome(held, *verb) for held in known.held[:1]]
        self._settle(known, outs, self._next_claim(known, limit), seen=True)

    @rule(
        slot=SLOT,
        verbs=st.lists(VERBS, max_size=3),
        limit=st.sampled_from((None, 0, 1, 100)),
        seen=st.booleans(),
        twice=st.booleans(),
    )
    def work_in_trouble(
        self, slot: int, verbs: list[tuple[str, int]], limit: int | None, seen: bool, twice: bool
    ) -> None:
        """The same with any number of jobs, with or without a claim, and with replies that are lost.

        A slot that has not seen the reply goes on with its next request as if the call had not been made.
        """
        known = self.slots[slot]
        outs = [self._outcome(held, *verb) for held, verb in zip(known.held, verbs, strict=False)]
        claim = self._next_claim(known, limit or 0) if limit is not None or not outs else None
        self._settle(known, outs, claim, seen=seen, twice=twice)

    @precondition(lambda self: self.grants)
    @rule(slot=SLOT, kind=st.sampled_from(("again", "late", "elsewhere")), back=st.integers(1, 2), seen=st.booleans())
    def claim_oddly(self, slot: int, kind: str, back: int, seen: bool) -> None:
        """A slot repeats its last claim; or an earlier one arrives late; or it believes in another epoch."""
        known = self.slots[slot]
        if kind == "elsewhere":
            self._settle(known, [], replace(self._next_claim(known, 2), epoch="another"), seen=False)
        elif known.last and known.name in self.model.slots:
            last = replace(known.last, epoch=self.model.epoch)
            late = replace(last, n=max(last.n - back, 1), ack=max(min(last.ack, last.n - back - 1), 0))
            self._settle(known, [], late if kind == "late" else last, seen=seen and kind == "again")

    @precondition(lambda self: self.grants)
    @rule(
        slot=SLOT, outs=st.lists(st.tuples(PICK, OFF, VERBS), min_size=1, max_size=3), limit=st.sampled_from((None, 1))
    )
    def settle_anything(self, slot: int, outs: list[tuple[int, int, tuple[str, int]]], limit: int | None) -> None:
        """Somebody settles jobs with claims that are right, old, or of another job."""
        known = self.slots[slot]
        outcomes = [self._outcome(self._grant(job, off), *verb) for job, off, verb in outs]
        self._settle(known, outcomes, None if limit is None else self._next_claim(known, limit), seen=True)

    @precondition(lambda self: self.grants)
    @rule(
        leases=st.lists(st.tuples(PICK, OFF, st.booleans()), max_size=4), started=st.integers(0, 7), twice=st.booleans()
    )
    def heartbeat(self, leases: list[tuple[int, int, bool]], started: int, twice: bool) -> None:
        """A supervisor renews what its slots believe to hold, and what they never held.

        The bits of `started` say which of the handlers run.
        """
        held = [pair for slot in self.slots for pair in slot.held]
        renewed = [HeldLease(*pair, bool(started >> i & 1)) for i, pair in enumerate(held)]
        renewed += [HeldLease(*self._grant(job, off), ran) for job, off, ran in leases]

        def run() -> None:
            answer = self.broker.heartbeat(self.name, renewed, LEASE_MS)
            assert (answer.lost, answer.cancel) == self.model.heartbeat(renewed, LEASE_MS), answer

        if renewed:
            self._send(Call("heartbeat", f"heartbeat {renewed}", run), twice=twice)

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(0, REMEMBERED - 1))
    def arrive_again(self, back: int) -> None:
        """A call that was made earlier arrives once more: it was long on its way, or its worker was frozen."""
        call = self.sent[-1 - back % len(self.sent)]
        # An id or a slot that Redis has forgotten is new to it; nobody repeats a call for as long as that takes.
        forgotten = call.claim is not None and call.claim.slot not in self.model.slots
        if not forgotten and all(new.id in self.model.jobs for new in call.new):
            self._send(replace(call, text=f"again: {call.text}"))

    # Upkeep

    @precondition(lambda self: any(job.state == "running" for job in self.queue.jobs.values()))
    @rule(ms=st.sampled_from((14_000, GAP_MS + 1, LEASE_MS)), ticks=st.integers(1, 4), limit=LIMIT)
    def reap(self, ms: int, ticks: int, limit: int) -> None:
        """A reaper ticks, with time passing before each tick: steadily, or after it was away."""
        for _ in range(ticks):
            self.pass_time(ms)
            self._send(Call("reap", f"reap {limit}", lambda: self._reap(limit)))

    @rule()
    def reap_now(self) -> None:
        """A reaper ticks, perhaps beside others."""
        self._send(Call("reap", "reap 100", lambda: self._reap(100)))

    def _reap(self, limit: int) -> None:
        got = self.broker.reap(self.name, limit=limit, gap_ms=GAP_MS, hold_ms=HOLD_MS)
        assert (got.held, got.recovered, got.more, got.due) == self.model.reap(limit, GAP_MS, HOLD_MS), got
        assert got.changed == len(self.model.changed), got

    @precondition(lambda self: any(job.due_ms is not None for job in self.queue.jobs.values()))
    @rule(ms=TIMES, limit=LIMIT)
    def promote(self, ms: int, limit: int) -> None:
        """Time passes and a promoter ticks."""
        self.pass_time(ms)

        def run() -> None:
            got = self.broker.promote(self.name, limit)
            assert (got.moved, got.next_due_ms) == self.model.promote(limit), got

        self._send(Call("promote", f"promote {limit}", run))

    @precondition(lambda self: self.queue.changed)
    @rule(limit=LIMIT)
    def mirror(self, limit: int) -> None:
        """A mirror reads what has changed, stores it and tells Redis."""
        self.mirror_reads(limit)
        self.mirror_stores(0, told=True, twice=False)

    @precondition(lambda self: self.queue.changed)
    @rule(limit=LIMIT)
    def mirror_reads(self, limit: int) -> None:
        """A mirror reads what has changed; it stores it later or never."""
        got, expected = self.broker.changes(self.name, limit), self.model.changes(limit)
        assert [job.id for job in got.jobs] == expected and not got.gone, got
        assert (got.total, got.lag_ms) == (len(self.model.changed), self.now - min(self.model.changed.values())), got
        self._note(f"a mirror reads {[(job.id, job.rev) for job in got.jobs]}")
        self.reads = [*self.reads, list(got.jobs)][-REMEMBERED:]

    @precondition(lambda self: self.reads)
    @rule(back=PICK, told=MOSTLY, twice=st.booleans())
    def mirror_stores(self, back: int, told: bool, twice: bool) -> None:
        """A mirror stores what it has read, perhaps long ago, and tells Redis unless it is killed before."""
        jobs = self.reads[-1 - back % len(self.reads)]
        for job in jobs:
            self.rows.store(job)
        stored = [(job.id, job.rev) for job in jobs]
        self._note(f"a mirror stores {stored}")

        def run() -> None:
            got = self.broker.mirrored(self.name, stored)
            assert got == self.model.mirrored(stored), got

        if told:
            self._send(Call("mirrored", f"mirrored {stored}", run), twice=twice)

    @rule(ms=TIMES)
    def pass_time(self, ms: int) -> None:
        """Time passes; what ends by itself in Redis comes to its end."""
        type(self).now += ms
        names = {"job": self.keys.job, "slot": self.keys.slot, "key": self.keys.key}
        over = self.model.pass_time()
        self._note(f"time has passed, over are {over}")
        if over:
            self.client.delete(*(names[kind](name) for kind, name in over))
        self._check("time")

    # Helpers

    def _known(self, pick: int, *states: str) -> str:
        """Choose a job that Redis holds, in one of the states if there is any."""
        jobs = self.model.jobs
        names = [name for name in jobs if jobs[name].state in states] or list(jobs)
        return names[-1 - pick % len(names)]

    def _grant(self, pick: int, off: int) -> tuple[str, str]:
        """Choose a job that was given to a slot, and with `off` the claim of another one."""
        count = len(self.grants)
        return self.grants[-1 - pick % count][0], self.grants[-1 - (pick + off) % count][1]

    def _outcome(self, held: tuple[str, str], verb: str, delay_ms: int) -> Settlement:
        data = b"" if verb == "release" else b'{"by": "%s"}' % verb.encode()
        outcome = OUTCOME.get(verb, "")
        return Settlement(*held, verb, outcome, delay_ms=delay_ms, data=data, reason=f"by {verb}")  # type: ignore[arg-type]

    def _next_claim(self, slot: Slot, limit: int) -> Claim:
        slot.n += 1
        epoch = self.model.epoch or "e1"
        return Claim(slot=slot.name, n=slot.n, ack=slot.ack, limit=limit, lease_ms=LEASE_MS, epoch=epoch)

    def _settle(
        self, slot: Slot, outs: list[Settlement], claim: Claim | None, *, seen: bool, twice: bool = False
    ) -> None:
        """Settle and claim; without outcomes claim only. `seen`: the slot sees the reply."""

        def run() -> None:
            if outs:
                settled, claimed = self.broker.settle(self.name, slot.name, outs, claim)
                expected, answer = self.model.settle(outs, claim)
                self._compare_settled(settled, expected)
            else:
                assert claim is not None
                self.client.lpop(self.keys.wake)  # this is what had the slot claim
                claimed, answer = self.broker.claim(self.name, claim), self.model.claim(claim)
            if claim is not None and answer is not None:
                self._compare_claimed(claimed, answer)
                self._take_in(slot, claim, answer, seen)

        words = [f"{out.verb}({out.id}, {out.claim}, {out.delay_ms})" for out in outs]
        text = f"{slot.name}: settle {words}, {claim}, {'seen' if seen else 'reply lost'}"
        self._send(Call("settle" if outs else "claim", text, run, claim=claim), twice=twice)
        if seen:
            over = {(out.id, out.claim) for out in outs}
            slot.held = [pair for pair in slot.held if pair not in over]
        if claim is not None and not self.model.epoch:
            self._open_epoch("e1")

    def _take_in(self, slot: Slot, claim: Claim, answer: Answer, seen: bool) -> None:
        """Have the slot learn from the reply to a claim, if it sees it."""
        if answer.status == "OK" and answer.jobs:
            pairs = [(job.new.id, f"{claim.slot}:{claim.n}") for job, _ in answer.jobs]
            self.grants = [*(pair for pair in self.grants if pair not in pairs), *pairs][-REMEMBERED:]
            if seen:
                slot.held = [*(pair for pair in slot.held if pair not in pairs), *pairs]
        if slot.last is None or claim.n >= slot.last.n:
            slot.last = claim
        if answer.status == "OK" and seen:
            slot.ack = max(slot.ack, claim.n)

    def _compare_settled(self, settled: list[Settled], expected: list[tuple[str, str, int]]) -> None:
        assert len(settled) == len(expected), settled
        for got, (status, state, rev) in zip(settled, expected, strict=True):
            assert not status or got.status.value == status, f"{got}, the model says {status}"
            assert not state or (got.state, got.rev) == (state, rev), f"{got}, the model says {state} at {rev}"

    def _compare_claimed(self, got: Claimed, answer: Answer) -> None:
        assert got.status.value == answer.status, f"{got}, the model says {answer}"
        if answer.status != "OK":
            assert answer.detail in ("", got.epoch, got.last_n), f"{got}, the model says {answer}"
            return
        assert (got.now_ms, got.next_due_ms) == (self.now, answer.next_due_ms), f"{got}, the model says {answer}"
        found = [
            (j.id, j.rev, j.attempts, j.losses, j.max_attempts, j.max_losses, j.enqueued_ms, j.round, j.cancel_requested,
             j.payload)
            for j in got.jobs
        ]  # fmt: skip
        expected = [
            (j.new.id, token, j.attempts, j.losses, j.new.max_attempts, j.new.max_losses, j.enqueued_ms, j.round,
             j.cancel_asked, j.new.payload)
            for j, token in answer.jobs
        ]  # fmt: skip
        assert found == expected, f"claimed {found}, the model says {expected}"
