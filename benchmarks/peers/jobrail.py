"""JobRail as a peer of the benchmark: default settings, mirror to SQLite and all guarantees on."""

from peers import _handlers as h
from peers._env import LEASE, TUNED, URL, concurrency, django, manage

VARIANTS = {"default": "late settlement with leases (the only way), mirrored to SQLite"}
NOTES = "-t 1: handlers that do not wait gain nothing from threads; one worker whose -p is 1 or 2"
TUNED_NOTE = f"LEASE_SECONDS={LEASE} (default 30)"
BULK = "enqueue_many"
SETUP = True

django(
    "jobrail",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "jobrail_django"],
    JOBRAIL={"REDIS": URL, **({"LEASE_SECONDS": LEASE} if TUNED else {})},
)

from jobrail_django import enqueue_many, task  # noqa: E402  (Django's settings come first)

tasks = {name: task(getattr(h, name)) for name in ("tick", "lat", "slow")}


def setup():
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def connect():
    def send(name, arg):
        tasks[name].enqueue(arg)

    def bulk(name, args):
        enqueue_many(tasks[name], [(arg,) for arg in args])

    return send, bulk


def workers(config):
    processes = "1" if config == "a" else "2"
    return [manage("jobrail", "jobrail_worker", "-p", processes, "-t", str(concurrency(1)))]
