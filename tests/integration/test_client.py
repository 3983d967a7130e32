"""Enqueue, find, cancel, retry, pause: what callers ask, against a real Redis."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import socket
import threading
import time
import uuid
from collections import namedtuple
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import redis
from django.db import connection
from django.utils.timezone import now

from jobrail_django import (
    cancel,
    client,
    codec,
    enqueue,
    enqueue_many,
    get_job,
    pause_queue,
    resume_queue,
    retry,
)
from jobrail_django.broker import broker as broker_module
from jobrail_django.broker.broker import Broker
from jobrail_django.broker.connection import get_broker
from jobrail_django.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigurationError,
    EncodeError,
    InvalidArguments,
    InvalidOption,
    InvalidTask,
    InvalidTransition,
    JobNotFound,
    JobRailError,
    PayloadTooLarge,
    TaskModuleError,
    TaskNotRegistered,
    UnknownOption,
    UnknownQueue,
    UnsupportedOption,
)
from jobrail_django.job import Job
from jobrail_django.models import Attempt
from jobrail_django.models import Job as Row
from jobrail_django.states import State
from jobrail_django.upkeep.mirror import Mirror

from ..probes import tasks
from ..probes.child import InlineChild, eventually
from ..servers import RedisServer, free_port
from .rail import Rail, error_record

#: Bound of one call in seconds, and how much more a busy machine may take in a test.
BOUND_S, SLACK = 1.0, 3.0


@pytest.fixture
def rail(broker: Broker) -> Rail:
    return Rail(broker)


def stored(broker: Broker, job: Job) -> codec.Envelope:
    """What Redis holds of a job's arguments."""
    record = broker.get(job.queue, job.id)
    assert record is not None
    return codec.loads_envelope(record.payload)


def nothing_is_there(broker: Broker) -> bool:
    return not list(broker.client.scan_iter(match=f"{broker.prefix}:*"))


# Enqueue


@pytest.mark.parametrize(
    "call",
    [
        lambda: enqueue(tasks.add, 1, right=2),
        lambda: enqueue("tests.probes.tasks.add", 1, right=2),
        lambda: tasks.add.enqueue(1, right=2),
        lambda: tasks.add.using(priority=0).enqueue(1, right=2),
        lambda: asyncio.run(tasks.add.aenqueue(1, right=2)),
    ],
    ids=["function", "name", "method", "using", "async"],
)
def test_all_spellings_enqueue_the_same_job(broker, call):
    job = call()

    assert (job.task, job.queue, job.state) == ("tests.probes.tasks.add", "default", State.READY)
    assert (job.attempts, job.losses, job.round, job.reason, job.result) == (0, 0, 1, "", None)
    envelope = stored(broker, job)
    assert (envelope.task, envelope.args, envelope.kwargs) == ("tests.probes.tasks.add", [1], {"right": 2})


def test_id_is_a_uuid7_text(jobrail):
    job = enqueue(tasks.ok)

    assert isinstance(job.id, str)
    assert job.id == str(uuid.UUID(job.id))
    assert uuid.UUID(job.id).version == 7


def test_options_of_the_task_and_of_the_call_reach_redis(broker):
    job = tasks.mail.using(priority=7, max_attempts=9, max_losses=2).enqueue("a@b.c")

    record = broker.get("mail", job.id)
    assert (record.priority, record.max_attempts, record.max_losses) == (7, 9, 2)


def test_settings_give_the_limits_that_nobody_named(jobrail):
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "MAX_ATTEMPTS": 6, "MAX_LOSSES": 4}
    job = enqueue(tasks.ok)

    record = get_broker().get("default", job.id)
    assert (record.max_attempts, record.max_losses) == (6, 4)


def test_queue_of_the_call_wins(broker):
    job = tasks.ok.using(queue_name="mail").enqueue()

    assert job.queue == "mail"
    assert broker.get("mail", job.id) is not None
    assert broker.get("default", job.id) is None


EXACT = [
    2**53 + 1,
    -(2**63),
    10**40,
    130775545883395173,
    0.1,
    1e308,
    1.0,
    [],
    {},
    {"a": []},
    [[]],
    None,
    "",
    {"__proto__": 1, "1": [None, True]},
    "a\0b",
    "é😀\u202eع",
    Decimal("1.10"),
    datetime(2024, 10, 27, 2, 30, 0, 1, tzinfo=timezone.utc),
    uuid.UUID(int=5),
    (1, (2,)),
]


def test_arguments_arrive_exactly(broker):
    # K9, K10: no script looks into them. One job by each path that has a script of its own.
    paths = [
        enqueue(tasks.echo, *EXACT, named=EXACT),
        tasks.echo.using(run_after=0.05).enqueue(*EXACT, named=EXACT),
        enqueue_many(tasks.echo, [(*EXACT,), {"named": EXACT}])[0],
    ]
    dead = Rail(broker)
    retried = enqueue(tasks.echo, *EXACT)
    lost = tasks.echo.using(priority=90).enqueue(*EXACT)
    dead.claim()
    later = Broker(broker.client, broker.prefix, now_ms=lambda: int(time.time() * 1000) + 120_000)
    assert later.reap("default", gap_ms=0, hold_ms=0).recovered == [(lost.id, "ready")]
    cancel(retried)
    retry(retried)

    with InlineChild():
        for job in [*paths, retried, lost]:
            assert job.wait(20)

    for job in [*paths, retried, lost]:
        arrived, named = job.result
        assert arrived == EXACT
        assert [type(value) for value in arrived] == [type(value) for value in EXACT]
        assert named in ({}, {"named": EXACT})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "args[0] of type float is nan, which JSON does not have; pass None, or a Decimal"),
        (float("inf"), "args[0] of type float is inf"),
        ("\ud800", "args[0] of type str has a lone surrogate"),
        ({"deep": ["x", {"y": "\udfff"}]}, "args[0]['deep'][1]['y'] of type str has a lone surrogate"),
        (object(), "args[0] of type object cannot be stored"),
        (open, "args[0] of type builtin_function_or_method cannot be stored"),
        ([1, {2: object()}], "args[0][1][2] of type object"),
    ],
)
def test_argument_that_cannot_be_stored_is_refused_at_the_call(broker, value, text):
    with pytest.raises(EncodeError) as caught:
        enqueue(tasks.ok, value)

    assert str(caught.value).startswith(text)
    assert nothing_is_there(broker)


