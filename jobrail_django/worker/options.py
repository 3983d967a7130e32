"""What a worker was asked to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError, UnknownQueue, did_you_mean


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of `jobrail_worker`.

    Attributes:
        queues: name → weight (≥ 1): of four claims, three go first to a queue of weight 3 beside one of weight 1.
        processes: children that run jobs; 0 = only upkeep.
        threads: slots per child.
        upkeep: run the reaper, the promoter and the mirror.
        burst: stop once nothing is ready, due, retrying or running.
        max_jobs: replace a child after this many jobs; 0 = never.
        max_memory_mb: replace a child whose resident memory is above this; 0 = never.
        grace_s: how long jobs may go on after the first TERM.
    """

    queues: dict[str, int]
    processes: int
    threads: int
    upkeep: bool = True
    burst: bool = False
    max_jobs: int = 0
    max_memory_mb: int = 0
    grace_s: float = 30.0


#: Parts of a worker that can be left out.
PARTS = ("jobs", "upkeep")

#: Largest weight of a queue.
MAX_WEIGHT = 1000


def parse_queues(values: Sequence[str], declared: Iterable[str]) -> dict[str, int]:
    """Read the values of `--queue NAME[=WEIGHT]`; none given means all declared queues with weight 1.

    Raises:
        ConfigurationError: a queue that the settings do not declare, twice the same, or a bad weight.
    """
    names = list(declared)
    if not values:
        return dict.fromkeys(names, 1)
    found: dict[str, int] = {}
    for value in values:
        name, separator, weight = value.partition("=")
        if name not in names:
            raise UnknownQueue(
                f"Unknown queue {name!r}{did_you_mean(name, names)}. JOBRAIL['QUEUES'] declares "
                f"{', '.join(map(repr, names))}.",
                queue=name,
            )
        if name in found:
            raise ConfigurationError(f"Queue {name!r} is named twice; give it once, with a weight: --queue {name}=2.")
        if separator and not (weight.isdecimal() and 1 <= int(weight) <= MAX_WEIGHT):
            raise ConfigurationError(
                f"The weight {weight!r} of queue {name!r} is not valid: expected a whole number from 1 to {MAX_WEIGHT}."
            )
        found[name] = int(weight) if separator else 1
    return found
