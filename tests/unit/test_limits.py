"""The gate through which a handler is interrupted, and the loop that runs coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from jobrail_django.errors import JobCancelled, LeaseLost, TimeLimitExceeded
from jobrail_django.worker import limits
from jobrail_django.worker.limits import CoroutineRunner, Gate

from ..probes.child import eventually


@pytest.fixture(scope="module")
def runner() -> CoroutineRunner:
    return CoroutineRunner()


def no_clean_up(interrupted: bool) -> None:
    pass


# Gate


def test_closed_gate_lets_nothing_through():
    gate = Gate()

    assert gate.interrupt(TimeLimitExceeded) is False
    assert gate.close() is None


def test_interrupt_raises_in_the_thread_that_opened_the_gate():
    gate, opened, caught = Gate(), threading.Event(), []

    def handler() -> None:
        gate.open()
        opened.set()
        try:
            while True:
                time.sleep(0.001)
        except TimeLimitExceeded as exc:
            caught.append(exc)
        caught.append(gate.close())

    thread = threading.Thread(target=handler)
    thread.start()
    opened.wait(20)

    assert gate.interrupt(TimeLimitExceeded) is True
    thread.join(20)

    assert isinstance(caught[0], TimeLimitExceeded)
    assert str(caught[0]) == "The attempt ran longer than its timeout."
    assert caught[1] is TimeLimitExceeded
    assert gate.interrupt(JobCancelled) is False, "it is closed"


def test_interrupt_never_arrives_after_the_gate_is_closed():
    gate, stop, late, arrived = Gate(), threading.Event(), [], []

    def once() -> None:
        """Open and close; the interrupt may come anywhere in between."""
        try:
            gate.open()
            for _ in range(50):
                pass
        except TimeLimitExceeded:
            arrived.append(1)
        while True:
            try:
                gate.close()
                return
            except TimeLimitExceeded:
                arrived.append(1)

    def handler() -> None:
        try:
            for _ in range(3000):
                once()
                for _ in range(50):
                    pass
        except TimeLimitExceeded as exc:
            late.append(exc)
        finally:
            stop.set()

    def monitor() -> None:
        while not stop.is_set():
            gate.interrupt(TimeLimitExceeded)

    threads = [threading.Thread(target=handler), threading.Thread(target=monitor)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert late == []
    assert stop.is_set()


def test_gate_forgets_what_was_sent_to_the_job_before():
    gate, sent = Gate(), []
    gate.open(lambda: sent.append(1))
    gate.interrupt(JobCancelled)
    assert gate.close() is JobCancelled

    gate.open()

    assert gate.close() is None
    assert sent == [1]


# Coroutines


def test_result_and_exception_come_back(runner):
    async def fine() -> int:
        await asyncio.sleep(0)
        return 5

    async def bad() -> None:
        raise ValueError("bad")

    assert runner.run(fine, Gate(), no_clean_up) == 5
    with pytest.raises(ValueError, match="bad"):
        runner.run(bad, Gate(), no_clean_up)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_what_would_end_the_loop_ends_only_the_coroutine(runner, kind):
    async def bad() -> None:
        raise kind

    async def fine() -> int:
        return 1

    with pytest.raises(kind):
        runner.run(bad, Gate(), no_clean_up)

    assert runner.run(fine, Gate(), no_clean_up) == 1


@pytest.mark.parametrize("kind", [TimeLimitExceeded, JobCancelled, LeaseLost])
def test_interrupted_coroutine_ends_with_what_was_sent_and_its_place(runner, kind):
    gate, started = Gate(), threading.Event()

    async def waits() -> None:
        started.set()
        await asyncio.sleep(60)  # here

    def monitor() -> None:
        started.wait(20)
        eventually(lambda: gate.interrupt(kind))

    thread = threading.Thread(target=monitor)
    thread.start()

    with pytest.raises(kind) as caught:
        runner.run(waits, gate, no_clean_up)
    thread.join()

    assert isinstance(caught.value.__cause__, asyncio.CancelledError)


def test_interrupt_in_the_moment_of_the_start_is_not_lost(runner):
    # The gate opens before or after the coroutine's first step; either way it is cancelled.
    for _ in range(300):
        gate, stop = Gate(), threading.Event()

        def monitor(gate: Gate = gate, stop: threading.Event = stop) -> None:
            while not gate.interrupt(TimeLimitExceeded) and not stop.is_set():
                pass

        async def waits() -> None:
            await asyncio.sleep(60)

        thread = threading.Thread(target=monitor)
        thread.start()
        try:
            with pytest.raises(TimeLimitExceeded):
                runner.run(waits, gate, no_clean_up)
        finally:
            stop.set()
            thread.join()


def test_coroutine_runs_in_a_copy_of_the_callers_context(runner):
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen = []

    async def look() -> None:
        seen.append(variable.get())
        variable.set("changed")

    def caller() -> None:
        variable.set("callers")
        runner.run(look, Gate(), no_clean_up)
        seen.append(variable.get())

    contextvars.copy_context().run(caller)

    assert seen == ["callers", "callers"]


def in_a_thread(body: Callable[[], Any]) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(body()))
    thread.start()
    thread.join(20)
    return found[0]


def test_slots_have_threads_of_their_own_for_synchronous_calls(runner):
    async def ident() -> int:
        return await sync_to_async(threading.get_ident)()

    def slot() -> list[int]:
        return [runner.run(ident, Gate(), no_clean_up) for _ in range(3)]

    here, there = slot(), in_a_thread(slot)

    assert len(set(here)) == 1, "a slot keeps its thread"
    assert here[0] not in there


def test_clean_up_runs_in_the_thread_of_the_synchronous_calls(runner):
    cleaned = []

    async def ident() -> int:
        return await sync_to_async(threading.get_ident)()

    thread = in_a_thread(
        lambda: runner.run(ident, Gate(), lambda interrupted: cleaned.append((threading.get_ident(), interrupted)))
    )

    assert cleaned == [(thread, False)]


def test_clean_up_is_not_called_for_a_coroutine_without_synchronous_calls(runner):
    cleaned = []

    async def fine() -> int:
        return 1

    in_a_thread(lambda: runner.run(fine, Gate(), cleaned.append))

    assert cleaned == []


def test_thread_that_hangs_is_left_to_itself_and_cleaned_at_last(runner, monkeypatch):
    monkeypatch.setattr(limits, "CLEAN_UP_WITHIN_S", 0.01)
    gate, cleaned, started, release = Gate(), [], threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(20)

    async def hangs() -> None:
        await sync_to_async(hang)()

    async def fine() -> str:
        return await sync_to_async(lambda: "fine")()

    def monitor() -> None:
        started.wait(20)
        eventually(lambda: gate.interrupt(TimeLimitExceeded))

    thread = threading.Thread(target=monitor)
    thread.start()
    with pytest.raises(TimeLimitExceeded):
        runner.run(hangs, gate, cleaned.append)
    thread.join()

    assert runner.run(fine, Gate(), no_clean_up) == "fine"
    assert cleaned == []
    release.set()
    eventually(lambda: cleaned == [True])
