"""`manage.py jobrail_worker`: runs jobs and the upkeep of queues."""

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobrail_django import registry
from jobrail_django.broker.connection import get_broker
from jobrail_django.conf import get_settings
from jobrail_django.errors import JobRailError
from jobrail_django.worker.options import PARTS, WorkerOptions, parse_queues
from jobrail_django.worker.supervisor import Supervisor

LOG_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


def _whole(low: int, high: int) -> Any:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 86400")
    return value


class Command(BaseCommand):
    """Run a worker until it is stopped by TERM or INT."""

    help = "Run JobRail's jobs, recover lost ones, promote due ones, and mirror them to the database."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "-q",
            "--queue",
            action="append",
            default=[],
            metavar="NAME[=WEIGHT]",
            help="queue to serve, repeatable; default: all that JOBRAIL['QUEUES'] declares",
        )
        parser.add_argument(
            "-p",
            "--processes",
            type=_whole(1, 512),
            default=None,
            help="processes that run jobs; default: one per CPU, at most 4",
        )
        parser.add_argument(
            "-t",
            "--threads",
            type=_whole(1, 64),
            default=4,
            help="jobs that each process runs at the same time; default: 4",
        )
        parser.add_argument("--only", choices=PARTS, help="run only this part")
        parser.add_argument("--without", choices=PARTS, help="run all but this part")
        parser.add_argument("--burst", action="store_true", help="exit once nothing is ready, due, retrying or running")
        parser.add_argument("--max-jobs", type=_whole(1, 2**31), default=0, help="replace a process after so many jobs")
        parser.add_argument(
            "--max-memory",
            type=_whole(1, 2**31),
            default=0,
            metavar="MIB",
            help="replace a process that uses more resident memory",
        )
        parser.add_argument(
            "--grace",
            type=_seconds,
            default=None,
            metavar="SECONDS",
            help="how long running jobs may go on after TERM; default: JOBRAIL['GRACE_SECONDS']",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker and exit with its code."""
        _default_logging(options["verbosity"])
        if self._left_out("jobs", options) and self._left_out("upkeep", options):
            raise CommandError(f"--only {options['only']} --without {options['without']} leaves nothing to run.")
        try:
            settings = get_settings()
            get_broker()
            registry.autodiscover()
            worker = Supervisor(
                WorkerOptions(
                    queues=parse_queues(options["queue"], settings.queues),
                    processes=0 if self._left_out("jobs", options) else options["processes"] or min(4, _cpus()),
                    threads=options["threads"],
                    upkeep=not self._left_out("upkeep", options),
                    burst=options["burst"],
                    max_jobs=options["max_jobs"],
                    max_memory_mb=options["max_memory"],
                    grace_s=settings.grace_s if options["grace"] is None else options["grace"],
                )
            )
        except JobRailError as exc:
            raise CommandError(str(exc)) from exc
        sys.exit(worker.run())

    @staticmethod
    def _left_out(part: str, options: dict[str, Any]) -> bool:
        return options["without"] == part or options["only"] not in (None, part)


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _default_logging(verbosity: int) -> None:
    """Print the worker's log to stderr, unless the site's LOGGING already does something with it."""
    logger = logging.getLogger("jobrail_django")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