def test_arguments_too_large_are_refused_with_both_sizes(broker):
    with pytest.raises(PayloadTooLarge) as caught:
        enqueue(tasks.ok, "x" * 5_000_000)

    size = len(codec.dumps_envelope("tests.probes.tasks.ok", ("x" * 5_000_000,), {}))
    assert (caught.value.size, caught.value.limit) == (size, 1024 * 1024)
    assert str(caught.value) == (
        f"The arguments for 'tests.probes.tasks.ok' take {size} bytes; at most 1048576 are allowed "
        f"(JOBRAIL['MAX_PAYLOAD_BYTES']). Store the data and pass its key."
    )
    assert nothing_is_there(broker)


def test_arguments_at_the_limit_pass_and_one_byte_more_does_not(jobrail):
    # K5
    around = len(codec.dumps_envelope("tests.probes.tasks.ok", ("",), {}))
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "MAX_PAYLOAD_BYTES": 100_000}
    text = "x" * (100_000 - around)

    job = enqueue(tasks.ok, text)
    with pytest.raises(PayloadTooLarge):
        enqueue(tasks.ok, text + "x")

    assert stored(get_broker(), job).args == [text]


def test_many_large_jobs_go_in_one_call_of_the_caller(broker):
    # 60 MB in all: more than one script could take within the bound of a call.
    group = enqueue_many(tasks.ok, [("x" * 600_000,)] * 100)

    ready = [job_id.decode() for job_id in broker.client.zrange(broker.keys("default").ready, 0, -1)]
    assert ready == [job.id for job in group]


@pytest.mark.parametrize("sizes", [[10] * 250, [400_000] * 7, [900_000, 10, 900_000, 900_000], [1_000_000], [10] * 100])
def test_jobs_of_any_size_are_all_enqueued_in_order(broker, sizes):
    group = enqueue_many(tasks.ok, [("x" * size,) for size in sizes])

    assert [len(stored(broker, job).args[0]) for job in group] == sizes
    assert {job.state for job in group} == {State.READY}


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "missing a required argument: 'left'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"wrong": 1}, "got an unexpected keyword argument 'wrong'"),
        ((1,), {"left": 1}, "multiple values for argument 'left'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_the_call(broker, args, kwargs, text):
    for call in (enqueue, lambda task, *a, **k: enqueue("tests.probes.tasks.add", *a, **k)):
        with pytest.raises(InvalidArguments) as caught:
            call(tasks.add, *args, **kwargs)

        assert str(caught.value).startswith(f"The arguments do not fit the task 'tests.probes.tasks.add': {text}")
        assert "(left: int, right: int = 0, *, scale: int = 1) -> int" in str(caught.value)
    assert nothing_is_there(broker)


def plain() -> None:
    """A function nobody decorated."""


@pytest.mark.parametrize("value", [plain, lambda: 1, None, 5, tasks.ok.func, tasks])
def test_what_is_no_task_is_refused(broker, value):
    with pytest.raises(InvalidTask, match=r"is not a task; expected a function with @task, or the dotted name"):
        enqueue(value)


def test_unknown_name_is_refused_with_the_closest(jobrail):
    with pytest.raises(TaskNotRegistered, match=r"'tests.probes.tasks.ad' is registered; did you mean") as caught:
        enqueue("tests.probes.tasks.ad", 1)

    assert caught.value.task == "tests.probes.tasks.ad"


def test_name_of_an_undecorated_function_is_not_registered(jobrail):
    with pytest.raises(TaskNotRegistered):
        enqueue(f"{__name__}.plain")


def test_unknown_queue_is_refused_at_the_call(broker):
    with pytest.raises(UnknownQueue) as caught:
        tasks.ok.using(queue_name="mial").enqueue()

    assert str(caught.value).startswith("Unknown queue 'mial'; did you mean 'mail'?")
    assert "JOBRAIL['QUEUES'] declares 'default', 'mail'" in str(caught.value)
    assert caught.value.queue == "mial"
    assert nothing_is_there(broker)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"priority": 101}, InvalidOption, "Option 'priority': 101 must be a whole number from -100 to 100"),
        ({"priority": -101}, InvalidOption, "Option 'priority': -101 must be"),
        ({"priority": 3.5}, InvalidOption, "Option 'priority': 3.5 must be a whole number"),
        ({"priority": True}, InvalidOption, "Option 'priority': True must be a whole number"),
        ({"priority": "5"}, InvalidOption, "Option 'priority': '5' must be a whole number"),
        ({"priority": None}, InvalidOption, "Option 'priority': None must be a whole number"),
        ({"run_after": -1}, InvalidOption, "Option 'run_after': -1 is out of range"),
        ({"run_after": float("nan")}, InvalidOption, "Option 'run_after': nan is out of range"),
        ({"run_after": timedelta(days=-1)}, InvalidOption, "Option 'run_after': "),
        ({"run_after": True}, InvalidOption, "Option 'run_after': True is not a duration"),
        ({"max_attempts": 0}, InvalidOption, "Option 'max_attempts': 0 must be a whole number from 1"),
        ({"queue_name": "no such name!"}, InvalidOption, "Option 'queue_name': 'no such name!' cannot name a queue"),
        ({"idempotency_key": ""}, InvalidOption, "Option 'idempotency_key': expected a text of 1 to 255 characters"),
        ({"idempotency_key": "x" * 256}, InvalidOption, "Option 'idempotency_key': expected a text of 1 to 255"),
        ({"idempotency_key": "\ud800"}, InvalidOption, "Option 'idempotency_key': the text has a lone surrogate"),
        ({"prioritty": 1}, UnknownOption, "Unknown option 'prioritty'; did you mean 'priority'?"),
        ({"countdown": 1}, UnknownOption, "Unknown option 'countdown'"),
        ({"durable": True}, UnsupportedOption, "Option 'durable' is not supported yet"),
        ({"retry_on": OSError}, InvalidOption, "Option 'retry_on' belongs to the function"),
    ],
)
def test_option_that_cannot_be_is_refused(broker, options, error, text):
    with pytest.raises(error) as caught:
        tasks.ok.using(**options).enqueue()

    assert str(caught.value).startswith(text)
    assert caught.value.option == next(iter(options))
    assert nothing_is_there(broker)


