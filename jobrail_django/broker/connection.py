"""Connections to Redis: which server, with what bounds, and one broker per process."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..conf import RedisLocation, Settings, get_settings, redis_location
from .broker import Broker

_lock = threading.Lock()
_brokers: dict[float, tuple[Settings, Broker]] = {}


def server(settings: Settings) -> RedisLocation:
    """Return where Redis is, starting the embedded server if that is what the settings name."""
    location = redis_location(settings)
    if location.embedded:
        from . import embedded  # only development needs it

        return RedisLocation(url=embedded.ensure(Path(location.folder)))
    return location


def connect(location: RedisLocation, *, timeout_s: float) -> redis.Redis:
    """Make a client with a pool of its own. It connects with its first command.

    redis-py's own retries are off: `Broker` repeats a script itself, knowing that this is safe.

    Args:
        location: address with credentials.
        timeout_s: bound of each connecting and of each reply, in seconds.
    """
    options: dict[str, Any] = {
        **location.options,
        "socket_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": "jobrail",
    }
    if not location.url.startswith("unix://"):
        options |= {"socket_connect_timeout": timeout_s, "socket_keepalive": True}
    return redis.Redis.from_url(location.url, **options)


def get_broker(*, timeout_s: float | None = None) -> Broker:
    """Return this process's broker for the current settings. Any thread may use it.

    A forked child makes its own and never touches a connection of its parent.

    Args:
        timeout_s: bound of one call in seconds; None = the settings' bound for callers.

    Raises:
        ConfigurationError: the settings name no usable Redis.
        BrokerUnavailable: the embedded server could not be started.
    """
    settings = get_settings()
    bound = settings.redis_timeout_s if timeout_s is None else timeout_s
    found = _brokers.get(bound)
    if found is None or found[0] is not settings:
        with _lock:
            found = _brokers.get(bound)
            if found is None or found[0] is not settings:
                location = server(settings)
                # A call connects, waits for a reply, and may be repeated once after a broken connection.
                client = connect(location, timeout_s=bound / 2)
                found = _brokers[bound] = settings, Broker(client, settings.prefix, where=str(location))
    return found[1]


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _brokers.clear()


os.register_at_fork(after_in_child=_after_fork)
