"""Run the example shop with a worker and a visitor, and clean up behind it.

``make demo`` runs until Ctrl-C; ``DEMO_SECONDS=30 make demo`` stops by itself, prints what was enqueued and how it
ended, and exits with 1 if a job that should have ended well did not. Everything is written to a temporary folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

sys.dont_write_bytecode = True

from demo_parts.processes import Child, DemoFailed, Interrupted, StopSignals, free_port  # noqa: E402

if TYPE_CHECKING:
    from demo_parts.browser import Browser

HERE = Path(__file__).resolve().parent
ADMIN_NAME = "demo"
#: Seconds between two things the visitor does.
VISIT_EVERY_S = 0.25
#: Seconds between two lines of progress.
PROGRESS_EVERY_S = 5.0
#: Seconds in which the worker has to finish once the visitor has stopped.
DRAIN_S = 90.0
#: Seconds in which the web server has to answer.
START_S = 60.0
#: Seconds a process has to end after TERM.
GRACE_S = 15.0


def demo_seconds() -> float | None:
    """Return how long the visitor stays; None = until Ctrl-C."""
    text = os.environ.get("DEMO_SECONDS") or ""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise DemoFailed(f"DEMO_SECONDS={text!r} is not a number of seconds; set it to 30, say, or leave it out.")
    return seconds


class Demo:
    """One run: prepare, start, visit, report; `clean_up` ends whatever was begun."""

    def __init__(self, signals: StopSignals, seconds: float | None) -> None:
        self.signals = signals
        self.seconds = seconds
        self.folder = Path(tempfile.mkdtemp(prefix="jobrail-demo-"))
        self.password = secrets.token_urlsafe(9)
        self.children: list[Child] = []
        self.requests = 0
        self.url = ""
        self.own_server = not os.environ.get("JOBRAIL_REDIS_URL")

    def prepare(self) -> None:
        """Point the settings at the folder, create the tables, the articles and the admin's user."""
        os.environ.update(
            DJANGO_SETTINGS_MODULE="shop_site.settings",
            JOBRAIL_DEMO_DIR=str(self.folder),
            JOBRAIL_DEMO_PREFIX=f"jobrail-demo-{secrets.token_hex(6)}",
            JOBRAIL_DEMO_SECRET_KEY=secrets.token_urlsafe(40),
            PYTHONDONTWRITEBYTECODE="1",
            PYTHONUNBUFFERED="1",
        )
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0, interactive=False)
        from django.contrib.auth import get_user_model
        from shop.sample import create_products

        create_products()
        get_user_model().objects.create_superuser(ADMIN_NAME, password=self.password)

    def start(self) -> None:
        """Start the Redis, the web server, and then the worker, which has to know where the site answers.

        Web server and worker would start the embedded server themselves; the demo does it, so that it never has to stop
        one that is about to start.
        """
        if self.own_server:
            self.start_redis()
        for last_try in (False, False, True):
            port = free_port()
            self.url = os.environ["JOBRAIL_DEMO_URL"] = f"http://127.0.0.1:{port}"
            web = self.manage("web server", "runserver", "--noreload", "--insecure", f"127.0.0.1:{port}")
            try:
                self.wait_for_site(web)
                break
            except DemoFailed as exc:
                if last_try or "already in use" not in str(exc):
                    raise
                self.children.remove(web)
        self.manage("worker", "jobrail_worker", "--processes", "2", "--threads", "4")

    def start_redis(self) -> None:
        """Start the embedded server."""
        from jobrail_django.broker import embedded
        from jobrail_django.errors import JobRailError

        try:
            embedded.ensure(self.folder / "redis")
        except JobRailError as exc:
            self.signals.check()
            raise DemoFailed(str(exc)) from exc

    def manage(self, name: str, *arguments: str) -> Child:
        """Start a management command as a process of its own."""
        command = [sys.executable, str(HERE / "manage.py"), *arguments]
        log = self.folder / f"{name.replace(' ', '-')}.log"
        child = Child(name, command, env=os.environ, cwd=HERE, log=log)
        self.children.append(child)
        return child

    def wait_for_site(self, web: Child) -> None:
        """Return once the shop and the admin answer."""
        from demo_parts.browser import Browser

        end = time.monotonic() + START_S
        while True:
            self.signals.pause(0.2)
            web.check()
            try:
                Browser(self.url).get("/")
                Browser(self.url).get("/admin/login/")
                return
            except OSError as exc:
                if time.monotonic() > end:
                    raise DemoFailed(f"The web server does not answer: {exc}. Its output:\n{web.tail()}") from exc

    def announce(self) -> None:
        """Print where to look."""
        say("")
        say(f"  Shop    {self.url}/")
        say(f"  Jobs    {self.url}/jobs/")
        say(f"  Admin   {self.url}/admin/   user {ADMIN_NAME}, password {self.password}")
        say("")
        say("  Stops by itself." if self.seconds else "  Ctrl-C stops everything and removes what it wrote.")
        say("")

    def visit(self) -> None:
        """Send requests to the shop for the time asked for, and print a line now and then."""
        from demo_parts.browser import Browser
        from demo_parts.visitor import Visitor

        browser = Browser(self.url)
        try:
            self.follow(browser, Visitor(browser).visit())
        except (OSError, HTTPException) as exc:
            self.signals.pause(0.5)
            self.check_children()
            raise DemoFailed(f"The shop does not answer: {exc}") from exc
        finally:
            self.requests = browser.requests

    def follow(self, browser: Browser, actions: Iterator[str]) -> None:
        """Let the visitor act until the time is over."""
        from demo_parts.report import progress

        begin = last_line = time.monotonic()
        for _ in actions:
            self.check_children()
            now = time.monotonic()
            if now - last_line >= PROGRESS_EVERY_S:
                last_line = now
                say(f"  {clock(now - begin)}  {browser.requests} requests, {progress()}")
            if self.seconds and now - begin >= self.seconds:
                return
            self.signals.pause(VISIT_EVERY_S)

    def check_children(self) -> None:
        """Raise DemoFailed if a process has ended."""
        for child in self.children:
            child.check()

    def drain(self) -> None:
        """Wait until every job has ended, at most 90 seconds."""
        from demo_parts.report import Report

        end = time.monotonic() + DRAIN_S
        say("  The visitor has left; the worker finishes.")
        while Report().open and time.monotonic() < end:
            self.check_children()
            self.signals.pause(0.5)

    def report(self) -> list[str]:
        """Print what was enqueued and how it ended; return what is not as it should be."""
        from demo_parts.report import Report, effects

        report = Report()
        say(f"\n  {self.requests} requests, {len(report.jobs)} jobs\n")
        say(f"{report.table()}\n\n{effects()}\n")
        return report.surprises()

    def stop_children(self) -> dict[str, int]:
        """End the processes, the worker first; return their exit codes."""
        codes = {}
        while self.children:
            child = self.children[-1]
            codes[child.name] = child.stop(GRACE_S)
            self.children.pop()
        return codes

    def clean_up(self) -> None:
        """End the processes and the Redis, remove the folder. Safe at any point of the run."""
        self.signals.ignore()
        try:
            self.stop_children()
        finally:
            try:
                self.stop_redis()
            finally:
                self.remove_folder()

    def remove_folder(self) -> None:
        """Remove what the demo has written; again while a server that is ending still writes to it."""
        for _ in range(20):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)
        say(f"  {self.folder} could not be removed completely; please remove it.")

    def stop_redis(self) -> None:
        """Stop the embedded server, or remove the demo's keys from a server that was there before."""
        if self.own_server:
            from jobrail_django.broker import embedded

            embedded.stop(self.folder / "redis")
        elif "JOBRAIL_DEMO_PREFIX" in os.environ:
            remove_keys(os.environ["JOBRAIL_REDIS_URL"], os.environ["JOBRAIL_DEMO_PREFIX"])