def test_unknown_database_of_the_transaction_is_refused_with_the_closest(jobrail):
    with pytest.raises(InvalidOption) as caught:
        tasks.ok.using(using="defualt").enqueue()

    assert str(caught.value).startswith("Option 'using': no database has the alias 'defualt'; did you mean 'default'?")
    assert caught.value.option == "using"


# run_after


def due_in_s(broker: Broker, job: Job) -> float | None:
    due_ms = broker.get(job.queue, job.id).due_ms
    return None if due_ms is None else due_ms / 1000 - time.time()


@pytest.mark.parametrize("value", [300, 300.0, timedelta(minutes=5)])
def test_wait_is_counted_from_the_enqueue(broker, value):
    job = tasks.ok.using(run_after=value).enqueue()

    assert job.state is State.SCHEDULED
    assert due_in_s(broker, job) == pytest.approx(300, abs=5)
    assert broker.stats("default").scheduled == 1


@pytest.mark.parametrize("zone", [timezone.utc, timezone(timedelta(hours=-9, minutes=-30))])
def test_aware_moment_is_that_moment(broker, zone):
    moment = datetime(2090, 2, 3, 4, 5, 6, 789_000, tzinfo=zone)

    job = tasks.ok.using(run_after=moment).enqueue()

    assert broker.get("default", job.id).due_ms == round(moment.timestamp() * 1000)


@pytest.mark.parametrize(
    "moment",
    [now() - timedelta(days=1), datetime(1, 1, 1, tzinfo=timezone.utc), datetime(1969, 7, 20, tzinfo=timezone.utc)],
)
def test_past_moment_is_ready_at_once(broker, moment):
    job = tasks.ok.using(run_after=moment).enqueue()

    assert job.state is State.READY
    assert broker.stats("default").ready == 1


def test_last_moment_of_the_calendar_is_accepted(broker):
    last = datetime.max.replace(tzinfo=timezone.utc)

    assert tasks.ok.using(run_after=last).enqueue().state is State.SCHEDULED


@pytest.mark.parametrize("value", [0, timedelta(0), None])
def test_no_wait_is_ready_at_once(jobrail, value):
    assert tasks.ok.using(run_after=value).enqueue().state is State.READY


def test_naive_moment_is_refused_with_the_remedy(broker):
    with pytest.raises(InvalidOption, match=r"is naive, and USE_TZ is on; give an aware datetime"):
        tasks.ok.using(run_after=datetime(2090, 1, 1)).enqueue()

    assert nothing_is_there(broker)


def test_naive_moment_of_a_site_without_time_zones_is_its_local_time(jobrail):
    jobrail.USE_TZ = False
    jobrail.TIME_ZONE = "Asia/Tokyo"

    job = tasks.ok.using(run_after=datetime(2090, 1, 1)).enqueue()

    expected = datetime(2090, 1, 1, tzinfo=timezone(timedelta(hours=9)))
    assert get_broker().get("default", job.id).due_ms == expected.timestamp() * 1000


@pytest.mark.parametrize("value", ["2090-01-01", date(2090, 1, 1)])
def test_other_kinds_of_moment_are_refused(jobrail, value):
    with pytest.raises(InvalidOption, match=r"Option 'run_after': .* is not a duration"):
        tasks.ok.using(run_after=value)


# enqueue_many


def test_many_jobs_keep_their_order(broker):
    group = enqueue_many(tasks.ok, ((i,) for i in range(250)))

    assert len(group) == 250
    assert [stored(broker, job).args for job in group] == [[i] for i in range(250)]
    ready = [job_id.decode() for job_id in broker.client.zrange(broker.keys("default").ready, 0, -1)]
    assert ready == [job.id for job in group]
    assert repr(group) == "<Group of 250 jobs>"
    assert group[0] == next(iter(group))


def test_mappings_tuples_and_lists_are_arguments(broker):
    Pair = namedtuple("Pair", "left right")

    group = enqueue_many("tests.probes.tasks.add", [(1,), [1, 2], {"left": 3}, Pair(4, 5)])

    assert [(e.args, e.kwargs) for e in (stored(broker, job) for job in group)] == [
        ([1], {}),
        ([1, 2], {}),
        ([], {"left": 3}),
        ([4, 5], {}),
    ]


