"""The shop's pages.

A view stores what it was sent and asks for the jobs in one transaction: if it rolls back, no job exists.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobrail_django import enqueue, enqueue_many, get_job
from jobrail_django.errors import BrokerUnavailable, InvalidTransition, JobNotFound
from jobrail_django.models import Job
from shop.files import write_whole
from shop.forms import CheckoutForm, OrderFileForm, PictureForm
from shop.models import Order, Product, TrackedJob, Upload
from shop.pictures import picture_path
from shop.receipts import receipt_name
from shop.sample import ORDER_FILES
from shop.tasks import ask_for_review, import_orders, make_thumbnail, send_receipt, tell_partner
from shop.tracking import current_states, track

ORDERS_PER_PAGE = 50
#: Jobs a page shows and asks about at once.
JOBS_SHOWN = 50
#: How long a customer has the article before the shop asks for a review; a shop would say seven days.
REVIEW_AFTER = timedelta(seconds=5)


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """Show the forms, and what there is."""
    return render(request, "shop/home.html", home_context(CheckoutForm(), OrderFileForm()))


def home_context(checkout: CheckoutForm, order_file: OrderFileForm) -> dict[str, object]:
    """Return what the home page shows."""
    return {
        "checkout": checkout,
        "order_file": order_file,
        "shipped": [file.name for file in ORDER_FILES],
        "uploads": Upload.objects.annotate(saved=Count("orders"))[:10],
        "orders": Order.objects.count(),
    }


@require_POST
def uploads(request: HttpRequest) -> HttpResponse:
    """Take a file of orders and ask for its import."""
    form = OrderFileForm(request.POST, request.FILES)
    if not form.is_valid():
        return render(request, "shop/home.html", home_context(CheckoutForm(), form), status=400)
    file = form.cleaned_data["file"]
    return redirect("shop:upload", start_import(file.name, file.chunks()).pk)


@require_POST
def import_shipped(request: HttpRequest, number: int) -> HttpResponse:
    """Import one of the two files that ship with the shop."""
    if number >= len(ORDER_FILES):
        raise Http404(f"There is no file {number}; the shop ships with {len(ORDER_FILES)}.")
    file = ORDER_FILES[number]
    return redirect("shop:upload", start_import(file.name, [file.read_bytes()]).pk)


def start_import(name: str, chunks: Iterable[bytes]) -> Upload:
    """Store the file under a name of the shop's own and ask for its import."""
    path = Path(settings.UPLOAD_DIR) / "orders" / f"{uuid.uuid4().hex}.csv"
    write_whole(path, chunks)
    with transaction.atomic():
        upload = Upload.objects.create(name=name[:200], path=str(path))
        track(enqueue(import_orders, upload.pk), upload=upload)
    return upload


@require_GET
def upload_page(request: HttpRequest, pk: int) -> HttpResponse:
    """Show how an import stands: its jobs, its orders, its bad rows."""
    upload = get_object_or_404(Upload, pk=pk)
    context = {"upload": upload, "saved": upload.orders.count(), "bad_rows": upload.bad_rows.all()}
    return render(request, "shop/upload.html", context | shown_jobs(upload.jobs.all()))


@require_http_methods(["GET", "POST"])
def orders(request: HttpRequest) -> HttpResponse:
    """List the orders; take a new one."""
    if request.method == "POST":
        return checkout(request)
    page = Paginator(Order.objects.all(), ORDERS_PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "shop/orders.html", {"page": page})


def checkout(request: HttpRequest) -> HttpResponse:
    """Store an order and ask for what follows from it: the receipt, the partner's notice, later a review."""
    form = CheckoutForm(request.POST)
    if not form.is_valid():
        return render(request, "shop/home.html", home_context(form, OrderFileForm()), status=400)
    with transaction.atomic():
        order = form.save()
        receipt = send_receipt.using(idempotency_key=f"receipt:{order.pk}").enqueue(order.pk)
        track(receipt, order=order)
        track(enqueue(tell_partner, order.pk), order=order)
        review = ask_for_review.using(run_after=REVIEW_AFTER).enqueue(order.pk)
        track(review, order=order)
    return redirect("shop:order", order.pk)


@require_GET
def order_page(request: HttpRequest, pk: int) -> HttpResponse:
    """Show an order, its jobs and what its partner answered."""
    order = get_object_or_404(Order, pk=pk)
    context = {"order": order, "calls": order.partner_calls.all(), "receipt_path": receipt_name(order)}
    return render(request, "shop/order.html", context | shown_jobs(order.jobs.all()))


