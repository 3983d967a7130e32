"""A slot: the thread in which one job runs at a time, and its loop of claim, run and settle."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..broker.broker import BATCH, Broker
from ..broker.records import Claim, Claimed, ClaimedJob, ClaimStatus, Settlement
from ..errors import BrokerError, ScriptError
from ..log import RepeatLog, extra
from .announce import announce, announce_loss
from .executor import Executor, Run, check_connections
from .shared import ENTRIES, SlotMemory

logger = logging.getLogger(__name__)

#: Longest work that a slot takes in one claim, by what it has measured, in seconds.
BATCH_S = 0.05
#: How long an outcome may wait for company, in seconds.
SETTLE_WITHIN_S = 0.005
#: Longest wait for a wake-up before looking all the same, in seconds.
IDLE_S = 10.0
#: Pause after Redis has failed, in seconds.
PAUSE_S = 1.0


class Stopped(Exception):
    """The worker stops; nothing more is to be claimed."""


class Pace:
    """How long jobs take, by what was measured: rises at once, falls slowly. Shared by the slots of a child."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def expected_s(self, task: str) -> float | None:
        """Return the expected duration of a task, None when it is not known."""
        return self._seconds.get(task)

    def measured(self, task: str, seconds: float) -> None:
        """Take in a duration."""
        known = self._seconds.get(task, 0.0)
        self._seconds[task] = seconds if seconds > known else known * 0.8 + seconds * 0.2


class QueueOrder:
    """Smooth weighted turns: over time each queue is first as often as its weight says.

    The order is strict only within one turn: after the queue whose turn it is, the others by weight.
    """

    def __init__(self, weights: dict[str, int]) -> None:
        self._weights = dict(sorted(weights.items(), key=lambda item: -item[1]))
        self._credit = dict.fromkeys(weights, 0)
        self._total = sum(weights.values())

    def next(self) -> list[str]:
        """Return all queues, the one whose turn it is first."""
        for queue, weight in self._weights.items():
            self._credit[queue] += weight
        first = max(self._credit, key=lambda queue: self._credit[queue])
        self._credit[first] -= self._total
        return [first, *(queue for queue in self._weights if queue != first)]


@dataclass(slots=True)
class Shared:
    """What the slots of one child have in common."""

    broker: Broker
    executor: Executor
    worker_id: str
    queues: Sequence[str]
    weights: dict[str, int]
    lease_ms: int
    stopping: Callable[[], bool]
    pace: Pace = field(default_factory=Pace)
    epochs: dict[str, str] = field(default_factory=dict)
    idle: threading.Lock = field(default_factory=threading.Lock)
    faults: RepeatLog = field(default_factory=lambda: RepeatLog(logger))


@dataclass(slots=True)
class _Waiting:
    """A job that was claimed and has not started."""

    index: int
    job: ClaimedJob


