"""A broker that stops a mirror between two of its steps, and a process that is stopped there to be killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import redis

from jobrail_django.broker.broker import BATCH, Broker
from jobrail_django.broker.records import Changes

#: Steps of a mirror's run, in their order; a killed one has died right after the step.
STEPS = ("read", "written", "committed", "told")


class SteppedBroker(Broker):
    """The real broker, which says when the mirror has read, and before and after its word to Redis.

    Args:
        client: of the broker it stands for.
        prefix: likewise.
        on_step: called in the mirror's thread with one of `STEPS`; "written" is for others to say.
    """

    def __init__(self, client: redis.Redis, prefix: str, on_step: Callable[[str], None]) -> None:
        super().__init__(client, prefix)
        self.on_step = on_step

    def changes(self, queue: str, limit: int = BATCH) -> Changes:
        """Read, then say so."""
        found = super().changes(queue, limit)
        self.on_step("read")
        return found

    def mirrored(self, queue: str, stored: Sequence[tuple[str, int]]) -> int:
        """Say that the rows are committed, confirm, say so."""
        self.on_step("committed")
        done = super().mirrored(queue, stored)
        self.on_step("told")
        return done


def main(url: str, prefix: str, database: dict[str, Any], fatal: str) -> None:
    """Run a mirror once, and wait for SIGKILL at one step, which is printed first."""
    from tests import settings

    settings.DATABASES = {"default": database}

    import django

    django.setup()
    from django.db import connection

    from jobrail_django.upkeep.mirror import Mirror

    def reached(step: str) -> None:
        if step == fatal:
            print(step, flush=True)
            sys.stdin.read()
            raise AssertionError("nobody killed this process")

    def after_the_last_row(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        result = execute(sql, params, many, context)
        if sql.startswith("INSERT") and "jobrail_attempt" in sql:
            reached("written")
        return result

    with connection.execute_wrapper(after_the_last_row):
        broker = SteppedBroker(redis.Redis.from_url(url, protocol=2), prefix, reached)
        Mirror(broker, ["default"], using="default").run_once()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
