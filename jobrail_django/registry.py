"""The tasks this process knows, by name. A name that comes from data is only ever looked up, never imported."""

from __future__ import annotations

import importlib
import inspect
import logging
import threading
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from .errors import TaskAlreadyRegistered, TaskModuleError, TaskNotRegistered, did_you_mean

if TYPE_CHECKING:
    from .taskdef import Task

logger = logging.getLogger(__name__)

#: Modules of an app that may hold tasks, in the order in which they are imported.
MODULES = ("tasks", "jobs")

_tasks: dict[str, Task[..., Any]] = {}
_lock = threading.RLock()
_discovered = False


def register(task: Task[..., Any]) -> None:
    """Make a task known under its name; the decorator does this.

    The same definition may be registered again, as happens when a module is reloaded; the newer one then counts.

    Raises:
        TaskAlreadyRegistered: Another function has the name.
    """
    with _lock:
        known = _tasks.get(task.name)
        if known is not None and not _is_same(known.func, task.func):
            old, new = _code(known.func), _code(task.func)
            raise TaskAlreadyRegistered(
                f"Task {task.name!r} is already registered, from {_where(old)}; {_where(new)} defines it again. "
                f"Rename one of the two functions.",
                task=task.name,
            )
        _tasks[task.name] = task


def get(name: str) -> Task[..., Any]:
    """Return the task of that name; imports the installed apps' own task modules first if that was not done yet.

    Raises:
        TaskNotRegistered: There is none.
        TaskModuleError: One of those modules fails on import.
    """
    found = _tasks.get(name)
    if found is None and not _discovered and apps.ready:
        autodiscover()
        found = _tasks.get(name)
    if found is None:
        raise TaskNotRegistered(
            f"No task {str(name)[:255]!r} is registered{did_you_mean(name, _tasks)}. A task is a function decorated "
            f"with @task in the module 'tasks' or 'jobs' of an installed app, or in a module that these import.",
            task=str(name)[:255],
        )
    return found


def names() -> list[str]:
    """Return the names of all tasks known now, sorted."""
    return sorted(_tasks)


def autodiscover() -> list[str]:
    """Import ``<app>.tasks``, then ``<app>.jobs`` of every installed app; returns the modules imported.

    Safe to call again.

    Raises:
        TaskModuleError: A module fails on import; the cause is chained.
    """
    global _discovered
    imported = []
    for app in apps.get_app_configs():
        for part in MODULES:
            if app.module is not None and module_has_submodule(app.module, part):
                _import(f"{app.name}.{part}")
                imported.append(f"{app.name}.{part}")
    _discovered = True
    return imported


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as exc:
        raise TaskModuleError(
            f"The task module {module!r} fails on import with {type(exc).__name__}: {exc}. "
            f"Its tasks cannot run; correct the module.",
            module=module,
        ) from exc


def _code(func: Callable[..., Any]) -> CodeType:
    code: CodeType = inspect.unwrap(func).__code__
    return code


def _where(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"


def _is_same(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Tell whether two functions of one name come from one definition (the place in the source, or the very code)."""
    if old is new:
        return True
    first, second = _code(old), _code(new)
    in_a_file = not first.co_filename.startswith("<")
    return in_a_file and _where(first) == _where(second)
