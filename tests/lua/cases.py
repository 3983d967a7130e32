"""For each script one call or more that together use all its keys; for what every script has to stand up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobrail_django.broker.scripts import Script

from .rig import EPOCH, LEASE, NOW, SLOT, New, Out, Rig, claim_id, job_id

CLAIM = claim_id(1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script's seed and calls.

    Attributes:
        seed: makes the state before the calls.
        calls: arguments after the prefix and the time, for the scripts that take those.
        bare: the script takes neither prefix nor time.
        timed: the script takes the time.
    """

    seed: Callable[[Rig], object] = field(default=lambda rig: None)
    calls: Sequence[Sequence[Any]]
    bare: bool = False
    timed: bool = True

    def run(self, rig: Rig, script: Script, *, prefix: str = "") -> list[Any]:
        """Make the calls, perhaps with the prefix of another queue, and return their replies."""
        start = [] if self.bare else [prefix or rig.keys.prefix]
        if self.timed:
            start.append(rig.now)
        return [rig.run(script, *start, *call) for call in self.calls]


def _waiting(rig: Rig) -> None:
    """One job each in ready, scheduled and retrying; the last two due after 5 ms, which have passed."""
    rig.running(1)
    rig.settle(Out(n=1, verb="retry", claim=CLAIM, delay=5))
    rig.enqueue(New(n=2, delay=5, key="k"), New(n=3), New(n=4, key="l"))
    rig.now = NOW + 5


def _running(rig: Rig) -> None:
    rig.running(1, 2, 3, 4, 5)
    rig.enqueue(New(n=6), New(n=7), New(n=8, delay=5))
    rig.now = NOW + 5


def _expired(rig: Rig) -> None:
    rig.running(1, 2)
    rig.enqueue(New(n=3), New(n=4, delay=5))
    rig.now = NOW + LEASE


CASES: dict[Script, Case] = {
    Script.ENQUEUE: Case(
        seed=lambda rig: rig.ended(9, "dead"),
        calls=[(4, *New(n=1).values(), *New(n=2, delay=9, key="k").values(), *New(n=3, key="k").values(),
                *New(n=9, round=2).values())],
    ),
    Script.CLAIM: Case(seed=_waiting, calls=[(SLOT, 2, 1, 1, LEASE, EPOCH)]),
    Script.SETTLE: Case(
        seed=_running,
        calls=[(SLOT, 2, 1, 1, LEASE, EPOCH, 5,
                *(value for n, verb in enumerate(("succeed", "retry", "release", "return", "lost"), 1)
                  for value in Out(n=n, verb=verb, claim=CLAIM, delay=9).values()))],
    ),
    Script.HEARTBEAT: Case(seed=_running, calls=[(LEASE, 2, job_id(1), CLAIM, "1", job_id(2), CLAIM, "1")]),
    Script.PROMOTE: Case(seed=_waiting, calls=[(100,)]),
    Script.REAP: Case(seed=_expired, calls=[(100, LEASE // 2, LEASE // 3)]),
    Script.CANCEL: Case(
        seed=lambda rig: (_waiting(rig), setattr(rig, "now", NOW), rig.running(5, request=2, priority=1)),
        calls=[(job_id(n), "stop") for n in (1, 2, 3, 5)],
    ),
    Script.RETRY: Case(
        seed=lambda rig: (_waiting(rig), rig.cancel(3)), calls=[(job_id(1), 1), (job_id(3), 1)]
    ),
    Script.PAUSE: Case(seed=_waiting, calls=[("1",), ("",)], bare=True, timed=False),
    Script.PURGE: Case(seed=_waiting, calls=[(100, "purged")]),
    Script.STATS: Case(seed=lambda rig: (_waiting(rig), rig.running(5, request=2, priority=1)), calls=[()]),
    Script.CHANGES: Case(seed=_running, calls=[(100,)]),
    Script.MIRRORED: Case(seed=_running, calls=[(10_000, 2, job_id(1), 2, job_id(6), 1)], timed=False),
    Script.OPEN_EPOCH: Case(seed=lambda rig: rig.client.delete(rig.keys.meta), calls=[("mine",)], bare=True, timed=False),
    Script.BEAT: Case(calls=[("w", LEASE, "info"), ("w", 0, "")], bare=True),
}  # fmt: skip
