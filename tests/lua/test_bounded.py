"""No script does more the more jobs there are: calls and time are counted in a small and in a large queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import redis
import uuid_utils

from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import Claim, HeldLease, NewJob, Settlement
from jobrail_django.broker.scripts import Script

from ..servers import RedisServer
from .rig import EPOCH, LEASE, NOW, QUEUE

#: Enough for all calls below to have their hundred jobs each time.
SMALL = 3_000
LARGE = [pytest.param(20_000, id="20000"), pytest.param(100_000, id="100000", marks=pytest.mark.slow)]

#: Commands that the test itself sends, or that carry the script.
_OWN = {"cmdstat_evalsha", "cmdstat_eval", "cmdstat_info", "cmdstat_config|resetstat", "cmdstat_client|setinfo"}


@dataclass
class World:
    """A queue with as many jobs ready, scheduled, retrying and running, and not mirrored."""

    broker: Broker
    now: int = NOW
    n: int = 0

    def fill(self, size: int) -> None:
        """Make the jobs."""
        self.broker.open_epoch(QUEUE, EPOCH)
        for _ in range(0, size, 100):
            self.enqueue(200)
            self.settle(self.claim(100), "park", 5_000)
            self.claim(100)
            self.enqueue(100, delay_ms=5_000)
        for _ in range(0, size, 100):
            self.enqueue(100)

    def enqueue(self, count: int, **options: int) -> list[str]:
        """Enqueue jobs."""
        jobs = [
            NewJob(id=str(uuid_utils.uuid7()), payload=b"x", max_attempts=3, max_losses=3, **options)
            for _ in range(count)
        ]
        return [answer.id for answer in self.broker.enqueue(QUEUE, jobs)]

    def claim(self, count: int) -> list[str]:
        """Claim jobs as the next request of the slot."""
        self.n += 1
        claim = Claim(slot="w.0.0", n=self.n, ack=self.n - 1, limit=count, lease_ms=LEASE, epoch=EPOCH)
        return [job.id for job in self.broker.claim(QUEUE, claim).jobs]

    def outcomes(self, ids: list[str], verb: str, delay: int = 0) -> list[Settlement]:
        """Return outcomes of jobs that were claimed last."""
        return [Settlement(i, f"w.0.0:{self.n}", verb, "failed", delay_ms=delay) for i in ids]  # type: ignore[arg-type]

    def settle(self, ids: list[str], verb: str, delay: int = 0) -> None:
        """Settle jobs that were claimed last."""
        self.broker.settle(QUEUE, "w.0.0", self.outcomes(ids, verb, delay))


Prepared = Callable[[], object]


def _settle(world: World) -> Prepared:
    outcomes = world.outcomes(world.claim(100), "retry", 1)
    claim = Claim(slot="w.0.0", n=world.n + 1, ack=world.n, limit=100, lease_ms=LEASE, epoch=EPOCH)
    return lambda: world.broker.settle(QUEUE, "w.0.0", outcomes, claim)


def _heartbeat(world: World) -> Prepared:
    ids = world.claim(100)
    leases = [HeldLease(job_id, f"w.0.0:{world.n}", True) for job_id in ids]
    return lambda: world.broker.heartbeat(QUEUE, leases, LEASE)


def _claim_given_again(world: World) -> Prepared:
    world.claim(100)
    claim = Claim(slot="w.0.0", n=world.n + 1, ack=0, limit=100, lease_ms=LEASE, epoch=EPOCH)
    return lambda: world.broker.claim(QUEUE, claim)


def _one(world: World, call: Callable[[str], object]) -> Prepared:
    (job_id,) = world.enqueue(1)
    return lambda: call(job_id)


def _retry(world: World) -> Prepared:
    (job_id,) = world.enqueue(1)
    world.broker.cancel(QUEUE, job_id, "stop")
    return lambda: world.broker.retry(QUEUE, job_id, 1)


#: What each script does at its limit: prepared before the count, then called once.
CALLS: dict[str, tuple[Script, Callable[[World], Prepared]]] = {
    "enqueue": (Script.ENQUEUE, lambda world: lambda: world.enqueue(100)),
    "claim": (Script.CLAIM, lambda world: lambda: world.claim(100)),
    "claim given again": (Script.CLAIM, _claim_given_again),
    "settle": (Script.SETTLE, _settle),
    "heartbeat": (Script.HEARTBEAT, _heartbeat),
    "promote": (Script.PROMOTE, lambda world: lambda: world.broker.promote(QUEUE)),
    "reap": (Script.REAP, lambda world: lambda: world.broker.reap(QUEUE, gap_ms=LEASE * 99, hold_ms=1)),
    "cancel": (Script.CANCEL, lambda world: _one(world, lambda i: world.broker.cancel(QUEUE, i, "stop"))),
    "retry": (Script.RETRY, _retry),
    "pause": (Script.PAUSE, lambda world: lambda: world.broker.pause(QUEUE, False)),
    "purge": (Script.PURGE, lambda world: lambda: world.broker.purge(QUEUE, "purged")),
    "stats": (Script.STATS, lambda world: lambda: world.broker.stats(QUEUE)),
    "changes": (Script.CHANGES, lambda world: lambda: world.broker.changes(QUEUE)),
    "mirrored": (Script.MIRRORED, lambda world: lambda: world.broker.mirrored(
        QUEUE, [(job.id, job.rev) for job in world.broker.changes(QUEUE).jobs])),
    "open_epoch": (Script.OPEN_EPOCH, lambda world: lambda: world.broker.open_epoch(QUEUE, "mine")),
}  # fmt: skip

#: Where the clock stands: nothing is due or expired; everything is.
CLOCKS = {"nothing due": NOW, "all due": NOW + 10 * LEASE}

#: Beat is about workers, of which there are never many.
COUNTED = set(Script) - {Script.BEAT}


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with RedisServer() as server, server.client() as client:
        yield client


def work(client: redis.Redis, call: Prepared) -> tuple[int, int]:
    """Return how many commands a script's call ran, and its time on the server in µs."""
    client.config_resetstat()
    call()
    stats = client.info("commandstats")
    usec = sum(stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)
    return sum(entry["calls"] for name, entry in stats.items() if name not in _OWN), usec


def measured(client: redis.Redis, size: int) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the work of every call in a queue of some size, by clock and name."""
    world = World(Broker(client, f"world{size}", now_ms=lambda: world.now))
    world.fill(size)
    found = {}
    for clock, now in CLOCKS.items():
        world.now = now
        for name, (_, prepare) in CALLS.items():
            # Three times: the first may load the script, and the machine has other work.
            done = [work(client, prepare(world)) for _ in range(3)]
            found[clock, name] = max(commands for commands, _ in done), min(usec for _, usec in done)
    return found


def test_every_script_is_counted() -> None:
    assert {script for script, _ in CALLS.values()} == COUNTED


@pytest.mark.parametrize("size", LARGE)
def test_work_of_a_script_does_not_grow_with_the_queue(client: redis.Redis, size: int) -> None:
    small, large = measured(client, SMALL), measured(client, size)

    lines = [f"{SMALL} jobs → {size} jobs: commands, µs"]
    growing = []
    for (clock, name), (commands, usec) in small.items():
        more, longer = large[clock, name]
        lines.append(f"{clock:12} {name:18} {commands:5} → {more:5} {usec:7} → {longer:7}")
        if more > commands or longer > 10 * usec + 2_000:
            growing.append(lines[-1])
    print("\n".join(lines))
    assert not growing, "\n".join([lines[0], *growing])
