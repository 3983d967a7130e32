"""The shop as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """A small shop that does its slow work in jobs."""

    name = "shop"
    default_auto_field = "django.db.models.BigAutoField"
