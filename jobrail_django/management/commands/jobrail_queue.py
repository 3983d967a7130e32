"""`manage.py jobrail_queue`: pause, resume or purge a queue."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from jobrail_django import client
from jobrail_django.errors import JobRailError


class Command(BaseCommand):
    """Act on one queue."""

    help = "Pause or resume the claims of a queue, or cancel all jobs that wait in it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("action", choices=("pause", "resume", "purge"))
        parser.add_argument("name", help="name of the queue")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it and say what was done."""
        name = options["name"]
        try:
            if options["action"] == "pause":
                client.pause_queue(name)
                self.stdout.write(f"Queue {name!r} is paused.")
            elif options["action"] == "resume":
                client.resume_queue(name)
                self.stdout.write(f"Queue {name!r} is served again.")
            else:
                count = client.purge_queue(name)
                jobs = "1 waiting job" if count == 1 else f"{count} waiting jobs"
                self.stdout.write(f"{jobs} of queue {name!r} {'was' if count == 1 else 'were'} cancelled.")
        except JobRailError as exc:
            raise CommandError(str(exc)) from exc