def test_no_arguments_are_no_jobs(broker):
    group = enqueue_many(tasks.ok, [])

    assert list(group) == []
    assert group.wait(0) is True
    assert nothing_is_there(broker)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([(1,), 5], "arguments[1] is 5; expected a tuple of arguments, as in (1,), or a mapping"),
        (["ab"], "arguments[0] is 'ab'; expected a tuple"),
        ([None], "arguments[0] is None"),
        (5, "arguments is 5; expected one tuple or mapping for each job"),
        ([(1,), ()], "arguments[1]: The arguments do not fit the task 'tests.probes.tasks.add'"),
        ([{"wrong": 1}], "arguments[0]: The arguments do not fit the task"),
    ],
)
def test_one_bad_element_enqueues_nothing_and_is_named(broker, arguments, text):
    with pytest.raises(InvalidArguments) as caught:
        enqueue_many(tasks.add, arguments)

    assert str(caught.value).startswith(text)
    assert nothing_is_there(broker)


def test_one_bad_value_enqueues_nothing(broker):
    with pytest.raises(EncodeError):
        enqueue_many(tasks.ok, [(1,), (float("nan"),)])

    assert nothing_is_there(broker)


def test_key_for_many_jobs_is_refused(broker):
    with pytest.raises(InvalidOption, match="all its jobs would have the same key"):
        enqueue_many(tasks.ok.using(idempotency_key="k"), [(1,), (2,)])

    assert nothing_is_there(broker)


def test_group_waits_for_all_within_one_timeout(jobrail):
    group = enqueue_many(tasks.ok, [(i,) for i in range(20)])
    assert group.wait(0.05) is False

    with InlineChild():
        assert group.wait(20) is True

    assert [job.result for job in group] == list(range(20))


# Tasks that cannot be


def test_function_inside_a_function_is_refused():
    from jobrail_django import task

    with pytest.raises(InvalidTask, match=r"is not at the top level of a module; move the function there"):

        @task
        def inner() -> None: ...


def test_task_module_that_fails_on_import_is_named(jobrail, tmp_path, monkeypatch):
    from jobrail_django import registry

    (tmp_path / "brokenapp_of_client").mkdir()
    (tmp_path / "brokenapp_of_client" / "__init__.py").write_text("")
    (tmp_path / "brokenapp_of_client" / "tasks.py").write_text("import no_such_module_anywhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_discovered", False)
    jobrail.INSTALLED_APPS = [*jobrail.INSTALLED_APPS, "brokenapp_of_client"]

    with pytest.raises(TaskModuleError, match=r"'brokenapp_of_client.tasks' fails on import with ModuleNotFoundError"):
        enqueue("brokenapp_of_client.tasks.work")


# Redis away


@pytest.fixture
def at(settings) -> Callable[..., None]:
    def point(url: str, **more: Any) -> None:
        settings.JOBRAIL = {"REDIS": url, "PREFIX": "away", "QUEUES": ["default", "mail"], **more}

    return point


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A port where connections are taken and nothing is ever said."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


JOB_ID = str(uuid.uuid4())

CALLS: dict[str, Callable[[], object]] = {
    "enqueue": lambda: enqueue(tasks.ok),
    "enqueue with a key": lambda: tasks.ok.using(idempotency_key="k").enqueue(),
    "enqueue_many": lambda: enqueue_many(tasks.ok, [(1,), (2,)]),
    "aenqueue": lambda: asyncio.run(tasks.ok.aenqueue()),
    "get_job": lambda: get_job(JOB_ID),
    "cancel": lambda: cancel(JOB_ID),
    "retry": lambda: retry(JOB_ID),
    "pause_queue": lambda: pause_queue("default"),
    "resume_queue": lambda: resume_queue("default"),
    "purge_queue": lambda: client.purge_queue("default"),
    "queue_stats": client.queue_stats,
    "wait": lambda: Job(id=JOB_ID, task="t", queue="default", state=State.READY).wait(5),
}


def assert_bounded(call: Callable[[], object]) -> str:
    """The call fails in time, as Redis being away; returns the text."""
    before = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        call()
    assert time.monotonic() - before < BOUND_S * SLACK
    assert isinstance(caught.value, (BrokerError, JobRailError))
    assert "try again later" in str(caught.value)
    return str(caught.value)


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_closed_port_fails_at_once(at, call):
    port = free_port()
    at(f"redis://127.0.0.1:{port}/0")

    text = assert_bounded(call)

    assert text.startswith(f"Redis at redis://127.0.0.1:{port}/0 is not available (")


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_server_that_never_answers_fails_within_the_bound(at, black_hole, call):
    # H15
    at(black_hole)

    assert_bounded(call)


@pytest.mark.parametrize("bound", [0.2, 2.0])
def test_bound_is_the_setting(at, black_hole, bound):
    at(black_hole, REDIS_TIMEOUT_SECONDS=bound)

    before = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        enqueue(tasks.ok)
    took = time.monotonic() - before

    assert bound / 4 < took < bound * SLACK


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_paused_server_fails_within_the_bound_and_serves_afterwards(at, server):
    at(server.url)
    job = enqueue(tasks.ok, 1)
    with server.client() as admin:
        admin.execute_command("CLIENT", "PAUSE", 5000, "ALL")
    assert_bounded(lambda: enqueue(tasks.ok, 2))

    eventually(lambda: serves(job))


def serves(job: Job) -> bool:
    try:
        return get_job(job.id).state is State.READY
    except BrokerUnavailable:
        return False


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_frozen_server_fails_within_the_bound_and_no_late_reply_goes_to_another_call(at, server):
    at(server.url)
    job, more = enqueue(tasks.ok, 1), enqueue(tasks.ok, 2)
    server.freeze()
    for call in (lambda: enqueue(tasks.ok, 3), lambda: get_job(job.id), client.queue_stats, lambda: cancel(job)):
        assert_bounded(call)
    server.thaw()

    # What was sent may be done all the same; a new call gets its own answer and no older one.
    eventually(lambda: serves(job))
    for _ in range(10):
        assert get_job(more.id) == more
        assert stored(get_broker(), enqueue(tasks.ok, 4)).args == [4]


