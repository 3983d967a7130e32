"""Views that save a row and enqueue a job about it, with and without a transaction."""

from django.contrib.auth.models import Group
from django.db import transaction
from django.http import JsonResponse

from . import tasks


def order(request):
    """Save and enqueue in the request's transaction; `fail` ends it badly."""
    group = Group.objects.create(name=request.POST["name"])
    job = tasks.ok.enqueue(group.pk)
    if "fail" in request.POST:
        raise RuntimeError("after the enqueue")
    return JsonResponse({"job": job.id, "state": str(job.state)})


def now(request):
    """Enqueue at once, whatever becomes of the request."""
    job = tasks.ok.using(on_commit=False).enqueue()
    if "fail" in request.POST:
        raise RuntimeError("after the enqueue")
    return JsonResponse({"job": job.id, "state": str(job.state)})


@transaction.non_atomic_requests
def plain(request):
    """Enqueue outside of any transaction."""
    job = tasks.ok.enqueue()
    return JsonResponse({"job": job.id, "state": str(job.state)})
