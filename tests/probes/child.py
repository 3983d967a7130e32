"""A worker's child inside the test process: the real slots and their monitor, without fork and supervisor."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from jobrail_django.broker.connection import get_broker
from jobrail_django.worker.child import Child
from jobrail_django.worker.options import WorkerOptions
from jobrail_django.worker.shared import Held, SharedMemory


def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.005)


class InlineChild:
    """Runs jobs in threads of this process while the block lasts. Nobody renews its leases."""

    def __init__(self, queues: Sequence[str] = ("default", "mail"), *, threads: int = 1) -> None:
        options = WorkerOptions(queues=dict.fromkeys(queues, 1), processes=1, threads=threads)
        self.memory = SharedMemory(1, threads)
        self.id = uuid.uuid4().hex[:8]
        self.child = Child(
            options, self.memory, 0, name=f"{self.id}.1", supervisor=os.getppid(), broker=get_broker(timeout_s=2.0)
        )
        self._thread = threading.Thread(target=self.child.run, daemon=True)

    def held(self) -> list[Held]:
        """What its first slot holds."""
        return self.memory.slot(0, 0).held()

    def __enter__(self) -> InlineChild:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.memory.stopping = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the child did not stop"