@require_POST
def resend_receipt(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask for the receipt once more; as long as the first job is remembered, this is that job."""
    order = get_object_or_404(Order, pk=pk)
    job = send_receipt.using(idempotency_key=f"receipt:{order.pk}").enqueue(order.pk)
    known = TrackedJob.objects.filter(job_id=job.id).exists()
    track(job, order=order)
    messages.info(request, f"Receipt: {'the same job' if known else 'a new job'} {job.id}")
    return redirect("shop:order", order.pk)


@require_POST
def cancel_order(request: HttpRequest, pk: int) -> HttpResponse:
    """Cancel an order, and its review request with it."""
    order = get_object_or_404(Order, pk=pk)
    Order.objects.filter(pk=pk, cancelled_at=None).update(cancelled_at=timezone.now())
    for tracked in order.jobs.filter(task=ask_for_review.name):
        try:
            get_job(tracked.job_id).cancel()
        except (InvalidTransition, JobNotFound):
            messages.info(request, "The review request was out already.")
    return redirect("shop:order", pk)


@require_GET
def products(request: HttpRequest) -> HttpResponse:
    """List the articles with their thumbnails."""
    context = {"products": Product.objects.all()} | shown_jobs(TrackedJob.objects.filter(product__isnull=False))
    return render(request, "shop/products.html", context)


@require_POST
def make_thumbnails(request: HttpRequest) -> HttpResponse:
    """Ask for the thumbnails of all articles."""
    articles = list(Product.objects.exclude(picture=""))
    with transaction.atomic():
        jobs = enqueue_many(make_thumbnail, [(product.pk,) for product in articles])
        for product, job in zip(articles, jobs, strict=True):
            track(job, product=product)
    return redirect("shop:products")


@require_POST
def send_picture(request: HttpRequest, pk: int) -> HttpResponse:
    """Take a new picture of an article and ask for its thumbnail, before the many of `make_thumbnails`."""
    product = get_object_or_404(Product, pk=pk)
    form = PictureForm(request.POST, request.FILES)
    if not form.is_valid():
        messages.error(request, " ".join(str(error) for error in form.errors.get("picture", [])))
        return redirect("shop:products")
    product.picture = f"{uuid.uuid4().hex}.upload"
    write_whole(picture_path(product), form.cleaned_data["picture"].chunks())
    with transaction.atomic():
        product.save(update_fields=["picture"])
        track(make_thumbnail.using(priority=20).enqueue(product.pk), product=product)
    return redirect("shop:products")


@require_GET
def jobs(request: HttpRequest) -> HttpResponse:
    """Count all jobs by task and state, and list the newest."""
    counts = Job.objects.values("task", "state").annotate(jobs=Count("pk")).order_by("task", "state")
    return render(request, "shop/jobs.html", {"counts": counts} | shown_jobs(TrackedJob.objects.all()))


@require_GET
def job_states(request: HttpRequest) -> HttpResponse:
    """Return as JSON how the jobs named by ?id=… stand now: {id: {state, ended, attempts, note}}."""
    wanted = request.GET.getlist("id")[:JOBS_SHOWN]
    known = TrackedJob.objects.filter(job_id__in=wanted).values_list("job_id", flat=True)
    try:
        return JsonResponse(current_states(known))
    except BrokerUnavailable:
        return JsonResponse({"error": "The job queue does not answer."}, status=503)


@require_POST
def change_job(request: HttpRequest, job_id: uuid.UUID, action: str) -> HttpResponse:
    """Cancel or retry a job."""
    if action not in ("cancel", "retry"):
        raise Http404(f"A job can be cancelled or retried, not {action!r}.")
    tracked = get_object_or_404(TrackedJob, job_id=str(job_id))
    try:
        job = get_job(tracked.job_id)
        if action == "cancel":
            job.cancel()
        else:
            job.retry()
    except (InvalidTransition, JobNotFound) as exc:
        messages.error(request, str(exc))
    return redirect("shop:jobs")


def shown_jobs(tracked: QuerySet[TrackedJob]) -> dict[str, object]:
    """Return the newest of these jobs for a page; its script then asks every second how they stand."""
    return {"tracked_jobs": tracked.select_related("order", "upload", "product")[:JOBS_SHOWN]}
