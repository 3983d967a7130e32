"""Small shared types and the one place where durations become seconds."""

from __future__ import annotations

import math
from datetime import timedelta

#: A duration as the public interface takes it: seconds, or a timedelta.
Duration = int | float | timedelta

#: Longest accepted duration in seconds (100 years): beyond it a value is a slip of the unit, not a wish.
MAX_SECONDS = 100 * 366 * 86_400


def seconds(value: object, *, above: float | None = None, at_least: float = 0, at_most: float = MAX_SECONDS) -> float:
    """Turn a duration into seconds, never clamping it.

    Args:
        value: Seconds (int or float, not bool) or a timedelta.
        above: Exclusive lower bound in seconds; None = none.
        at_least: Inclusive lower bound in seconds.
        at_most: Inclusive upper bound in seconds.

    Raises:
        ValueError: Not a duration, not finite, or out of range. The text names the value and what was expected;
            callers put the name of their option or setting in front and raise their own error.
    """
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        result = value
    else:
        raise ValueError(f"{value!r} is not a duration; give seconds as a number, or a timedelta")
    low = f"above {above:g}" if above is not None else f"at least {at_least:g}"
    if not math.isfinite(result) or result < at_least or result > at_most or (above is not None and result <= above):
        raise ValueError(f"{value!r} is out of range; give {low} and at most {at_most:g} seconds, or a timedelta")
    return float(result)
