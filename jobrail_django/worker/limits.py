"""Interrupting a handler from another thread: time limits, cancelling, lost leases."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import ctypes
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from ..errors import TaskInterrupt

#: How long after its soft limit a handler may still run before its child is replaced, in seconds.
HARD_LIMIT_AFTER_S = 1.5

#: How long the end of a coroutine waits for the thread of its synchronous calls, in seconds.
CLEAN_UP_WITHIN_S = 0.1

_set_async_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)


class Gate:
    """Lets another thread raise an exception in the thread of a handler, while it runs and at no other time.

    An exception arrives when the interpreter next executes Python code in that thread; a handler that
    sits in a system call or in C code does not notice. An `async def` handler is cancelled instead.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._cancel: Callable[[], object] | None = None
        self._sent: type[TaskInterrupt] | None = None

    def open(self, cancel: Callable[[], object] | None = None) -> None:
        """Allow interruptions of the calling thread, or through `cancel` for a coroutine."""
        with self._lock:
            self._thread, self._cancel, self._sent = threading.get_ident(), cancel, None

    def close(self) -> type[TaskInterrupt] | None:
        """Allow none any more, and return what was sent. One that has not arrived yet never will."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None and self._sent is not None and self._cancel is None:
                _set_async_exception(thread, ctypes.py_object())  # NULL: takes it back
            self._cancel = None
            return self._sent

    def interrupt(self, kind: type[TaskInterrupt]) -> bool:
        """Raise `kind` in the handler; False when no handler is running."""
        with self._lock:
            if self._thread is None:
                return False
            self._sent = kind
            if self._cancel is not None:
                self._cancel()
            else:
                _set_async_exception(self._thread, kind)
            return True


@contextmanager
def own_process() -> Iterator[None]:
    """End a process that a handler forked when it comes out of the handler.

    The job, the slot and the connections are its parent's; it would settle the one and go on as the other.
    """
    pid, code = os.getpid(), 1
    try:
        yield
        code = 0
    finally:
        if os.getpid() != pid:
            os._exit(code)


class CoroutineRunner:
    """One event loop in a thread of its own, on which the slots of a child run `async def` handlers.

    What handlers hand to `sync_to_async`, queries for instance, runs in a thread that belongs to the calling
    slot: with the one thread that asgiref has for all, each job would inherit the connections of all others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slot = threading.local()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="jobrail-asyncio", daemon=True).start()
            return self._loop

    def _sync_thread(self) -> _SyncThread:
        found: _SyncThread | None = getattr(self._slot, "sync_thread", None)
        if found is None:
            found = self._slot.sync_thread = _SyncThread()
        return found

    def run(self, make: Callable[[], Coroutine[Any, Any, Any]], gate: Gate, clean_up: Callable[[bool], object]) -> Any:
        """Run a coroutine to its end in the caller's context and return its result.

        Args:
            make: makes the coroutine.
            gate: opened while it runs.
            clean_up: called in the thread of its synchronous calls, if there were any, once it has ended; with
                True when it was interrupted.

        Raises:
            TaskInterrupt: what was sent through the gate, once the coroutine has ended because of it.
            BaseException: what the coroutine raised.
        """
        sync_thread = self._sync_thread()
        done, cancel = self._begin(make, sync_thread.context())
        gate.open(cancel)
        try:
            return done.result()
        except asyncio.CancelledError as exc:
            sent = gate.close()
            if sent is None:
                raise
            raise sent() from exc
        except _Raised as exc:
            assert exc.__cause__ is not None
            raise exc.__cause__ from None
        finally:
            interrupted = gate.close() is not None
            sync_thread.clean_up(lambda: clean_up(interrupted))

    def _begin(
        self, make: Callable[[], Coroutine[Any, Any, Any]], context: contextvars.Context
    ) -> tuple[concurrent.futures.Future[Any], Callable[[], object]]:
        """Start a coroutine on the loop; returns the future of its end, and what cancels it from any thread."""
        loop = self._running_loop()
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        tasks: list[asyncio.Task[Any]] = []

        def finished(task: asyncio.Task[Any]) -> None:
            try:
                done.set_result(task.result())
            except BaseException as exc:
                done.set_exception(exc)

        def start() -> None:
            tasks.append(loop.create_task(_guarded(make)))
            tasks[0].add_done_callback(finished)

        loop.call_soon_threadsafe(start, context=context)
        return done, lambda: loop.call_soon_threadsafe(lambda: tasks[0].cancel())


class _SyncThread:
    """The thread in which the coroutines of one slot run what they hand to `sync_to_async`."""

    def __init__(self) -> None:
        self._key = ThreadSensitiveContext()

    def context(self) -> contextvars.Context:
        """Copy the caller's context for a coroutine that is to use this thread."""
        context = contextvars.copy_context()
        context.run(SyncToAsync.thread_sensitive_context.set, self._key)
        return context

    def clean_up(self, body: Callable[[], object]) -> None:
        """Run `body` in the thread if it was used; leave a thread that is still busy to itself, for another one."""
        executor = SyncToAsync.context_to_thread_executor.get(self._key)
        if executor is None:
            return
        cleaned = executor.submit(body)
        if not concurrent.futures.wait([cleaned], timeout=CLEAN_UP_WITHIN_S).done:
            self._key = ThreadSensitiveContext()
            executor.shutdown(wait=False)


class _Raised(Exception):
    """Carries an exception out of the loop that asyncio would otherwise raise in the loop itself."""


async def _guarded(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    try:
        with own_process():
            return await make()
    except (SystemExit, KeyboardInterrupt) as exc:
        raise _Raised from exc
