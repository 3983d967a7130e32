"""Real `jobrail_worker` process trees: started, signalled, frozen, killed, and never left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from .waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
MANAGE = Path(__file__).with_name("manage.py")


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that have not been waited for."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time that processes have used, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def members_of(group: int) -> list[int]:
    """Return the running processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def _parts(arguments: Sequence[str], processes: int) -> int:
    """Return how many children a worker with these arguments has."""
    counts = {"jobs": processes, "upkeep": 1}
    for option, part in pairwise(arguments):
        if option == "--only":
            return counts[part]
        if option == "--without":
            del counts[part]
    return sum(counts.values())


class Worker:
    """One `manage.py jobrail_worker` in a session and process group of its own.

    Args:
        arguments: of the command, without the queue and process options that are given by name.
        env: environment of the process.
        folder: where its log goes, and its working directory.
        processes: children that run jobs.
        threads: slots of each.
    """

    count = 0

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str], folder: Path, *, processes: int, threads: int
    ) -> None:
        Worker.count += 1
        self.log_file = folder / f"worker-{Worker.count}.log"
        self.children_wanted = _parts(arguments, processes)
        command = [sys.executable, str(MANAGE), "jobrail_worker", "-p", str(processes), "-t", str(threads), *arguments]
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**env, "PYTHONPATH": str(ROOT)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def wait_until_ready(self) -> Worker:
        """Wait until all its children run."""
        wanted = self.children_wanted

        def ready() -> bool:
            assert self.process.poll() is None, f"the worker ended with {self.process.returncode}:\n{self.log()}"
            return "Worker started" in self.log() and len(self.children()) >= wanted

        wait_for(ready, 30, f"a worker with {wanted} children")
        return self

    @property
    def id(self) -> str:
        """Return the worker's id, which its attempts carry."""
        found = re.search(r"Worker started: worker=(\w+)", self.log())
        assert found, self.log()
        return found[1]

    def log(self) -> str:
        """Return what it has logged."""
        return self.log_file.read_text(errors="replace")

    def children(self) -> list[int]:
        """Return the supervisor's children."""
        return children_of(self.pid)

    def tree(self) -> list[int]:
        """Return all running processes of the worker."""
        return members_of(self.pid)

    def is_alive(self) -> bool:
        """Tell whether the supervisor runs."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the supervisor alone."""
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to all processes of the worker at once."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """End all its processes with SIGKILL, also while they are frozen."""
        self.signal_group(signal.SIGKILL)
        self.process.wait()
        wait_for(lambda: not self.tree(), 10, "the end of a killed worker's processes")

    def freeze(self) -> None:
        """Stop all its processes."""
        self.signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let frozen processes go on."""
        self.signal_group(signal.SIGCONT)

    def wait(self, within_s: float) -> float:
        """Wait for the supervisor's end; returns after how many seconds it came."""
        began = time.monotonic()
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker has not ended after {within_s:g} s:\n{self.log()}") from None
        return time.monotonic() - began

    def stop(self, within_s: float = 10.0) -> float:
        """Ask it to stop and hold it to a clean end; returns how many seconds that took."""
        self.signal(signal.SIGTERM)
        took_s = self.wait(within_s)
        assert self.process.returncode == 0, self.log()
        assert self.tree() == [], "the worker has ended and left processes"
        return took_s
