"""Runs the parts of the upkeep, each in its own rhythm, until told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, connections

from ..broker.broker import Broker
from ..conf import Settings
from ..errors import JobRailError
from ..log import RepeatLog, extra
from .mirror import Mirror
from .reaper import Reaper
from .workers import WorkerRegister

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Longest time between two looks of the mirror when the reaper has seen nothing for it, in seconds.
MIRROR_S = 10.0
#: How often the rows of workers are written, in seconds.
WORKERS_S = 20.0
#: Pause after a failure, in seconds.
PAUSE_S = 1.0
#: How long the mirror may take at the end to store what is left, in seconds.
LAST_S = 5.0


class Upkeep:
    """The reaper in one thread, which needs no database, and the mirror in another.

    Args:
        broker: connections of this process.
        settings: which queues, which database, how often.
        stopping: asked several times a second; True ends `run`.
    """

    def __init__(self, broker: Broker, settings: Settings, stopping: Callable[[], bool]) -> None:
        queues = list(settings.queues)
        self._broker = broker
        self._reaper = Reaper(broker, queues, settings.lease_ms)
        self._mirror = Mirror(broker, queues, using=settings.database)
        self._workers = WorkerRegister(broker, using=settings.database)
        # At least four looks a lease: the reaper takes half a lease without one for an outage, and then holds.
        self._reap_s = min(settings.reap_ms, settings.lease_ms / 4) / 1000
        self._stopping = stopping
        self._changed = threading.Event()
        self._faults = RepeatLog(logger)

    def run(self) -> None:
        """Work until told to stop; then mirror what is left, for at most five seconds."""
        self._warn_of_the_server()
        reaping = threading.Thread(target=self._reap, name="jobrail-reaper", daemon=True)
        reaping.start()
        self._mirror_until_stopped()
        reaping.join()
        end = time.monotonic() + LAST_S
        while self._store():
            if time.monotonic() > end:
                logger.warning("The worker stops before the mirror has stored all changes; the next one will go on.")
                break
        connections.close_all()

    def _warn_of_the_server(self) -> None:
        """Say once what about the server puts jobs at risk; a server that is away can be asked no such thing."""
        try:
            server = self._broker.server()
        except JobRailError:
            return
        for problem in server.problems() if server else ():
            logger.warning("%s", problem, extra=extra("server_problem"))

    def _reap(self) -> None:
        while not self._stopping():
            try:
                if self._reaper.run_once().unmirrored:
                    self._changed.set()
                self._recovered("reaper_failed")
            except Exception as exc:  # nobody would notice that this thread has ended
                self._failed("reaper_failed", exc)
            self._sleep(self._reap_s)

    def _mirror_until_stopped(self) -> None:
        next_workers = 0.0
        while not self._stopping():
            self._changed.clear()
            while self._store() and not self._stopping():
                pass
            if time.monotonic() >= next_workers:
                next_workers = time.monotonic() + WORKERS_S
                self._guarded("workers_failed", self._workers.run_once)
            end = time.monotonic() + MIRROR_S
            while not self._stopping() and time.monotonic() < end and not self._changed.wait(0.1):
                pass

    def _store(self) -> bool:
        """Run the mirror once; True when there may be more to do."""
        counts = self._guarded("mirror_failed", self._mirror.run_once)
        if counts is None:
            self._sleep(PAUSE_S)
            self._changed.set()
            return False
        return counts.more

    def _guarded(self, action: str, run_once: Callable[[], T]) -> T | None:
        try:
            counts = run_once()
        except Exception as exc:
            self._failed(action, exc)
            return None
        self._recovered(action)
        return counts

    def _failed(self, action: str, exc: Exception) -> None:
        expected = isinstance(exc, (JobRailError, DatabaseError))
        text = "Upkeep failed and will try again: %s: %s"
        level = logging.WARNING if expected else logging.ERROR
        self._faults.log(level, action, text, type(exc).__name__, exc, exc_info=not expected)

    def _recovered(self, action: str) -> None:
        if self._faults.recovered(action):
            logger.info("Upkeep works again: action=%s", action)

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
