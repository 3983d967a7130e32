"""The probe tasks. Each writes its start and its end to the ledger."""

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time

from django.utils import timezone, translation

from jobrail_django import Backoff, task

from ..ledger import recorded

if os.environ.get("PROBE_NEW_CODE"):
    from . import fresh  # noqa: F401

#: Retries at once, so that tests need not wait for them.
SOON = Backoff(base=0.05, cap=0.05, jitter=False)


def waste(seconds):
    """Compute for a while in Python code."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def keep_gil(seconds):
    """Sit in a C function that keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def receive(seconds):
    """Wait in a system call for bytes that never come."""
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(None)
        here.recv(1)


def say_and_sleep(pipe):
    """Say that this process runs, and sleep."""
    pipe.send("here")
    time.sleep(60)


WAYS_TO_WAIT = {"sleep": time.sleep, "spin": waste, "hold_gil": keep_gil, "recv": receive}


@task
def ok(value=None):
    with recorded():
        return value


@task
def echo(*args, **kwargs):
    with recorded():
        return [list(args), kwargs]


@task(backoff=SOON)
def sleep(seconds, later=None):
    """Sleep in one system call, `later` seconds from the second attempt on; returns the attempt."""
    with recorded() as job:
        time.sleep(seconds if later is None or job.attempt == 1 else later)
        return job.attempt


@task(backoff=SOON)
def doze(seconds, later=None):
    """Sleep as `sleep` does, but in many short naps, so that an exception can arrive."""
    with recorded() as job:
        end = time.monotonic() + (seconds if later is None or job.attempt == 1 else later)
        while time.monotonic() < end:
            time.sleep(0.01)
        return job.attempt


@task(backoff=SOON)
def fail(times=1_000_000):
    """Fail so often, then return the attempt."""
    with recorded() as job:
        if job.attempt <= times:
            raise ValueError(f"failure {job.attempt}")
        return job.attempt


@task(backoff=SOON)
def doze_and_fail(seconds, times):
    """Take a while each time, and fail so often."""
    with recorded() as job:
        time.sleep(seconds)
        if job.attempt <= times:
            raise ValueError(f"failure {job.attempt}")
        return job.attempt


@task(backoff=SOON)
def spin(seconds):
    with recorded() as job:
        waste(seconds)
        return job.attempt


@task(backoff=SOON)
def hold_gil(seconds):
    with recorded() as job:
        keep_gil(seconds)
        return job.attempt


@task(backoff=SOON)
def block(how, seconds=3600.0):
    """Wait in one of the ways of `WAYS_TO_WAIT`."""
    with recorded() as job:
        WAYS_TO_WAIT[how](seconds)
        return job.attempt


@task(backoff=SOON)
def swallow(caught, seconds):
    """Swallow every exception that `caught` names, and claim to have done well."""
    kind = {"Exception": Exception, "BaseException": BaseException}[caught]
    with recorded():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                while time.monotonic() < end:
                    time.sleep(0.05)
            except kind:
                pass
        return "well done"


@task(backoff=SOON)
def die(number=signal.SIGKILL):
    """Kill this process, and never get to an end."""
    with recorded():
        os.kill(os.getpid(), number)
        while True:
            time.sleep(1)


def _interrupted():
    raise KeyboardInterrupt("interrupted")


def _generator_exit():
    raise GeneratorExit("generator")


WAYS_TO_LEAVE = {
    "exit": lambda: sys.exit(),
    "exit 0": lambda: sys.exit(0),
    "exit text": lambda: sys.exit("a text"),
    "exit 3": lambda: sys.exit(3),
    "KeyboardInterrupt": _interrupted,
    "GeneratorExit": _generator_exit,
    "_exit 0": lambda: os._exit(0),
    "_exit 3": lambda: os._exit(3),
    "abort": os.abort,
}


@task(backoff=SOON)
def exit(how):
    """Leave in one of the ways of `WAYS_TO_LEAVE`."""
    with recorded():
        WAYS_TO_LEAVE[how]()


@task
def alloc(mebibytes):
    """Take memory and keep it."""
    with recorded():
        _kept.append(bytearray(mebibytes * 2**20))
        return len(_kept)


_kept = []


@task(backoff=SOON)
def db_read(pk):
    """Read a job's row; returns its state, None without one."""
    from jobrail_django.models import Job

    with recorded():
        return Job.objects.filter(pk=pk).values_list("state", flat=True).first()


@task(max_attempts=1)
def speak(language, zone):
    """Switch language and time zone, and fail."""
    with recorded():
        translation.activate(language)
        timezone.activate(zone)
        raise ValueError("left abroad")


@task
def overhear():
    """Return the language and the time zone that this job finds."""
    with recorded():
        return [translation.get_language(), timezone.get_current_timezone_name()]


@task(backoff=SOON)
def fork(how):
    """Fork, and let the new process come out of the handler in some way; the handler itself returns 'parent'."""
    with recorded() as job:
        pid = os.fork()
        if pid == 0:
            if how == "exit":
                sys.exit(3)
            if how == "raise":
                raise ValueError("in the fork")
            return "child"
        os.waitpid(pid, 0)
        return f"parent, attempt {job.attempt}"


@task
def terminate_what_it_starts():
    """Start a program and a fork, and end both with TERM; returns how they ended."""
    with recorded():
        program = subprocess.Popen(["sleep", "60"])
        program.terminate()
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=say_and_sleep, args=(there,))
        process.start()
        here.recv()
        process.terminate()
        process.join(10)
        return [program.wait(10), process.exitcode]


@task(backoff=SOON)
def break_the_slot():
    """Break, on the first attempt, what the slot needs after the handler."""
    with recorded() as job:
        if job.attempt == 1:
            from jobrail_django.worker import slots

            slots.announce = None
        return job.attempt
