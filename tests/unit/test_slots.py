"""A slot against a real Redis: what it claims, in which order, and how it settles."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest

from jobrail_django import enqueue, enqueue_many, pause_queue, resume_queue, signals
from jobrail_django.broker.broker import Broker
from jobrail_django.broker.connection import get_broker
from jobrail_django.errors import BrokerUnavailable
from jobrail_django.job import Job
from jobrail_django.states import State
from jobrail_django.worker.executor import Executor
from jobrail_django.worker.limits import CoroutineRunner
from jobrail_django.worker.shared import CANCEL, LOST, SharedMemory
from jobrail_django.worker.slots import Pace, QueueOrder, Shared, Slot

from ..probes.child import InlineChild, eventually
from ..servers import RedisServer


class Ledger(list[object]):
    """What the tasks of a test have done, in order."""

    def count_is(self, n: int) -> Callable[[], bool]:
        return lambda: len(self) >= n


@pytest.fixture
def tasks(make_task, jobrail):
    module = make_task(
        """
        import threading, time
        gate, started = threading.Event(), threading.Event()
        @task
        def note(value): ledger.append(value)
        @task(queue_name="mail")
        def mail(value): ledger.append(value)
        @task
        def slow(value):
            ledger.append(value)
            started.set()
            assert gate.wait(20)
        @task(max_attempts=1)
        def bad(value):
            ledger.append(value)
            raise ValueError(value)
        @task(timeout=0.1, max_attempts=1)
        def spin():
            started.set()
            while True: pass
        @task
        def nap(value):
            time.sleep(0.02)
            ledger.append(value)
        """
    )
    module.ledger = Ledger()
    yield module
    module.gate.set()


@pytest.fixture
def make_slot(broker: Broker) -> Callable[..., Slot]:
    def make(stopping: Callable[[], bool], weights: dict[str, int] | None = None, name: str = "cafe0000.1.0") -> Slot:
        weights = weights or {"default": 1}
        shared = Shared(
            broker=broker,
            executor=Executor(CoroutineRunner()),
            worker_id="cafe0000",
            queues=list(weights),
            weights=weights,
            lease_ms=30_000,
            stopping=stopping,
        )
        return Slot(shared, name, SharedMemory(1, 1).slot(0, 0))

    return make


@pytest.fixture
def in_threads() -> Iterator[Callable[[Slot], threading.Thread]]:
    threads: list[threading.Thread] = []

    def start(slot: Slot) -> threading.Thread:
        thread = threading.Thread(target=slot.run, daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def states(jobs: Sequence[Job]) -> Counter[State]:
    return Counter(job.refresh().state for job in jobs)


# Turns and measures


def test_weights_are_the_shares_of_first_places():
    order = QueueOrder({"low": 1, "high": 3})

    first = Counter(order.next()[0] for _ in range(4000))

    assert first == {"high": 3000, "low": 1000}


def test_turn_names_every_queue_once_heavier_ones_earlier():
    order = QueueOrder({"a": 1, "b": 5, "c": 2})

    for _ in range(20):
        turn = order.next()
        assert sorted(turn) == ["a", "b", "c"]
        assert turn[1:] == [name for name in ("b", "c", "a") if name != turn[0]]


def test_turns_are_spread_and_not_bunched():
    order = QueueOrder({"low": 1, "high": 3})

    firsts = [order.next()[0] for _ in range(8)]

    assert "low" in firsts[:4]
    assert "low" in firsts[4:]


def test_measured_pace_rises_at_once_and_falls_slowly():
    pace = Pace()
    assert pace.expected_s("a") is None

    pace.measured("a", 0.001)
    pace.measured("a", 1.0)
    assert pace.expected_s("a") == 1.0

    pace.measured("a", 0.0)
    assert pace.expected_s("a") == pytest.approx(0.8)


# Claim, run, settle


def test_jobs_run_by_priority_and_first_in_first_out_within_one(tasks, make_slot):
    # F2, F7: larger first; no priority is 0.
    for priority in (-100, -1, None, 0, 100, 10):
        options = {} if priority is None else {"priority": priority}
        enqueue_many(tasks.note.using(**options), [(f"{priority or 0} {i}",) for i in range(3)])

    make_slot(tasks.ledger.count_is(18)).run()

    groups = [100, 10, 0, 0, -1, -100]
    assert [str(value).split()[0] for value in tasks.ledger] == [str(g) for g in groups for _ in range(3)]
    assert [v for v in tasks.ledger if str(v).startswith("0 ")] == ["0 0", "0 1", "0 2"] * 2


def test_thousand_equal_jobs_run_in_the_order_of_their_enqueue(tasks, make_slot):
    enqueue_many(tasks.note, [(i,) for i in range(1000)])

    make_slot(tasks.ledger.count_is(1000)).run()

    assert tasks.ledger == list(range(1000))


def test_urgent_job_overtakes_all_but_those_already_claimed(tasks, make_slot, in_threads):
    # F1: what a slot holds unstarted is at most about 50 ms of work.
    enqueue_many(tasks.nap.using(priority=-5), [("low",)] * 50)
    in_threads(make_slot(tasks.ledger.count_is(51)))
    eventually(tasks.ledger.count_is(5))

    enqueue(tasks.nap.using(priority=5), "high")
    at = len(tasks.ledger)
    eventually(lambda: "high" in tasks.ledger)

    assert tasks.ledger.index("high") - at <= 3


def test_task_of_unknown_duration_is_claimed_alone(tasks, make_slot, in_threads, broker):
    enqueue_many(tasks.slow, [(i,) for i in range(5)])
    slot = make_slot(tasks.ledger.count_is(5))
    in_threads(slot)

    eventually(tasks.ledger.count_is(1))

    assert len(slot.memory.held()) == 1
    assert broker.stats("default").ready == 4
    tasks.gate.set()


def test_fast_tasks_are_claimed_in_batches(tasks, make_slot, broker):
    enqueue_many(tasks.note, [(i,) for i in range(500)])
    calls = broker.client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)

    make_slot(tasks.ledger.count_is(500)).run()

    used = broker.client.info("commandstats")["cmdstat_evalsha"]["calls"] - calls
    assert used < 100, "far fewer than one call a job"


def test_all_outcomes_are_recorded_and_nothing_is_held(tasks, make_slot, broker):
    jobs = [*enqueue_many(tasks.note, [(i,) for i in range(30)]), *enqueue_many(tasks.bad, [(i,) for i in range(30)])]
    slot = make_slot(tasks.ledger.count_is(60))

    slot.run()

    assert states(jobs) == {State.SUCCEEDED: 30, State.DEAD: 30}
    assert slot.memory.held() == []
    assert slot.memory.pending_claim() is None
    assert slot.jobs_done == 60
    stats = broker.stats("default")
    assert (stats.ready, stats.running, stats.retrying, stats.scheduled) == (0, 0, 0, 0)


def test_outcome_is_recorded_before_a_slow_job_starts(tasks, make_slot, in_threads):
    first = enqueue(tasks.note, 1)
    enqueue(tasks.slow, 2)
    in_threads(make_slot(tasks.ledger.count_is(2)))

    eventually(tasks.ledger.count_is(2))
    eventually(lambda: first.refresh().state is State.SUCCEEDED, 5)
    tasks.gate.set()


def test_tail_behind_a_slow_job_goes_to_another_slot(tasks, make_slot, in_threads, broker):
    # The slot learns that notes are fast, so it claims the slow one in a batch with notes behind it.
    enqueue_many(tasks.note, [(i,) for i in range(200)])
    slow = enqueue(tasks.slow, "slow")
    rest = enqueue_many(tasks.note, [(i,) for i in range(40)])
    one = make_slot(tasks.ledger.count_is(241))
    in_threads(one)
    eventually(tasks.started.is_set)
    assert len(one.memory.held()) > 1

    eventually(lambda: one.give_back_tail() or len(one.memory.held()) == 1)
    make_slot(tasks.ledger.count_is(241), name="cafe0000.1.1").run()

    assert states(rest) == {State.SUCCEEDED: 40}
    assert {(job.attempts, job.losses) for job in rest} == {(1, 0)}
    assert slow.refresh().state is State.RUNNING
    tasks.gate.set()


def test_stop_gives_back_what_has_not_started_uncharged(tasks, make_slot, broker):
    jobs = enqueue_many(tasks.note, [(i,) for i in range(200)])
    slot = make_slot(tasks.ledger.count_is(60))

    slot.run()

    assert 60 <= len(tasks.ledger) < 200
    assert states(jobs) == {State.SUCCEEDED: len(tasks.ledger), State.READY: 200 - len(tasks.ledger)}
    assert {(job.attempts, job.losses) for job in jobs if job.state is State.READY} == {(0, 0)}
    assert broker.stats("default").running == 0


def test_given_back_jobs_keep_their_place(tasks, make_slot):
    enqueue_many(tasks.note, [(i,) for i in range(200)])
    make_slot(tasks.ledger.count_is(60)).run()

    make_slot(tasks.ledger.count_is(200), name="cafe0000.1.1").run()

    assert tasks.ledger == list(range(200))


def test_both_queues_of_a_slot_are_served(tasks, make_slot):
    enqueue_many(tasks.note, [("note",)] * 20)
    enqueue_many(tasks.mail, [("mail",)] * 20)

    make_slot(tasks.ledger.count_is(40), {"default": 1, "mail": 1}).run()

    assert Counter(tasks.ledger) == {"note": 20, "mail": 20}


def test_light_queue_is_served_beside_a_heavy_one(tasks, make_slot):
    # F4: nobody starves, however much waits in the other queue.
    enqueue_many(tasks.note, [("note",)] * 2000)
    enqueue_many(tasks.mail, [("mail",)] * 5)

    make_slot(lambda: tasks.ledger.count("mail") == 5, {"default": 3, "mail": 1}).run()

    assert tasks.ledger.count("note") < 2000


def test_queue_that_the_slot_does_not_serve_is_left_alone(tasks, make_slot, broker):
    enqueue_many(tasks.mail, [(1,)] * 3)
    enqueue(tasks.note, 1)

    make_slot(tasks.ledger.count_is(1)).run()

    assert broker.stats("mail").ready == 3


# Waiting


def test_idle_slot_starts_a_new_job_at_once(tasks, make_slot, in_threads, broker):
    in_threads(make_slot(tasks.ledger.count_is(1)))
    eventually(lambda: blocked(broker))

    before = time.monotonic()
    enqueue(tasks.note, 1)
    eventually(tasks.ledger.count_is(1))

    assert time.monotonic() - before < 2, "and not at the next poll"


def blocked(broker: Broker) -> bool:
    """Tell whether a slot waits for a wake-up."""
    return any(c["cmd"] == "blpop" and "b" in c["flags"] for c in broker.client.client_list())


def test_due_job_is_started_without_anybody_else(tasks, make_slot, in_threads, broker):
    in_threads(make_slot(tasks.ledger.count_is(1)))
    eventually(lambda: blocked(broker))

    enqueue(tasks.note.using(run_after=0.3), 1)

    eventually(tasks.ledger.count_is(1), 3)


def test_paused_queue_is_not_claimed_from_until_it_is_resumed(tasks, make_slot, in_threads, broker):
    pause_queue("default")
    enqueue(tasks.note, 1)
    in_threads(make_slot(tasks.ledger.count_is(1)))
    eventually(lambda: blocked(broker))
    assert tasks.ledger == []

    resume_queue("default")

    eventually(tasks.ledger.count_is(1), 5)


def test_idle_slot_stops_when_told(tasks, make_slot, in_threads, broker):
    stop = threading.Event()
    thread = in_threads(make_slot(stop.is_set))
    eventually(lambda: blocked(broker))

    stop.set()

    thread.join(5)
    assert not thread.is_alive()


# Leases


def test_outcome_of_a_lost_lease_is_refused_and_said(tasks, make_slot, in_threads, broker, caplog):
    job = enqueue(tasks.slow.using(max_losses=5), 1)
    seen = []

    def receive(sender, signal, **data):
        seen.append(data)

    signals.lease_lost.connect(receive)
    slot = make_slot(tasks.ledger.count_is(1))
    thread = in_threads(slot)
    eventually(tasks.started.is_set)

    later = Broker(broker.client, broker.prefix, now_ms=lambda: int(time.time() * 1000) + 60_000)
    assert [state for _, state in later.reap("default", gap_ms=0, hold_ms=0).recovered] == ["ready"]
    tasks.gate.set()
    thread.join(20)
    signals.lease_lost.disconnect(receive)

    assert job.refresh().state is State.READY
    assert (job.attempts, job.losses) == (0, 1)
    assert [data["job_id"] for data in seen] == [job.id]
    assert f"Lease lost: job_id={job.id} task=made.slow attempt=1" in caplog.text


def test_child_interrupts_a_handler_at_its_limit(tasks, jobrail):
    job = enqueue(tasks.spin)

    with InlineChild(["default"]):
        assert job.wait(10)

    assert job.state is State.DEAD
    assert job.reason.startswith("timed out after 0.")


@pytest.mark.parametrize(("notice", "state"), [(CANCEL, State.CANCELLED), (LOST, State.RUNNING)])
def test_child_passes_on_what_the_supervisor_says(tasks, jobrail, notice, state):
    job = enqueue(tasks.spin.using(timeout=60))

    with InlineChild(["default"]) as child:
        eventually(tasks.started.is_set)
        (held,) = child.held()
        child.memory.slot(0, 0).notify(held.index, held.n, notice)
        eventually(lambda: child.held() == [])

    assert job.refresh().state is state
    assert job.attempts == (notice == CANCEL)


def test_notice_about_an_earlier_claim_is_ignored(tasks, jobrail):
    job = enqueue(tasks.slow, 1)

    with InlineChild(["default"]) as child:
        eventually(tasks.started.is_set)
        (held,) = child.held()
        child.memory.slot(0, 0).notify(held.index, held.n - 1, LOST)
        sign, _ = child.memory.last_sign(0)
        eventually(lambda: child.memory.last_sign(0)[0] > sign + 0.1)  # several looks of the monitor
        tasks.gate.set()
        assert job.wait(10)

    assert job.state is State.SUCCEEDED


# Redis fails


@pytest.fixture
def own_server(settings) -> Iterator[RedisServer]:
    with RedisServer(aof=True) as server:
        settings.JOBRAIL = {"REDIS": server.url, "PREFIX": "own", "QUEUES": ["default", "mail"]}
        yield server


def test_outcome_waits_until_redis_is_back(tasks, own_server, caplog):
    job = enqueue(tasks.slow, 1)

    with InlineChild(["default"]):
        eventually(tasks.started.is_set)
        own_server.kill()
        tasks.gate.set()
        eventually(lambda: "Redis does not serve" in caplog.text)
        own_server.start()
        eventually(lambda: state_of(job) is State.SUCCEEDED)

    assert job.attempts == 1
    assert tasks.ledger == [1]


def state_of(job: Job) -> State | None:
    try:
        return job.refresh().state
    except BrokerUnavailable:
        return None


def test_idle_slots_come_back_by_themselves(tasks, own_server, caplog):
    with InlineChild(["default", "mail"], threads=3):
        eventually(lambda: blocked(get_broker()))
        own_server.kill()
        eventually(lambda: "Redis does not serve" in caplog.text)
        own_server.start()
        enqueue(tasks.note, 1)
        enqueue(tasks.mail, 2)
        eventually(tasks.ledger.count_is(2), 5)

    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and "does not serve" in r.getMessage()]
    assert len(warnings) <= 3, "one for each thing that failed, not one for each try"


def test_empty_redis_is_noticed_and_served(tasks, own_server, caplog):
    with InlineChild(["default"]):
        enqueue(tasks.note, 1)
        eventually(tasks.ledger.count_is(1))
        get_broker().client.flushall()
        enqueue(tasks.note, 2)
        eventually(tasks.ledger.count_is(2))

    assert "Redis lost this queue's data: queue=default" in caplog.text


def test_forgotten_scripts_are_sent_again(tasks, own_server):
    with InlineChild(["default"]):
        for i in range(5):
            get_broker().client.script_flush()
            enqueue(tasks.note, i)
            eventually(tasks.ledger.count_is(i + 1))

    assert tasks.ledger == [0, 1, 2, 3, 4]


def test_release_and_retry_with_a_delay_wait(tasks, make_task, make_slot, broker):
    module = make_task(
        """
        from jobrail_django import Release, Retry
        @task
        def release(): ledger.append(1); raise Release("busy", delay=60)
        @task(max_attempts=2)
        def retry(): ledger.append(1); raise Retry("later", delay=60)
        """,
        name="more",
        file="more.py",
    )
    module.ledger = tasks.ledger
    released, retried = enqueue(module.release), enqueue(module.retry)

    make_slot(tasks.ledger.count_is(2)).run()

    assert (released.refresh().state, released.attempts, released.reason) == (State.SCHEDULED, 0, "busy")
    assert (retried.refresh().state, retried.attempts, retried.reason) == (State.RETRYING, 1, "later")
    for job in (released, retried):
        due_ms = broker.get("default", job.id).due_ms
        assert timedelta(milliseconds=due_ms - time.time() * 1000) > timedelta(seconds=50)
