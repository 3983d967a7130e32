"""Compares the set of changed ids with a stream of events, on a private server.

    python benchmarks/decisions/mirror_stream.py [JOBS]

Each job is enqueued, claimed and settled in batches of 50, and its changes are read by a mirror that stores
nothing. The stream variant replaces the set by one XADD for each transition, with all that a row needs, which
is the least that lets a mirror work without reading the jobs. Prints server time per job and memory while
the mirror is stopped, for jobs that succeed at once and for jobs that fail twice first.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import uuid_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobrail_django.broker import broker as broker_module
from jobrail_django.broker import scripts
from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import Claim, NewJob, Settlement
from tests.servers import RedisServer

BATCH = 50
STREAM = """
local function note_changes(changed_key, ids, now)
  local prefix = string.sub(changed_key, 1, -8)
  for i = 1, #ids do
    local job = redis.call("HGETALL", prefix .. "job:" .. ids[i])
    redis.call("XADD", changed_key, "*", "id", ids[i], unpack(job))
  end
end
"""


def with_stream(script: scripts.Script) -> scripts.Source:
    """Return a script that writes events instead of ids."""
    source = scripts.load(script)
    text = source.text.replace((scripts._read("include/changed.lua")), STREAM)
    # The stream has the name of the set, whose type the scripts check.
    text = text.replace('redis.call("ZCARD", zsets[i])', 'redis.call("EXISTS", zsets[i])')
    return replace(source, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def run(server: RedisServer, variant: str, jobs: int, failures: int) -> SimpleNamespace:
    """Run the jobs with the mirror stopped, then let it read everything."""
    client = server.client()
    client.flushdb()
    broker_module.load = with_stream if variant == "stream" else scripts.load
    broker = Broker(client, "bench")
    broker.open_epoch("q", "e")
    payload = b'{"v":1,"task":"shop.tasks.send_receipt","args":[123456],"kwargs":{},"options":{}}' + b" " * 20
    empty = client.info("memory")["used_memory"]
    client.config_resetstat()
    for start in range(0, jobs, 100):
        ids = [str(uuid_utils.uuid7()) for _ in range(min(100, jobs - start))]
        broker.enqueue("q", [NewJob(id=i, payload=payload, max_attempts=failures + 1) for i in ids])
    n, outcomes = 0, []
    while True:
        n += 1
        claim = Claim(slot="w.1.0", n=n, ack=n - 1, limit=BATCH, lease_ms=30_000, epoch="e")
        _, claimed = broker.settle("q", "w.1.0", outcomes, claim)
        if not claimed.jobs and not outcomes:
            break
        outcomes = [settlement(job, f"w.1.0:{n}", failures) for job in claimed.jobs]
    worker_us = server_us(client)
    memory = client.info("memory")["used_memory"] - empty
    client.config_resetstat()
    read = mirror_stream(client) if variant == "stream" else mirror_set(broker)
    return SimpleNamespace(worker=worker_us / jobs, mirror=server_us(client) / jobs, bytes=memory / jobs, read=read)


def settlement(job, claim: str, failures: int) -> Settlement:
    """Let a job fail as often as asked, then succeed."""
    if job.attempts < failures:
        return Settlement(job.id, claim, "retry", "failed", time.monotonic(), 0.001, 0, b'{"type":"E"}', "failed")
    return Settlement(job.id, claim, "succeed", "succeeded", time.monotonic(), 0.001, 0, b"null")


def server_us(client) -> float:
    """Sum the server's own time for commands that clients sent, in µs."""
    stats = client.info("commandstats")
    return sum(
        stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("evalsha", "eval", "xread", "xtrim", "xdel")
    )


def mirror_set(broker: Broker) -> int:
    """Read and acknowledge by the set of changed ids."""
    read = 0
    while (changes := broker.changes("q")).jobs:
        broker.mirrored("q", [(job.id, job.rev) for job in changes.jobs])
        read += len(changes.jobs)
    return read


def mirror_stream(client) -> int:
    """Read and trim by the stream."""
    read, last = 0, "0"
    while entries := client.xread({"bench:{q}:changed": last}, count=100):
        items = entries[0][1]
        last = items[-1][0]
        read += len(items)
        client.xtrim("bench:{q}:changed", minid=last, approximate=False)
    return read


def main() -> None:
    """Alternate the variants three times and print the medians."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(f"{jobs} jobs, batches of {BATCH}, medians of 3 alternating runs")
    # Redis counts its memory more exactly than a Valkey built without jemalloc.
    with RedisServer(binary=shutil.which("redis-server")) as server:
        version = server.client().info("server")
        print("server:", version.get("valkey_version") or version["redis_version"])
        for failures in (0, 2):
            found = {"set": [], "stream": []}
            for _ in range(3):
                for variant, runs in found.items():
                    runs.append(run(server, variant, jobs, failures))
            for variant, runs in found.items():
                middle = {
                    key: sorted(getattr(r, key) for r in runs)[1] for key in ("worker", "mirror", "bytes", "read")
                }
                print(
                    f"fails {failures} times, {variant:6}: {middle['worker']:6.1f} us/job to run, "
                    f"{middle['mirror']:5.1f} us/job to mirror, {middle['bytes']:6.0f} bytes/job with the mirror stopped, "
                    f"{middle['read']} records read"
                )


if __name__ == "__main__":
    main()
