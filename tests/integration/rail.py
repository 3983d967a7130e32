"""Drives jobs through the real scripts without a worker, for tests of what comes after: mirror and admin."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import uuid_utils

from jobrail_django import codec
from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import Claim, ClaimedJob, NewJob, Settlement


def error_record(
    message: str = "bad row", *, kind: str = "builtins.ValueError", traceback: str = "Traceback: bad row"
) -> bytes:
    """Encode an error as a worker stores it."""
    return json.dumps({"type": kind, "message": message, "traceback": traceback}).encode()


class Rail:
    """One queue and one slot of a made-up worker.

    Args:
        broker: the real one.
        queue: its name.
        worker: id of the worker.
    """

    def __init__(self, broker: Broker, queue: str = "default", worker: str = "0badcafe") -> None:
        self.broker = broker
        self.queue = queue
        self.slot = f"{worker}.0.0"
        self.n = 0
        self.epoch, _ = broker.open_epoch(queue, "e1")

    def enqueue(
        self, count: int = 1, *, task: str = "shop.tasks.send", args: Sequence[object] = (), **options: int
    ) -> list[str]:
        """Enqueue jobs and return their ids."""
        payload = codec.dumps_envelope(task, tuple(args), {}, {})
        return self.enqueue_payloads([payload] * count, **options)

    def enqueue_payloads(self, payloads: Sequence[bytes], **options: int) -> list[str]:
        """Enqueue jobs whose payload may be anything."""
        values = {"max_attempts": 3, "max_losses": 3, **options}
        jobs = [NewJob(id=str(uuid_utils.uuid7()), payload=payload, **values) for payload in payloads]
        return [answer.id for answer in self.broker.enqueue(self.queue, jobs)]

    def claim(self, limit: int = 1) -> Sequence[ClaimedJob]:
        """Claim jobs; they are held under `self.claim_id`."""
        self.n += 1
        claim = Claim(slot=self.slot, n=self.n, ack=self.n - 1, limit=limit, lease_ms=30_000, epoch=self.epoch)
        return self.broker.claim(self.queue, claim).jobs

    @property
    def claim_id(self) -> str:
        """Id of the last claim."""
        return f"{self.slot}:{self.n}"

    def settle(
        self, jobs: Sequence[ClaimedJob], verb: str, outcome: str, data: bytes = b"", *, delay_ms: int = 0
    ) -> None:
        """End the attempts of jobs claimed last, each after 20 ms."""
        started = time.monotonic() - 0.03
        outcomes = [
            Settlement(job.id, self.claim_id, verb, outcome, started, 0.02, delay_ms, data, "as told")  # type: ignore[arg-type]
            for job in jobs
        ]
        self.broker.settle(self.queue, self.slot, outcomes)

    def succeed(self, limit: int = 1, result: bytes = b'"done"') -> Sequence[ClaimedJob]:
        """Claim jobs and end them well."""
        jobs = self.claim(limit)
        self.settle(jobs, "succeed", "succeeded", result)
        return jobs

    def fail(self, limit: int = 1, error: bytes | None = None, *, verb: str = "dead") -> Sequence[ClaimedJob]:
        """Claim jobs and end their attempt with an error; `verb` is dead or retry."""
        jobs = self.claim(limit)
        self.settle(jobs, verb, "failed", error or error_record(), delay_ms=60_000 if verb == "retry" else 0)
        return jobs

    def unmirrored(self) -> set[str]:
        """Ids that the mirror has not stored as they are now."""
        found = self.broker.client.zrange(self.broker.keys(self.queue).changed, 0, -1)
        return {job_id.decode("utf-8", "backslashreplace") for job_id in found}

    def forget_mirrored(self, *ids: str) -> None:
        """Make Redis as it is when a mirror died between its commit and its word to Redis."""
        self.broker.client.zadd(self.broker.keys(self.queue).changed, dict.fromkeys(ids, 1))
