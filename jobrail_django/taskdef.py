"""`@task`: a function that can be enqueued, with its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction

from . import registry
from .errors import InvalidArguments, InvalidOption, InvalidTask
from .options import DecoratorOptions, TaskOptions

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Unpack

    from .job import Job
    from .options import CallOptions
else:
    from typing import ParamSpec

P = ParamSpec("P")
R = TypeVar("R")

#: Longest name of a task, in characters: what the database column holds.
MAX_NAME_LENGTH = 255


@dataclass(frozen=True, kw_only=True)
class Task(Generic[P, R]):
    """A registered function with its options; calling it runs the function here and now.

    Immutable: `using` returns another one. Safe to share between threads.
    """

    func: Callable[P, R]
    options: TaskOptions = field(default_factory=TaskOptions)
    #: Names of the options that `using` was given explicitly.
    overrides: frozenset[str] = frozenset()
    name: str = field(init=False)
    signature: inspect.Signature = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Name the task and refuse what cannot be one."""
        object.__setattr__(self, "name", _name(self.func))
        object.__setattr__(self, "signature", inspect.signature(self.func))
        if self.options.takes_context and next(iter(self.signature.parameters), None) != "context":
            raise InvalidTask(
                f"Task {self.name!r} has takes_context=True, so its first parameter must be named 'context'; "
                f"its signature is {self.signature}",
                task=self.name,
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function directly, without a job."""
        return self.func(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """True when the function is ``async def``."""
        return bool(iscoroutinefunction(self.func))

    @property
    def queue_name(self) -> str:
        """The queue of its jobs."""
        return self.options.queue_name

    @property
    def priority(self) -> int:
        """The priority of its jobs, -100 to 100."""
        return self.options.priority

    def using(self, **options: Unpack[CallOptions]) -> Task[P, R]:
        """Return the same task with other options for the calls made through it.

        Raises:
            InvalidOption: An option is unknown, not supported yet, out of range, or belongs into ``@task(…)``.
        """
        changed = self.options.with_call(cast("Mapping[str, Any]", options))
        return replace(self, options=changed, overrides=self.overrides.union(options))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue a job for these arguments; see `jobrail_django.enqueue`."""
        from . import client

        return client.enqueue_task(self, args, kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue a job from a coroutine; otherwise the same as `enqueue`."""
        from . import client

        return await client.aenqueue_task(self, args, kwargs)

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that a call of the function would refuse.

        Raises:
            InvalidArguments: They do not fit the signature; the text names no value.
        """
        try:
            if self.options.takes_context:
                self.signature.bind(None, *args, **kwargs)
            else:
                self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise InvalidArguments(
                f"The arguments do not fit the task {self.name!r}: {exc}. Its signature is {self.signature}",
                task=self.name,
            ) from None

    def call_options(self) -> dict[str, Any]:
        """Return the explicit options of this call that the worker needs, as plain JSON for the payload."""
        return self.options.to_json(self.overrides)

    def with_call_options(self, data: Mapping[str, Any]) -> Task[P, R]:
        """Return this task with the options that a payload brought; the worker's side of `call_options`.

        Raises:
            UnknownPayloadVersion: A newer JobRail wrote an option that is not known here.
            InvalidOption: A value is out of range.
        """
        if not data:
            return self
        return replace(self, options=self.options.with_json(data), overrides=self.overrides.union(data))


def _name(func: object) -> str:
    """Return the name under which a function is registered.

    Raises:
        InvalidTask: It cannot be found again by a worker, or its call does not do the work.
    """
    if not inspect.isfunction(func):
        raise InvalidTask(f"{func!r} is no plain function; @task takes a function at the top level of a module")
    name = f"{func.__module__}.{func.__qualname__}"
    if func.__name__ == "<lambda>" or "." in func.__qualname__ or "<" in func.__qualname__:
        raise InvalidTask(f"{name!r} is not at the top level of a module; move the function there", task=name)
    if func.__module__ == "__main__":
        raise InvalidTask(f"{name!r} is in the script itself, where no worker finds it; move it to a module", task=name)
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise InvalidTask(f"{name!r} is a generator: a call would not run it; return a list instead", task=name)
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTask(f"{name!r} has {len(name)} characters; at most {MAX_NAME_LENGTH} can be stored", task=name)
    return name


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(**options: Unpack[DecoratorOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Callable[P, R] | None = None, /, **options: Any) -> Any:
    """Make a task of a function, as ``@task`` or ``@task(priority=10, …)``, and register it.

    Args:
        function: A function at the top level of a module, ``def`` or ``async def``.
        **options: See `TaskOptions`.

    Raises:
        InvalidTask: The function cannot be a task.
        InvalidOption: An option is unknown, not supported yet, out of range, or belongs into ``.using(…)``.
        TaskAlreadyRegistered: Another function has the same name.
    """

    def decorate(func: Callable[P, R]) -> Task[P, R]:
        name = _name(func)
        try:
            made = Task(func=func, options=TaskOptions().with_decorator(options))
        except InvalidOption as exc:
            raise type(exc)(f"Task {name!r}: {exc}", option=exc.option) from None
        registry.register(made)
        return made

    return decorate if function is None else decorate(function)
