"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from .errors import InvalidOption
from .types import Duration, seconds

#: Longest delay unless `cap` says otherwise, in seconds.
DEFAULT_CAP_S = 600.0


@dataclass(frozen=True)
class Backoff:
    """Exponential delays: ``base * factor ** (attempt - 1)``, at most `cap`, spread by jitter.

    Args:
        base: Delay after the first attempt, seconds or timedelta, 0 or more.
        cap: Longest delay, seconds or timedelta, not below `base`.
        jitter: Draw each delay evenly from its upper half, so that jobs that failed together come back apart.
        factor: Growth per attempt, 1 or more (1 = always `base`).

    Raises:
        InvalidOption: A value is out of range.
    """

    base: Duration = 2.0
    cap: Duration = DEFAULT_CAP_S
    jitter: bool = True
    factor: float = 2.0

    def __post_init__(self) -> None:
        """Check and normalise the values to seconds."""
        for name in ("base", "cap"):
            try:
                object.__setattr__(self, name, seconds(getattr(self, name)))
            except ValueError as exc:
                raise InvalidOption(f"Backoff({name}=…): {exc}", option="backoff") from None
        factor = self.factor
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 1 <= factor <= 1000:
            raise InvalidOption(f"Backoff(factor={factor!r}) must be a number from 1 to 1000", option="backoff")
        if not isinstance(self.jitter, bool):
            raise InvalidOption(f"Backoff(jitter={self.jitter!r}) must be True or False", option="backoff")
        if self.cap_s < self.base_s:
            raise InvalidOption(
                f"Backoff(base={self.base!r}, cap={self.cap!r}): cap must not be below base; raise cap",
                option="backoff",
            )

    @property
    def base_s(self) -> float:
        """Delay after the first attempt, in seconds."""
        return seconds(self.base)

    @property
    def cap_s(self) -> float:
        """Longest delay, in seconds."""
        return seconds(self.cap)

    def delay_s(self, attempt: int, rng: random.Random | None = None) -> float:
        """Return the delay in seconds after attempt number `attempt` (from 1) has failed.

        Args:
            attempt: Number of the attempt that failed, 1 or more.
            rng: Source of the jitter; None = the process's own.
        """
        try:
            delay = min(self.cap_s, self.base_s * float(self.factor) ** (max(attempt, 1) - 1))
        except OverflowError:
            delay = self.cap_s if self.base_s else 0.0
        if self.jitter:
            delay = (rng or random).uniform(delay / 2, delay)
        return delay

    def to_json(self) -> dict[str, float | bool]:
        """Return the values as plain JSON; `from_json` is the way back."""
        return {"base": self.base_s, "cap": self.cap_s, "jitter": self.jitter, "factor": self.factor}

    @classmethod
    def from_json(cls, data: Mapping[str, float | bool]) -> Backoff:
        """Rebuild what `to_json` returned.

        Raises:
            InvalidOption: A value is missing, unknown or out of range.
        """
        if set(data) != {"base", "cap", "jitter", "factor"}:
            raise InvalidOption(f"Not a stored backoff: it has the keys {sorted(data)!r}", option="backoff")
        return cls(base=data["base"], cap=data["cap"], jitter=bool(data["jitter"]), factor=data["factor"])

    @classmethod
    def of(cls, value: object) -> Backoff:
        """Return a backoff as it is, or make one whose first delay is the given seconds or timedelta.

        A first delay beyond the usual cap of 10 minutes raises the cap to that delay.

        Raises:
            InvalidOption: `value` is none of the three, or out of range.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)):
            raise InvalidOption(
                f"{value!r} is not a backoff; give seconds, a timedelta, or Backoff(base=2, cap=600)", option="backoff"
            )
        try:
            base = seconds(value)
        except ValueError as exc:
            raise InvalidOption(f"backoff: {exc}", option="backoff") from None
        return cls(base=base, cap=max(base, DEFAULT_CAP_S))