def remove_keys(url: str, prefix: str) -> None:
    """Remove the keys of this run, whose prefix is nobody else's, from the server."""
    import redis

    client = redis.Redis.from_url(url)
    with client:
        for key in client.scan_iter(match=f"{prefix}:*", count=500):
            client.unlink(key)


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def clock(seconds: float) -> str:
    """Return the time as minutes and seconds."""
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def run(demo: Demo) -> int:
    """Run the demo to its end and return its exit code."""
    say("JobRail's example shop: preparing.")
    demo.prepare()
    demo.signals.check()
    demo.start()
    demo.announce()
    demo.visit()
    demo.drain()
    surprises = demo.report()
    worker = demo.children[-1]
    code = demo.stop_children()[worker.name]
    if code != 0:
        surprises.append(f"The worker ended with exit code {code}, expected 0.")
    if surprises:
        listed = "\n".join(f"    {line}" for line in surprises)
        raise DemoFailed(
            f"Not everything ended as it should:\n{listed}\nThe end of the worker's output:\n{worker.tail()}"
        )
    say("  Every job ended as it should.")
    return 0


def interrupted(demo: Demo, exc: Interrupted) -> int:
    """Report what there is after a stop signal; it is the normal end of a run without DEMO_SECONDS."""
    say(f"\n  {exc}: stopping.")
    if demo.requests:
        demo.report()
    return 128 + exc.number if demo.seconds else 0


def main() -> int:
    """Run the demo and leave nothing behind."""
    signals = StopSignals()
    try:
        demo = Demo(signals, demo_seconds())
        try:
            return run(demo)
        except Interrupted as exc:
            return interrupted(demo, exc)
        finally:
            demo.clean_up()
            say("  Stopped; nothing is left running.")
    except DemoFailed as exc:
        say(f"\nThe demo failed. {exc}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