def test_many_threads_are_bounded_together(at, black_hole):
    at(black_hole)
    took: list[float] = []

    def body() -> None:
        before = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            enqueue(tasks.ok)
        took.append(time.monotonic() - before)

    threads = [threading.Thread(target=body) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len(took) == 20
    assert max(took) < BOUND_S * SLACK, "nobody waits for another one's turn"


def test_calls_work_again_once_redis_is_back(at, server):
    at(server.url)
    enqueue(tasks.ok, 1)
    server.kill()
    assert_bounded(lambda: enqueue(tasks.ok, 2))
    server.start()

    job = enqueue(tasks.ok, 3)

    assert job.refresh().state is State.READY


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_restart_between_two_calls_is_not_noticed(at, server):
    at(server.url)
    job = enqueue(tasks.ok, 1)
    for call in (lambda: enqueue(tasks.ok, 2), lambda: client.queue_stats(), lambda: pause_queue("default")):
        server.restart()
        call()
    server.restart()
    with pytest.raises(JobNotFound):
        job.refresh()  # this server keeps nothing


@pytest.mark.parametrize("code", ["OOM", "READONLY"])
def test_server_that_cannot_take_writes_is_unavailable(at, code):
    with RedisServer(options=("--maxmemory-policy", "noeviction")) as server:
        at(server.url)
        with server.client() as admin:
            if code == "OOM":
                admin.config_set("maxmemory", 1)
            else:
                admin.replicaof("127.0.0.1", free_port())
        text = assert_bounded(lambda: enqueue(tasks.ok))

    assert server.url in text


def test_refused_password_is_no_outage(at):
    with RedisServer() as server, server.client() as admin:
        admin.config_set("requirepass", "right")
        at(f"redis://:wrong@127.0.0.1:{server.port}/0")

        with pytest.raises(BrokerError) as caught:
            enqueue(tasks.ok)

    assert not isinstance(caught.value, BrokerUnavailable), "trying again does not help"


def test_unset_redis_is_a_configuration_error(settings):
    settings.JOBRAIL = {}

    with pytest.raises(ConfigurationError, match=r"JOBRAIL\['REDIS'\] is not set; write the alias"):
        enqueue(tasks.ok)


# N4: secrets


SECRETS = {
    "plain": "s3cr3t-plain",
    "escaped": "s3cr3t%2F%40%3Aslash",
    "with a colon": "s3cr3t:colon",
    "with an at": "s3cr3t@at",
}


def leaks(text: str) -> list[str]:
    return re.findall(r"s3cr3t\S*|us3r\S*", text)


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("state", "secret"),
    [
        ("silent", SECRETS["plain"]),
        *((state, secret) for state in ("closed", "refused") for secret in SECRETS.values()),
    ],
)
def test_password_is_in_no_message_log_or_repr(at, black_hole, caplog, secret, state):
    caplog.set_level(logging.DEBUG)
    with RedisServer() as server, server.client() as admin:
        admin.config_set("requirepass", "right")
        port = {"closed": free_port(), "silent": black_hole.split(":")[-1].split("/")[0], "refused": server.port}[state]
        at(f"redis://us3r:{secret}@127.0.0.1:{port}/0?password=s3cr3t-query")
        texts: list[str] = []
        for call in CALLS.values():
            try:
                call()
            except JobRailError as exc:
                found: BaseException | None = exc
                while found is not None:
                    texts += [str(found), repr(found), repr(found.args)]
                    found = found.__cause__ or found.__context__
                texts.append(frame_locals(exc))

    assert texts
    assert leaks("\n".join(texts)) == []
    assert leaks(caplog.text) == []


def frame_locals(exc: BaseException) -> str:
    """What an error tracker shows: the repr of each local variable of JobRail's frames."""
    found = []
    for frame in inspect.getinnerframes(exc.__traceback__):
        if "jobrail_django" in frame.filename:
            found += [repr(value) for value in frame.frame.f_locals.values()]
    return "\n".join(found)


def test_public_objects_do_not_show_the_password(at, server):
    from jobrail_django.conf import get_settings, redis_location

    at(f"redis://us3r:s3cr3t@127.0.0.1:{server.port}/0")
    broker = get_broker()
    shown = [broker, get_settings(), redis_location(), str(redis_location()), broker.where, vars(broker)["where"]]

    assert leaks("\n".join(map(repr, shown))) == []


@pytest.mark.parametrize(
    "url",
    [
        "redis://us3r:s3cr3t@h:port/0",
        "redis://us3r:s3cr3t@127.0.0.1:1/x",
        "rediss:us3r:s3cr3t@127.0.0.1",
        "redis://us3r:s3cr3t pass@127.0.0.1:1/0",
        "redis://us3r:s3cr3t'quote@127.0.0.1:1/x",
    ],
)
def test_url_that_leads_nowhere_does_not_show_its_password(at, url):
    at(url)

    with pytest.raises(JobRailError) as caught:
        enqueue(tasks.ok)

    assert leaks(str(caught.value)) == []


# Finding


@pytest.mark.parametrize("kind", [str, uuid.UUID, str.upper, lambda text: text.replace("-", "")])
def test_job_is_found_by_any_form_of_its_id(jobrail, kind):
    job = enqueue(tasks.mail, "a@b.c")

    found = get_job(kind(job.id))

    assert found == job
    assert found is not job
    assert (found.id, found.task, found.queue, found.state) == (job.id, job.task, "mail", State.READY)
    assert repr(found) == f"<Job {job.id} tests.probes.tasks.mail ready>"
    assert hash(found) == hash(job)


