"""Each test's site with real workers, and what must hold for every one of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..servers import RedisServer
from .harness.proxy import Proxy
from .harness.rig import Rig


@contextmanager
def running_rig(url: str, prefix: str, settings: Any, queues: Sequence[str] = ("default",)) -> Iterator[Rig]:
    """Make a rig, watch its jobs while the block lasts, and leave nothing of it."""
    if not Path("/proc/self/task").exists():
        pytest.skip("finds processes through /proc")
    with tempfile.TemporaryDirectory(prefix="jobrail-rig-") as folder:
        rig = Rig(url, prefix, Path(folder), settings, queues)
        with rig.conservation:
            try:
                yield rig
            finally:
                violations = rig.close()
        assert violations == []


@pytest.fixture
def rig(transactional_db: None, settings: Any, redis_url: str, prefix: str) -> Iterator[Rig]:
    """A site on the server that all tests share."""
    with running_rig(redis_url, prefix, settings) as found:
        yield found


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of this test's own, which keeps its data in an append-only file."""
    with RedisServer(aof=True) as found:
        yield found


@pytest.fixture
def own_rig(transactional_db: None, settings: Any, server: RedisServer) -> Iterator[Rig]:
    """A site on a server of its own, to be broken."""
    with running_rig(server.url, "own", settings) as found:
        yield found


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    """A fault proxy before the test's own server; workers use it when they are given its address."""
    with Proxy(server.port) as found:
        yield found
