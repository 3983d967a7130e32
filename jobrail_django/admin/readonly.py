"""What all of JobRail's admin pages have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from .. import conf


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows of JobRail's database that nobody can add, edit or delete by form."""

    actions: Sequence[str] | None = None

    class Media:
        css = {"all": ["jobrail_django/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read from the database that the settings name."""
        rows: QuerySet[Any] = super().get_queryset(request).using(conf.get_settings().database)
        return rows

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        """Nobody adds rows: the mirror does."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody edits rows: they say what Redis says."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes rows here: a live job would go on without them."""
        return False
