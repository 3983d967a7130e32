"""The shop's partner: an endpoint that fails on purpose, the same way for the same order."""

from __future__ import annotations

import time

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order, PartnerCall

#: Seconds the partner sleeps when it is slow: longer than the shop waits for it.
SLOW_S = 2.5
#: What order number n meets, call by call, is row n % 5; the last word of a row stays.
ANSWERS = (
    ("accepted",),
    ("error", "accepted"),
    ("slow", "accepted"),
    ("busy", "accepted"),
    ("error", "busy", "slow", "accepted"),
)


@csrf_exempt
@require_POST
def partner_hook(request: HttpRequest, pk: int) -> HttpResponse:
    """Answer as the order's row says: 200, 500, 429 with Retry-After, or too late."""
    order = get_object_or_404(Order, pk=pk)
    with transaction.atomic():
        row = ANSWERS[order.pk % len(ANSWERS)]
        answer = row[min(order.partner_calls.count(), len(row) - 1)]
        PartnerCall.objects.create(order=order, answer=answer)
    if answer == "error":
        return HttpResponse("Out of order.", status=500)
    if answer == "busy":
        return HttpResponse("Later, please.", status=429, headers={"Retry-After": "1"})
    if answer == "slow":
        time.sleep(SLOW_S)
    return HttpResponse(f"Order {order.number} accepted.")
