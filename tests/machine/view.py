"""A queue's whole state, read from Redis in one step and told by the model in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis

from jobrail_django.broker.keys import QueueKeys
from jobrail_django.broker.records import JobRecord, job_record

from .model import Job, Queue

#: Reads every key under a prefix: {key, type, ms to live (-1 = for ever), content} *. Finds what nobody expects, too.
_SNAPSHOT = """
local found = {}
for _, key in ipairs(redis.call("KEYS", ARGV[1] .. "*")) do
  local kind, content = redis.call("TYPE", key).ok, nil
  if kind == "zset" then
    content = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
  elseif kind == "hash" then
    content = redis.call("HGETALL", key)
  elseif kind == "list" then
    content = redis.call("LRANGE", key, 0, -1)
  elseif kind == "string" then
    content = { redis.call("GET", key) }
  end
  found[#found + 1] = { key, kind, redis.call("PTTL", key), content or {} }
end
return found
"""
ZSETS = ("ready", "scheduled", "retrying", "leases", "changed")


@dataclass(frozen=True)
class Snapshot:
    """What Redis holds for one queue. Names have no prefix; the members of a zset stand in its order."""

    zsets: Mapping[str, Mapping[str, int]]
    hashes: Mapping[str, Mapping[str, str]]
    records: Mapping[str, JobRecord]
    meta: Mapping[str, str]
    strings: Mapping[str, str]
    wake: int
    ttl_ms: Mapping[str, int]
    unknown: tuple[str, ...]


def read(client: redis.Redis, keys: QueueKeys) -> Snapshot:
    """Look at everything under the queue's prefix, in one step."""
    zsets: dict[str, dict[str, int]] = {name: {} for name in ZSETS}
    hashes: dict[str, dict[str, str]] = {}
    records, strings, ttl_ms, meta, wake, unknown = {}, {}, {}, {}, 0, []
    for raw_key, raw_kind, left_ms, content in client.eval(_SNAPSHOT, 0, keys.prefix):
        name, kind = raw_key.decode().removeprefix(keys.prefix), raw_kind.decode()
        family, _, rest = name.partition(":")
        pairs = dict(zip(content[::2], content[1::2], strict=False))
        if kind == "zset" and name in zsets:
            zsets[name] = {member.decode(): int(float(score)) for member, score in pairs.items()}
        elif kind == "hash" and family == "job":
            records[rest] = job_record(rest, "q", pairs)
            hashes[rest] = {field.decode(): value.decode() for field, value in pairs.items()}
        elif kind == "hash" and name == "meta":
            meta = {field.decode(): value.decode() for field, value in pairs.items()}
        elif kind == "list" and name == "wake":
            wake = len(content)
        elif kind == "string" and family in ("slot", "key"):
            strings[name] = content[0].decode()
        else:
            unknown.append(f"{name} ({kind})")
        if left_ms >= 0:
            ttl_ms[name] = left_ms
    return Snapshot(zsets, hashes, records, meta, strings, wake, ttl_ms, tuple(unknown))


View = dict[str, Any]


def of_redis(found: Snapshot) -> View:
    """Tell a snapshot in the words in which the model is told."""
    view: View = {f"job {name}": _of_record(found.records[name], found.hashes[name]) for name in found.records}
    view |= {zset: found.zsets[zset] for zset in ZSETS if zset != "ready"}
    view["ready"] = list(found.zsets["ready"])
    view |= found.strings
    view |= {f"{name} expires": True for name in found.ttl_ms if name != "wake"}
    view["paused"], view["epoch"] = found.meta.get("paused") == "1", found.meta.get("epoch", "")
    return view


def _of_record(job: JobRecord, fields: Mapping[str, str]) -> View:
    running = job.state == "running"
    return {
        "state": job.state, "rev": job.rev, "round": job.round, "priority": job.priority, "due": job.due_ms,
        "limits": (job.max_attempts, job.max_losses), "attempts": job.attempts, "losses": job.losses,
        "enqueued": job.enqueued_ms, "finished": job.finished_ms, "payload": job.payload, "result": job.result,
        "reason": job.reason, "cancel asked": job.cancel_requested, "alone": fields.get("alone") == "1",
        "lease": (job.claim, int(fields.get("token", 0)), job.claimed_ms) if running else None,
        "started": running and fields.get("ran") == job.claim,
        "records": [
            (a.token, a.claim, a.round, a.number, a.outcome, a.started_ms, a.finished_ms, a.error) for a in job.history
        ],
    }  # fmt: skip


def of_model(queue: Queue) -> View:
    """Tell the model's state: what a snapshot has to show."""
    jobs = queue.jobs
    view: View = {f"job {name}": _of_job(job) for name, job in jobs.items()}
    view["ready"] = [job.new.id for job in queue.ready()]
    for state in ("scheduled", "retrying"):
        view[state] = {name: job.due_ms for name, job in jobs.items() if job.state == state}
    view["leases"] = {name: job.expires_ms for name, job in jobs.items() if job.state == "running"}
    view["changed"] = dict(queue.changed)
    for slot, (n, given, _) in queue.slots.items():
        view[f"slot:{slot}"] = f"{n} {' '.join(given)}"
    for key, (holder, mark, _) in queue.keys.items():
        view[f"key:{key}"] = f"{holder} {mark}"
    ending = [f"slot:{name}" for name in queue.slots] + [f"key:{name}" for name in queue.keys]
    ending += [f"job:{name}" for name, job in jobs.items() if job.tombstone_ms is not None]
    view |= {f"{name} expires": True for name in ending}
    view["paused"], view["epoch"] = queue.paused, queue.epoch
    return view


def _of_job(job: Job) -> View:
    new, running = job.new, job.state == "running"
    return {
        "state": job.state, "rev": job.rev, "round": job.round, "priority": new.priority, "due": job.due_ms,
        "limits": (new.max_attempts, new.max_losses), "attempts": job.attempts, "losses": job.losses,
        "enqueued": job.enqueued_ms, "finished": job.finished_ms, "payload": new.payload, "result": job.result,
        "reason": job.reason, "cancel asked": job.cancel_asked, "alone": job.alone,
        "lease": (job.claim, job.token, job.claimed_ms) if running else None,
        "started": running and job.started,
        "records": [
            (r.token, r.claim, r.round, r.number, r.outcome, r.started_ms, r.finished_ms, r.error) for r in job.records
        ],
    }  # fmt: skip


def differences(expected: View, found: View) -> list[str]:
    """List where two views differ, one line each."""
    lines = []
    for name in sorted({*expected, *found}):
        want, have = expected.get(name), found.get(name)
        if want == have:
            continue
        if isinstance(want, dict) and isinstance(have, dict):
            lines += [f"{name}: {line}" for line in differences(want, have)]
        else:
            lines.append(f"{name}: the model has {want!r}, Redis has {have!r}")
    return lines
