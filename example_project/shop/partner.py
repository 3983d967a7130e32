"""Tell the shop's partner about an order, over HTTP."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from django.conf import settings
from django.urls import reverse

from shop.models import Order

#: Seconds to wait for the partner to connect, and for each part of its answer.
TIMEOUT_S = 1.0
#: Seconds; a partner that asks for more patience gets this much.
MAX_RETRY_AFTER_S = 60.0

#: The partner is a view of this same site, so that no proxy of the machine stands between.
_opener = build_opener(ProxyHandler({}))


class PartnerBusy(Exception):
    """The partner asks to be called again after `retry_after_s` seconds."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"The partner is busy; it asks to be called again in {retry_after_s} seconds.")
        self.retry_after_s = retry_after_s


class PartnerRefused(Exception):
    """The partner will never take this order; calling again will not help."""


def post_order(order: Order) -> str:
    """Post the order to the partner and return what it answered.

    The Idempotency-Key is the order's number: a call whose answer was lost may be repeated.

    Raises:
        PartnerBusy: answer 429 or 503 with a Retry-After header.
        PartnerRefused: any other answer from 400 to 499.
        OSError: no connection, no answer in time, or an answer from 500 on.
        http.client.HTTPException: the answer is not HTTP.
    """
    body = json.dumps({"number": order.number, "total": str(order.total)}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": order.number}
    address = settings.SITE_URL + reverse("shop:partner-hook", args=[order.pk])
    try:
        with _opener.open(Request(address, data=body, headers=headers), timeout=TIMEOUT_S) as answer:
            return str(answer.read(1000).decode("utf-8", "replace"))
    except HTTPError as exc:
        retry_after = exc.headers.get("Retry-After")
        exc.close()
        if exc.code in (429, 503) and retry_after:
            raise PartnerBusy(seconds_until(retry_after)) from exc
        if 400 <= exc.code < 500:
            raise PartnerRefused(f"The partner answered {exc.code} to order {order.number!r}.") from exc
        raise


def seconds_until(retry_after: str) -> float:
    """Return the seconds a Retry-After header asks for, a number or a date, between 0 and 60."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            moment = parsedate_to_datetime(retry_after)
        except ValueError:
            return 1.0
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        seconds = (moment - datetime.now(timezone.utc)).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else 1.0
