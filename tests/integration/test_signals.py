"""The signals: each once, with what it promises, and no receiver can do harm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction
from django.dispatch import Signal

from jobrail_django import client, enqueue, enqueue_many, signals
from jobrail_django.broker.broker import Broker
from jobrail_django.errors import BrokerUnavailable, PayloadTooLarge
from jobrail_django.states import State
from jobrail_django.worker.shared import CANCEL

from ..probes import tasks
from ..probes.child import InlineChild, eventually
from ..servers import free_port
from .rail import Rail

ALL: dict[str, Signal] = {name: value for name, value in vars(signals).items() if isinstance(value, Signal)}


class Seen(list[tuple[str, dict[str, Any]]]):
    """The signals sent, in order: name and data."""

    def names(self) -> list[str]:
        return [name for name, _ in self]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [data for found, data in self if found == name]


@pytest.fixture
def seen() -> Iterator[Seen]:
    """Listen to all of them."""
    found = Seen()
    receivers: list[tuple[Signal, Callable[..., None]]] = []
    for name, signal in ALL.items():

        def receive(sender: object, signal: Signal, name: str = name, **data: Any) -> None:
            found.append((name, {"sender": sender, **data}))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield found
    for signal, receive in receivers:
        signal.disconnect(receive)


def test_names_are_those_of_the_public_surface():
    assert set(ALL) == {
        "job_enqueued",
        "job_started",
        "job_succeeded",
        "job_retrying",
        "job_dead",
        "job_cancelled",
        "lease_lost",
    }


# In the caller's process


def test_enqueue_is_announced_once(jobrail, seen):
    job = tasks.mail.enqueue("a@b.c")

    data = {"sender": None, "job_id": job.id, "task": "tests.probes.tasks.mail", "queue": "mail"}
    assert seen == [("job_enqueued", data)]


def test_each_of_many_is_announced(jobrail, seen):
    group = enqueue_many(tasks.ok, [(i,) for i in range(150)])

    assert [data["job_id"] for data in seen.of("job_enqueued")] == [job.id for job in group]


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_enqueue_in_a_transaction_is_announced_by_the_commit_only(jobrail, seen):
    with pytest.raises(RuntimeError), transaction.atomic():
        enqueue(tasks.ok)
        raise RuntimeError
    assert seen == []

    with transaction.atomic():
        job = enqueue(tasks.ok)
        assert seen == []

    assert [data["job_id"] for data in seen.of("job_enqueued")] == [job.id]


def test_enqueue_that_failed_is_not_announced(jobrail, seen):
    with pytest.raises(PayloadTooLarge):
        enqueue(tasks.ok, "x" * 2_000_000)
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "REDIS": f"redis://127.0.0.1:{free_port()}/0"}
    with pytest.raises(BrokerUnavailable):
        enqueue(tasks.ok)

    assert seen == []


def test_cancel_of_a_waiting_job_is_announced_once(jobrail, seen):
    job = enqueue(tasks.ok)

    job.cancel()
    job.cancel()

    data = {"sender": None, "job_id": job.id, "task": "tests.probes.tasks.ok", "queue": "default"}
    assert seen.of("job_cancelled") == [data]


def test_cancel_of_a_running_job_is_not_announced_before_its_end(broker: Broker, seen):
    job = enqueue(tasks.ok)
    Rail(broker).claim()

    assert job.cancel() is False

    assert seen.names() == ["job_enqueued"]


def test_explicit_retry_announces_nothing(broker: Broker, seen):
    job = enqueue(tasks.ok)
    Rail(broker).fail()

    job.retry()

    assert seen.names() == ["job_enqueued"]


# In the worker's process


def ran(*jobs: Any) -> None:
    with InlineChild():
        for job in jobs:
            eventually(lambda job=job: job.refresh().state not in (State.READY, State.RUNNING))


def attempts(seen: Seen, name: str) -> list[tuple[str, str, int]]:
    return [(data["job_id"], data["task"], data["attempt"]) for data in seen.of(name)]


def test_success_is_announced_after_the_start(jobrail, seen):
    job = enqueue(tasks.ok)

    ran(job)

    assert seen.names() == ["job_enqueued", "job_started", "job_succeeded"]
    for name in ("job_started", "job_succeeded"):
        assert attempts(seen, name) == [(job.id, "tests.probes.tasks.ok", 1)]


def test_each_attempt_is_announced_with_its_number(jobrail, seen):
    job = enqueue(tasks.fail_until, 3)

    with InlineChild():
        assert job.wait(20)

    assert seen.names() == [
        "job_enqueued",
        *["job_started", "job_retrying"] * 2,
        "job_started",
        "job_succeeded",
    ]
    assert [number for _, _, number in attempts(seen, "job_started")] == [1, 2, 3]
    assert [number for _, _, number in attempts(seen, "job_retrying")] == [1, 2]


@pytest.mark.parametrize("name", ["die", "spin"])
def test_end_for_good_is_announced_once(jobrail, seen, name):
    # D7: by an exception and by the time limit alike.
    job = enqueue(getattr(tasks, name))

    with InlineChild():
        assert job.wait(20)

    assert seen.names() == ["job_enqueued", "job_started", "job_dead"]
    assert attempts(seen, "job_dead") == [(job.id, f"tests.probes.tasks.{name}", 1)]


def test_unreadable_payload_is_announced_as_dead(broker: Broker, seen):
    (job_id,) = Rail(broker).enqueue_payloads([b"garbage"])

    with InlineChild():
        eventually(lambda: broker.get("default", job_id).state == "dead")
        eventually(lambda: seen)

    assert seen.names() == ["job_dead"]
    assert attempts(seen, "job_dead") == [(job_id, "", 1)]


def test_release_is_no_failure_and_not_announced_as_one(jobrail, seen):
    job = enqueue(tasks.give_back)

    ran(job)

    assert job.state is State.SCHEDULED
    assert seen.names() == ["job_enqueued", "job_started"]


def test_cancel_of_a_running_job_is_announced_by_its_worker(jobrail, seen):
    job = enqueue(tasks.until_cancelled)

    with InlineChild() as child:
        eventually(lambda: child.held() and child.held()[0].started)
        job.cancel()
        (held,) = child.held()
        child.memory.slot(0, 0).notify(held.index, held.n, CANCEL)
        assert job.wait(20)

    assert seen.names() == ["job_enqueued", "job_started", "job_cancelled"]


# Receivers that fail


@pytest.fixture
def failing(caplog) -> Iterator[list[str]]:
    """Receivers of every signal that all raise; returns what they were called for."""
    called: list[str] = []
    receivers: list[tuple[Signal, Callable[..., None]]] = []
    for name, signal in ALL.items():

        def receive(name: str = name, **data: Any) -> None:
            called.append(name)
            raise RuntimeError(f"receiver of {name}")

        signal.connect(receive)
        receivers.append((signal, receive))
    yield called
    for signal, receive in receivers:
        signal.disconnect(receive)


@pytest.mark.db_vendor
@pytest.mark.django_db(transaction=True)
def test_failing_receivers_change_nothing_and_are_logged(broker: Broker, failing, seen, caplog):
    with transaction.atomic():
        first, second = enqueue(tasks.ok, 1), enqueue(tasks.ok, 2)
    retried, dead, cancelled = enqueue(tasks.fail_until, 2), enqueue(tasks.die), tasks.ok.using(run_after=60).enqueue()
    assert cancelled.cancel() is True

    with InlineChild():
        assert all(job.wait(20) for job in (first, second, retried, dead))

    assert {job.state for job in (first, second, retried)} == {State.SUCCEEDED}
    assert dead.state is State.DEAD
    assert set(failing) == set(ALL) - {"lease_lost"}
    assert len(failing) == len(seen), "the other receivers were called all the same"
    logged = [r for r in caplog.records if r.name == "django.dispatch" and r.levelno == logging.ERROR]
    assert len(logged) == len(failing)


def test_receiver_that_uses_the_client_works(jobrail):
    follow_ups = []

    def receive(job_id: str, **data: Any) -> None:
        if not follow_ups:
            follow_ups.append(enqueue(tasks.ok, client.get_job(job_id).result))

    signals.job_succeeded.connect(receive)
    try:
        with InlineChild():
            assert enqueue(tasks.add, 1, right=2).wait(20)
            eventually(lambda: follow_ups)
            assert follow_ups[0].wait(20)
    finally:
        signals.job_succeeded.disconnect(receive)

    assert follow_ups[0].result == 3


def test_signals_of_a_worker_carry_what_their_module_promises(jobrail, seen):
    succeeded, dead = tasks.mail.enqueue("a@b.c"), enqueue(tasks.die, "broken")

    with InlineChild():
        assert succeeded.wait(20)
        assert dead.wait(20)

    common = {"sender": None, "attempt": 1}
    mail = {"job_id": succeeded.id, "task": "tests.probes.tasks.mail", "queue": "mail"}
    die = {"job_id": dead.id, "task": "tests.probes.tasks.die", "queue": "default"}
    assert seen.of("job_succeeded") == [{**common, **mail}]
    assert seen.of("job_dead") == [{**common, **die, "error": "builtins.ValueError: broken"}]
