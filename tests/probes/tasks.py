"""Tasks for tests that run in this process."""

import threading
import time

from jobrail_django import Backoff, Release, Retry, current_job, task


@task
def ok(value=None):
    return value


@task
def echo(*args, **kwargs):
    return [list(args), kwargs]


@task
def add(left: int, right: int = 0, *, scale: int = 1) -> int:
    return (left + right) * scale


@task(queue_name="mail", priority=5)
def mail(address):
    return address


@task(max_attempts=2, backoff=Backoff(base=60, jitter=False))
def fail(text="no"):
    raise ValueError(text)


@task(max_attempts=1)
def die(text="no"):
    raise ValueError(text)


@task(takes_context=True, max_attempts=5)
def fail_until(context, attempt):
    if context.attempt < attempt:
        raise Retry("not yet", delay=0)
    return context.attempt


@task
def give_back():
    raise Release("not now", delay=60)


@task(timeout=0.2, max_attempts=1)
def spin(seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@task(max_attempts=1)
def until_cancelled(seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)


#: Lets `hold` go on.
gate = threading.Event()


@task
def hold():
    assert gate.wait(20)
    return current_job().attempt


@task
def big(size):
    return "x" * size