class Slot:
    """Claims jobs, runs them one after the other, and reports how they ended.

    `run` is the thread's body. `give_back_tail` and `current` are for the child's monitor.
    """

    def __init__(self, shared: Shared, name: str, memory: SlotMemory) -> None:
        self.name = name
        self.memory = memory
        self.current: tuple[int, Run] | None = None
        self.jobs_done = 0
        self._shared = shared
        self._order = QueueOrder(shared.weights)
        self._lock = threading.Lock()  # guards _waiting, against the monitor
        self._waiting: deque[_Waiting] = deque()
        self._outcomes: list[tuple[int, Settlement, Run]] = []
        self._queue = ""  # queue of the jobs held
        self._n = 0  # number of the last claim
        self._acks = dict.fromkeys(shared.queues, 0)
        self._claim_id, self._held_n = "", 0  # of the jobs held
        self._expected_s = BATCH_S  # of one job of this slot

    # The loop

    def run(self) -> None:
        """Work until the worker stops, then settle and give back what is left."""
        try:
            while True:
                waiting = self._next()
                if waiting is not None:
                    self._execute(waiting)
                elif not self._shared.stopping():
                    self._refill()
                else:
                    break
        except Stopped:
            pass
        self._give_back()

    def _next(self) -> _Waiting | None:
        with self._lock:
            if not self._waiting or self._shared.stopping():
                return None
            return self._waiting.popleft()

    def _execute(self, waiting: _Waiting) -> None:
        run = Run(waiting.job, self._queue, self._claim_id)
        memory, index = self.memory, waiting.index

        def on_start(now: float, hard_deadline: float, retry_delay_ms: int) -> None:
            if self._outcomes and self._may_be_slow(run.task_name):
                self._settle()
            memory.start(index, now, hard_deadline, retry_delay_ms)
            self.current = index, run

        outcome = self._shared.executor.execute(run, on_start)
        self.current = None
        self.jobs_done += 1
        if run.started_s:
            took_s = time.monotonic() - run.started_s
            self._shared.pace.measured(run.task_name, took_s)
            self._expected_s = took_s if took_s > self._expected_s else self._expected_s * 0.8 + took_s * 0.2
        if outcome is None:
            announce_loss(run)
            memory.drop(index)
            return
        self._outcomes.append((index, outcome, run))
        first = self._outcomes[0][1]
        if self._waiting and time.monotonic() - (first.started_s + first.ran_s) > SETTLE_WITHIN_S:
            self._settle()

    def _may_be_slow(self, task: str) -> bool:
        expected_s = self._shared.pace.expected_s(task)
        return expected_s is None or expected_s > SETTLE_WITHIN_S

    # Claiming

    def _refill(self) -> None:
        """Settle what is done and get more to do, waiting for it if need be."""
        order = self._order.next()
        if self._outcomes:
            # One step with the settlement when the turn is the same queue's.
            claimed = self._settle(self._claim(self._queue) if order[0] == self._queue else None)
            if claimed.jobs:
                return
        if self._claim_any(order):
            return
        # One slot of the child waits for all; the others wait for their turn to be that one.
        while not self._shared.idle.acquire(timeout=0.5):
            if self._shared.stopping():
                return
        try:
            self._wait_for_work()
        finally:
            self._shared.idle.release()

    def _wait_for_work(self) -> None:
        while not self._shared.stopping():
            pause_s = IDLE_S
            for queue in self._order.next():
                claimed = self._take(queue)
                if claimed.jobs:
                    return
                if claimed.next_due_ms is not None:
                    pause_s = min(pause_s, max(0.0, (claimed.next_due_ms - claimed.now_ms) / 1000))
            try:
                self._shared.broker.wait(self._shared.queues, pause_s + 0.001, self._shared.stopping)
            except BrokerError as exc:
                self._pause("wait_failed", exc)
            check_connections()

    def _claim_any(self, order: Sequence[str]) -> bool:
        return any(self._take(queue).jobs for queue in order)

    def _claim(self, queue: str) -> Claim:
        """Prepare the next claim and record it where the supervisor sees it."""
        limit = min(BATCH, ENTRIES, max(1, int(BATCH_S / max(self._expected_s, 1e-6))))
        self._n += 1
        ack = self._acks[queue]
        self.memory.begin_claim(self._n, ack, self._shared.queues.index(queue))
        epoch = self._shared.epochs.get(queue, "")
        return Claim(slot=self.name, n=self._n, ack=ack, limit=limit, lease_ms=self._shared.lease_ms, epoch=epoch)

    def _take(self, queue: str) -> Claimed:
        """Claim from one queue, repeating the same claim until it is answered."""
        claim = self._claim(queue)
        while True:
            sent = time.monotonic()
            try:
                claimed = self._shared.broker.claim(queue, claim)
            except BrokerError as exc:
                self._pause("claim_failed", exc)
                continue
            if claimed.status is not ClaimStatus.NEEDS_EPOCH:
                break
            if claim.epoch and claim.epoch == claimed.epoch:
                self._pause("claim_failed", ScriptError(f"The epoch of queue {queue!r} in Redis is damaged."))
            claim = self._with_epoch(queue, claim)
        self._accept(queue, claim, claimed, sent)
        return claimed

    def _with_epoch(self, queue: str, claim: Claim) -> Claim:
        """Learn the queue's epoch; make it when Redis has none, because the queue or Redis is new or empty."""
        try:
            epoch, is_new = self._shared.broker.open_epoch(queue, self.name)
        except BrokerError as exc:
            self._pause("claim_failed", exc)
            return claim
        if is_new and claim.epoch:
            logger.warning("Redis lost this queue's data: queue=%s", queue, extra=extra("redis_empty", queue=queue))
        self._shared.epochs[queue] = epoch
        return Claim(slot=claim.slot, n=claim.n, ack=claim.ack, limit=claim.limit, lease_ms=claim.lease_ms, epoch=epoch)

    def _accept(self, queue: str, claim: Claim, claimed: Claimed, sent: float) -> None:
        """Take in the reply to a claim: from here on the supervisor sees these jobs as held."""
        if claimed.status is ClaimStatus.STALE:
            self._n = max(self._n, claimed.last_n)
        if claimed.status is ClaimStatus.OK:
            self._acks[queue] = claim.n
        if claimed.jobs:
            position = self._shared.queues.index(queue)
            with self._lock:
                self._queue, self._claim_id, self._held_n = queue, f"{self.name}:{claim.n}", claim.n
                for index, job in enumerate(claimed.jobs):
                    self.memory.hold(index, job.id, claim.n, position, sent)
                self._waiting.extend(_Waiting(index, job) for index, job in enumerate(claimed.jobs))
        self.memory.end_claim()

    # Settling

    def _settle(self, claim: Claim | None = None) -> Claimed:
        """Report all outcomes, repeating until Redis has answered, and take in the claim that went with it.

        Raises:
            Stopped: the worker stops while Redis is away. The outcomes are kept.
        """
        outcomes = [outcome for _, outcome, _ in self._outcomes]
        while True:
            sent = time.monotonic()
            try:
                settled, claimed = self._shared.broker.settle(self._queue, self.name, outcomes, claim)
                break
            except BrokerError as exc:
                self._pause("settle_failed", exc)
        done, self._outcomes = self._outcomes, []
        for index, _, _ in done:
            self.memory.drop(index)
        for answer, (_, outcome, run) in zip(settled, done, strict=True):
            announce(answer, outcome, run)
        if claim is None:
            return claimed
        if claimed.status is ClaimStatus.NEEDS_EPOCH:
            self.memory.end_claim()
            return Claimed(status=ClaimStatus.NONE)
        self._accept(self._queue, claim, claimed, sent)
        return claimed

    def _give_back(self) -> None:
        """Settle what is done and return what has not started, while the supervisor allows."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for item in waiting:
            run = Run(item.job, self._queue, self._claim_id)
            self._outcomes.append((item.index, Settlement(item.job.id, self._claim_id, "return"), run))
        while self._outcomes:
            try:
                self._settle()
            except Stopped:
                time.sleep(0.2)

    def give_back_tail(self) -> None:
        """Return the jobs behind one that takes longer than a batch should; called by the child's monitor."""
        current = self.current
        if current is None or time.monotonic() - current[1].started_s < BATCH_S:
            return
        with self._lock:
            if self.current is not current or not self._waiting:
                return
            tail, self._waiting = list(self._waiting), deque()
            queue, claim_id, held_n = self._queue, self._claim_id, self._held_n
        try:
            self._shared.broker.settle(queue, self.name, [Settlement(item.job.id, claim_id, "return") for item in tail])
        except BrokerError as exc:
            self._shared.faults.log(logging.WARNING, "return_failed", "Cannot return claimed jobs: %s", exc)
            return  # still recorded as held, and so renewed until this process ends
        with self._lock:
            if self._held_n == held_n:  # else the slot has taken the places for its next jobs
                for item in tail:
                    self.memory.drop(item.index)

    # Faults

    def _pause(self, action: str, exc: BrokerError) -> None:
        self._shared.faults.log(logging.WARNING, action, "Redis does not serve: %s", exc)
        end = time.monotonic() + PAUSE_S
        while time.monotonic() < end:
            if self._shared.stopping():
                raise Stopped
            time.sleep(0.05)
