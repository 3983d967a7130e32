"""Takes each guard out of the scripts in turn and shows that a test fails.

`python -m tests.machine.mutations` prints a table in Markdown and exits with 1 if a guard is missed by nobody.
The scripts on disk are never touched: the loader is given other text.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from jobrail_django.broker import scripts
from tests.servers import RedisServer

from .guards import GUARDS, Guard
from .machine import QueueMachine

ROOT = Path(__file__).parents[2]

#: Names the guard that a run of pytest with this module as its plugin has to do without, by its place in GUARDS.
VARIABLE = "JOBRAIL_TEST_WITHOUT_GUARD"

#: Enough to miss no guard by chance: the slowest one is noticed after about half of these examples.
SEARCH = settings(
    max_examples=1_500,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def without(guard: Guard) -> Iterator[None]:
    """Have the loader give out scripts without a guard.

    Raises:
        ValueError: the guard's text is not in its file, or is there more than once.
    """
    read = scripts._read

    def read_without(name: str) -> str:
        text = read(name)
        if name != guard.file:
            return text
        if text.count(guard.old) != 1:
            raise ValueError(f"{name} has {text.count(guard.old)} times, not once: {guard.old!r}")
        return text.replace(guard.old, guard.new)

    scripts._read = read_without
    scripts.load.cache_clear()
    try:
        yield
    finally:
        scripts._read = read
        scripts.load.cache_clear()


_for_the_process = ExitStack()


def pytest_configure() -> None:
    """As a plugin of pytest (`-p tests.machine.mutations`): take out the guard that the environment names."""
    if VARIABLE in os.environ:
        _for_the_process.enter_context(without(GUARDS[int(os.environ[VARIABLE])]))


@dataclass(frozen=True)
class Found:
    """What became of one guard: what noticed that it was missing, "" = nothing, None = not asked."""

    guard: Guard
    machine: str | None
    tests: str | None

    @property
    def noticed(self) -> bool:
        """Something failed, and the state machine did if it has to."""
        return bool(self.machine) if self.guard.in_machine else bool(self.machine or self.tests)


def by_machine(guard: Guard, server: RedisServer) -> str:
    """Run the state machine without a guard; returns after how many steps it failed and how."""
    with without(guard), server.client() as client:
        for script in scripts.Script:
            scripts.load(script)
        machine = QueueMachine.on(client, f"without-{GUARDS.index(guard)}")
        try:
            run_state_machine_as_test(machine, settings=SEARCH)  # type: ignore[arg-type]
        except Exception as exc:
            words = " ".join(str(exc).split())
            return f"{machine.steps} steps: {_short(words)}"
    return ""


def by_tests(guard: Guard) -> str:
    """Run the tests of the scripts without a guard; returns the first one that fails."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.machine.mutations", "tests/lua", "-x", "-q", "-n", "0"]
    command += ["-p", "no:randomly", "-p", "no:cacheprovider"]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, VARIABLE: str(GUARDS.index(guard))},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
    if failed:
        return failed[1].removeprefix("tests/lua/")
    if run.returncode:
        raise RuntimeError(f"pytest failed, and no test did: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return ""


def _short(words: str) -> str:
    words = re.sub(r"(?:job )?00000000-0000-7000-8000-0*(\d+)", r"#\1", words).replace("1700000", "…")
    return words if len(words) <= 90 else words[:88] + "…"


def try_all(guards: Sequence[Guard], *, tests: str) -> Iterator[Found]:
    """Take out one guard after the other. `tests`: run those of the scripts "always", "never", or "if missed"."""
    with RedisServer() as server:
        for guard in guards:
            machine = by_machine(guard, server) if guard.in_machine else None
            ask = tests == "always" or (tests == "if missed" and not machine)
            yield Found(guard, machine, by_tests(guard) if ask else None)


def row(found: Found) -> str:
    """Return a guard's line of the table."""
    cells = [found.guard.file, found.guard.what]
    for result in (found.machine, found.tests):
        cells.append("–" if result is None else result.replace("|", "\\|") or "**missed**")
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Print the table; 1 = some guard can go and nothing fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", choices=("always", "if missed", "never"), default="always")
    parser.add_argument("--only", default="", help="guards whose file or words contain this")
    options = parser.parse_args()
    guards = [guard for guard in GUARDS if options.only in f"{guard.file} {guard.what}"]
    print("| script | guard that was taken out | state machine fails after | first test of the scripts that fails |")
    print("| --- | --- | --- | --- |")
    begin, missed = time.monotonic(), 0
    for found in try_all(guards, tests=options.tests):
        print(row(found), flush=True)
        missed += not found.noticed
    print(f"\n{len(guards)} guards, {missed} missed, {time.monotonic() - begin:.0f} s.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
