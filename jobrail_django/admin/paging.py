"""A change list without COUNT and OFFSET: each page starts at a key, so page 10,000 costs what page 1 costs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest

#: Query parameters: the page ends before, or begins after, the job with this id, newest first.
OLDER_THAN, NEWER_THAN = "older", "newer"


class KeysetChangeList(ChangeList):
    """Pages through rows by primary key, newest first; there is no other order."""

    older_link: str | None = None
    newer_link: str | None = None

    def get_filters(self, request: HttpRequest) -> Any:
        """Take the position out of the query before the rest is read as filters."""
        self.older_than = self._position(OLDER_THAN)
        self.newer_than = self._position(NEWER_THAN)
        return super().get_filters(request)

    def get_results(self, request: HttpRequest) -> None:
        """Read one page, and one row more to know whether there is a next one."""
        rows, size = self.queryset, self.list_per_page
        if self.newer_than is not None:
            found = list(rows.filter(pk__gt=self.newer_than).order_by("pk")[: size + 1])
            has_newer, has_older = len(found) > size, True
            page = found[:size][::-1]
        else:
            if self.older_than is not None:
                rows = rows.filter(pk__lt=self.older_than)
            found = list(rows.order_by("-pk")[: size + 1])
            has_newer, has_older = self.older_than is not None, len(found) > size
            page = found[:size]
        if page and has_newer:
            self.newer_link = self.get_query_string({NEWER_THAN: str(page[0].pk)})
        if page and has_older:
            self.older_link = self.get_query_string({OLDER_THAN: str(page[-1].pk)})
        if not page and (self.older_than or self.newer_than):
            self.newer_link = self.get_query_string()
        self.result_list = page
        self.result_count = self.full_result_count = len(page)
        self.show_full_result_count = False
        self.show_admin_actions = bool(page)
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(page, size)

    def _position(self, name: str) -> UUID | None:
        text = self.params.pop(name, None)
        self.filter_params.pop(name, None)
        if text is None:
            return None
        try:
            return UUID(text)
        except ValueError as exc:
            raise IncorrectLookupParameters(exc) from exc
