"""The supervisor: forks the children, renews their leases, and speaks for those that die."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib.metadata import PackageNotFoundError, version

import orjson
from django.db import DatabaseError

from ..broker.broker import BATCH, Broker
from ..broker.connection import get_broker
from ..broker.records import Claim, ClaimStatus, HeldLease, Settlement, SettleStatus, WorkerInfo
from ..conf import get_settings
from ..errors import BrokerError, BrokerUnavailable, TimeLimitExceeded
from ..log import RepeatLog, extra
from ..querysets import tables_missing
from ..states import Outcome
from ..upkeep.loop import Upkeep
from .child import Child, quiet_signals
from .failure import error_record
from .limits import HARD_LIMIT_AFTER_S
from .options import WorkerOptions
from .shared import CANCEL, LOST, Held, SharedMemory

logger = logging.getLogger(__name__)

#: Exit codes of `jobrail_worker`.
EXIT_OK, EXIT_FAILED, EXIT_MIGRATE = 0, 1, 4

#: Longest time between two looks at the children, in seconds.
TICK_S = 0.1
#: A child that dies sooner after its start than this is replaced after a pause that doubles each time.
QUICK_DEATH_S = 5.0
LONGEST_PAUSE_S = 30.0
#: Bound of one call to Redis, in seconds. Children die unnoticed for as long as such a call takes.
CALL_S = 2.0
#: Pause between two tries to settle what is owed for dead children, in seconds.
PAY_AGAIN_S = 1.0
#: Bound for the upkeep to store what is left when the worker stops, in seconds; and the same once the grace is over.
UPKEEP_STOP_S, UPKEEP_LATE_S = 8.0, 1.0
#: How long a worker with `burst` waits for the mirror once all jobs have ended, in seconds.
BURST_MIRROR_S = 120.0
#: A second signal within this time is a copy of the first: a shell that has its group's signal too may pass it on.
SAME_SIGNAL_S = 0.5


class Death(Enum):
    """Why a child is gone, which decides what its jobs are charged."""

    CRASHED = "crashed"
    STOPPED = "stopped"
    LIMIT = "limit"


@dataclass(slots=True)
class _Place:
    """One place for a child, with the child that has it now."""

    index: int
    pid: int = 0
    name: str = ""
    started: float = 0.0
    quick_deaths: int = 0
    start_after: float = 0.0
    death: Death = Death.CRASHED


@dataclass(slots=True)
class _Owed:
    """A settlement that Redis has not taken yet; dropped when the lease must have been recovered by others."""

    queue: str
    slot: str
    settlement: Settlement
    until: float


@dataclass(slots=True)
class Supervisor:
    """Runs a worker: one process tree. Single-threaded, opens no database connection.

    Args:
        options: what to run.
    """

    options: WorkerOptions
    _memory: SharedMemory = field(init=False)
    _places: list[_Place] = field(init=False)
    _upkeep: _Place | None = field(init=False, default=None)
    _broker: Broker = field(init=False)
    _info: WorkerInfo = field(init=False)
    _owed: list[_Owed] = field(init=False, default_factory=list)
    _next_pay: float = field(init=False, default=0.0)
    _terms: int = field(init=False, default=0)
    _term_at: float = field(init=False, default=0.0)
    _redis_away: bool = field(init=False, default=False)
    _stop_at: float | None = field(init=False, default=None)
    _children_made: int = field(init=False, default=0)
    _quiet_looks: int = field(init=False, default=0)
    _mirror_until: float = field(init=False, default=0.0)
    _exit_code: int = field(init=False, default=EXIT_OK)
    _faults: RepeatLog = field(init=False, default_factory=lambda: RepeatLog(logger))

    def __post_init__(self) -> None:
        """Describe the worker and lay out the shared memory."""
        options = self.options
        now_ms = int(time.time() * 1000)
        self._memory = SharedMemory(options.processes, options.threads)
        self._places = [_Place(index) for index in range(options.processes)]
        self._info = WorkerInfo(
            id=uuid.uuid4().hex[:8],
            name=f"{socket.gethostname()}:{os.getpid()}",
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(options.queues),
            processes=options.processes,
            threads=options.threads,
            started_ms=now_ms,
            seen_ms=now_ms,
            version=_version(),
        )
        self._broker = get_broker(timeout_s=CALL_S)

    @property
    def worker_id(self) -> str:
        """Return the worker's id, with which its claim ids begin."""
        return self._info.id

    def run(self) -> int:
        """Run until stopped by a signal or, with `burst`, until there is nothing left to do.

        Returns:
            The exit code: 0 after a clean stop, 4 when JobRail's tables are missing.
        """
        if self._tables_missing():
            logger.critical("JobRail's tables are missing from the database: run `manage.py migrate`.")
            return EXIT_MIGRATE
        waker = _SignalPipe()
        signal.signal(signal.SIGTERM, lambda *_: self._on_term())
        signal.signal(signal.SIGINT, lambda *_: self._on_term())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if self.options.upkeep:
            self._upkeep = _Place(-1)
        logger.info(
            "Worker started: worker=%s queues=%s processes=%d threads=%d",
            self._info.id,
            ",".join(self._info.queues),
            self._info.processes,
            self._info.threads,
            extra=extra("worker_started", worker=self._info.id),
        )
        try:
            self._loop(waker)
        finally:
            self._kill_all()
            if not self._redis_away:
                self._quietly(lambda: self._broker.beat(self._info, 0))
            waker.close()
        logger.info("Worker stopped: worker=%s", self._info.id, extra=extra("worker_stopped", worker=self._info.id))
        return self._exit_code

    def _loop(self, waker: _SignalPipe) -> None:
        beat_s = get_settings().lease_ms / 3000
        next_beat = next_burst = 0.0
        while True:
            self._reap_children()
            if self._owed and time.monotonic() >= self._next_pay:
                self._pay()
            now = time.monotonic()
            self._start_missing(now)
            self._enforce_limits(now)
            if self._stop_at is not None and self._stop(now):
                return
            if now >= next_beat and (self._stop_at is None or any(place.pid for place in self._places)):
                self._beat()
                # After an outage well within the heartbeat's length for which a reaper holds.
                next_beat = time.monotonic() + (min(1.0, beat_s / 2) if self._redis_away else beat_s)
            if self.options.burst and now >= next_burst and self._stop_at is None:
                next_burst = now + 0.2
                self._stop_if_done()
            waker.wait(TICK_S)

    # Signals

    def _on_term(self) -> None:
        now = time.monotonic()
        if self._terms and now - self._term_at < SAME_SIGNAL_S:
            return
        self._terms, self._term_at = self._terms + 1, now
        self._memory.stopping = True
        self._stop_at = now + (self.options.grace_s if self._terms == 1 else 0.0)

    def _stop(self, now: float) -> bool:
        """Go on with stopping; True when nothing is left to wait for."""
        assert self._stop_at is not None
        self._memory.stopping = True
        for place in self._places:
            if place.pid and now >= self._stop_at:
                place.death = Death.STOPPED
                self._kill(place)
        if any(place.pid for place in self._places):
            return False
        if self._owed and now < self._stop_at + CALL_S:
            return False
        upkeep = self._upkeep
        if upkeep is None or not upkeep.pid:
            return True
        if not self._memory.upkeep_stopping:
            self._memory.upkeep_stopping = True
            upkeep.start_after = min(now + UPKEEP_STOP_S, max(now, self._stop_at) + UPKEEP_LATE_S)
        if now >= upkeep.start_after or self._terms > 1 or self._redis_away:
            self._kill(upkeep)
        return False

    def _stop_if_done(self) -> None:
        """Begin to stop once two looks have found nothing ready, due, retrying or running, and the mirror is done."""
        try:
            looks = [self._broker.stats(queue) for queue in self.options.queues]
        except BrokerError as exc:
            self._failed("burst_failed", exc)
            return
        now = time.monotonic()
        busy = any((s.ready and not s.paused) or s.retrying or s.running or s.due for s in looks)
        self._quiet_looks = 0 if busy else self._quiet_looks + 1
        if self._quiet_looks == 1:
            self._mirror_until = now + BURST_MIRROR_S
        mirrored = not self.options.upkeep or not any(s.changed for s in looks) or now > self._mirror_until
        if self._quiet_looks >= 2 and mirrored:
            self._stop_at = now + self.options.grace_s

    # Children

    def _start_missing(self, now: float) -> None:
        if self._stop_at is None:
            for place in self._places:
                if not place.pid and now >= place.start_after:
                    self._fork(place, self._child_main)
        upkeep = self._upkeep
        if upkeep is not None and not upkeep.pid and not self._memory.upkeep_stopping and now >= upkeep.start_after:
            self._fork(upkeep, self._upkeep_main)

    def _fork(self, place: _Place, main: Callable[[_Place], int]) -> None:
        self._children_made += 1
        place.name = f"{self._info.id}.{self._children_made}"
        place.started, place.death = time.monotonic(), Death.CRASHED
        if place.index >= 0:
            self._memory.reset_child(place.index)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            place.pid = pid
            return
        code = EXIT_FAILED
        try:
            quiet_signals()
            code = main(place)
        except BaseException:
            logger.critical("A child of the worker failed: child=%s", place.name, exc_info=True)
        finally:
            logging.shutdown()
            os._exit(code)

    def _child_main(self, place: _Place) -> int:
        supervisor = self._info.pid
        child = Child(
            self.options,
            self._memory,
            place.index,
            name=place.name,
            supervisor=supervisor,
            broker=get_broker(timeout_s=CALL_S),
        )
        return child.run()

    def _upkeep_main(self, place: _Place) -> int:
        memory, supervisor = self._memory, self._info.pid
        Upkeep(
            get_broker(timeout_s=CALL_S),
            get_settings(),
            lambda: memory.upkeep_stopping or os.getppid() != supervisor,
        ).run()
        return EXIT_OK

    def _tables_missing(self) -> bool:
        """Look in a process of its own, so that this one never opens a database connection."""
        pid = os.fork()
        if not pid:
            missing = False
            try:
                missing = tables_missing(get_settings().database)
            except DatabaseError:
                pass  # the database is away: jobs that need none can run meanwhile
            except BaseException:
                logger.exception("Looking for JobRail's tables failed")
            os._exit(int(missing))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1

    def _reap_children(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for place in [*self._places, *([self._upkeep] if self._upkeep else [])]:
                if place.pid == pid:
                    self._bury(place, os.waitstatus_to_exitcode(status))

    def _bury(self, place: _Place, code: int) -> None:
        """Note that a child is gone, and give back what it held."""
        now, place.pid = time.monotonic(), 0
        how = _how(code)
        expected = code == 0 or place.death is not Death.CRASHED or self._memory.upkeep_stopping
        if expected:
            place.quick_deaths = 0
        else:
            quick = now - place.started < QUICK_DEATH_S
            place.quick_deaths = place.quick_deaths + 1 if quick else 0
            pause_s = min(LONGEST_PAUSE_S, 2.0 ** (place.quick_deaths - 1)) if place.quick_deaths else 0.0
            place.start_after = now + pause_s
            logger.error(
                "A child of the worker died: child=%s how=%s restart_in=%.0fs",
                place.name,
                how,
                pause_s,
                extra=extra("child_died", worker=self._info.id, child=place.name),
            )
        if place.index >= 0:
            self._recover(place, now, how)
            self._next_pay = now

    def _kill(self, place: _Place) -> None:
        try:
            os.kill(place.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _kill_all(self) -> None:
        for place in [*self._places, *([self._upkeep] if self._upkeep else [])]:
            if place.pid:
                self._kill(place)

    def _enforce_limits(self, now: float) -> None:
        """Replace a child in which a handler has outlived its hard limit."""
        for place in self._places:
            if place.pid and any(0 < held.hard_deadline <= now for _, held in self._held(place)):
                logger.error(
                    "A handler ignored its time limit, its child is replaced: child=%s",
                    place.name,
                    extra=extra("child_killed", worker=self._info.id, child=place.name),
                )
                place.death = Death.LIMIT
                self._kill(place)

    # Leases

    def _held(self, place: _Place) -> Iterable[tuple[int, Held]]:
        for slot in range(self.options.threads):
            for held in self._memory.slot(place.index, slot).held():
                yield slot, held

    def _beat(self) -> None:
        """Renew all leases, pass on what Redis says about them, and register the worker."""
        lease_ms = get_settings().lease_ms
        queues = list(self.options.queues)
        found: dict[str, list[tuple[_Place, int, Held]]] = defaultdict(list)
        for place in self._places:
            if place.pid:
                for slot, held in self._held(place):
                    found[queues[held.queue]].append((place, slot, held))
        try:
            for queue, entries in found.items():
                self._renew(queue, entries, lease_ms)
            self._info = replace(self._info, seen_ms=int(time.time() * 1000))
            self._broker.beat(self._info, lease_ms)
            self._redis_away = False
            if self._faults.recovered("heartbeat_failed"):
                logger.info("Heartbeats work again: worker=%s", self._info.id)
        except BrokerError as exc:
            self._failed("heartbeat_failed", exc)

    def _renew(self, queue: str, entries: Iterable[tuple[_Place, int, Held]], lease_ms: int) -> None:
        """Renew leases of one queue, and pass on what Redis says about each.

        A job can be held twice: its first lease was lost, the handler has not noticed, and another slot here has it now.
        The answer names jobs, so the two go in calls of their own.
        """
        distinct: dict[str, tuple[_Place, int, Held]] = {}
        again = []
        for entry in entries:
            if distinct.setdefault(entry[2].job_id, entry) is not entry:
                again.append(entry)
        leases = [
            HeldLease(held.job_id, f"{place.name}.{slot}:{held.n}", held.started > 0)
            for place, slot, held in distinct.values()
        ]
        answer = self._broker.heartbeat(queue, leases, lease_ms)
        lost, cancel = set(answer.lost), set(answer.cancel)
        for place, slot, held in distinct.values():
            notice = LOST if held.job_id in lost else CANCEL if held.job_id in cancel else 0
            if notice:
                self._memory.slot(place.index, slot).notify(held.index, held.n, notice)
        if again:
            self._renew(queue, again, lease_ms)

    # The dead

    def _recover(self, place: _Place, now: float, how: str) -> None:
        """Work out what becomes of each job that a dead child held."""
        until = now + 2 * get_settings().lease_ms / 1000
        queues = list(self.options.queues)
        for slot in range(self.options.threads):
            name = f"{place.name}.{slot}"
            memory = self._memory.slot(place.index, slot)
            known = set()
            for held in memory.held():
                known.add(held.job_id)
                settlement = self._verdict(place.death, held, f"{name}:{held.n}", now, how)
                self._owed.append(_Owed(queues[held.queue], name, settlement, until))
            pending = memory.pending_claim()
            if pending is not None and not self._redis_away:
                queue = queues[pending.queue]
                claim = Claim(
                    slot=name, n=pending.n, ack=pending.ack, limit=0, lease_ms=get_settings().lease_ms, epoch=""
                )
                self._recover_claim(queue, claim, known, until)
        self._memory.reset_child(place.index)

    def _recover_claim(self, queue: str, claim: Claim, known: set[str], until: float) -> None:
        """Ask again what a claim was given whose reply the child did not live to see, and return it."""
        try:
            epoch, _ = self._broker.open_epoch(queue, claim.slot)
            claimed = self._broker.claim(queue, replace(claim, epoch=epoch))
        except BrokerError as exc:
            self._failed("recover_failed", exc)
            return  # those leases run out; the reaper takes them
        if claimed.status is ClaimStatus.OK:
            for job in claimed.jobs:
                if job.id not in known:
                    settlement = Settlement(job.id, f"{claim.slot}:{claim.n}", "return")
                    self._owed.append(_Owed(queue, claim.slot, settlement, until))

    def _verdict(self, death: Death, held: Held, claim: str, now: float, how: str) -> Settlement:
        """Decide what a job is charged for the end of its child."""
        job_id, started = held.job_id, held.started
        if not started:
            return Settlement(job_id, claim, "strand" if death is Death.CRASHED else "return")
        if death is Death.CRASHED:
            error_json = _bare_error(f"its process ended with {how}")
            return Settlement(job_id, claim, "lost", Outcome.LOST, started, now - started, 0, error_json)
        if death is Death.LIMIT and 0 < held.hard_deadline <= now + HARD_LIMIT_AFTER_S:
            error = TimeLimitExceeded("The handler ignored its time limit, and its process was replaced.")
            return Settlement(
                job_id,
                claim,
                "retry",
                Outcome.TIMED_OUT,
                started,
                now - started,
                held.retry_delay_ms,
                error_record(error),
                f"timed out after {now - started:.1f} s",
            )
        why = "interrupted by shutdown" if death is Death.STOPPED else "its process was replaced"
        error_json = _bare_error(why)
        return Settlement(job_id, claim, "release", Outcome.RELEASED, started, now - started, 0, error_json, why)

    def _pay(self) -> None:
        """Settle what is owed for dead children; what Redis does not take stays owed."""
        now = time.monotonic()
        by_slot: dict[tuple[str, str], list[_Owed]] = defaultdict(list)
        for owed in self._owed:
            if now < owed.until:
                by_slot[owed.queue, owed.slot].append(owed)
        self._owed, is_served = [], True
        for (queue, slot), items in by_slot.items():
            for start in range(0, len(items), BATCH):
                part = items[start : start + BATCH]
                if is_served:
                    is_served = self._pay_slot(queue, slot, part)
                else:  # one call that waits in vain is enough
                    self._owed += part
        self._next_pay = time.monotonic() + PAY_AGAIN_S

    def _pay_slot(self, queue: str, slot: str, part: Sequence[_Owed]) -> bool:
        """Settle up to a batch of one slot's jobs; False when Redis cannot be reached."""
        try:
            answers, _ = self._broker.settle(queue, slot, [owed.settlement for owed in part])
        except BrokerError as exc:
            self._owed += part
            self._failed("settle_failed", exc)
            return not self._redis_away
        self._redis_away = False
        for owed, answer in zip(part, answers, strict=True):
            if answer.status is SettleStatus.OK:
                logger.warning(
                    "Job given back for a child that is gone: job_id=%s queue=%s as=%s state=%s",
                    owed.settlement.id,
                    queue,
                    owed.settlement.verb,
                    answer.state,
                    extra=extra("job_given_back", job_id=owed.settlement.id, queue=queue, state=answer.state),
                )
        return True

    def _quietly(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BrokerError as exc:
            self._failed("goodbye_failed", exc)

    def _failed(self, action: str, exc: BrokerError) -> None:
        self._redis_away = isinstance(exc, BrokerUnavailable)
        self._faults.log(logging.WARNING, action, "Redis does not serve: %s", exc)


class _SignalPipe:
    """Wakes the loop when a signal arrives, so that it need not look often."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def wait(self, timeout_s: float) -> None:
        """Wait for a signal or the timeout."""
        readable, _, _ = select.select([self._read], [], [], timeout_s)
        if readable:
            os.read(self._read, 4096)

    def close(self) -> None:
        """Stop listening."""
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)


def _how(code: int) -> str:
    """Put into words how a process ended."""
    if code == -signal.SIGKILL:
        return f"signal {-code}, as when memory runs out"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _bare_error(text: str) -> bytes:
    """Encode the error record of an attempt that no exception ended."""
    return orjson.dumps({"type": "", "message": text, "traceback": ""})


def _version() -> str:
    try:
        return version("jobrail-django")
    except PackageNotFoundError:
        return "unknown"
