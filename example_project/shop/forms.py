"""What people can send to the shop."""

from __future__ import annotations

import secrets
from typing import Any

from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.utils import timezone

from shop.models import Order, Product


def check_size(file: UploadedFile[Any]) -> UploadedFile[Any]:
    """Refuse a file that is larger than the shop takes."""
    limit = settings.MAX_UPLOAD_BYTES
    if file.size is not None and file.size > limit:
        raise forms.ValidationError(f"The file has {file.size} bytes; the shop takes up to {limit}.")
    return file


class CheckoutForm(forms.Form):
    """An order of one article."""

    customer = forms.CharField(max_length=120)
    email = forms.EmailField()
    product = forms.ModelChoiceField(Product.objects.all())
    quantity = forms.IntegerField(min_value=1, max_value=99, initial=1)

    def save(self) -> Order:
        """Store the order under a new number and return it."""
        wanted: dict[str, Any] = self.cleaned_data
        return Order.objects.create(
            number=f"W-{secrets.randbelow(10**12):012d}",
            placed_on=timezone.now().date(),
            customer=wanted["customer"],
            email=wanted["email"],
            sku=wanted["product"].sku,
            quantity=wanted["quantity"],
            unit_price=wanted["product"].price,
        )


class OrderFileForm(forms.Form):
    """A CSV file of orders."""

    file = forms.FileField(label="CSV file")

    def clean_file(self) -> UploadedFile[Any]:
        """Check the size; what is in the file is the import job's business."""
        return check_size(self.cleaned_data["file"])


class PictureForm(forms.Form):
    """A picture of an article."""

    picture = forms.FileField()

    def clean_picture(self) -> UploadedFile[Any]:
        """Check the size; whether it is a picture is the thumbnail job's business."""
        return check_size(self.cleaned_data["picture"])
