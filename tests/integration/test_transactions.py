"""Enqueue and the caller's transaction: after the commit, or never."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction

from jobrail_django import cancel, enqueue, enqueue_many, get_job, retry
from jobrail_django.broker.broker import Broker
from jobrail_django.errors import (
    BrokerUnavailable,
    InvalidArguments,
    InvalidOption,
    InvalidTransition,
    JobNotFound,
    PayloadTooLarge,
    UnknownQueue,
)
from jobrail_django.job import Job
from jobrail_django.models import Job as Row
from jobrail_django.states import State

from ..probes import tasks
from ..probes.child import InlineChild, eventually
from ..servers import free_port

pytestmark = [pytest.mark.db_vendor, pytest.mark.django_db(transaction=True)]


class Broken(Exception):
    """Ends a block of a test."""


def ready(broker: Broker, queue: str = "default") -> list[str]:
    """Ids that wait, in their order."""
    return [job_id.decode() for job_id in broker.client.zrange(broker.keys(queue).ready, 0, -1)]


def assert_untouched(broker: Broker) -> None:
    """Redis holds nothing at all: no job, no key, no counter."""
    assert list(broker.client.scan_iter(match=f"{broker.prefix}:*")) == []


# One database


def test_outside_of_a_transaction_the_job_is_there_at_once(broker):
    job = enqueue(tasks.ok)

    assert job.state is State.READY
    assert ready(broker) == [job.id]


def test_job_is_enqueued_by_the_commit_and_not_before(broker):
    with transaction.atomic():
        job = enqueue(tasks.ok)
        assert job.state is State.STAGED
        assert_untouched(broker)

    assert job.state is State.READY
    assert ready(broker) == [job.id]


def test_id_is_known_at_once_and_stays(broker):
    # I3
    with transaction.atomic():
        job = enqueue(tasks.ok)
        group = Group.objects.create(name=job.id)
        at_once = job.id

    assert job.id == at_once == str(uuid.UUID(at_once))
    assert get_job(Group.objects.get(pk=group.pk).name).state is State.READY
    with InlineChild():
        assert job.wait(20)
    assert get_job(at_once).state is State.SUCCEEDED


def test_rollback_leaves_nothing(broker):
    with pytest.raises(Broken), transaction.atomic():
        job = tasks.ok.using(idempotency_key="k").enqueue()
        raise Broken

    assert_untouched(broker)
    with pytest.raises(InvalidTransition, match="wait"):
        job.wait(1)
    with pytest.raises(JobNotFound):
        get_job(job.id)
    assert not Row.objects.exists()


def test_rollback_of_a_savepoint_takes_its_jobs_along_and_no_others(broker):
    # I2
    with transaction.atomic():
        first = enqueue(tasks.ok, "a")
        with pytest.raises(Broken), transaction.atomic():
            gone = tasks.ok.using(idempotency_key="b").enqueue("b")
            raise Broken
        last = enqueue(tasks.ok, "c")

    assert ready(broker) == [first.id, last.id]
    with pytest.raises(JobNotFound):
        get_job(gone.id)
    # The key of the job that never was is free.
    again = tasks.ok.using(idempotency_key="b").enqueue("another")
    assert again.state is State.READY


def test_nested_blocks_wait_for_the_outermost(broker):
    with transaction.atomic():
        with transaction.atomic():
            inner = enqueue(tasks.ok)
        assert inner.state is State.STAGED
        assert_untouched(broker)

    assert ready(broker) == [inner.id]


def test_transaction_marked_for_rollback_enqueues_nothing(broker):
    with transaction.atomic():
        enqueue(tasks.ok)
        transaction.set_rollback(True)

    assert_untouched(broker)


@pytest.fixture
def manual() -> Iterator[None]:
    """Autocommit is off, outside of any atomic()."""
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


def test_transaction_managed_by_hand_is_refused_with_the_remedy(broker, manual):
    for call in (lambda: enqueue(tasks.ok), lambda: enqueue_many(tasks.ok, [(1,)])):
        with pytest.raises(InvalidOption) as caught:
            call()
        assert str(caught.value) == (
            "Database 'default' is in manual transaction management (autocommit is off): nobody can say when its "
            "transaction commits. Use transaction.atomic(), or enqueue with on_commit=False after the commit."
        )
    assert_untouched(broker)


def test_opt_out_and_atomic_work_in_a_transaction_managed_by_hand(broker, manual):
    at_once = tasks.ok.using(on_commit=False).enqueue()
    transaction.commit()
    with transaction.atomic():
        in_block = enqueue(tasks.ok)
        assert in_block.state is State.STAGED
    transaction.commit()
    transaction.set_autocommit(True)  # this is when Django runs what waits for the commit

    assert at_once.state is State.READY
    assert in_block.state is State.READY
    assert ready(broker) == [at_once.id, in_block.id]


def test_many_jobs_are_enqueued_by_one_commit(broker):
    with transaction.atomic():
        group = enqueue_many(tasks.ok, [(i,) for i in range(150)])
        assert {job.state for job in group} == {State.STAGED}
        assert_untouched(broker)

    assert {job.state for job in group} == {State.READY}
    assert ready(broker) == [job.id for job in group]


def test_order_of_enqueue_is_the_order_in_the_queue(broker):
    with transaction.atomic():
        jobs = [enqueue(tasks.ok, i) for i in range(20)]

    assert ready(broker) == [job.id for job in jobs]


def test_wait_of_a_job_counts_from_the_commit(broker):
    with transaction.atomic():
        job = tasks.ok.using(run_after=60).enqueue()
        assert job.state is State.STAGED

    assert job.state is State.SCHEDULED
    assert 50_000 < broker.stats("default").until_due_ms <= 60_000


def test_opt_out_enqueues_at_once_and_a_rollback_does_not_matter(broker):
    with pytest.raises(Broken), transaction.atomic():
        job = tasks.ok.using(on_commit=False).enqueue()
        assert job.state is State.READY
        raise Broken

    assert ready(broker) == [job.id]


def test_opt_out_in_the_decorator(make_module, broker):
    module = make_module("@task(on_commit=False)\ndef work(): pass")
    with transaction.atomic():
        job = enqueue(module.work)
        assert job.state is State.READY


@pytest.fixture
def make_module(monkeypatch, tmp_path):
    import types

    from jobrail_django import registry

    monkeypatch.setattr(registry, "_tasks", {})

    def make(source: str) -> types.ModuleType:
        module = types.ModuleType("made")
        exec("from jobrail_django import task\n" + source, vars(module))
        return module

    return make


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: enqueue(tasks.add), InvalidArguments),
        (lambda: tasks.ok.using(queue_name="none").enqueue(), UnknownQueue),
        (lambda: enqueue(tasks.ok, "x" * 2_000_000), PayloadTooLarge),
    ],
)
def test_what_can_be_refused_is_refused_at_the_call_and_not_by_the_commit(broker, call, error):
    with transaction.atomic():
        with pytest.raises(error):
            call()
        good = enqueue(tasks.ok)

    assert ready(broker) == [good.id]


def test_changing_an_argument_after_the_call_does_not_change_the_job(jobrail):
    values = [1]
    with transaction.atomic():
        job = enqueue(tasks.ok, values)
        values.append(2)

    with InlineChild():
        assert job.wait(20)
    assert job.result == [1]


# A staged job


def test_wait_inside_the_transaction_is_refused_and_does_not_hang(jobrail):
    with transaction.atomic():
        job = enqueue(tasks.ok)
        with pytest.raises(InvalidTransition) as caught:
            job.wait()

    assert str(caught.value) == (
        f"Job {job.id} is enqueued when its transaction commits, which it has not done, or was rolled back: wait() "
        f"would never end. Wait after the commit, or enqueue with on_commit=False."
    )
    assert caught.value.state == State.STAGED


def test_staged_job_stays_staged_when_looked_at(jobrail):
    with transaction.atomic():
        job = enqueue(tasks.ok)

        assert job.refresh().state is State.STAGED
        assert (job.result, job.is_finished) == (None, False)
        with pytest.raises(JobNotFound):
            get_job(job.id)


def test_staged_job_cannot_be_cancelled_and_the_text_says_what_to_do(broker):
    with transaction.atomic():
        job = enqueue(tasks.ok)
        for call in (job.cancel, lambda: cancel(job)):
            with pytest.raises(InvalidTransition) as caught:
                call()
            assert str(caught.value) == (
                f"Job {job.id} is staged and cannot be cancelled: roll its transaction back instead; once that "
                f"commits, it can be."
            )
        with pytest.raises(JobNotFound):
            cancel(job.id)

    assert job.cancel() is True


def test_staged_job_cannot_be_retried(jobrail):
    with transaction.atomic():
        job = enqueue(tasks.ok)
        with pytest.raises(InvalidTransition, match=r"is staged and cannot be retried"):
            retry(job)


def test_handle_that_missed_the_push_learns_of_it(broker):
    # The reply of the push was lost: the handle still says staged, Redis has the job.
    job = enqueue(tasks.ok)
    job.state = State.STAGED

    assert job.wait(0) is False
    assert job.state is State.READY
    job.state = State.STAGED
    assert job.cancel() is True


# Redis away at the commit


def test_commit_whose_push_fails_says_so_after_the_database_has_committed(jobrail):
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "REDIS": f"redis://127.0.0.1:{free_port()}/0"}

    with pytest.raises(BrokerUnavailable), transaction.atomic():
        Group.objects.create(name="kept")
        job = enqueue(tasks.ok)

    assert Group.objects.filter(name="kept").exists()
    assert job.state is State.STAGED


def test_rollback_needs_no_redis(jobrail):
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "REDIS": f"redis://127.0.0.1:{free_port()}/0"}

    with pytest.raises(Broken), transaction.atomic():
        enqueue(tasks.ok)
        raise Broken


# Several databases


@pytest.fixture
def databases() -> Iterator[tuple[str, str]]:
    """Two more databases, in memory."""
    names = ("left", "right")
    for name in names:
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        connections.settings[name] = connections.configure_settings({"default": {}, name: settings})[name]
        connections[name].connect()  # a test may open no connection that its settings did not name
    yield names
    for name in names:
        connections[name].close()
        del connections[name]
        del connections.settings[name]


def test_transaction_of_another_database_counts_where_it_is_the_only_one(broker, databases):
    with transaction.atomic(using="left"):
        job = enqueue(tasks.ok)
        assert job.state is State.STAGED
        assert_untouched(broker)

    assert ready(broker) == [job.id]


def test_rollback_of_another_database_counts_as_well(broker, databases):
    with pytest.raises(Broken), transaction.atomic(using="left"):
        enqueue(tasks.ok)
        raise Broken

    assert_untouched(broker)


def test_own_database_counts_before_another(broker, databases):
    with transaction.atomic(using="left"):
        with transaction.atomic():
            job = enqueue(tasks.ok)
            assert_untouched(broker)
        assert ready(broker) == [job.id], "JobRail's own transaction has committed"

    with transaction.atomic():
        with transaction.atomic(using="left"):
            job = enqueue(tasks.ok)
        assert job.state is State.STAGED


def test_named_database_counts_before_any_other(broker, databases):
    with transaction.atomic(), transaction.atomic(using="right"):
        with transaction.atomic(using="left"):
            job = tasks.ok.using(using="left").enqueue()
            assert job.state is State.STAGED
        assert ready(broker) == [job.id]


def test_named_database_without_a_transaction_enqueues_at_once(broker, databases):
    with pytest.raises(Broken), transaction.atomic():
        job = tasks.ok.using(using="left").enqueue()
        raise Broken

    assert ready(broker) == [job.id]


def test_two_open_transactions_of_other_databases_are_refused_as_unclear(broker, databases):
    with transaction.atomic(using="right"), transaction.atomic(using="left"):
        for call in (lambda: enqueue(tasks.ok), lambda: tasks.ok.using(idempotency_key="k").enqueue()):
            with pytest.raises(InvalidOption) as caught:
                call()
            assert str(caught.value) == (
                "Transactions are open on the databases ['left', 'right'], and none is JobRail's own ('default'): it is "
                "not clear which commit the job belongs to. Name it: tests.probes.tasks.ok.using(using='left')."
            )
            assert caught.value.option == "using"
        named = tasks.ok.using(using="right").enqueue()
        at_once = tasks.ok.using(on_commit=False).enqueue()
        assert (named.state, at_once.state) == (State.STAGED, State.READY)

    assert ready(broker) == [at_once.id, named.id]


def test_own_database_is_the_setting(jobrail, databases, broker):
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "DATABASE": "default"}
    with transaction.atomic(using="right"), transaction.atomic(using="left"), transaction.atomic():
        job = enqueue(tasks.ok)
        assert job.state is State.STAGED

    assert job.state is State.READY


# Views


@pytest.fixture
def site(jobrail, client) -> Iterator[object]:
    """The test client of a site with ATOMIC_REQUESTS."""
    jobrail.ROOT_URLCONF = "tests.probes.urls"
    client.raise_request_exception = False
    before = connection.settings_dict["ATOMIC_REQUESTS"]
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield client
    connection.settings_dict["ATOMIC_REQUESTS"] = before


def test_view_enqueues_when_its_request_commits(site, broker):
    # I1: whoever gets the job finds the row.
    with InlineChild():
        answers = [site.post("/order/", {"name": f"g{i}"}).json() for i in range(20)]
        jobs = [get_job(answer["job"]) for answer in answers]
        assert all(job.wait(20) for job in jobs)

    assert {answer["state"] for answer in answers} == {"staged"}
    assert {job.result for job in jobs} == set(Group.objects.values_list("pk", flat=True))


def test_view_that_fails_enqueues_nothing(site, broker):
    assert site.post("/order/", {"name": "g", "fail": 1}).status_code == 500

    assert_untouched(broker)
    assert not Group.objects.exists()


def test_view_that_opts_out_has_enqueued_although_it_fails(site, broker):
    assert site.post("/now/", {"fail": 1}).status_code == 500

    assert len(ready(broker)) == 1


def test_view_without_a_transaction_enqueues_at_once(site, broker):
    assert site.post("/plain/").json()["state"] == "ready"


# Coroutines


def test_coroutine_outside_of_a_transaction_enqueues_at_once(broker):
    job = asyncio.run(tasks.ok.aenqueue(1))

    assert ready(broker) == [job.id]


def test_coroutine_in_the_transaction_of_its_caller_waits_for_the_commit(broker):
    # As under ASGI: the ORM's calls and aenqueue share one thread, and so one connection.
    jobs: list[Job] = []

    async def view() -> None:
        block = transaction.atomic()
        await sync_to_async(block.__enter__)()
        jobs.append(await tasks.ok.aenqueue(1))
        assert await sync_to_async(lambda: ready(broker))() == []
        await sync_to_async(block.__exit__)(None, None, None)
        await sync_to_async(lambda: connection.close())()

    asyncio.run(view())

    assert ready(broker) == [jobs[0].id]
    eventually(lambda: jobs[0].state is State.READY)
