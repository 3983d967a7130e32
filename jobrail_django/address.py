"""Where Redis is: from the ``REDIS`` setting to an address, and the same for the caches that must not share it.

Pure functions over the values they are given; only `conf` reads the settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from .errors import did_you_mean

#: URL schemes that this version connects to.
SCHEMES = ("redis", "rediss", "unix")
#: URL schemes that later versions connect to.
LATER_SCHEMES = ("redis+sentinel", "redis+cluster")
#: Keys of django-redis' CONNECTION_POOL_KWARGS that say where and as whom to connect; the others are its own affair.
_ADDRESS_KEYS = re.compile(r"ssl_\w+|username|password|db")

#: User and password, also where a password that should have been quoted has blanks or quotes in it.
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://|rediss?:)[^\n]*@")
_SECRET_QUERY = re.compile(r"(?i)([?&][^=&\s]*(?:password|secret|token|username)[^=&\s]*=)[^&\s'\"]+")


@dataclass(frozen=True, kw_only=True)
class RedisLocation:
    """Where the queues live: a URL with the keyword arguments that go with it, or a folder for a private server.

    Attributes:
        url: ``redis://``, ``rediss://`` or ``unix://``; "" when embedded. May hold credentials: never log it.
        options: More keyword arguments for redis-py (``username``, ``password``, ``db``, ``ssl_*``).
        embedded: True when JobRail starts a private server itself.
        folder: Its folder; "" = the default one.
    """

    url: str = field(default="", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    embedded: bool = False
    folder: str = ""

    def __str__(self) -> str:
        """Describe the place without credentials."""
        if self.embedded:
            return f"embedded://{self.folder}"
        return mask_url(self.url)


def mask_url(text: str) -> str:
    """Hide user names, passwords and secret query values in every URL that `text` contains."""
    return _SECRET_QUERY.sub(r"\1***", _USERINFO.sub(r"\1***@", text))


def resolve(redis: str | None, caches: Mapping[str, Any]) -> RedisLocation:
    """Turn the ``REDIS`` setting into an address; connects to nothing.

    Args:
        redis: The setting: a URL, ``embedded``, ``embedded://FOLDER``, or the alias of a django-redis cache.
        caches: The ``CACHES`` setting.

    Raises:
        ValueError: It names nothing usable; the text says what to write, and holds no password.
    """
    if not redis:
        raise ValueError(
            "is not set; write the alias of a CACHES entry served by django-redis, a URL such as "
            "'redis://127.0.0.1:6379/1', or 'embedded' for development"
        )
    scheme, separator, rest = redis.partition("://")
    if redis == "embedded" or (separator and scheme == "embedded"):
        return RedisLocation(embedded=True, folder=rest)
    if separator:
        _identity(redis, {})
        return RedisLocation(url=redis)
    if redis not in caches:
        raise ValueError(
            f"{mask_url(redis)!r} is neither a URL nor an alias in CACHES{did_you_mean(redis, caches)} "
            f"(aliases: {', '.join(map(repr, caches)) or 'none'})"
        )
    return _from_cache(redis, caches[redis])


def clash(redis: str, location: RedisLocation, caches: Mapping[str, Any]) -> str | None:
    """Return the alias of another Redis cache on the same server and database number, None if there is none."""
    if location.embedded:
        return None
    own = _identity(location.url, location.options)
    for alias, entry in caches.items():
        if alias == redis or "redis" not in str(_get(entry, "BACKEND")).lower():
            continue
        for url in _urls(entry):
            try:
                other = _identity(url, _options(entry))
            except ValueError:
                continue  # a sentinel's or a broken address: no statement about it
            if other == own:
                return str(alias)
    return None


def _from_cache(alias: str, entry: object) -> RedisLocation:
    backend = str(_get(entry, "BACKEND"))
    if not backend.startswith("django_redis."):
        raise ValueError(
            f"{alias!r} is a cache served by {backend!r}; it must be served by 'django_redis.cache.RedisCache', "
            f"or write a URL instead"
        )
    raw = _get(entry, "OPTIONS") or {}
    kinds = f"{raw.get('CLIENT_CLASS', '')} {raw.get('CONNECTION_FACTORY', '')} {raw.get('CONNECTION_POOL_CLASS', '')}"
    for kind in ("sentinel", "cluster"):
        if kind in kinds.lower() or f"{kind.upper()}S" in raw:
            raise ValueError(f"{alias!r} is a cache that uses {kind}, which is not supported yet in this version")
    urls = _urls(entry)
    if not urls:
        raise ValueError(f"{alias!r} is a cache without a LOCATION; give it one, such as 'redis://127.0.0.1:6379/1'")
    options = _options(entry)
    _identity(urls[0], options)
    return RedisLocation(url=urls[0], options=options)


def _get(entry: object, key: str) -> Any:
    return entry.get(key) if isinstance(entry, Mapping) else None


def _urls(entry: object) -> list[str]:
    """Return the addresses of a cache entry, the primary first."""
    location = _get(entry, "LOCATION") or ""
    items = location if isinstance(location, (list, tuple)) else re.split("[;,]", str(location))
    return [str(item).strip() for item in items if str(item).strip()]


def _options(entry: object) -> dict[str, Any]:
    raw = _get(entry, "OPTIONS") or {}
    pool = {**raw, **(raw.get("CONNECTION_POOL_KWARGS") or {})}
    options = {key: value for key, value in pool.items() if _ADDRESS_KEYS.fullmatch(key)}
    for name in ("USERNAME", "PASSWORD", "DB"):
        if raw.get(name):
            options[name.lower()] = raw[name]
    return options


def _identity(url: str, options: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return (host or socket, port, database number), the same for each spelling of one place."""
    shown = mask_url(url)
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:
        raise ValueError(f"{shown!r} has no valid port") from None
    if parts.scheme in LATER_SCHEMES:
        raise ValueError(f"{shown!r}: {parts.scheme}:// is not supported yet in this version; name one server")
    if parts.scheme not in SCHEMES:
        raise ValueError(
            f"{shown!r} has the scheme {parts.scheme!r}{did_you_mean(parts.scheme, SCHEMES)}; "
            f"expected one of redis://, rediss://, unix://"
        )
    in_path = "" if parts.scheme == "unix" else parts.path.strip("/")
    number = parse_qs(parts.query).get("db", [in_path or options.get("db") or 0])[0]
    if not str(number).isdecimal():
        raise ValueError(f"{shown!r} has the database number {number!r}; expected 0 or more, as in redis://host:6379/1")
    if parts.scheme == "unix":
        if len(parts.path) < 2:
            raise ValueError(f"{shown!r} names no socket; expected unix:///path/to/redis.sock")
        return unquote(parts.path), 0, int(number)
    host = (parts.hostname or "localhost").lower()
    return ("localhost" if host in {"127.0.0.1", "::1"} else host), port, int(number)
