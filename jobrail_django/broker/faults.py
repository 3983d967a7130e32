"""Redis's errors in JobRail's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from ..errors import BrokerError, BrokerUnavailable, ScriptError

#: Error codes of replies that may pass by themselves: the server is starting, full, busy, or not the master.
PASSING = ("LOADING", "READONLY", "OOM", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF")

#: redis-py strips the code from the replies that it has a class for.
_PASSING_CLASSES = (redis.exceptions.ReadOnlyError, redis.exceptions.OutOfMemoryError)
_REFUSED = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)


def is_unavailable(error: redis.RedisError) -> bool:
    """Tell whether an error of redis-py means that Redis cannot serve at the moment."""
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
        return not isinstance(error, _REFUSED)
    return isinstance(error, _PASSING_CLASSES) or str(error).startswith(PASSING)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turn errors of redis-py into `BrokerUnavailable`, `ScriptError` or `BrokerError`.

    Args:
        where: masked address for the message.
    """
    try:
        yield
    except redis.RedisError as exc:
        if is_unavailable(exc):
            text = str(exc) or type(exc).__name__
            raise BrokerUnavailable(f"Redis at {where} is not available ({text}); try again later.") from exc
        if isinstance(exc, redis.ResponseError) and not isinstance(exc, redis.exceptions.NoPermissionError):
            raise ScriptError(f"Redis at {where} failed a script: {exc}") from exc
        raise BrokerError(f"Redis at {where} refused a command: {exc}") from exc
