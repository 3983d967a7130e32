"""The pages of queues and workers: to look at."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from ..models import Queue, Worker
from . import display, live
from .readonly import ReadOnlyAdmin


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    """Queues as the mirror last saw them."""

    list_display = ("name", "is_open", "ready", "scheduled", "retrying", "running", "lag", "as_of")
    ordering = ("name",)
    change_list_template = "admin/jobrail/change_list.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, and how far it is behind Redis."""
        context = {"jobrail_notice": live.mirror_notice(), **(extra_context or {})}
        return super().changelist_view(request, context)

    @admin.display(description="open", boolean=True)
    def is_open(self, queue: Queue) -> bool:
        """False while it is paused."""
        return not queue.paused

    @admin.display(description="mirror behind")
    def lag(self, queue: Queue) -> str:
        """How far the mirror was behind."""
        return display.period(queue.lag_ms / 1000)

    @admin.display(description="as of")
    def as_of(self, queue: Queue) -> SafeString | str:
        """Age of these figures."""
        return display.age(queue.mirrored_at)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Workers that are alive, and those that were in the last week."""

    list_display = ("short_id", "name", "host", "pid", "queues", "processes", "threads", "status", "seen", "version")
    list_display_links = ("short_id",)
    ordering = ("-seen_at", "pk")

    @admin.display(description="id")
    def short_id(self, worker: Worker) -> str:
        """The id, as jobs name it."""
        return worker.pk

    @admin.display(description="status")
    def status(self, worker: Worker) -> str:
        """Whether Redis knows it."""
        return "alive" if worker.gone_at is None else "gone"

    @admin.display(description="seen", ordering="seen_at")
    def seen(self, worker: Worker) -> SafeString | str:
        """How long ago it was last heard of."""
        return display.age(worker.seen_at)
