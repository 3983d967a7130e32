"""What a fresh shop starts with."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from django.conf import settings

from shop.files import write_whole
from shop.models import Product
from shop.pictures import SAMPLES, picture_path

#: The files of orders that ship with the shop.
ORDER_FILES = tuple(Path(__file__).parent / "data" / name for name in ("orders.csv", "orders-windows-1252.csv"))

ARTICLES = {
    "MUG-001": ("Mug", "12.50"),
    "TEE-002": ("Tee shirt", "24.00"),
    "BAG-003": ("Messenger bag", "39.90"),
    "CAP-004": ("Cap", "18.95"),
    "PEN-005": ("Pen", "3.20"),
    "MAP-006": ("Map of the railways", "9.99"),
    "LMP-007": ("Signal lamp", "89.50"),
    "BOX-008": ("Model train, boxed", "129.00"),
}


def create_products() -> None:
    """Create the shop's articles and their pictures; what exists stays."""
    Path(settings.MEDIA_ROOT).mkdir(parents=True, exist_ok=True)
    for name, content in SAMPLES:
        sku = Path(name).stem
        title, price = ARTICLES[sku]
        defaults = {"name": title, "price": Decimal(price), "picture": name}
        product, created = Product.objects.get_or_create(sku=sku, defaults=defaults)
        if created:
            write_whole(picture_path(product), [content()])
