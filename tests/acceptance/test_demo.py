"""`make demo`'s program as a whole: how it ends, what it says, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"
#: Seconds within which a demo of some seconds has ended, on a slow machine too.
PATIENCE_S = 180.0

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes through /proc")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give the demo a place of its own for its temporary folder, with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="jrd") as name:
        yield Path(name)


@pytest.fixture
def demos(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Collect the demos a test starts and end what a failed test has left of them."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for demo in started:
        demo.kill()
        demo.communicate()
    for pid in processes_of(folder):
        os.kill(pid, signal.SIGKILL)


def start_demo(folder: Path, demos: list[subprocess.Popen[str]], **settings: str) -> subprocess.Popen[str]:
    """Start the demo with nothing on PATH, so that it finds no Redis of the machine."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBRAIL_", "DEMO_", "DJANGO_"))}
    env = kept | {"PATH": str(folder / "bin"), "TMPDIR": str(folder / "tmp")} | settings
    demo = subprocess.Popen(
        [sys.executable, str(EXAMPLE / "demo.py")],
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    demos.append(demo)
    return demo


def processes_of(folder: Path) -> list[int]:
    """Return the processes that belong to a demo in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes()
            described = arguments + (entry / "environ").read_bytes()
        except OSError:
            continue
        if arguments and bytes(folder) in described:
            found.append(int(entry.name))
    return found


def child_of(demo: subprocess.Popen[str], command: str) -> int:
    """Wait for the demo's own process that runs the management command, and return its id."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split():
            if command in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
        time.sleep(0.02)
    pytest.fail(f"the demo has no process that runs {command!r}")


def read_until(demo: subprocess.Popen[str], text: str) -> str:
    """Return what the demo prints up to the line with the text."""
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    pytest.fail(f"the demo ended before it printed {text!r}:\n{''.join(lines)}")


def finish(demo: subprocess.Popen[str]) -> str:
    """Wait for the demo's end and return the rest of its output."""
    return demo.communicate(timeout=PATIENCE_S)[0]


def left_behind(folder: Path) -> list[object]:
    """Return the processes and the files that are left of a demo that has ended."""
    end = time.monotonic() + 5
    while processes_of(folder) and time.monotonic() < end:
        time.sleep(0.05)
    return [*processes_of(folder), *(folder / "tmp").iterdir()]


def files_of_example() -> dict[Path, int]:
    """Return every file below the example with its time of change."""
    return {path: path.stat().st_mtime_ns for path in EXAMPLE.rglob("*") if path.is_file()}


def test_timed_demo_ends_well_and_leaves_nothing(folder: Path, demos: list[subprocess.Popen[str]]) -> None:
    files = files_of_example()

    demo = start_demo(folder, demos, DEMO_SECONDS="8")
    output = finish(demo)

    assert demo.returncode == 0, output
    assert "Every job ended as it should." in output
    assert "2440 orders from 2 files, 140 bad rows reported" in output
    for task in ("import_orders", "save_orders", "send_receipt", "tell_partner", "make_thumbnail", "ask_for_review"):
        assert f"shop.tasks.{task} " in output
    assert "password" in output
    assert left_behind(folder) == []
    assert files_of_example() == files


def test_demo_on_a_server_of_the_machine_leaves_no_key(
    folder: Path, demos: list[subprocess.Popen[str]], redis_url: str, redis_client: redis.Redis
) -> None:
    demo = start_demo(folder, demos, DEMO_SECONDS="2", JOBRAIL_REDIS_URL=redis_url)
    read_until(demo, "The visitor has left")
    found = list(redis_client.scan_iter(match="jobrail-demo-*"))
    output = finish(demo)

    assert demo.returncode == 0, output
    assert found
    assert list(redis_client.scan_iter(match="jobrail-demo-*")) == []
    assert left_behind(folder) == []


def test_interrupt_twice_stops_an_endless_demo(folder: Path, demos: list[subprocess.Popen[str]]) -> None:
    demo = start_demo(folder, demos)
    read_until(demo, "Ctrl-C stops everything")

    demo.send_signal(signal.SIGINT)
    time.sleep(0.3)
    demo.send_signal(signal.SIGINT)
    output = finish(demo)

    assert demo.returncode == 0, output
    assert "SIGINT: stopping." in output
    assert "Traceback" not in output
    assert left_behind(folder) == []


def test_terminate_during_a_timed_demo_is_not_a_success(folder: Path, demos: list[subprocess.Popen[str]]) -> None:
    demo = start_demo(folder, demos, DEMO_SECONDS="60")
    read_until(demo, "Stops by itself.")

    demo.terminate()
    output = finish(demo)

    assert demo.returncode == 128 + signal.SIGTERM, output
    assert left_behind(folder) == []


def test_terminate_while_preparing_leaves_nothing(folder: Path, demos: list[subprocess.Popen[str]]) -> None:
    demo = start_demo(folder, demos)
    read_until(demo, "preparing")

    demo.terminate()
    output = finish(demo)

    assert demo.returncode == 0, output
    assert left_behind(folder) == []


@pytest.mark.parametrize(("command", "name"), [("jobrail_worker", "worker"), ("runserver", "web server")])
def test_death_of_a_process_fails_the_demo(
    folder: Path, demos: list[subprocess.Popen[str]], command: str, name: str
) -> None:
    demo = start_demo(folder, demos, DEMO_SECONDS="60")
    read_until(demo, "Stops by itself.")

    os.kill(child_of(demo, command), signal.SIGKILL)
    output = finish(demo)

    assert demo.returncode == 1, output
    assert f"The {name} ended by itself with exit code -9." in output
    assert left_behind(folder) == []


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "nan", "inf"])
def test_impossible_seconds_are_refused(folder: Path, demos: list[subprocess.Popen[str]], seconds: str) -> None:
    demo = start_demo(folder, demos, DEMO_SECONDS=seconds)
    output = finish(demo)

    assert demo.returncode == 1
    assert f"DEMO_SECONDS={seconds!r} is not a number of seconds" in output
    assert left_behind(folder) == []