@pytest.mark.parametrize("value", ["", "x", "12345", None, 5, b"abc", "'; DROP TABLE", "x" * 10_000, "{", "*", "\0"])
def test_what_is_no_id_is_not_found(jobrail, value):
    for call in (get_job, cancel, retry):
        with pytest.raises(JobNotFound) as caught:
            call(value)

        assert "is not the id of a job; expected a UUID" in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("call", [get_job, cancel, retry])
def test_unknown_id_is_not_found(jobrail, call):
    unknown = str(uuid.uuid4())

    with pytest.raises(JobNotFound) as caught:
        call(unknown)

    assert str(caught.value) == f"No job {unknown} is known, in Redis or in the database."
    assert caught.value.job_id == unknown


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_job_that_redis_let_go_is_found_in_its_row(broker, rail, monkeypatch):
    monkeypatch.setattr(broker_module, "TOMBSTONE_MS", 1)
    job = enqueue(tasks.ok, 1)
    rail.succeed(result=codec.dumps({"a": 2**60}))
    Mirror(broker, ["default"], using="default").run_once()
    eventually(lambda: broker.get("default", job.id) is None)

    found = get_job(job.id)

    assert (found.state, found.result, found.attempts, found.task) == (
        State.SUCCEEDED,
        {"a": 2**60},
        1,
        "tests.probes.tasks.ok",
    )
    assert job.refresh() is job
    assert job.result == {"a": 2**60}


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_row_answers_while_redis_is_away(broker, rail, at):
    job = enqueue(tasks.ok, 1)
    rail.succeed()
    Mirror(broker, ["default"], using="default").run_once()
    at(f"redis://127.0.0.1:{free_port()}/0")

    assert get_job(job.id).state is State.SUCCEEDED
    assert job.wait(1) is True


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_damaged_job_is_found_without_a_name(broker, rail):
    (job_id,) = rail.enqueue_payloads([b"\xffgarbage"])

    job = get_job(job_id)

    assert (job.task, job.state) == ("", State.READY)
    assert cancel(job) is True


# Waiting


def test_wait_ends_with_the_result(jobrail):
    job = enqueue(tasks.add, 2, right=3)

    with InlineChild():
        assert job.wait(timeout=20) is True

    assert (job.state, job.result, job.is_finished, job.attempts) == (State.SUCCEEDED, 5, True, 1)
    assert job.wait(0) is True, "again, at once"


@pytest.mark.parametrize("timeout", [0, 0.1, timedelta(milliseconds=100)])
def test_wait_gives_up_after_its_timeout(jobrail, timeout):
    job = enqueue(tasks.ok)
    before = time.monotonic()

    assert job.wait(timeout) is False

    assert time.monotonic() - before < 3
    assert (job.state, job.is_finished, job.result) == (State.READY, False, None)


@pytest.mark.parametrize("timeout", [-1, "5", float("nan"), True])
def test_wait_refuses_what_is_no_timeout(jobrail, timeout):
    job = enqueue(tasks.ok)

    with pytest.raises(InvalidOption, match=r"wait\(timeout=…\)"):
        job.wait(timeout)


def test_wait_ends_for_a_job_that_dies(jobrail):
    job = enqueue(tasks.die, "broken")

    with InlineChild():
        assert job.wait(20) is True

    assert (job.state, job.result, job.reason) == (State.DEAD, None, "builtins.ValueError: broken")


def test_wait_goes_on_through_retries(jobrail):
    job = enqueue(tasks.fail_until, 3)

    with InlineChild():
        assert job.wait(20) is True

    assert (job.result, job.attempts) == (3, 3)


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_wait_of_a_job_that_is_nowhere_says_so(broker, jobrail):
    job = enqueue(tasks.ok)
    broker.client.delete(broker.keys("default").job(job.id))

    with pytest.raises(JobNotFound):
        job.wait(5)


def test_result_that_was_too_large_is_none_with_the_reason(jobrail):
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "MAX_PAYLOAD_BYTES": 300}
    job = enqueue(tasks.echo, "x" * 180, y=1)

    with InlineChild():
        assert job.wait(20)
    assert (job.state, job.reason) == (State.SUCCEEDED, "")

    job = enqueue(tasks.big, 1000)
    with InlineChild():
        assert job.wait(20)
    assert (job.state, job.result) == (State.SUCCEEDED, None)
    assert job.reason == "result too large to be stored: 1002 bytes, at most 300 are kept"


# Cancel


@pytest.mark.parametrize("form", [lambda job: job, lambda job: job.id, lambda job: uuid.UUID(job.id)])
@pytest.mark.parametrize("run_after", [0, 60])
def test_waiting_job_is_cancelled_at_once_and_never_runs(broker, form, run_after):
    job = tasks.ok.using(run_after=run_after).enqueue()

    assert cancel(form(job), reason="not needed") is True

    assert job.refresh().state is State.CANCELLED
    assert job.reason == "not needed"
    stats = broker.stats("default")
    assert (stats.ready, stats.scheduled) == (0, 0)


def test_handle_is_up_to_date_after_a_cancel(jobrail):
    job = enqueue(tasks.ok)

    assert job.cancel() is True

    assert job.state is State.CANCELLED


def test_job_that_waits_for_its_retry_is_cancelled(rail):
    job = enqueue(tasks.fail)
    rail.fail(verb="retry")
    assert job.refresh().state is State.RETRYING

    assert job.cancel() is True

    assert job.state is State.CANCELLED


def test_running_job_is_asked_to_stop(broker, rail):
    job = enqueue(tasks.ok)
    rail.claim()

    assert job.cancel() is False
    assert job.cancel() is False, "again"

    assert job.state is State.RUNNING
    assert broker.get("default", job.id).cancel_requested


