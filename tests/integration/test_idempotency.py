"""Idempotency keys: one key, one job."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from jobrail_django import enqueue, retry, signals
from jobrail_django.broker import broker as broker_module
from jobrail_django.broker.broker import Broker
from jobrail_django.errors import DuplicateJob, JobNotFound
from jobrail_django.job import Job
from jobrail_django.models import Job as Row
from jobrail_django.states import State
from jobrail_django.upkeep.mirror import Mirror

from ..probes import tasks
from ..probes.child import InlineChild, eventually
from .rail import Rail


@pytest.fixture
def rail(broker: Broker) -> Rail:
    return Rail(broker)


def keyed(*args: Any, key: str = "k", task: Any = tasks.ok, **options: Any) -> Job:
    return task.using(idempotency_key=key, **options).enqueue(*args)


def jobs_in(broker: Broker, queue: str = "default") -> int:
    stats = broker.stats(queue)
    return stats.ready + stats.scheduled + stats.retrying + stats.running


def test_second_call_is_given_the_first_job(broker):
    first = keyed(1)
    second = keyed(1)

    assert second == first
    assert second.id == first.id
    assert (second.state, second.task, second.queue) == (State.READY, first.task, "default")
    assert jobs_in(broker) == 1


def test_order_of_keyword_arguments_does_not_matter(broker):
    first = tasks.echo.using(idempotency_key="k").enqueue(a=1, b=[1, {"x": 1, "y": 2}])
    second = tasks.echo.using(idempotency_key="k").enqueue(b=[1, {"y": 2, "x": 1}], a=1)

    assert first == second


def test_options_of_the_second_call_change_nothing(broker):
    first = keyed(1, priority=5)
    second = keyed(1, priority=-5, run_after=60, max_attempts=9)

    assert second == first
    record = broker.get("default", first.id)
    assert (record.priority, record.state) == (5, "ready")


def test_other_keys_and_no_key_are_other_jobs(broker):
    assert len({keyed(1), keyed(1, key="K"), keyed(1, key="k "), enqueue(tasks.ok, 1), enqueue(tasks.ok, 1)}) == 5


@pytest.mark.parametrize("key", ["ключ 🔑", "a\0b", "x" * 255, "{tag}:*", " "])
def test_any_text_is_a_key(broker, key):
    assert keyed(1, key=key) == keyed(1, key=key)
    assert jobs_in(broker) == 1


@pytest.mark.parametrize("state", ["ready", "running", "retrying", "succeeded", "dead"])
def test_first_job_keeps_its_arguments_whatever_its_state(broker, rail, state):
    # G2
    first = keyed("a")
    if state == "running":
        rail.claim()
    elif state == "retrying":
        rail.fail(verb="retry")
    elif state == "succeeded":
        rail.succeed()
    elif state == "dead":
        rail.fail()
    before = broker.get("default", first.id)

    with pytest.raises(DuplicateJob) as caught:
        keyed("b")

    assert caught.value.job_id == first.id
    assert str(caught.value) == (
        f"The idempotency key 'k' belongs to job {first.id}, which has another task or other arguments than this "
        f"call of 'tests.probes.tasks.ok'; use another key."
    )
    assert broker.get("default", first.id) == before
    assert keyed("a").refresh().state is State(state)


def test_another_task_under_the_same_key_is_a_duplicate(broker):
    first = keyed(1)

    with pytest.raises(DuplicateJob) as caught:
        keyed(1, task=tasks.echo)

    assert caught.value.job_id == first.id


def test_key_belongs_to_its_queue(broker):
    # One per queue: a queue is one slot of a cluster, and a script never spans two.
    first, second = keyed(1), keyed(1, queue_name="mail")

    assert first != second
    assert (jobs_in(broker), jobs_in(broker, "mail")) == (1, 1)


def test_key_is_free_after_its_window(broker, rail):
    first = keyed(1, idempotency_window=0.05)
    rail.claim()

    eventually(lambda: keyed(1, idempotency_window=60) != first)

    assert first.refresh().state is State.RUNNING, "accepted while the first still runs, as documented"
    assert jobs_in(broker) == 2


def test_window_is_a_duration_of_its_own(broker):
    keyed(1, idempotency_window=timedelta(hours=2))

    (key,) = broker.client.scan_iter(match=f"{broker.prefix}:*:key:*")
    assert 7_000_000 < broker.client.pttl(key) <= 7_200_000


def test_window_is_a_day_by_default(broker):
    keyed(1)

    (key,) = broker.client.scan_iter(match=f"{broker.prefix}:*:key:*")
    assert 86_000_000 < broker.client.pttl(key) <= 86_400_000


def test_key_itself_is_not_stored(broker):
    keyed(1, key="customer-4711-secret")

    for key in broker.client.scan_iter(match=f"{broker.prefix}:*"):
        assert b"4711" not in key
        assert b"4711" not in broker.client.dump(key)


def test_cancelled_job_lets_go_of_its_key(broker):
    # G3
    first = keyed("a")
    first.cancel()

    second = keyed("b")

    assert second != first
    assert second.state is State.READY


def test_cancelled_job_takes_no_key_back_that_another_has_now(broker):
    first = keyed("a")
    first.cancel()
    second = keyed("a")
    first.retry()
    first.cancel()

    assert keyed("a") == second


def test_keyed_job_passes_its_own_lock_on_every_way(broker):
    # G7: delay, retry, explicit retry.
    delayed = keyed(1, key="delayed", task=tasks.ok, run_after=0.05)
    failing = keyed(3, key="failing", task=tasks.fail_until)
    dead = keyed("x", key="dead", task=tasks.die)

    with InlineChild():
        assert all(job.wait(20) for job in (delayed, failing, dead))
        assert dead.state is State.DEAD
        assert retry(dead).wait(20)

    assert (delayed.state, failing.state, failing.result) == (State.SUCCEEDED, State.SUCCEEDED, 3)
    assert (dead.state, dead.round) == (State.DEAD, 2)


def test_duplicate_is_announced_to_nobody(jobrail):
    seen = []

    def receive(sender, signal, **data):
        seen.append(data["job_id"])

    signals.job_enqueued.connect(receive)
    try:
        first = keyed(1)
        keyed(1)
    finally:
        signals.job_enqueued.disconnect(receive)

    assert seen == [first.id]


# Races


def race(threads: int, body: Callable[[int], object]) -> list[object]:
    """Run `body` in threads that start at the same moment; returns what they returned or raised."""
    found: list[object] = []
    barrier = threading.Barrier(threads)

    def run(number: int) -> None:
        barrier.wait(20)
        try:
            found.append(body(number))
        except Exception as exc:
            found.append(exc)

    made = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join(60)
    return found


def test_twenty_threads_with_one_key_make_one_job(broker):
    # G1
    for round_number in range(25):
        key = f"round {round_number}"
        found = race(20, lambda _, key=key: keyed(1, key=key).id)

        assert len(found) == 20
        assert len(set(found)) == 1, found

    assert jobs_in(broker) == 25


def test_of_different_arguments_exactly_one_wins(broker):
    for round_number in range(10):
        key = f"round {round_number}"
        found = race(8, lambda n, key=key: keyed(n, key=key))

        kinds = Counter(type(item) for item in found)
        assert kinds == {Job: 1, DuplicateJob: 7}
        (winner,) = (item for item in found if isinstance(item, Job))
        assert {item.job_id for item in found if isinstance(item, DuplicateJob)} == {winner.id}

    assert jobs_in(broker) == 10


# In a transaction


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_transaction_is_given_the_job_that_is_there(broker):
    first = keyed(1)

    with transaction.atomic():
        second = keyed(1)
        assert (second.id, second.state) == (first.id, State.READY)

    assert second.id == first.id
    assert jobs_in(broker) == 1


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_twice_in_one_transaction_is_one_job_with_one_id(broker):
    # I3: the id can be stored with the row, so it must not change at the commit.
    with transaction.atomic():
        first = keyed(1)
        second = keyed(1)
        with transaction.atomic():
            third = keyed(1)
        ids = {first.id, second.id, third.id}
        assert len(ids) == 1

    assert {first.id, second.id, third.id} == ids
    assert first.state is State.READY
    assert jobs_in(broker) == 1


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_key_of_a_savepoint_that_rolled_back_is_free_in_the_same_transaction(broker):
    with transaction.atomic():
        with pytest.raises(RuntimeError), transaction.atomic():
            gone = keyed(1)
            raise RuntimeError
        kept = keyed(1)
        assert kept.id != gone.id

    assert kept.refresh().state is State.READY
    assert jobs_in(broker) == 1


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_other_arguments_are_refused_at_the_call_and_not_by_the_commit(broker):
    first = keyed("a")

    with transaction.atomic():
        with pytest.raises(DuplicateJob) as caught:
            keyed("b")
        keyed("c", key="staged")
        with pytest.raises(DuplicateJob):
            keyed("d", key="staged")
        Group.objects.create(name="kept")

    assert caught.value.job_id == first.id
    assert Group.objects.filter(name="kept").exists()
    assert jobs_in(broker) == 2


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_staged_job_of_another_queue_or_key_is_another_job(broker):
    with transaction.atomic():
        jobs = [keyed(1), keyed(1, queue_name="mail"), keyed(1, key="other"), enqueue(tasks.ok, 1)]

    assert len({job.id for job in jobs}) == 4


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_key_taken_by_somebody_else_before_the_commit_turns_the_handle(broker):
    with transaction.atomic():
        mine = keyed(1, priority=3)
        theirs = keyed(1, on_commit=False)

    assert mine.id == theirs.id
    assert mine.state is State.READY
    assert jobs_in(broker) == 1


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_key_taken_for_other_arguments_before_the_commit_is_said_by_the_commit(broker):
    with pytest.raises(DuplicateJob) as caught, transaction.atomic():
        keyed("mine")
        theirs = keyed("theirs", on_commit=False)
        Group.objects.create(name="kept")

    assert caught.value.job_id == theirs.id
    assert Group.objects.filter(name="kept").exists(), "the database had committed"


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_rolled_back_transaction_holds_no_key(broker):
    with pytest.raises(RuntimeError), transaction.atomic():
        keyed("a")
        raise RuntimeError

    assert keyed("b").state is State.READY


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_transactions_at_the_same_time_make_one_job(broker):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite lets one transaction in at a time")

    def body(_: int) -> str:
        try:
            with transaction.atomic():
                Group.objects.count()
                job = keyed(1)
            return job.id
        finally:
            connection.close()

    found = race(8, body)

    assert len(set(found)) == 1, found
    assert jobs_in(broker) == 1


# The record of the first job


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_job_that_redis_let_go_is_given_from_its_row(broker, rail, monkeypatch):
    monkeypatch.setattr(broker_module, "TOMBSTONE_MS", 1)
    first = keyed(1)
    rail.succeed(result=b'"done"')
    Mirror(broker, ["default"], using="default").run_once()
    eventually(lambda: broker.get("default", first.id) is None)

    second = keyed(1)

    assert (second.id, second.state, second.result) == (first.id, State.SUCCEEDED, "done")


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [False, True])
def test_job_whose_record_is_gone_is_said_so_instead_of_a_handle_to_nothing(broker, rail, monkeypatch, atomic):
    monkeypatch.setattr(broker_module, "TOMBSTONE_MS", 1)
    first = keyed(1)
    rail.succeed()
    Mirror(broker, ["default"], using="default").run_once()
    eventually(lambda: broker.get("default", first.id) is None)
    Row.objects.all().delete()

    with pytest.raises(JobNotFound) as caught:
        if atomic:
            with transaction.atomic():
                keyed(1)
        else:
            keyed(1)

    assert str(caught.value).startswith(
        f"The idempotency key 'k' belongs to job {first.id}, which has ended and whose record is gone"
    )
