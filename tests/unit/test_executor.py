"""What becomes of a claimed job, whatever its payload is and its function does."""

from __future__ import annotations

import contextvars
import json
import logging
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections
from django.utils import timezone, translation

from jobrail_django import codec, signals
from jobrail_django.broker.records import ClaimedJob, Settlement
from jobrail_django.context import current_job
from jobrail_django.errors import JobCancelled, LeaseLost, TaskInterrupt, TimeLimitExceeded
from jobrail_django.worker.executor import PARK_MS, Executor, Run, check_connections
from jobrail_django.worker.limits import HARD_LIMIT_AFTER_S, CoroutineRunner

from ..probes.child import eventually

JOB_ID = "01890000-0000-7000-8000-000000000001"


@pytest.fixture(scope="module")
def executor() -> Executor:
    return Executor(CoroutineRunner())


def claimed(payload: bytes, **values: Any) -> ClaimedJob:
    """A job as a claim returns it."""
    known = {"rev": 2, "attempts": 0, "losses": 0, "max_attempts": 3, "max_losses": 3, "enqueued_ms": 1, "round": 1}
    return ClaimedJob(**{"id": JOB_ID, **known, "cancel_requested": False, "payload": payload, **values})


def run_of(name: str, *args: Any, options: dict[str, Any] | None = None, **values: Any) -> Run:
    """A run of a task of the module ``made`` with these arguments."""
    payload = codec.dumps_envelope(f"made.{name}", args, {}, options)
    return Run(claimed(payload, **values), "default", "cafe0000.1.0:7")


class Starts(list[tuple[float, float, int]]):
    """Takes what `on_start` is given."""

    def __call__(self, now: float, hard_deadline: float, delay_ms: int) -> None:
        self.append((now, hard_deadline, delay_ms))


@pytest.fixture
def execute(executor: Executor) -> Callable[[Run], Settlement | None]:
    """Run a job whose handler is called exactly once on_start was."""
    return lambda run: executor.execute(run, Starts())


def error_of(outcome: Settlement) -> dict[str, str]:
    return json.loads(outcome.data)


# Ends that are no error


def test_result_is_encoded_and_the_run_is_timed(make_task, executor):
    make_task("@task\ndef work(n): return [n, 2**70, None]")
    starts = Starts()

    outcome = executor.execute(run_of("work", 5), starts)

    assert (outcome.id, outcome.claim, outcome.verb, outcome.outcome) == (
        JOB_ID,
        "cafe0000.1.0:7",
        "succeed",
        "succeeded",
    )
    assert codec.loads(outcome.data) == [5, 2**70, None]
    assert outcome.reason == ""
    assert starts == [(outcome.started_s, 0.0, 0)]
    assert 0 <= outcome.ran_s < 5


def test_handler_sees_its_job(make_task, execute):
    make_task(
        """
        from jobrail_django import current_job
        @task
        def work():
            job = current_job()
            return [job.id, job.task, job.queue, job.attempt, job.max_attempts, job.losses, job.round, job.token,
                    job.deadline, job.cancelled]
        """
    )

    outcome = execute(run_of("work", attempts=1, losses=1, round=2, rev=9, max_attempts=4))

    assert codec.loads(outcome.data) == [JOB_ID, "made.work", "default", 3, 4, 1, 2, 9, None, False]
    assert current_job() is None


def test_context_is_the_first_argument_where_asked_for(make_task, execute):
    make_task("@task(takes_context=True)\ndef work(context, a, *, b): return [context.id, a, b]")
    payload = codec.dumps_envelope("made.work", (1,), {"b": 2})

    outcome = execute(Run(claimed(payload), "default", "c.1.0:1"))

    assert codec.loads(outcome.data) == [JOB_ID, 1, 2]


def test_async_handler_runs_in_the_callers_context(make_task, execute):
    make_task(
        """
        import asyncio
        from jobrail_django import current_job
        async def inner():
            return current_job().id
        @task
        async def work(n):
            await asyncio.sleep(0)
            return [n, await asyncio.create_task(inner())]
        """
    )

    assert codec.loads(execute(run_of("work", 3)).data) == [3, JOB_ID]