def test_running_job_that_was_asked_to_stop_does_not_run_again(rail):
    job = enqueue(tasks.ok)
    jobs = rail.claim()
    job.cancel()

    rail.settle(jobs, "retry", "failed", error_record())

    assert job.refresh().state is State.CANCELLED


def test_cancelling_twice_is_the_same_as_once(jobrail):
    job = enqueue(tasks.ok)

    assert job.cancel() is True
    assert job.cancel() is True


@pytest.mark.parametrize("state", ["succeeded", "dead"])
def test_job_that_has_ended_cannot_be_cancelled(rail, state):
    job = enqueue(tasks.ok)
    rail.succeed() if state == "succeeded" else rail.fail()

    with pytest.raises(InvalidTransition) as caught:
        job.cancel()

    assert str(caught.value).startswith(f"Job {job.id} is {state} and cannot be cancelled: ")
    assert (caught.value.job_id, caught.value.state) == (job.id, state)


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_job_that_redis_let_go_cannot_be_cancelled(broker, rail, monkeypatch):
    monkeypatch.setattr(broker_module, "TOMBSTONE_MS", 1)
    jobs = [enqueue(tasks.ok), enqueue(tasks.ok)]
    jobs[1].cancel()
    rail.succeed()
    Mirror(broker, ["default"], using="default").run_once()
    eventually(lambda: not any(broker.get("default", job.id) for job in jobs))

    with pytest.raises(InvalidTransition, match="is succeeded and cannot be cancelled"):
        cancel(jobs[0].id)
    assert cancel(jobs[1].id) is True, "it is cancelled, as it was before Redis let it go"


@pytest.mark.parametrize("reason", ["a\0b", "\ud800", "x" * 100_000, ""])
def test_any_reason_can_be_given(jobrail, reason):
    job = enqueue(tasks.ok)

    cancel(job, reason=reason)

    assert len(job.reason) <= 255


def test_running_handler_is_interrupted_by_a_cancel(jobrail):
    job = enqueue(tasks.until_cancelled)
    with InlineChild() as child:
        eventually(lambda: child.held() and child.held()[0].started)
        assert job.cancel() is False
        # The supervisor's part: what Redis answers to a heartbeat is passed on.
        (held,) = child.held()
        from jobrail_django.broker.records import HeldLease
        from jobrail_django.worker.shared import CANCEL

        lease = HeldLease(job.id, f"{child.id}.1.0:{held.n}", True)
        assert get_broker().heartbeat("default", [lease], 30_000).cancel == [job.id]
        child.memory.slot(0, 0).notify(held.index, held.n, CANCEL)
        assert job.wait(20)

    assert job.state is State.CANCELLED


# Retry


@pytest.mark.parametrize("form", [lambda job: job, lambda job: job.id, lambda job: uuid.UUID(job.id)])
def test_dead_job_runs_again_in_a_new_round_with_its_history(broker, rail, form):
    job = enqueue(tasks.add, 1)
    rail.fail()
    assert job.refresh().state is State.DEAD

    again = retry(form(job))

    assert (again.id, again.state, again.round, again.attempts, again.losses) == (job.id, State.READY, 2, 0, 0)
    assert again.reason == ""
    rail.succeed(result=b"1")
    record = broker.get("default", job.id)
    assert [(a.round, a.number, a.outcome) for a in record.history] == [(1, 1, "failed"), (2, 1, "succeeded")]
    assert job.refresh().result == 1


def test_cancelled_job_runs_again(rail):
    job = enqueue(tasks.ok)
    job.cancel()

    assert job.retry() is job

    assert (job.state, job.round) == (State.READY, 2)
    rail.succeed()
    assert job.refresh().state is State.SUCCEEDED


def test_retrying_job_runs_at_once_in_the_same_round(rail):
    job = enqueue(tasks.fail)
    rail.fail(verb="retry")

    job.retry()

    assert (job.state, job.round, job.attempts) == (State.READY, 1, 1)


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "succeeded"])
def test_job_in_another_state_cannot_be_retried(rail, state):
    job = tasks.ok.using(run_after=60 if state == "scheduled" else None).enqueue()
    if state == "running":
        rail.claim()
    if state == "succeeded":
        rail.succeed()

    with pytest.raises(InvalidTransition) as caught:
        job.retry()

    assert str(caught.value) == (
        f"Job {job.id} is {state} and cannot be retried: only a dead, cancelled or retrying job can be."
    )


def test_two_retries_at_the_same_time_are_one_round(broker, rail):
    jobs = enqueue_many(tasks.ok, [(i,) for i in range(20)])
    rail.fail(limit=20)
    done: list[object] = []

    def body() -> None:
        barrier.wait()
        for job in jobs:
            try:
                done.append(retry(job.id).round)
            except InvalidTransition as exc:
                done.append(exc.state)

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(done) == 80
    assert set(done) <= {2, State.READY}
    assert {broker.get("default", job.id).round for job in jobs} == {2}
    assert broker.stats("default").ready == 20


