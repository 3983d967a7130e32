"""The conservation check: every accepted job is in exactly one state, at all times and in the rows at last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import redis
from django.db.models import Count

from jobrail_django.models import Attempt, Job
from jobrail_django.states import FINAL

_FINAL = {state.value for state in FINAL}

#: The zset that holds a job of each state that waits or runs.
PLACES = {"ready": "ready", "scheduled": "scheduled", "retrying": "retrying", "running": "leases"}

#: What is read of each job.
FIELDS = ("state", "rev", "token", "round", "claim", "due", "finished", "attempts", "losses", "limits")

#: Reads the places and all jobs of a queue in one step.
_READ = """#!lua flags=no-writes
local places, jobs = {}, {}
for i = 2, 5 do
  places[i - 1] = redis.call("ZRANGE", ARGV[1] .. ARGV[i], 0, -1, "WITHSCORES")
end
for i, key in ipairs(redis.call("KEYS", ARGV[1] .. "job:*")) do
  jobs[i] = { string.sub(key, #ARGV[1] + 5), redis.call("HMGET", key, unpack(ARGV, 6)) }
end
return { places, jobs }
"""

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Look:
    """One consistent look at a queue: the members of each place with their scores, and the fields of each job."""

    places: Mapping[str, Mapping[str, int]]
    jobs: Mapping[str, Fields]


def look(client: redis.Redis, prefix: str, queue: str) -> Look:
    """Take a look at a queue, in one step of the server."""
    names = list(PLACES.values())
    places, jobs = client.eval(_READ, 0, f"{prefix}:{{{queue}}}:", *names, *FIELDS)
    return Look(
        {
            name: {pairs[i].decode(): int(float(pairs[i + 1])) for i in range(0, len(pairs), 2)}
            for name, pairs in zip(names, places, strict=True)
        },
        {
            job.decode(): {name: (value or b"").decode() for name, value in zip(FIELDS, values, strict=True)}
            for job, values in jobs
        },
    )


def number(fields: Fields, name: str, default: int = 0) -> int:
    """Read a field that is a number, or absent."""
    return int(fields[name] or default)


def check_look(seen: Look) -> None:
    """One place per job, the one of its state, and no place holds what is no job."""
    for name, members in seen.places.items():
        strange = set(members) - set(seen.jobs)
        assert not strange, f"{name} holds {strange}, which are no jobs"
    for job, fields in seen.jobs.items():
        state = fields["state"]
        found = [name for name, members in seen.places.items() if job in members]
        wanted = [PLACES[state]] if state in PLACES else []
        assert found == wanted, f"{job} is {state} and is found among the {found}"
        assert state in PLACES or state in _FINAL, f"{job} has the state {state!r}"
        assert bool(fields["finished"]) == (state in _FINAL), f"{job} is {state}, finished={fields['finished']!r}"
        if state in ("scheduled", "retrying"):
            assert number(fields, "due") == seen.places[state][job], f"{job} is due at another time than its place says"
        if state == "running":
            assert fields["claim"], f"{job} runs without a claim"
        attempts, losses = (int(limit) for limit in fields["limits"].split(","))
        assert number(fields, "attempts") <= attempts, f"{job} had more attempts than allowed"
        assert number(fields, "losses") <= losses, f"{job} was lost more often than allowed"


class Conservation:
    """Watches the jobs of some queues from a thread of its own while the block lasts.

    Every look is one atomic read of a queue. It finds: a job in two places or in none, a place that is not the
    one of its state, an accepted job that is gone before it has ended, a `rev` or a token that went back, and a job
    that left an end state within its round.

    Args:
        connect: makes a client to the server, past any fault proxy.
        prefix: of the keys.
        queues: names.
        every_s: pause between two looks; larger where a look takes long, so that it takes little of the time.
    """

    def __init__(
        self, connect: Callable[[], redis.Redis], prefix: str, queues: Iterable[str], *, every_s: float = 0.1
    ) -> None:
        self.violations: list[str] = []
        self.looks = 0
        self._connect = connect
        self._prefix = prefix
        self._queues = tuple(queues)
        self._every_s = every_s
        self._accepted: dict[str, str] = {}  # id → queue
        self._seen: dict[str, Fields] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="conservation", daemon=True)

    @property
    def accepted(self) -> list[str]:
        """Return the ids of all accepted jobs."""
        return list(self._accepted)

    def accept(self, ids: Iterable[str], queue: str) -> None:
        """From now on these jobs must not get lost."""
        with self._lock:
            self._accepted.update(dict.fromkeys(ids, queue))

    def __enter__(self) -> Conservation:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the conservation check did not end"

    def _watch(self) -> None:
        with self._connect() as client:
            pause_s = self._every_s
            while not self._over.wait(pause_s):
                began = time.monotonic()
                try:
                    self.check(client)
                except redis.RedisError:
                    pass  # the server is away, as some test wants it
                pause_s = max(self._every_s, 5 * (time.monotonic() - began))

    def check(self, client: redis.Redis) -> None:
        """Look once at every queue, and note what is wrong."""
        for queue in self._queues:
            with self._lock:
                accepted = [job for job, where in self._accepted.items() if where == queue]
            seen = look(client, self._prefix, queue)
            try:
                check_look(seen)
                self._check_jobs(seen.jobs, accepted)
            except (AssertionError, KeyError, ValueError) as exc:
                self.violations.append(f"{queue}: {type(exc).__name__}: {exc}")
        self.looks += 1

    def _check_jobs(self, jobs: Mapping[str, Fields], accepted: Iterable[str]) -> None:
        for job in accepted:
            if job not in jobs:
                last = self._seen[job]["state"] if job in self._seen else "never seen"
                assert last in _FINAL, f"{job} is gone, its last state was {last}"
        for job, fields in jobs.items():
            before = self._seen.get(job)
            self._seen[job] = fields
            if before is None:
                continue
            for name in ("rev", "token", "round"):
                assert number(fields, name) >= number(before, name), f"the {name} of {job} went back"
            if before["state"] in _FINAL and fields["round"] == before["round"]:
                assert fields["state"] == before["state"], f"{job} was {before['state']} and is {fields['state']}"

    def assert_rows_equal_redis(self, client: redis.Redis) -> None:
        """Hold the rows of all accepted jobs to Redis and to their own attempts; for when all is quiet."""
        live: dict[str, Fields] = {}
        for queue in self._queues:
            live.update(look(client, self._prefix, queue).jobs)
        rows = {str(row.id): row for row in Job.objects.all()}
        outcomes: dict[tuple[str, int], dict[str, int]] = {}
        for job, job_round, outcome, count in (
            Attempt.objects.order_by().values_list("job_id", "round", "outcome").annotate(n=Count("id"))
        ):
            outcomes.setdefault((str(job), job_round), {})[outcome] = count
        for job in self._accepted:
            assert job in rows, f"{job} has no row"
            row, fields = rows[job], live.get(job)
            if fields is None:
                assert row.state in _FINAL, f"{job} is gone from Redis and its row says {row.state}"
            else:
                kept = (row.state, row.rev, row.round, row.attempts, row.losses)
                numbers = [number(fields, name) for name in ("rev", "attempts", "losses")]
                said = (fields["state"], numbers[0], number(fields, "round", 1), *numbers[1:])
                assert kept == said, f"the row of {job} says {kept}, Redis {said}"
            had = outcomes.get((job, row.round), {})
            lost, charged = had.pop("lost", 0), sum(had.values()) - had.pop("released", 0)
            assert (charged, lost) == (row.attempts, row.losses), f"{job} {row} has the attempts {had} and {lost} lost"
            succeeded = had.get("succeeded", 0)
            assert succeeded == (row.state == "succeeded"), f"{job} is {row.state} and has succeeded {succeeded} times"
