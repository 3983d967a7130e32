"""What the shop remembers."""

from __future__ import annotations

from decimal import Decimal

from django.db import models


class Upload(models.Model):
    """A file of orders somebody sent; one job reads it, further jobs save its orders."""

    name = models.CharField(max_length=200)
    path = models.CharField(max_length=500)
    encoding = models.CharField(max_length=20, blank=True)
    rows = models.PositiveIntegerField(default=0)
    uploaded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.name


class BadRow(models.Model):
    """A line of an upload that is not an order, and why."""

    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="bad_rows")
    line = models.PositiveIntegerField()
    reason = models.CharField(max_length=300)
    text = models.CharField(max_length=200)

    class Meta:
        ordering = ["line"]
        constraints = [models.UniqueConstraint(fields=["upload", "line"], name="shop_one_bad_row_per_line")]

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class Order(models.Model):
    """An order of one article; its number is unique, which is what makes an import safe to run twice."""

    number = models.CharField(max_length=20, unique=True)
    placed_on = models.DateField()
    customer = models.CharField(max_length=120)
    email = models.EmailField()
    sku = models.CharField(max_length=20)
    quantity = models.PositiveIntegerField()
    unit_price = models.DecimalField(max_digits=9, decimal_places=2)
    upload = models.ForeignKey(Upload, on_delete=models.SET_NULL, null=True, blank=True, related_name="orders")
    cancelled_at = models.DateTimeField(null=True, blank=True)
    receipt_sent_at = models.DateTimeField(null=True, blank=True)
    partner_told_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.number

    @property
    def total(self) -> Decimal:
        """Return what the customer pays."""
        return self.unit_price * self.quantity


class Product(models.Model):
    """An article with a picture as it was sent; the thumbnails are made from it."""

    sku = models.CharField(max_length=20, unique=True)
    name = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=9, decimal_places=2)
    picture = models.CharField(max_length=200, blank=True)
    thumbnail = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["sku"]

    def __str__(self) -> str:
        return f"{self.sku} {self.name}"


class PartnerCall(models.Model):
    """A call the shop's partner received, and what it answered."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="partner_calls")
    answer = models.CharField(max_length=20)
    called_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.answer


class TrackedJob(models.Model):
    """A job the shop asked for, and what it is about; written in the transaction that enqueues the job."""

    job_id = models.CharField(max_length=36, unique=True)
    task = models.CharField(max_length=100)
    order = models.ForeignKey(Order, on_delete=models.CASCADE, null=True, blank=True, related_name="jobs")
    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, null=True, blank=True, related_name="jobs")
    product = models.ForeignKey(Product, on_delete=models.CASCADE, null=True, blank=True, related_name="jobs")
    asked_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.task} {self.job_id}"

    @property
    def subject(self) -> str:
        """Return what the job is about, in words."""
        return str(self.order or self.upload or self.product or "")
