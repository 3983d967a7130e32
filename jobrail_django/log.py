"""Helpers for logging; JobRail never configures handlers and never logs arguments or results."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

#: A repeating failure is logged once, then at most this often, in seconds.
REPEAT_EVERY_S = 30.0


def extra(action: str, *, job_id: str | None = None, **data: object) -> dict[str, object]:
    """Return the ``extra=`` of a log call: the action, such as ``job_failed``, and what is known of its object."""
    known = {"job_id": job_id, **data}
    return {"action": action, **{key: value for key, value in known.items() if value is not None}}


class RepeatLog:
    """Log a repeating failure once, then at most every 30 s with the number left out in between.

    Safe to share between threads.

    Args:
        logger: Where to log.
        every_s: Shortest time between two records of one action, in seconds.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self, logger: logging.Logger, *, every_s: float = REPEAT_EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}  # action → (last logged at, left out since)

    def log(self, level: int, action: str, message: str, *args: object, exc_info: bool = False, **data: object) -> bool:
        """Log unless the same action was logged a short while ago; returns whether it did.

        Args:
            level: As of `logging`.
            action: What repeats; also the record's ``action``.
            message: Constant text with ``%`` places for `args`.
            *args: For the places.
            exc_info: Add the traceback of the exception being handled.
            **data: More for the record's ``extra``.
        """
        now = self._clock()
        with self._lock:
            last, left_out = self._last.get(action, (None, 0))
            if last is not None and now - last < self._every_s:
                self._last[action] = (last, left_out + 1)
                return False
            self._last[action] = (now, 0)
        if left_out:
            message += " (%d more since the last message)"
            args = (*args, left_out)
        fields: Mapping[str, object] = extra(action, **data)  # type: ignore[arg-type]
        self._logger.log(level, message, *args, exc_info=exc_info, extra=fields, stacklevel=2)
        return True

    def recovered(self, action: str) -> bool:
        """Forget an action that works again; returns whether it had failed, so that the caller can say so."""
        with self._lock:
            return self._last.pop(action, None) is not None
