"""JobRail: background jobs for Django on Redis.

The names are loaded when they are first used, so that importing this package imports no model and reads no setting.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .backoff import Backoff
    from .client import cancel, enqueue, enqueue_many, get_job, pause_queue, resume_queue, retry
    from .context import current_job
    from .errors import (
        BrokerError,
        BrokerUnavailable,
        ConfigurationError,
        DecodeError,
        DuplicateJob,
        EncodeError,
        InvalidArguments,
        InvalidOption,
        InvalidTask,
        InvalidTransition,
        JobCancelled,
        JobNotFound,
        JobRailError,
        LeaseLost,
        PayloadTooLarge,
        QueuePaused,
        Release,
        Retry,
        ScriptError,
        TaskAlreadyRegistered,
        TaskControl,
        TaskInterrupt,
        TaskModuleError,
        TaskNotRegistered,
        TimeLimitExceeded,
        UnknownOption,
        UnknownPayloadVersion,
        UnknownQueue,
        UnsupportedOption,
    )
    from .taskdef import task

__all__ = [
    "Backoff",
    "BrokerError",
    "BrokerUnavailable",
    "ConfigurationError",
    "DecodeError",
    "DuplicateJob",
    "EncodeError",
    "InvalidArguments",
    "InvalidOption",
    "InvalidTask",
    "InvalidTransition",
    "JobCancelled",
    "JobNotFound",
    "JobRailError",
    "LeaseLost",
    "PayloadTooLarge",
    "QueuePaused",
    "Release",
    "Retry",
    "ScriptError",
    "TaskAlreadyRegistered",
    "TaskControl",
    "TaskInterrupt",
    "TaskModuleError",
    "TaskNotRegistered",
    "TimeLimitExceeded",
    "UnknownOption",
    "UnknownPayloadVersion",
    "UnknownQueue",
    "UnsupportedOption",
    "cancel",
    "current_job",
    "enqueue",
    "enqueue_many",
    "get_job",
    "pause_queue",
    "resume_queue",
    "retry",
    "task",
]


#: Modules of the exported names; those not listed here are in `errors`. No module may have the name of an export.
_HOMES = {
    "Backoff": "backoff",
    "cancel": "client",
    "current_job": "context",
    "enqueue": "client",
    "enqueue_many": "client",
    "get_job": "client",
    "pause_queue": "client",
    "resume_queue": "client",
    "retry": "client",
    "task": "taskdef",
}


def __getattr__(name: str) -> object:
    """Load an exported name from its module on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("." + _HOMES.get(name, "errors"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the exported names also before they are loaded."""
    return sorted({*globals(), *__all__})
