"""Waiting for conditions instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], within_s: float, what: str) -> T:
    """Wait until the condition is true and return what it returned.

    Raises:
        AssertionError: it has not become true in time; the text says `what` was waited for.
    """
    end = time.monotonic() + within_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"after {within_s:g} s still not: {what}")
        time.sleep(0.01)