def let_go(broker: Broker, *jobs: Job) -> None:
    Mirror(broker, ["default"], using="default").run_once()
    eventually(lambda: not any(broker.get(job.queue, job.id) for job in jobs))


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_job_that_only_the_database_has_runs_again_with_its_history(broker, rail, monkeypatch):
    monkeypatch.setattr(broker_module, "TOMBSTONE_MS", 1)
    job = tasks.add.using(priority=7, max_attempts=4, max_losses=2).enqueue(1, right=10**40)
    rail.fail()
    let_go(broker, job)
    old = Row.objects.get(pk=job.id)

    assert job.retry() is job

    assert (job.state, job.round, job.attempts, job.queue) == (State.READY, 2, 0, "default")
    record = broker.get("default", job.id)
    assert record.rev > old.rev
    assert (record.priority, record.max_attempts, record.max_losses) == (7, 4, 2)
    assert stored(broker, job).kwargs == {"right": 10**40}

    with InlineChild(["default"]):
        assert job.wait(20)
    Mirror(broker, ["default"], using="default").run_once()
    row = Row.objects.get(pk=job.id)
    assert (row.state, row.round, job.result) == (State.SUCCEEDED, 2, 1 + 10**40)
    history = Attempt.objects.filter(job_id=job.id).order_by("token").values_list("round", "outcome")
    assert list(history) == [(1, "failed"), (2, "succeeded")]


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_succeeded_job_that_only_the_database_has_cannot_be_retried(broker, rail, monkeypatch):
    monkeypatch.setattr(broker_module, "TOMBSTONE_MS", 1)
    job = enqueue(tasks.ok)
    rail.succeed()
    let_go(broker, job)

    with pytest.raises(InvalidTransition, match="is succeeded and cannot be retried"):
        retry(job.id)


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "retrying"])
def test_job_that_redis_lost_is_run_again_from_its_row_and_cannot_be_cancelled(broker, rail, state):
    job = tasks.ok.using(run_after=60 if state == "scheduled" else None).enqueue(7)
    if state == "running":
        rail.claim()
    elif state == "retrying":
        rail.fail(verb="retry")
    Mirror(broker, ["default"], using="default").run_once()
    for key in broker.client.scan_iter(match=f"{broker.prefix}:*"):
        broker.client.delete(key)

    assert job.refresh().state is State(state)
    with pytest.raises(InvalidTransition) as caught:
        job.cancel()
    assert str(caught.value) == (
        f"Job {job.id} is {state} and cannot be cancelled: Redis has lost it, and it runs only if it is retried."
    )
    assert job.retry().state is State.READY
    with InlineChild(["default"]):
        assert job.wait(20)
    assert (job.result, job.round) == (7, 2)


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_retry_into_a_queue_that_is_no_longer_declared_is_refused(broker, rail, jobrail, monkeypatch):
    monkeypatch.setattr(broker_module, "TOMBSTONE_MS", 1)
    job = enqueue(tasks.ok)
    rail.fail()
    let_go(broker, job)
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "QUEUES": ["mail"]}

    with pytest.raises(UnknownQueue, match="Unknown queue 'default'"):
        retry(job.id)


# Queues


def test_paused_queue_takes_jobs_and_hands_out_none(broker, rail):
    pause_queue("default")
    pause_queue("default")
    enqueue(tasks.ok)

    assert list(rail.claim()) == []
    assert client.queue_stats()["default"].paused is True
    assert client.queue_stats()["mail"].paused is False

    resume_queue("default")
    resume_queue("default")
    assert len(rail.claim()) == 1
    assert client.queue_stats()["default"].paused is False


@pytest.mark.parametrize("call", [pause_queue, resume_queue, client.purge_queue])
def test_queue_that_is_not_declared_is_refused(broker, call):
    with pytest.raises(UnknownQueue, match=r"Unknown queue 'defualt'; did you mean 'default'\?"):
        call("defualt")

    assert nothing_is_there(broker)


def test_purge_cancels_what_waits_and_leaves_what_runs(broker, rail):
    running = enqueue(tasks.ok)
    rail.claim()
    retrying = enqueue(tasks.fail)
    rail.fail(verb="retry")
    ready = enqueue_many(tasks.ok, [(i,) for i in range(250)])
    later = enqueue_many(tasks.ok.using(run_after=60), [(i,) for i in range(30)])
    other = enqueue(tasks.mail, "a@b.c")

    assert client.purge_queue("default") == 281
    assert client.purge_queue("default") == 0

    assert {job.refresh().state for job in [*ready, *later, retrying]} == {State.CANCELLED}
    assert ready[0].reason == "purged"
    assert running.refresh().state is State.RUNNING
    assert other.refresh().state is State.READY


def test_stats_count_every_state(broker, rail):
    jobs = enqueue_many(tasks.ok, [(i,) for i in range(6)])
    rail.claim()
    rail.fail(verb="retry")
    rail.succeed()
    tasks.ok.using(run_after=60).enqueue()

    stats = client.queue_stats()

    assert list(stats) == ["default", "mail"]
    found = stats["default"]
    assert (found.ready, found.running, found.retrying, found.scheduled) == (3, 1, 1, 1)
    assert found.changed == len(jobs) + 1
    assert found.oldest_ready_ms is not None
    assert 0 <= found.oldest_ready_ms < 60_000
    assert found.until_due_ms is not None
    assert 0 < found.until_due_ms <= 60_000
    assert (stats["mail"].ready, stats["mail"].oldest_ready_ms, stats["mail"].until_due_ms) == (0, None, None)


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_database_without_tables_leaves_live_jobs_findable(jobrail, monkeypatch):
    job = enqueue(tasks.ok)
    with connection.schema_editor() as editor:
        editor.alter_db_table(Row, Row._meta.db_table, "hidden")
    try:
        assert get_job(job.id).state is State.READY
        with pytest.raises(JobNotFound):
            get_job(str(uuid.uuid4()))
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Row, "hidden", Row._meta.db_table)


def test_redis_of_another_owner_under_our_keys_is_a_script_error(broker: Broker, redis_client: redis.Redis):
    redis_client.set(broker.keys("default").ready, "foreign")

    with pytest.raises(BrokerError, match=r"failed a script: .*WRONGTYPE"):
        enqueue(tasks.ok)
