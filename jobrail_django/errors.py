"""Every error JobRail raises: one tree under `JobRailError`, and the interrupts that end a running task.

The interrupts (`TimeLimitExceeded`, `JobCancelled`, `LeaseLost`) are no `Exception`, so that a broad
``except Exception`` in a task cannot swallow them.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from .types import Duration, seconds


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name closest to `name`, or an empty text."""
    close = get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    if not close:  # "redis" for "REDIS"
        close = [item for item in known if item.lower() == str(name).lower()][:1]
    return f"; did you mean {close[0]!r}?" if close else ""


class JobRailError(Exception):
    """Base of all errors of JobRail."""


# Set-up


class ConfigurationError(JobRailError):
    """The settings, or the options of a task, cannot work as they are written."""


class UnknownQueue(ConfigurationError):
    """A queue was named that no setting declares."""

    def __init__(self, message: str = "", *, queue: str = "") -> None:
        super().__init__(message)
        self.queue = queue


class InvalidOption(ConfigurationError):
    """An option of a task has a value it cannot have, or stands where it cannot stand."""

    def __init__(self, message: str = "", *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class UnknownOption(InvalidOption):
    """A task was given an option that does not exist."""


class UnsupportedOption(InvalidOption):
    """A task was given an option whose machinery this version does not have yet."""


class TaskModuleError(ConfigurationError):
    """A module of tasks could not be imported; the cause is chained."""

    def __init__(self, message: str = "", *, module: str = "") -> None:
        super().__init__(message)
        self.module = module


# Tasks and their arguments


class _TaskError(JobRailError):
    """An error about one task."""

    def __init__(self, message: str = "", *, task: str = "") -> None:
        super().__init__(message)
        self.task = task


class InvalidTask(_TaskError):
    """This function cannot be a task."""


class TaskNotRegistered(_TaskError):
    """No task of this name is registered in this process."""


class TaskAlreadyRegistered(_TaskError):
    """Another function is registered as a task under the same name."""


class InvalidArguments(_TaskError):
    """The arguments of an enqueue do not fit the signature of the task."""


class EncodeError(JobRailError):
    """A value cannot be stored so that it comes back equal."""

    def __init__(self, message: str = "", *, path: str = "", type_name: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.type_name = type_name


class PayloadTooLarge(EncodeError):
    """The encoded arguments of a job are larger than ``MAX_PAYLOAD_BYTES``."""

    def __init__(self, message: str = "", *, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class DecodeError(JobRailError):
    """A stored payload or result cannot be read."""


class UnknownPayloadVersion(DecodeError):
    """A payload was written by a newer JobRail than this one; a newer worker can run it."""

    def __init__(self, message: str = "", *, version: object = None) -> None:
        super().__init__(message)
        self.version = version


# Broker


class BrokerError(JobRailError):
    """The broker did not do what it was asked."""


class BrokerUnavailable(BrokerError):
    """Redis could not be reached, or did not answer in time; trying again may help."""


class ScriptError(BrokerError):
    """A script failed or answered what it never should: a bug of JobRail, or foreign data under its keys."""


# Jobs


class _JobError(JobRailError):
    """An error about one job."""

    def __init__(self, message: str = "", *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class JobNotFound(_JobError):
    """No job of this id is known, in Redis or in the database."""


class DuplicateJob(_JobError):
    """The idempotency key belongs to a job with another task or other arguments; `job_id` is that job."""


class InvalidTransition(_JobError):
    """The state the job is in does not allow what was asked."""

    def __init__(self, message: str = "", *, job_id: str = "", state: str = "") -> None:
        super().__init__(message, job_id=job_id)
        self.state = state


class QueuePaused(JobRailError):
    """The queue is paused and does not do what was asked until it is resumed."""

    def __init__(self, message: str = "", *, queue: str = "") -> None:
        super().__init__(message)
        self.queue = queue


# Raised by tasks


class TaskControl(JobRailError):
    """Base of what a task raises to say how its attempt ends; it is not counted as an error.

    Args:
        delay: Wait before the job is ready again, in seconds or as a timedelta, 0 or more. None = the default of the
            subclass.
        reason: Text kept with the attempt.

    Raises:
        InvalidOption: `delay` is not a duration.
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        try:
            self.delay_s = None if delay is None else seconds(delay)
        except ValueError as exc:
            raise InvalidOption(f"{type(self).__name__}(delay=…): {exc}", option="delay") from None

    @property
    def reason(self) -> str:
        """The text given by the task."""
        return str(self)


class Retry(TaskControl):
    """End the attempt and try again; uses up an attempt. Without `delay` the backoff of the task applies."""


class Release(TaskControl):
    """Give the job back without using up an attempt. Without `delay` it is ready at once."""


# Raised into tasks


class TaskInterrupt(BaseException):
    """Base of what JobRail raises inside a running task to end it.

    No `Exception`, so that ``except Exception`` in a task lets it pass. It can be made without arguments, because
    the interpreter does that when an exception is raised in another thread.
    """

    def __init__(self, message: str = "", *, job_id: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])
        self.job_id = job_id


class TimeLimitExceeded(TaskInterrupt):
    """The attempt ran longer than its timeout."""


class JobCancelled(TaskInterrupt):
    """The job was cancelled while it ran."""


class LeaseLost(TaskInterrupt):
    """The job no longer belongs to this worker; whatever it reports now is not accepted."""