def test_async_handlers_of_two_slots_run_at_the_same_time(make_task, executor):
    module = make_task(
        """
        import asyncio
        here = []
        @task
        async def work(n):
            here.append(n)
            while len(here) < 2:
                await asyncio.sleep(0.001)
            return n
        """
    )
    outcomes = []
    threads = [
        threading.Thread(target=lambda n=n: outcomes.append(executor.execute(run_of("work", n), Starts())))
        for n in (1, 2)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert sorted(codec.loads(outcome.data) for outcome in outcomes) == [1, 2]
    assert sorted(module.here) == [1, 2]


@pytest.mark.parametrize(
    ("raised", "verb", "outcome", "delay_ms", "reason"),
    [
        ("Retry('later', delay=5)", "retry", "failed", 5000, "later"),
        ("Retry(delay=timedelta(minutes=2))", "retry", "failed", 120_000, "jobrail_django.errors.Retry: "),
        ("Retry(delay=0)", "retry", "failed", 0, "jobrail_django.errors.Retry: "),
        ("Retry('by the backoff')", "retry", "failed", 7000, "by the backoff"),
        ("Release('shutting down')", "release", "released", 0, "shutting down"),
        ("Release(delay=1.5)", "release", "released", 1500, ""),
    ],
)
def test_task_says_how_its_attempt_ends(make_task, execute, raised, verb, outcome, delay_ms, reason):
    # Neither what is retried by itself nor what is discarded has a say in it (D6).
    make_task(
        f"""
        from datetime import timedelta
        from jobrail_django import Backoff, Release, Retry
        @task(backoff=Backoff(base=7, jitter=False), retry_on=(), discard_on=(Exception,))
        def work(): raise {raised}
        """
    )

    ended = execute(run_of("work"))

    assert (ended.verb, ended.outcome, ended.delay_ms, ended.reason) == (verb, outcome, delay_ms, reason)


# Exceptions


FAILURES = [
    ("ValueError('bad')", "retry", "builtins.ValueError: bad"),
    ("OSError(5, 'io')", "retry", "builtins.OSError: [Errno 5] io"),
    ("KeyError('gone')", "dead", "discarded: builtins.KeyError: 'gone'"),
    ("FileNotFoundError('x')", "dead", "discarded: builtins.FileNotFoundError: x"),
    ("ZeroDivisionError('z')", "dead", "not to be retried: builtins.ZeroDivisionError: z"),
    ("SystemExit(3)", "retry", "builtins.SystemExit: 3"),
    ("KeyboardInterrupt()", "retry", "builtins.KeyboardInterrupt: "),
    ("GeneratorExit()", "retry", "builtins.GeneratorExit: "),
    ("StopIteration(1)", "dead", "not to be retried: builtins.StopIteration: 1"),
    ("asyncio.CancelledError()", "retry", "asyncio.exceptions.CancelledError: "),
    ("Own()", "retry", "made.Own: "),
]
DEFINITION = """
    import asyncio
    class Own(BaseException): pass
    @task(retry_on=(ValueError, OSError), discard_on=(LookupError, FileNotFoundError))
    {kind} work(): raise {raised}
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(("raised", "verb", "reason"), FAILURES)
def test_exception_becomes_an_outcome(make_task, execute, kind, raised, verb, reason):
    if kind == "async def" and raised.startswith("StopIteration"):
        pytest.skip("Python makes a RuntimeError of it")
    make_task(DEFINITION.format(kind=kind, raised=raised))

    outcome = execute(run_of("work"))

    assert (outcome.verb, outcome.outcome, outcome.reason) == (verb, "failed", reason)
    assert f"raise {raised}" in error_of(outcome)["traceback"]
    assert current_job() is None


def test_slot_goes_on_after_every_kind_of_failure(make_task, execute):
    for raised, _, _ in FAILURES:
        make_task(DEFINITION.format(kind="async def", raised=raised), name=f"made{abs(hash(raised))}")
    make_task("@task\nasync def fine(): return 1")

    for raised, _, _ in FAILURES:
        payload = codec.dumps_envelope(f"made{abs(hash(raised))}.work", (), {})
        assert execute(Run(claimed(payload), "default", "c.1.0:1")).outcome == "failed"

    assert execute(run_of("fine")).outcome == "succeeded"


def test_default_retries_any_exception_by_the_backoff_of_the_task(make_task, execute):
    make_task(
        "from jobrail_django import Backoff\n@task(backoff=Backoff(base=3, jitter=False))\ndef work(): raise KeyError"
    )

    assert execute(run_of("work", attempts=0)).delay_ms == 3000
    assert execute(run_of("work", attempts=2, max_attempts=9)).delay_ms == 12_000
    # A loss is no failure: it does not make the wait longer.
    assert execute(run_of("work", attempts=0, losses=2)).delay_ms == 3000


def test_options_of_the_call_win(make_task, execute):
    make_task(
        "from jobrail_django import Backoff\n@task(backoff=Backoff(base=3, jitter=False))\ndef work(): raise KeyError"
    )
    backoff = {"base": 50.0, "cap": 600.0, "jitter": False, "factor": 2.0}

    assert execute(run_of("work", options={"backoff": backoff})).delay_ms == 50_000


@pytest.mark.parametrize(
    "definition",
    [
        "class Odd(Exception):\n    def __init__(self, one, two): super().__init__()",
        "class Odd(Exception):\n    def __init__(self, one, two): self.lock = __import__('threading').Lock()",
        "class Odd(Exception):\n    def __init__(self, *a): pass\n    def __reduce__(self): raise RuntimeError('no')",
        "class Odd(Exception):\n    def __init__(self, *a): pass\n    def __str__(self): raise RuntimeError('no')",
        "class Odd(Exception):\n    def __init__(self, *a): pass\n    def __str__(self): return 5",
        "class Odd(Exception):\n    def __init__(self, *a): pass\n    def __str__(self): raise SystemExit",
        "class Odd(Exception):\n    def __init__(self, *a): pass\n    def __repr__(self): raise RuntimeError('no')",
    ],
    ids=["two arguments", "a lock", "no reduce", "raises in str", "str is no text", "exits in str", "raises in repr"],
)
def test_exception_that_cannot_be_rebuilt_is_recorded_all_the_same(make_task, execute, definition):
    # K1: nothing is pickled, and nothing that the exception does ends the slot.
    make_task(f"{definition}\n@task\ndef work(): raise Odd(1, 2)")

    outcome = execute(run_of("work"))

    assert (outcome.verb, outcome.outcome) == ("retry", "failed")
    assert error_of(outcome)["type"] == "made.Odd"
    assert "def work(): raise Odd(1, 2)" in error_of(outcome)["traceback"]


def test_recursion_error_is_recorded_within_bounds(make_task, execute):
    make_task("@task\ndef work(): return work.func()")

    outcome = execute(run_of("work"))

    assert outcome.verb == "retry"
    assert outcome.reason.startswith("builtins.RecursionError: maximum recursion depth exceeded")
    assert len(outcome.data) < 64_000


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("ValueError('a\\0b')", "builtins.ValueError: a\\x00b"),
        ("ValueError('\\ud800 é')", "builtins.ValueError: \\ud800 é"),
        ("ValueError('x' * 100_000)", "builtins.ValueError: " + "x" * 178 + "…"),
        ("Retry('a\\0b \\ud800')", "a\\x00b \\ud800"),
        ("Retry('x' * 100_000)", "x" * 199 + "…"),
        ("Release('x' * 100_000)", "x" * 199 + "…"),
        ("Release('\\ud800')", "\\ud800"),
        ("Mute(delay=3)", "<the text of this exception cannot be read: RuntimeError>"),
    ],
)
def test_reason_is_short_text_that_every_store_takes(make_task, execute, raised, shown):
    make_task(
        f"""
        from jobrail_django import Release, Retry
        class Mute(Retry):
            def __str__(self): raise RuntimeError
        @task
        def work(): raise {raised}
        """
    )

    outcome = execute(run_of("work"))

    assert outcome.reason == shown
    outcome.reason.encode()
    assert len(outcome.data) < 64_000


def test_retry_of_a_class_that_forgot_its_base_uses_the_backoff(make_task, execute):
    make_task(
        """
        from jobrail_django import Backoff, Retry
        class Own(Retry):
            def __init__(self): pass
        @task(backoff=Backoff(base=4, jitter=False))
        def work(): raise Own()
        """
    )

    outcome = execute(run_of("work"))

    assert (outcome.verb, outcome.delay_ms) == ("retry", 4000)


# Results


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("object()", "result of type object cannot be stored; "),
        ("[1, {'a': float('nan')}]", "result[1]['a'] of type float is nan"),
        ("'\\ud800'", "result of type str has a lone surrogate"),
        ("iter([])", "result of type list_iterator cannot be stored"),
        ("(n for n in [])", "result of type generator cannot be stored; pass list(…) of it"),
        ("Rude()", "Rude"),
    ],
)
def test_result_that_cannot_be_stored_ends_the_job_and_is_not_run_again(make_task, execute, expression, text):
    make_task(
        f"""
        class Rude:
            def __getattribute__(self, name): raise RuntimeError("Rude")
        @task
        def work(): return {expression}
        """
    )

    outcome = execute(run_of("work"))

    assert (outcome.verb, outcome.outcome, outcome.reason) == ("dead", "failed", "its result cannot be stored")
    assert text in error_of(outcome)["message"]


def test_result_too_large_is_left_out_and_said_so(make_task, execute, jobrail_limit):
    # K5: the work is done, so the job succeeded.
    make_task("@task\ndef work(n): return 'x' * n")

    kept, dropped = execute(run_of("work", 998)), execute(run_of("work", 999))

    assert (kept.verb, kept.reason, len(kept.data)) == ("succeed", "", 1000)
    assert (dropped.verb, dropped.outcome, dropped.data) == ("succeed", "succeeded", b"")
    assert dropped.reason == "result too large to be stored: 1001 bytes, at most 1000 are kept"


@pytest.fixture
def jobrail_limit(settings) -> None:
    settings.JOBRAIL = {**settings.JOBRAIL, "MAX_PAYLOAD_BYTES": 1000}


def test_nul_in_a_result_is_escaped(make_task, execute):
    make_task("@task\ndef work(): return {'a\\0': ['\\0']}")

    outcome = execute(run_of("work"))

    assert b"\0" not in outcome.data
    assert codec.loads(outcome.data) == {"a\0": ["\0"]}


# Payloads


def broken(payload: bytes) -> Run:
    return Run(claimed(payload), "default", "c.1.0:1")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "payload missing"),
        (b"\xff\x00garbage", "payload unreadable: The stored data is no JSON text"),
        (b"{}", "payload unreadable: The payload is no envelope of JobRail"),
        (b"[" * 5000, "payload unreadable: The stored data is no JSON text"),
        (b'{"v":1,"task":"made.work","args":{},"kwargs":{},"options":{}}', "payload unreadable: The payload has no"),
        (
            b'{"v":1,"task":"made.work","args":[],"kwargs":{},"options":{"timeout":"x"}}',
            "payload unreadable: Option 'timeout'",
        ),
        (
            b'{"v":1,"task":"made.work","args":[],"kwargs":{},"options":{"backoff":{"base":1}}}',
            "payload unreadable: Not a stored backoff",
        ),
        (
            b'{"v":1,"task":"made.work","args":[{"$":"no such tag"}],"kwargs":{},"options":{}}',
            "payload unreadable: jobrail_django.errors.DecodeError: The stored data has the unknown tag",
        ),
    ],
)
def test_payload_that_cannot_be_read_ends_the_job_with_the_reason(make_task, executor, payload, reason):
    make_task("@task\ndef work(*args): raise AssertionError('never called')")
    starts = Starts()

    outcome = executor.execute(broken(payload), starts)

    assert (outcome.verb, outcome.outcome) == ("dead", "failed")
    assert outcome.reason.startswith(reason)
    assert len(starts) == 1, "it is charged, should it kill the child"


def test_arguments_that_no_longer_fit_fail_as_the_call_does(make_task, execute):
    make_task("@task\ndef work(): return 1")

    outcome = execute(run_of("work", 1, 2))

    assert outcome.verb == "retry"  # a newer worker may fit
    assert outcome.reason.startswith("builtins.TypeError: work() takes 0 positional arguments but 2 were given")


def test_pickle_in_a_payload_is_never_loaded(make_task, execute, tmp_path):
    # N1
    made = tmp_path / "made"

    class Evil:
        def __reduce__(self):
            return open, (str(made), "w")

    outcome = execute(broken(pickle.dumps(Evil())))

    assert outcome.verb == "dead"
    assert outcome.reason.startswith("payload unreadable: ")
    assert not made.exists()


@pytest.mark.parametrize("name", ["os.system", "builtins.exec", "subprocess.run", "antigravity.fly", "made.plain", ""])
def test_name_in_a_payload_is_never_imported(make_task, executor, tmp_path, name):
    # N2
    make_task("def plain(*args): raise AssertionError")
    mark, starts = tmp_path / "mark", Starts()
    sys.modules.pop("antigravity", None)

    outcome = executor.execute(broken(codec.dumps_envelope(name, (f"touch {mark}",), {})), starts)

    assert (outcome.verb, outcome.outcome, outcome.delay_ms) == ("park", "", PARK_MS)
    assert outcome.reason.startswith(f"parked until a worker can run it: No task {name!r} is registered")
    assert not starts
    assert not mark.exists()
    assert "antigravity" not in sys.modules


def test_payload_of_a_newer_version_is_parked(make_task, executor):
    starts = Starts()

    outcome = executor.execute(broken(b'{"v":2,"anything":"else"}'), starts)

    assert (outcome.verb, outcome.outcome, outcome.delay_ms) == ("park", "", PARK_MS)
    assert "has version 2, this JobRail reads 1" in outcome.reason
    assert not starts


def test_option_of_a_newer_version_is_parked(make_task, execute):
    make_task("@task\ndef work(): return 1")

    outcome = execute(run_of("work", options={"flavour": "sweet"}))

    assert outcome.verb == "park"
    assert "the option 'flavour', which this version does not know" in outcome.reason


def test_parked_jobs_do_not_flood_the_log(make_task, executor, caplog):
    for _ in range(50):
        executor.execute(broken(codec.dumps_envelope("made.gone", (), {})), Starts())

    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING and "made.gone" in r.getMessage()]
    assert len(warnings) <= 1


def test_job_cancelled_before_its_start_is_not_run(make_task, executor):
    make_task("@task\ndef work(): raise AssertionError('never called')")
    starts = Starts()

    outcome = executor.execute(run_of("work", cancel_requested=True), starts)

    assert (outcome.verb, outcome.outcome, outcome.reason) == ("cancel", "cancelled", "cancelled before it started")
    assert not starts


# Isolation


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_context_variables_language_and_time_zone_stay_inside(make_task, execute):
    module = make_task(
        """
        from django.utils import timezone, translation
        def look(): return [variable.get(), translation.get_language(), timezone.get_current_timezone_name()]
        @task
        def change():
            variable.set("set"); translation.activate("fr"); timezone.activate("Asia/Tokyo")
            return look()
        @task
        def see(): return look()
        """
    )
    module.variable = variable

    changed, seen = execute(run_of("change")), execute(run_of("see"))

    assert codec.loads(changed.data) == ["set", "fr", "Asia/Tokyo"]
    assert codec.loads(seen.data) == ["unset", "en-us", "UTC"]
    assert (translation.get_language(), timezone.get_current_timezone_name()) == ("en-us", "UTC")


@pytest.fixture
def own_connection(transactional_db) -> Iterator[None]:
    """Let handlers discard this thread's connection; the test gets a new one."""
    yield
    connections.close_all()


LEFT_OPEN = """
    from django.contrib.auth.models import Group
    from django.db import connection, transaction
    @task
    def work(how):
        if how == "atomic":
            transaction.atomic().__enter__()
        else:
            transaction.set_autocommit(False)
        Group.objects.create(name="left")
        transaction.on_commit(lambda: Group.objects.create(name="hook"), robust=True)
        if how == "raise":
            raise ValueError
    @task
    def look(): return [connection.get_autocommit(), connection.in_atomic_block, Group.objects.count()]
"""


@pytest.mark.db_vendor
@pytest.mark.parametrize("how", ["atomic", "autocommit", "raise"])
def test_open_transaction_is_rolled_back_and_not_inherited(make_task, execute, own_connection, how):
    make_task(LEFT_OPEN)

    execute(run_of("work", how))

    assert codec.loads(execute(run_of("look")).data) == [True, False, 0]


@pytest.mark.db_vendor
def test_handler_that_breaks_its_transaction_does_not_break_the_next_one(make_task, execute, own_connection):
    make_task(
        """
        from django.contrib.auth.models import Group
        from django.db import IntegrityError, transaction
        @task
        def work():
            with transaction.atomic():
                Group.objects.create(name="same")
                try:
                    Group.objects.create(name="same")
                except IntegrityError:
                    return Group.objects.count()
        @task
        def look(): return Group.objects.count()
        """
    )

    assert error_of(execute(run_of("work")))["type"] == "django.db.transaction.TransactionManagementError"
    assert codec.loads(execute(run_of("look")).data) == 0


@pytest.mark.db_vendor
def test_closed_connection_is_replaced_for_the_next_job(make_task, execute, own_connection):
    make_task(
        """
        from django.contrib.auth.models import Group
        from django.db import connection
        @task
        def work():
            connection.ensure_connection()
            connection.connection.close()
            Group.objects.count()
        @task
        def look(): return Group.objects.count()
        """
    )

    assert execute(run_of("work")).outcome == "failed"
    assert codec.loads(execute(run_of("look")).data) == 0


@pytest.mark.db_vendor
def test_connection_that_cannot_be_looked_at_ends_no_slot(make_task, execute, own_connection):
    # A handler may leave anything behind; here a driver's connection whose every use raises.
    make_task(
        """
        from django.db import connection
        class Broken:
            def __getattr__(self, name): raise OSError("broken")
        @task
        def work():
            connection.ensure_connection()
            connection.connection.close()
            connection.connection = Broken()
            connection.errors_occurred = True
            return 1
        """
    )

    assert execute(run_of("work")).verb == "succeed"
    assert Group.objects.count() == 0


ASYNC_QUERIES = """
    import threading
    from asgiref.sync import sync_to_async
    from django.contrib.auth.models import Group
    from django.db import connection, transaction
    from django.utils import translation
    blocked = threading.Event()
    def leave():
        transaction.atomic().__enter__()
        Group.objects.create(name="left")
        translation.activate("fr")
    def look():
        return [connection.in_atomic_block, Group.objects.count(), translation.get_language()]
    @task
    async def work(): await sync_to_async(leave)()
    @task
    async def see(): return await sync_to_async(look)()
    @task
    async def whose(): return await sync_to_async(lambda: id(connection.connection) if look() else 0)()
    @task
    async def close(): await sync_to_async(lambda: connection.close())()
    @task
    async def block(): await sync_to_async(blocked.wait)()
"""


@pytest.mark.db_vendor
def test_queries_of_a_coroutine_leave_nothing_to_the_next(make_task, execute, own_connection):
    make_task(ASYNC_QUERIES)

    execute(run_of("work"))

    assert codec.loads(execute(run_of("see")).data) == [False, 0, "en-us"]


@pytest.mark.db_vendor
def test_good_connection_of_a_coroutine_is_kept_for_the_next(make_task, executor, own_connection, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    make_task(ASYNC_QUERIES)
    found = []

    def slot() -> None:  # connections read their settings when a thread makes them
        found.extend(codec.loads(executor.execute(run_of("whose"), Starts()).data) for _ in range(3))
        executor.execute(run_of("close"), Starts())

    thread = threading.Thread(target=slot)
    thread.start()
    thread.join()

    assert len(set(found)) == 1


@pytest.mark.db_vendor
def test_query_that_hangs_holds_up_no_other_coroutine(make_task, executor, own_connection):
    module = make_task(ASYNC_QUERIES)
    run = run_of("block")
    thread = interrupt(run, TimeLimitExceeded, lambda: run.started_s)

    assert executor.execute(run, Starts()).outcome == "timed_out"
    assert codec.loads(executor.execute(run_of("see"), Starts()).data) == [False, 0, "en-us"]
    thread.join()
    module.blocked.set()


@pytest.mark.db_vendor
def test_queries_are_not_kept_with_debug(make_task, execute, own_connection, settings):
    settings.DEBUG = True
    make_task("from django.contrib.auth.models import Group\n@task\ndef work(): return Group.objects.count()")

    for _ in range(3):
        execute(run_of("work"))

    assert len(connection.queries_log) == 0


@pytest.mark.db_vendor
def test_idle_connection_that_broke_is_dropped(own_connection):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no server")
    connection.ensure_connection()
    connection.connection.close()

    check_connections()

    assert Group.objects.count() == 0


# Interruptions


def interrupt(run: Run, kind: type[TaskInterrupt], ready: Callable[[], object]) -> threading.Thread:
    """Interrupt the handler as the monitor does, once it is ready for it."""

    def body() -> None:
        eventually(ready)
        eventually(lambda: run.gate.interrupt(kind))

    thread = threading.Thread(target=body)
    thread.start()
    return thread


BODIES = {
    "loop": "def work():\n    here.append(1)\n    while True: pass",
    "sleep": "def work():\n    here.append(1)\n    while True: time.sleep(0.001)",
    "broad except": "def work():\n    here.append(1)\n    while True:\n        try: time.sleep(0.001)\n"
    "        except Exception: pass",
    "async sleep": "async def work():\n    here.append(1)\n    await asyncio.sleep(60)",
    "async broad except": "async def work():\n    here.append(1)\n    while True:\n"
    "        try: await asyncio.sleep(0.001)\n        except Exception: pass",
    "sync in a thread of async": "async def work():\n    here.append(1)\n    await asyncio.to_thread(done.wait)",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_time_limit_reaches_the_handler(make_task, executor, body):
    module = make_task(
        f"import asyncio, threading, time\nhere, done = [], threading.Event()\n@task(timeout=30)\n{body}"
    )
    run, starts = run_of("work"), Starts()
    thread = interrupt(run, TimeLimitExceeded, lambda: module.here)

    outcome = executor.execute(run, starts)
    thread.join()
    module.done.set()

    assert (outcome.verb, outcome.outcome) == ("retry", "timed_out")
    assert outcome.reason.startswith("timed out after ")
    assert error_of(outcome)["type"] == "jobrail_django.errors.TimeLimitExceeded"
    assert starts[0][1] == pytest.approx(run.soft_deadline_s + HARD_LIMIT_AFTER_S)
    assert run.soft_deadline_s == pytest.approx(starts[0][0] + 30)


@pytest.mark.parametrize(
    "body",
    [
        "def work():\n    here.append(1)\n    try:\n        while True: time.sleep(0.001)\n"
        "    except BaseException: return 'fine'",
        "async def work():\n    here.append(1)\n    try: await asyncio.sleep(60)\n    except BaseException: return 'fine'",
    ],
    ids=["def", "async def"],
)
def test_time_limit_that_is_swallowed_counts_all_the_same(make_task, executor, body):
    # D2: never succeeded.
    module = make_task(f"import asyncio, time\nhere = []\n@task(timeout=30)\n{body}")
    run = run_of("work")
    thread = interrupt(run, TimeLimitExceeded, lambda: module.here)

    outcome = executor.execute(run, Starts())
    thread.join()

    assert (outcome.verb, outcome.outcome) == ("retry", "timed_out")


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_cancelled_handler_ends_its_job(make_task, executor, kind):
    wait = "await asyncio.sleep(0.001)" if kind == "async def" else "time.sleep(0.001)"
    module = make_task(
        f"import asyncio, time\nhere = []\n@task\n{kind} work():\n    here.append(1)\n    while True: {wait}"
    )
    run = run_of("work")
    thread = interrupt(run, JobCancelled, lambda: module.here)

    outcome = executor.execute(run, Starts())
    thread.join()

    assert (outcome.verb, outcome.outcome, outcome.reason) == ("cancel", "cancelled", "cancelled while running")


def test_handler_that_ends_well_despite_a_cancel_has_succeeded(make_task, executor):
    module = make_task(
        """
        import time
        from jobrail_django import JobCancelled
        here = []
        @task
        def work():
            here.append(1)
            try:
                while True: time.sleep(0.001)
            except JobCancelled:
                return "saved what there was"
        """
    )
    run = run_of("work")
    thread = interrupt(run, JobCancelled, lambda: module.here)

    outcome = executor.execute(run, Starts())
    thread.join()

    assert outcome.verb == "succeed"


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_nothing_is_reported_once_the_lease_is_lost(make_task, executor, kind):
    wait = "await asyncio.sleep(0.001)" if kind == "async def" else "time.sleep(0.001)"
    module = make_task(
        f"import asyncio, time\nhere = []\n@task\n{kind} work():\n    here.append(1)\n    while True: {wait}"
    )
    run = run_of("work")
    thread = interrupt(run, LeaseLost, lambda: module.here)

    outcome = executor.execute(run, Starts())
    thread.join()

    assert outcome is None


@pytest.mark.db_vendor
def test_connection_of_an_interrupted_handler_is_not_used_again(make_task, executor, own_connection):
    module = make_task(
        """
        import time
        from django.db import connection
        here = []
        @task(timeout=30)
        def work():
            connection.ensure_connection()
            here.append(connection.connection)
            while True: time.sleep(0.001)
        """
    )
    run = run_of("work")
    thread = interrupt(run, TimeLimitExceeded, lambda: module.here)

    executor.execute(run, Starts())
    thread.join()

    assert connections["default"].connection is not module.here.pop()


def test_setting_gives_the_limit_that_the_task_does_not(make_task, executor, settings):
    settings.JOBRAIL = {**settings.JOBRAIL, "TIMEOUT_SECONDS": 40, "BACKOFF": 0}
    make_task(
        "from jobrail_django import current_job\n@task\ndef work(): return current_job().remaining.total_seconds()"
    )
    starts = Starts()

    outcome = executor.execute(run_of("work"), starts)

    assert 35 < codec.loads(outcome.data) <= 40
    assert starts[0][1] == pytest.approx(starts[0][0] + 40 + HARD_LIMIT_AFTER_S)


def test_none_in_the_call_takes_the_limit_of_the_setting(make_task, executor):
    make_task("@task(timeout=30)\ndef work(): return 1")
    starts = Starts()

    executor.execute(run_of("work", options={"timeout": None}), starts)

    assert starts[0][1:] == (0.0, 0)


# Signals and logs


def test_start_is_announced_and_a_failing_receiver_changes_nothing(make_task, execute):
    make_task("@task\ndef work(): return 1")
    seen = []

    def receive(sender, signal, **data):
        seen.append((sender, data))
        raise RuntimeError("receiver")

    signals.job_started.connect(receive)
    try:
        outcome = execute(run_of("work", attempts=1))
    finally:
        signals.job_started.disconnect(receive)

    assert outcome.verb == "succeed"
    assert seen == [(None, {"job_id": JOB_ID, "task": "made.work", "queue": "default", "attempt": 2})]


def test_neither_arguments_nor_results_are_logged(make_task, execute, caplog):
    caplog.set_level(logging.DEBUG)
    make_task("@task\ndef work(secret): return secret\n@task\ndef fail(secret): raise ValueError(secret)")

    execute(run_of("work", "hunter2"))
    execute(run_of("fail", "hunter2"))

    assert any("Job started" in record.getMessage() for record in caplog.records)
    assert "hunter2" not in caplog.text
