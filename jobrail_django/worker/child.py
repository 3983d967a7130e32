"""A child of the supervisor: its slots' threads, and the monitor that watches over them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from ..broker.broker import Broker
from ..conf import get_settings
from ..errors import JobCancelled, LeaseLost, TaskInterrupt, TimeLimitExceeded
from .executor import Executor, Run
from .limits import CoroutineRunner
from .options import WorkerOptions
from .shared import CANCEL, LOST, SharedMemory
from .slots import Shared, Slot

logger = logging.getLogger(__name__)

#: Pause between two looks of the monitor while jobs run, and while none does, in seconds.
BUSY_TICK_S, IDLE_TICK_S = 0.02, 0.2
#: Exit code of a child in which a slot failed.
EXIT_SLOT_FAILED = 3
#: How often the memory limit is looked at, in seconds.
MEMORY_CHECK_S = 1.0


def quiet_signals() -> None:
    """Leave TERM and INT to the supervisor, which gets them too when they are sent to the group.

    They are caught, not ignored: what a handler starts would inherit that, and could not be terminated. A program
    starts with the usual signals then; a fork finds out that it is not this process and goes the usual way.
    """
    signal.set_wakeup_fd(-1)
    child = os.getpid()

    def caught(number: int, _: object) -> None:
        if os.getpid() != child:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
            os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, caught)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def resident_mb() -> float:
    """Return this process's resident memory in MiB; 0.0 where /proc does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


class Child:
    """Runs the slots of one process until it is to stop.

    Args:
        options: the worker's.
        memory: shared with the supervisor.
        place: which part of it is this child's.
        name: `<worker id>.<number of the child>`, unique among all children that ever were.
        supervisor: process id of the parent; when that is gone, so is the right to run.
        broker: connections of this process.
    """

    def __init__(
        self, options: WorkerOptions, memory: SharedMemory, place: int, *, name: str, supervisor: int, broker: Broker
    ) -> None:
        settings = get_settings()
        self._options = options
        self._memory = memory
        self._place = place
        self._supervisor = supervisor
        self._orphan_grace_s = settings.lease_ms / 3000
        self._leaving = False
        shared = Shared(
            broker=broker,
            executor=Executor(CoroutineRunner()),
            worker_id=name.split(".")[0],
            queues=list(options.queues),
            weights=options.queues,
            lease_ms=settings.lease_ms,
            stopping=self._stops,
        )
        self._slots = [Slot(shared, f"{name}.{i}", memory.slot(place, i)) for i in range(options.threads)]

    def run(self) -> int:
        """Run until told to stop, or until a limit of this child is reached; returns the exit code."""
        threads = [
            threading.Thread(target=self._run_slot, args=(slot,), name=slot.name, daemon=True) for slot in self._slots
        ]
        for thread in threads:
            thread.start()
        memory_is_full = self._memory_limit()
        orphaned_at: float | None = None
        while any(thread.is_alive() for thread in threads):
            now = time.monotonic()
            self._memory.sign_of_life(self._place, now, sum(slot.jobs_done for slot in self._slots))
            if orphaned_at is None and os.getppid() != self._supervisor:
                logger.critical("The supervisor is gone; this child stops: pid=%d", os.getpid())
                orphaned_at, self._leaving = now, True
            if orphaned_at is not None and now - orphaned_at > self._orphan_grace_s:
                return 1
            busy = sum(self._watch(slot, now) for slot in self._slots) > 0
            self._leaving = self._leaving or memory_is_full(now)
            time.sleep(BUSY_TICK_S if busy else IDLE_TICK_S)
        return 0

    def _run_slot(self, slot: Slot) -> None:
        """Run a slot; a fault of its own ends the child, whose jobs the supervisor then gives back at once."""
        try:
            slot.run()
        except BaseException:
            with suppress(Exception):
                logger.critical("A slot failed; this child ends: slot=%s", slot.name, exc_info=True)
            os._exit(EXIT_SLOT_FAILED)

    def _stops(self) -> bool:
        """Tell the slots that they are to start nothing more."""
        most = self._options.max_jobs
        return self._leaving or self._memory.stopping or (most > 0 and sum(s.jobs_done for s in self._slots) >= most)

    def _watch(self, slot: Slot, now: float) -> bool:
        """Interrupt what has run too long, is cancelled or is no longer ours; True while a job runs."""
        current = slot.current
        if current is None:
            return False
        index, run = current
        notice = slot.memory.notice(index, int(run.claim.rsplit(":", 1)[1]))
        if notice == LOST:
            self._interrupt(run, LeaseLost)
        elif notice == CANCEL:
            if run.context is not None:
                run.context.cancel_event.set()
            self._interrupt(run, JobCancelled)
        elif run.soft_deadline_s and now >= run.soft_deadline_s:
            self._interrupt(run, TimeLimitExceeded)
        slot.give_back_tail()
        return True

    def _interrupt(self, run: Run, kind: type[TaskInterrupt]) -> None:
        if run.interrupted is not kind and run.gate.interrupt(kind):
            run.interrupted = kind

    def _memory_limit(self) -> Callable[[float], bool]:
        """Return a function that tells whether this child has outgrown its share of memory."""
        born_mb, limit_mb = resident_mb(), self._options.max_memory_mb
        next_look = 0.0
        if limit_mb and born_mb >= limit_mb:
            logger.warning(
                "--max-memory is %d MiB, but a fresh child has %d MiB already; the limit is ignored", limit_mb, born_mb
            )
            limit_mb = 0

        def reached(now: float) -> bool:
            nonlocal next_look
            if limit_mb and now >= next_look:
                next_look = now + MEMORY_CHECK_S
                return resident_mb() > limit_mb
            return False

        return reached
