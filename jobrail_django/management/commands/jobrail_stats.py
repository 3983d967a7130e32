"""`manage.py jobrail_stats`: how many jobs each queue has in each state."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobrail_django import client
from jobrail_django.errors import JobRailError

COLUMNS = ("ready", "scheduled", "retrying", "running", "changed", "paused", "oldest_ready_ms", "lag_ms")


class Command(BaseCommand):
    """Print the figures of all queues."""

    help = "Print how many jobs of each queue wait, run, and are not mirrored yet."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="print one JSON object, queue by queue")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the table, or the object."""
        try:
            stats = client.queue_stats()
        except JobRailError as exc:
            raise CommandError(str(exc)) from exc
        figures = {queue: {name: getattr(found, name) for name in COLUMNS} for queue, found in stats.items()}
        if options["json"]:
            self.stdout.write(json.dumps(figures))
            return
        width = max(len("queue"), *(len(queue) for queue in figures))
        self.stdout.write(" ".join(["queue".ljust(width), *(name.rjust(15) for name in COLUMNS)]))
        for queue, values in figures.items():
            cells = ("-" if value is None else str(value) for value in values.values())
            self.stdout.write(" ".join([queue.ljust(width), *(cell.rjust(15) for cell in cells)]))
