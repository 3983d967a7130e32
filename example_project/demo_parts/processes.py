"""Start, watch and end the demo's own processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Lines of a process's output that are shown when it fails.
TAIL_LINES = 60
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoFailed(Exception):
    """The demo cannot go on, or did not end as it should; the text says why."""


class Interrupted(Exception):
    """Somebody asked the demo to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopSignals:
    """Remember a stop signal until the demo looks, so that it never strikes in the middle of a clean-up.

    Used by the main thread only.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.number = self.number or number

    def ignore(self) -> None:
        """Let no further signal strike, not even while Python itself ends, which forgets its handlers first."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.number is not None:
            raise Interrupted(self.number)

    def pause(self, seconds: float) -> None:
        """Sleep, at most until a signal comes, which raises Interrupted."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
            self.check()


class Child:
    """One process of the demo in a session of its own, so that a Ctrl-C at the keyboard reaches only the demo."""

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise DemoFailed if the process has ended: while the demo runs it never should."""
        code = self.process.poll()
        if code is not None:
            raise DemoFailed(
                f"The {self.name} ended by itself with exit code {code}. The end of its output:\n{self.tail()}"
            )

    def tail(self) -> str:
        """Return the last lines the process has written."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])

    def stop(self, grace_s: float) -> int:
        """End the process, and whatever is left of its session after the grace; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # macOS says EPERM when only dead members are left
            pass
        return self.process.wait()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
