"""What the shop says while the job queue is away."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from jobrail_django.errors import BrokerUnavailable


class QueueAwayMiddleware:
    """Answer 503 with a page of the shop's own when a view could not reach the job queue."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Let the view answer."""
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Turn BrokerUnavailable into the page; leave everything else to Django."""
        if isinstance(exception, BrokerUnavailable):
            return render(request, "shop/away.html", status=503)
        return None
