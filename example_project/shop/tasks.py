"""The shop's jobs.

Each may run more than once (its worker may die after the work and before the report), so each is written so that a
second run does no harm; its docstring says what is left of the risk.
"""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import OperationalError, transaction
from django.utils import timezone

from jobrail_django import Backoff, Retry, current_job, enqueue_many, task
from shop.models import BadRow, Order, Product, Upload
from shop.order_file import NotAnOrderFile, OrderFile, read_orders
from shop.partner import PartnerBusy, PartnerRefused, post_order
from shop.pictures import BrokenPicture, make_thumbnail_file, picture_path
from shop.receipts import mail_receipt, mail_review_request, receipt_name, write_receipt
from shop.tracking import track

#: Orders that one `save_orders` job saves: a transaction of some milliseconds.
CHUNK = 200
#: Bad rows an import names in its result; its page lists all of them.
BAD_ROWS_IN_RESULT = 100


@task(timeout=60, discard_on=(NotAnOrderFile, Upload.DoesNotExist))
def import_orders(upload_id: int) -> dict[str, Any]:
    """Read an uploaded file, note its bad rows and ask for its orders to be saved, some hundred at a time.

    A second run notes nothing twice; it asks for the chunks again, and these find their orders there.
    """
    upload = Upload.objects.get(pk=upload_id)
    found = read_orders(Path(upload.path).read_bytes())
    rows = [list(order) for order in found.orders]
    chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
    with transaction.atomic():
        note_file(upload, found)
        for job in enqueue_many(save_orders, [(upload_id, chunk) for chunk in chunks]):
            track(job, upload=upload)
    return {
        "encoding": found.encoding,
        "orders": len(rows),
        "chunks": len(chunks),
        "bad": len(found.bad),
        "bad_rows": [[bad.line, bad.reason] for bad in found.bad[:BAD_ROWS_IN_RESULT]],
    }


def note_file(upload: Upload, found: OrderFile) -> None:
    """Write down what the file is and which of its lines are bad."""
    bad_rows = [BadRow(upload=upload, line=bad.line, reason=bad.reason, text=bad.text) for bad in found.bad]
    BadRow.objects.bulk_create(bad_rows, ignore_conflicts=True)
    upload.encoding = found.encoding
    upload.rows = len(found.orders) + len(found.bad)
    upload.save(update_fields=["encoding", "rows"])


@task(timeout=60)
def save_orders(upload_id: int, rows: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Save orders that are new; the unique number makes a second run save none twice and return the same."""
    orders = [
        Order(
            number=number,
            placed_on=date.fromisoformat(placed_on),
            customer=customer,
            email=email,
            sku=sku,
            quantity=quantity,
            unit_price=Decimal(unit_price),
            upload_id=upload_id,
        )
        for number, placed_on, customer, email, sku, quantity, unit_price in rows
    ]
    with transaction.atomic():
        Order.objects.bulk_create(orders, ignore_conflicts=True)
        mine = Order.objects.filter(upload_id=upload_id, number__in=[order.number for order in orders]).count()
    return {"saved": mine, "known": len(orders) - mine}


@task(
    queue_name="mail",
    priority=10,
    max_attempts=5,
    backoff=Backoff(base=1, cap=30),
    timeout=30,
    retry_on=(OSError, OperationalError),
    discard_on=(Order.DoesNotExist,),
)
def send_receipt(order_id: int) -> str:
    """Render the receipt, mail it, and return its path below MEDIA_ROOT.

    A run that finds the mail noted as sent sends none. A worker that dies between mail and note leads to a
    second mail with the same Message-ID.
    """
    order = Order.objects.get(pk=order_id)
    if order.receipt_sent_at is None:
        mail_receipt(order, write_receipt(order))
        Order.objects.filter(pk=order_id).update(receipt_sent_at=timezone.now())
    return receipt_name(order)


@task(
    queue_name="mail", priority=-10, retry_on=(OSError, OperationalError), discard_on=(Order.DoesNotExist,), timeout=30
)
def ask_for_review(order_id: int) -> bool:
    """Ask the customer for a review, unless the order has been cancelled; return whether it did."""
    order = Order.objects.get(pk=order_id)
    if order.cancelled_at is not None:
        return False
    mail_review_request(order)
    return True


@task(queue_name="pictures", max_attempts=3, timeout=60, discard_on=(BrokenPicture, Product.DoesNotExist))
def make_thumbnail(product_id: int) -> dict[str, Any]:
    """Make the product's thumbnail; a broken picture ends the job at once, trying again would not mend it."""
    product = Product.objects.get(pk=product_id)
    name = f"thumbnails/{product.sku}.png"
    width, height = make_thumbnail_file(picture_path(product), Path(settings.MEDIA_ROOT) / name)
    Product.objects.filter(pk=product_id).update(thumbnail=name)
    return {"file": name, "width": width, "height": height}


@task(
    queue_name="webhooks",
    max_attempts=8,
    backoff=Backoff(base=1, cap=5),
    timeout=15,
    retry_on=(OSError, http.client.HTTPException, OperationalError),
    discard_on=(PartnerRefused, Order.DoesNotExist),
)
def tell_partner(order_id: int) -> dict[str, Any]:
    """Tell the partner about the order: again after a backoff when it fails, and when it says so when it is busy.

    The partner sees the same Idempotency-Key each time.
    """
    order = Order.objects.get(pk=order_id)
    try:
        answer = post_order(order)
    except PartnerBusy as busy:
        raise Retry(delay=busy.retry_after_s) from busy
    Order.objects.filter(pk=order_id).update(partner_told_at=timezone.now())
    job = current_job()
    return {"answer": answer, "attempt": job.attempt if job else 1}
