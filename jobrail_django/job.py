"""`Job`: the handle that callers hold, and `Group`: the handles of one `enqueue_many`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from . import codec
from .errors import InvalidOption, InvalidTransition
from .states import FINAL, State
from .types import Duration, seconds

#: Shortest and longest pause between two looks of `Job.wait`, in seconds.
WAIT_PAUSES_S = (0.005, 0.25)


def _end(timeout: Duration | None) -> float | None:
    """Return the moment on `time.monotonic` at which a wait is over."""
    try:
        return None if timeout is None else time.monotonic() + seconds(timeout)
    except ValueError as exc:
        raise InvalidOption(f"wait(timeout=…): {exc}", option="timeout") from None


class Job:
    """One request to run a task, as of the last look at it.

    Reading an attribute costs nothing and may be out of date; `refresh` looks again. A handle belongs to
    one thread at a time; any number of handles may stand for one job.

    Attributes:
        id: UUIDv7 in its canonical form, 36 characters. Known at once, also inside a transaction.
        task: dotted name of the task.
        queue: name of the queue.
        state: the last state seen; `State.STAGED` until the transaction has committed.
        attempts: executions of this round that failed, timed out or succeeded.
        losses: executions of this round whose worker was lost.
        round: 1, and one more for each explicit retry.
        reason: why the job is dead, cancelled or waiting, "" = no more to say.
    """

    __slots__ = ("_result", "attempts", "id", "losses", "queue", "reason", "round", "state", "task")

    def __init__(
        self,
        *,
        id: str,
        task: str,
        queue: str,
        state: State,
        attempts: int = 0,
        losses: int = 0,
        round: int = 1,
        reason: str = "",
        result: bytes | str | None = None,
    ) -> None:
        self.id = id
        self.task = task
        self.queue = queue
        self.state = state
        self.attempts = attempts
        self.losses = losses
        self.round = round
        self.reason = reason
        self._result = result

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task} {self.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def is_finished(self) -> bool:
        """True once this round has ended: succeeded, dead or cancelled."""
        return self.state in FINAL

    @property
    def result(self) -> Any:
        """What the task returned, decoded anew at each access; None unless `state` is succeeded.

        Raises:
            DecodeError: the stored result cannot be read.
        """
        if self.state is not State.SUCCEEDED or not self._result:
            return None
        return codec.loads(self._result)

    def refresh(self) -> Job:
        """Look at the job again, in Redis and then in the database; returns the handle itself.

        Raises:
            JobNotFound: neither knows the job.
            BrokerUnavailable: Redis cannot be asked and the database has no row.
        """
        from . import client

        client.refresh(self)
        return self

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the job has ended; looks again every few milliseconds, then less often.

        Args:
            timeout: seconds or a timedelta; None = without limit.

        Returns:
            True when it has ended, False after the timeout. `state` and `result` are up to date.

        Raises:
            InvalidOption: `timeout` is no duration.
            InvalidTransition: the job is staged in a transaction that has not committed; it cannot end
                before that.
            JobNotFound: neither Redis nor the database knows the job any more.
            BrokerUnavailable: Redis cannot be asked and the database has no row.
        """
        end = _end(timeout)
        pause, longest = WAIT_PAUSES_S
        while True:
            self.refresh()
            if self.state is State.STAGED:
                raise InvalidTransition(
                    f"Job {self.id} is enqueued when its transaction commits, which it has not done, or was rolled back: "
                    f"wait() would never end. Wait after the commit, or enqueue with on_commit=False.",
                    job_id=self.id,
                    state=self.state,
                )
            if self.is_finished:
                return True
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, longest)

    def cancel(self) -> bool:
        """Cancel the job; see `jobrail_django.cancel`."""
        from . import client

        return client.cancel(self)

    def retry(self) -> Job:
        """Run the job again; see `jobrail_django.retry`."""
        from . import client

        return client.retry(self)


class Group(Sequence[Job]):
    """The jobs of one `enqueue_many`, in the order of their arguments."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = tuple(jobs)

    def __repr__(self) -> str:
        return f"<Group of {len(self._jobs)} jobs>"

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until every job has ended; see `Job.wait`. False after the timeout, which is for all together."""
        end = _end(timeout)
        for job in self._jobs:
            left = None if end is None else timedelta(seconds=max(0.0, end - time.monotonic()))
            if not job.wait(left):
                return False
        return True
