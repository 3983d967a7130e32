"""The scripts run on one node in cluster mode that owns all slots, so that one which strays is refused.

`JOBRAIL_TEST_REDIS_URL` names another server, such as a Redis 7.0 without a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis

from ..servers import RedisServer

pytest.register_assert_rewrite("tests.lua.rig", "tests.lua.invariants")

from .rig import Rig  # noqa: E402


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The server of these tests."""
    named = os.environ.get("JOBRAIL_TEST_REDIS_URL")
    if named:
        yield named
        return
    with RedisServer(cluster=True) as server:
        yield server.url


@pytest.fixture
def rig(redis_client: redis.Redis, prefix: str) -> Rig:
    """An empty queue."""
    return Rig(redis_client, prefix)
