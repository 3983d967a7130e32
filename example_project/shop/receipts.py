"""Render an order's receipt to a file and mail it."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.core.mail import EmailMessage
from django.template.loader import render_to_string

from shop.files import write_whole
from shop.models import Order


def receipt_name(order: Order) -> str:
    """Return the receipt's path below MEDIA_ROOT."""
    return f"receipts/{order.number}.html"


def write_receipt(order: Order) -> Path:
    """Render the receipt to its file and return the file's path; the same order gives the same file."""
    path = Path(settings.MEDIA_ROOT) / receipt_name(order)
    write_whole(path, [render_to_string("shop/receipt.html", {"order": order}).encode("utf-8")])
    return path


def mail_receipt(order: Order, path: Path) -> None:
    """Mail the receipt to the customer; the Message-ID is the order's, so that a second copy can be told."""
    message = EmailMessage(
        subject=f"Your order {order.number}",
        body=f"Dear {order.customer},\n\nthank you for your order. Its receipt is attached.\n",
        to=[order.email],
        headers={"Message-ID": f"<receipt-{order.number}@example.org>"},
    )
    message.attach(path.name, path.read_text(encoding="utf-8"), "text/html")
    message.send()


def mail_review_request(order: Order) -> None:
    """Ask the customer what they think of the article."""
    EmailMessage(
        subject=f"How do you like {order.sku}?",
        body=f"Dear {order.customer},\n\nplease tell us what you think of it.\n",
        to=[order.email],
        headers={"Message-ID": f"<review-{order.number}@example.org>"},
    ).send()
