"""Create the articles a fresh shop starts with."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from shop.sample import create_products


class Command(BaseCommand):
    """Create the sample articles and their pictures; what exists stays."""

    help = __doc__ or ""

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        create_products()
