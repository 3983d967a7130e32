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
            raise _unknown(name, names)
        if name in found:
            raise ConfigurationError(f"Queue {name!r} is named twice; give it once, with a weight: --queue {name}=2.")
        found[name] = _weight(name, weight) if separator else 1
    return found


def _unknown(name: str, declared: Sequence[str]) -> UnknownQueue:
    parts = name.split(",")
    if len(parts) > 1 and all(part in declared for part in parts):
        remedy = f". Give each its own option: {' '.join(f'--queue {part}' for part in parts)}."
    else:
        guess = did_you_mean(name, declared) or "."
        remedy = f"{guess} JOBRAIL['QUEUES'] declares {', '.join(map(repr, declared))}."
    return UnknownQueue(f"Unknown queue {name!r}{remedy}", queue=name)


def _weight(queue: str, text: str) -> int:
    if text.isdecimal() and len(text) <= len(str(MAX_WEIGHT)) and 1 <= int(text) <= MAX_WEIGHT:
        return int(text)
    raise ConfigurationError(
        f"The weight {text[:20]!r} of queue {queue!r} is not valid: expected a whole number from 1 to {MAX_WEIGHT}."
    )
