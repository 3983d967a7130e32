"""The conservation check: every accepted job is in exactly one state, at all times and in the rows at last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import redis
from django.db.models import Count

from jobrail_django.models import Attempt, Job
from jobrail_django.states import FINAL
from tests.lua.invariants import check_state, jobs_in

_FINAL = {state.value for state in FINAL}

#: Reads everything under the prefix of a queue's keys in one step: {key, kind, value} each.
_READ = """#!lua flags=no-writes
local found = {}
for i, key in ipairs(redis.call("KEYS", ARGV[1] .. "*")) do
  local kind, value = redis.call("TYPE", key).ok, false
  if kind == "zset" then
    value = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
  elseif kind == "hash" then
    value = redis.call("HGETALL", key)
  elseif kind == "list" then
    value = redis.call("LRANGE", key, 0, -1)
  end
  found[i] = { string.sub(key, #ARGV[1] + 1), kind, value }
end
return found
"""

State = dict[str, Any]


def look(client: redis.Redis, prefix: str, queue: str) -> State:
    """Read a queue's whole state in one step, in the form that `tests.lua.invariants` checks."""
    state: State = {}
    for raw_name, kind, value in client.eval(_READ, 0, f"{prefix}:{{{queue}}}:"):
        name = raw_name.decode()
        if kind == b"zset":
            state.update({f"{name}/{value[i].decode()}": int(float(value[i + 1])) for i in range(0, len(value), 2)})
        elif kind == b"hash":
            pairs = zip(value[::2], value[1::2], strict=True)
            state.update({f"{name}/{field.decode()}": text.decode(errors="replace") for field, text in pairs})
        elif kind == b"list":
            state.update({f"{name}/{i}": item for i, item in enumerate(value)})
        else:
            state[name] = ""
    return state


class Conservation:
    """Watches the jobs of some queues from a thread of its own while the block lasts.

    Every look is one atomic read of a queue. It finds: a job in two places or in none, a place that is not the
    one of its state, an accepted job that is gone before it has ended, a `rev` or a token that went back, and a job
    that left an end state within its round.

    Args:
        connect: makes a client to the server, past any fault proxy.
        prefix: of the keys.
        queues: names.
        every_s: pause between two looks.
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
        self._seen: dict[str, Mapping[str, Any]] = {}
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
            while not self._over.wait(self._every_s):
                try:
                    self.check(client)
                except redis.RedisError:
                    continue  # the server is away, as some test wants it

    def check(self, client: redis.Redis) -> None:
        """Look once at every queue, and note what is wrong."""
        for queue in self._queues:
            with self._lock:
                accepted = [job for job, where in self._accepted.items() if where == queue]
            state = look(client, self._prefix, queue)
            try:
                check_state(state)
                self._check_jobs(jobs_in(state), accepted)
            except (AssertionError, KeyError, ValueError) as exc:
                self.violations.append(f"{queue}: {type(exc).__name__}: {exc}")
        self.looks += 1

    def _check_jobs(self, jobs: Mapping[str, Mapping[str, Any]], accepted: Iterable[str]) -> None:
        for job in accepted:
            if job not in jobs:
                last = self._seen.get(job, {}).get("state", "never seen")
                assert last in _FINAL, f"{job} is gone, its last state was {last}"
        for job, fields in jobs.items():
            before = self._seen.get(job)
            self._seen[job] = fields
            if before is None:
                continue
            for name in ("rev", "token", "round"):
                assert int(fields.get(name, 0)) >= int(before.get(name, 0)), f"the {name} of {job} went back"
            if before["state"] in _FINAL and fields.get("round") == before.get("round"):
                assert fields["state"] == before["state"], f"{job} was {before['state']} and is {fields['state']}"

    def assert_rows_equal_redis(self, client: redis.Redis) -> None:
        """Hold the rows of all accepted jobs to Redis and to their own attempts; for when all is quiet."""
        live: dict[str, Mapping[str, Any]] = {}
        for queue in self._queues:
            live.update(jobs_in(look(client, self._prefix, queue)))
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
                said = (fields["state"], *(int(fields.get(n) or d) for n, d in _NUMBERS))
                assert kept == said, f"the row of {job} says {kept}, Redis {said}"
            had = outcomes.get((job, row.round), {})
            lost, charged = had.pop("lost", 0), sum(had.values()) - had.pop("released", 0)
            assert (charged, lost) == (row.attempts, row.losses), f"{job} {row} has the attempts {had} and {lost} lost"
            succeeded = had.get("succeeded", 0)
            assert succeeded == (row.state == "succeeded"), f"{job} is {row.state} and has succeeded {succeeded} times"


_NUMBERS = (("rev", 0), ("round", 1), ("attempts", 0), ("losses", 0))
