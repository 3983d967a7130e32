"""A real server, and for each test a prefix of its own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.db import connections
from hypothesis import settings as hypothesis_settings

from jobrail_django.address import mask_url
from jobrail_django.broker.broker import Broker
from jobrail_django.broker.connection import get_broker

from .servers import RedisServer, server_binary

hypothesis_settings.register_profile("jobrail", deadline=None)
hypothesis_settings.load_profile("jobrail")


def pytest_report_header() -> str:
    """Say which server and which database the tests run on."""
    named = os.environ.get("JOBRAIL_TEST_REDIS_URL")
    return f"redis: {mask_url(named) if named else server_binary()}; database: {connections['default'].vendor}"


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The server that the tests of this process share: the one named in the environment, else a private one."""
    named = os.environ.get("JOBRAIL_TEST_REDIS_URL")
    if named:
        yield named
        return
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture
def prefix(redis_client: redis.Redis) -> Iterator[str]:
    """A prefix of keys that no other test has; its keys are gone afterwards."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    for key in redis_client.scan_iter(match=f"{name}:*", count=1000):
        redis_client.unlink(key)


@pytest.fixture
def jobrail(settings, redis_url: str, prefix: str):
    """Point JobRail at this test's server and prefix; returns Django's settings."""
    # The bound is generous, because a machine that runs all tests at once is slow; a test of the bound sets its own.
    settings.JOBRAIL = {
        "REDIS": redis_url,
        "PREFIX": prefix,
        "QUEUES": ["default", "mail"],
        "REDIS_TIMEOUT_SECONDS": 10,
    }
    return settings


@pytest.fixture
def broker(jobrail) -> Broker:
    return get_broker()


@pytest.fixture(scope="session", autouse=True)
def _leave_no_database_file() -> Iterator[None]:
    yield
    for connection in connections.all():
        if connection.vendor == "sqlite":
            connection.close()
            for suffix in ("", "-wal", "-shm"):
                Path(str(connection.settings_dict["TEST"]["NAME"]) + suffix).unlink(missing_ok=True)
