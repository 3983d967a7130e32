"""The pages of jobs: the list, one job, and what can be done to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET, require_POST

from .. import conf
from ..models import Job
from ..querysets import clean, task_prefix
from . import display, live, verbs
from .filters import QueueFilter, StateFilter, TaskFilter, task_names
from .page import JobPage
from .paging import KeysetChangeList
from .readonly import ReadOnlyAdmin

#: Jobs on a page of the list, and so at most in one action.
PAGE = 100

#: Columns that may hold megabytes: the list never reads them.
BIG_COLUMNS = ("payload", "result", "error_message")

#: Registered tasks that one search may match.
MAX_TASKS = 20


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs, newest first."""

    list_display = ("identifier", "task", "queue", "pill", "age", "tries", "worker")
    list_display_links = ("identifier",)
    list_filter = (StateFilter, QueueFilter, TaskFilter)
    list_per_page = PAGE
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    ordering = ("-pk",)
    search_fields = ("id", "task")
    search_help_text = (
        "An id or its first 8 characters or more, the beginning of a task's name, or a part of the name of a "
        "registered task."
    )
    actions = ("retry_selected", "cancel_selected")
    change_list_template = "admin/jobrail/job/change_list.html"

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Page by key."""
        return KeysetChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Leave the big columns out; the page of one job reads them by itself."""
        rows: QuerySet[Any] = super().get_queryset(request).defer(*BIG_COLUMNS)
        return rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Search by the beginning of an id or by task, on an index in both cases."""
        term = clean(search_term.strip())
        if not term:
            return queryset, False
        ids = id_range(term)
        if ids is not None:
            return queryset.filter(pk__range=ids), False
        matches = [name for name in task_names() if term.lower() in name.lower()][:MAX_TASKS]
        condition = task_prefix(term, queryset.db)
        if matches:
            condition = Q(task=term) if matches == [term] else condition | Q(task__in=matches)
        return queryset.filter(condition), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, and how far it is behind Redis."""
        context = {"jobrail_notice": live.mirror_notice(), **(extra_context or {})}
        return super().changelist_view(request, context)

    @admin.display(description="id")
    def identifier(self, job: Job) -> SafeString:
        """The id."""
        return display.identifier(job.pk)

    @admin.display(description="state")
    def pill(self, job: Job) -> SafeString:
        """The state in its colour."""
        return display.pill(job.state)

    @admin.display(description="age")
    def age(self, job: Job) -> SafeString | str:
        """How long ago it was enqueued."""
        return display.age(job.enqueued_at)

    @admin.display(description="attempts")
    def tries(self, job: Job) -> str:
        """Attempts used up and allowed, and losses if there were any."""
        lost = f", {job.losses} lost" if job.losses else ""
        return f"{job.attempts} of {job.max_attempts}{lost}"

    @admin.display(description="worker")
    def worker(self, job: Job) -> str:
        """Id of the worker that claimed it last."""
        return job.claim.split(".", 1)[0] or "–"

    # Actions on several jobs

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may retry jobs; asked by the action."""
        return verbs.VERBS["retry"].is_allowed(request)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may cancel jobs; asked by the action."""
        return verbs.VERBS["cancel"].is_allowed(request)

    @admin.action(description="Retry selected jobs", permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponseBase | None:
        """Retry the chosen jobs after a page that asks."""
        return self._selected(request, queryset, verbs.VERBS["retry"])

    @admin.action(description="Cancel selected jobs", permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponseBase | None:
        """Cancel the chosen jobs after a page that asks."""
        return self._selected(request, queryset, verbs.VERBS["cancel"])

    def _selected(
        self, request: HttpRequest, queryset: QuerySet[Job], verb: verbs.AdminVerb
    ) -> HttpResponseBase | None:
        jobs = list(queryset[: PAGE + 1])
        if len(jobs) > PAGE:
            self.message_user(request, f"Choose {PAGE} jobs at most; nothing was done.", messages.ERROR)
            return None
        if "confirmed" in request.POST:
            seen = dict(zip(request.POST.getlist(ACTION_CHECKBOX_NAME), request.POST.getlist("seen"), strict=False))
            self._run(request, verb, [(str(job.pk), seen.get(str(job.pk), "")) for job in jobs])
            if len(seen) > len(jobs):
                text = f"{len(seen) - len(jobs)} of the jobs have left this list meanwhile and were left alone."
                self.message_user(request, text, messages.WARNING)
            return None
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb.title} {len(jobs)} job{'' if len(jobs) == 1 else 's'}?",
            "opts": self.opts,
            "media": self.media,
            "verb": verb,
            "jobs": [(job, display.pill(job.state), job.state in verb.states) for job in jobs],
            "action_checkbox_name": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/jobrail/job/confirm.html", context)

    def _run(self, request: HttpRequest, verb: verbs.AdminVerb, jobs: Sequence[tuple[str, str]]) -> None:
        """Do it, write it to the admin's log under the user's name, and say what became of it."""
        report = verbs.run(verb, jobs)
        rows = self.get_queryset(request).in_bulk([job_id for job_id, _ in report.done])
        for job_id, what in report.done:
            row = rows.get(UUID(job_id))
            if row is not None:
                self.log_change(request, row, what)
        if report.done:
            what = report.done[0][1] if len(report.done) == 1 else f"{verb.title}: done for {len(report.done)} jobs."
            self.message_user(request, f"{what} The rows follow with the mirror.", messages.SUCCESS)
        for text in report.refused:
            self.message_user(request, text, messages.WARNING)
        if report.fault:
            left = len(jobs) - len(report.done) - len(report.refused)
            self.message_user(request, f"{report.fault} Nothing was done to {left} jobs.", messages.ERROR)

    # One job

    def get_urls(self) -> list[URLPattern]:
        """Add what a job's page needs: its two buttons and its two downloads."""
        wrap = self.admin_site.admin_view
        own = [
            path(
                f"<uuid:job_id>/{name}/",
                wrap(require_POST(self.verb_view)),
                {"name": name},
                name=f"jobrail_job_{name}",
            )
            for name in verbs.VERBS
        ]
        own += [
            path(
                f"<uuid:job_id>/{column}.txt",
                wrap(require_GET(self.download_view)),
                {"column": column},
                name=f"jobrail_job_{column}",
            )
            for column in ("payload", "result")
        ]
        return own + super().get_urls()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one job with its attempts. There is no form for its columns, and a POST is refused."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        job = self.get_object(request, object_id)
        if job is None:
            self.message_user(request, f"There is no row of a job {object_id!r}.", messages.WARNING)
            return HttpResponseRedirect(self._address("changelist"))
        page = JobPage(job, may_see_workers=request.user.has_perm("jobrail.view_worker"))
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            **page.context(),
            "verbs": [
                (verb, self._address(verb.name, job.pk))
                for verb in verbs.VERBS.values()
                if verb.is_allowed(request) and page.state in verb.states
            ],
            "title": f"Job {job.pk}",
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/jobrail/job/page.html", context)

    def verb_view(self, request: HttpRequest, job_id: UUID, name: str) -> HttpResponse:
        """Do one thing to one job and go back to its page. POST only."""
        verb = verbs.VERBS[name]
        if not self.has_view_permission(request) or not verb.is_allowed(request):
            raise PermissionDenied
        self._run(request, verb, [(str(job_id), request.POST.get("seen", ""))])
        return HttpResponseRedirect(self._address("change", job_id))

    def _address(self, view: str, *args: object) -> str:
        return reverse(f"admin:jobrail_job_{view}", args=args, current_app=self.admin_site.name)

    def download_view(self, request: HttpRequest, job_id: UUID, column: str) -> HttpResponse:
        """Hand out one long column, whole, as a text to save."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        rows = Job.objects.using(conf.get_settings().database).filter(pk=job_id)
        text = rows.values_list(column, flat=True).first()
        if text is None:
            raise Http404
        return HttpResponse(
            text,
            content_type="text/plain; charset=utf-8",
            headers={
                "Content-Disposition": f'attachment; filename="{job_id}-{column}.txt"',
                "X-Content-Type-Options": "nosniff",
            },
        )


def id_range(term: str) -> tuple[UUID, UUID] | None:
    """Return the lowest and the highest id of a job that begins with `term`; None if it is no beginning of one.

    The version and variant that all ids of jobs have are filled in, because some databases sort UUIDs of different
    versions differently.
    """
    digits = term.replace("-", "").lower()
    if not 8 <= len(digits) <= 32 or len(term) > 36 or not set(digits) <= set("0123456789abcdef"):
        return None
    lowest, highest = list(digits.ljust(32, "0")), list(digits.ljust(32, "f"))
    if len(digits) <= 12:
        lowest[12] = highest[12] = "7"
    if len(digits) <= 16:
        lowest[16], highest[16] = "8", "b"
    return UUID("".join(lowest)), UUID("".join(highest))
