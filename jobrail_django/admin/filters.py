"""Filters of the job list. Their choices come from code and settings, never from a scan of the table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from .. import conf, registry
from ..errors import TaskModuleError
from ..querysets import clean
from ..states import State

#: Choices of one filter; with more tasks or queues the search box finds the others.
MAX_CHOICES = 60


def task_names() -> list[str]:
    """Return the names of the tasks of this process; those whose module fails on import are left out."""
    try:
        registry.autodiscover()
    except TaskModuleError:
        pass  # a system check reports it; the list has to open all the same
    return sorted(registry.names())


class _EqualFilter(admin.SimpleListFilter):
    """Compares one column with the value chosen; a value in the address that is no choice works too."""

    def names(self) -> Iterable[str]:
        """Return the values to choose from."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the values, and the current one in any case."""
        names = list(self.names())[:MAX_CHOICES]
        current = self.value()
        if current and current not in names:
            names.append(current)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the rows with the chosen value."""
        value = self.value()
        return queryset.filter(**{self.parameter_name or "": clean(value)}) if value else queryset


class StateFilter(_EqualFilter):
    """By state."""

    title = parameter_name = "state"

    def names(self) -> Iterable[str]:
        """All states."""
        return [state.value for state in State]


class QueueFilter(_EqualFilter):
    """By queue."""

    title = parameter_name = "queue"

    def names(self) -> Iterable[str]:
        """The queues that the settings declare."""
        return sorted(conf.get_settings().queues)


class TaskFilter(_EqualFilter):
    """By task."""

    title = parameter_name = "task"

    def names(self) -> Iterable[str]:
        """The tasks that this process has registered."""
        return task_names()
