"""A job that the mirror could not store for long: its history may be of any length."""

from __future__ import annotations

import redis

from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import NewJob

QUEUE, JOB = "q", "00000000-0000-7000-8000-000000000001"
#: More than Lua can hand to one call of a function, which is about 8,000.
ATTEMPTS = 8_100


def test_mirrored_drops_more_attempts_than_one_call_can_name(redis_client: redis.Redis, prefix: str) -> None:
    broker = Broker(redis_client, prefix)
    broker.enqueue(QUEUE, [NewJob(id=JOB, payload=b"work", rev_floor=ATTEMPTS)])
    key = broker.keys(QUEUE).job(JOB)
    redis_client.hset(key, mapping={f"a:{rev}": f"{rev} 1 1 released 1 2 w.0.0:{rev}" for rev in range(ATTEMPTS)})

    (job,) = broker.changes(QUEUE).jobs
    assert len(job.history) == ATTEMPTS
    assert broker.mirrored(QUEUE, [(job.id, job.rev)]) == 1

    (left,) = [broker.get(QUEUE, JOB)]
    assert left is not None and not left.history
