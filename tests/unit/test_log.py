"""Logging a failure that repeats, and the fields of a record."""

from __future__ import annotations

import logging

import pytest

from jobrail_django.log import RepeatLog, extra


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def repeat(clock):
    return RepeatLog(logging.getLogger("jobrail_django.test"), clock=clock)


def fail(repeat, number):
    return repeat.log(logging.WARNING, "redis_away", "Redis is away: %s", f"error {number}", queue="mail")


def test_repeating_failure_is_logged_once_and_then_every_30_seconds(repeat, clock, caplog):
    logged = []
    for number, moment in enumerate([100, 101, 129.9, 130, 131, 159, 200]):
        clock.now = moment
        logged.append(fail(repeat, number))

    assert logged == [True, False, False, True, False, False, True]
    assert caplog.messages == [
        "Redis is away: error 0",
        "Redis is away: error 3 (2 more since the last message)",
        "Redis is away: error 6 (2 more since the last message)",
    ]
    assert caplog.records[0].action == "redis_away"
    assert caplog.records[0].queue == "mail"


def test_another_action_is_logged_by_itself(repeat, caplog):
    fail(repeat, 0)
    repeat.log(logging.ERROR, "other", "Other")

    assert caplog.messages == ["Redis is away: error 0", "Other"]


def test_failure_after_a_recovery_is_logged_at_once(repeat):
    assert not repeat.recovered("redis_away")
    fail(repeat, 0)

    assert repeat.recovered("redis_away")
    assert fail(repeat, 1)


def test_fields_that_are_not_known_are_left_out():
    assert extra("job_failed", job_id="a", task=None, attempt=0) == {
        "action": "job_failed",
        "job_id": "a",
        "attempt": 0,
    }
