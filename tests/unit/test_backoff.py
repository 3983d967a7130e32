"""Delays between attempts."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrail_django.backoff import Backoff
from jobrail_django.errors import InvalidOption


def test_delay_doubles_up_to_the_cap():
    backoff = Backoff(base=2, cap=60, jitter=False)

    assert [backoff.delay_s(attempt) for attempt in range(1, 8)] == [2, 4, 8, 16, 32, 60, 60]


def test_delay_of_a_huge_attempt_is_the_cap():
    assert Backoff(base=1, cap=600, jitter=False).delay_s(10**6) == 600
    assert Backoff(base=0, jitter=False).delay_s(10**6) == 0


@given(st.integers(1, 50), st.integers(0, 2**32), st.floats(0, 100))
def test_jitter_stays_in_the_upper_half(attempt, seed, base):
    exact = Backoff(base=base, cap=600, jitter=False).delay_s(attempt)

    delay = Backoff(base=base, cap=600).delay_s(attempt, random.Random(seed))

    assert exact / 2 <= delay <= exact


def test_jitter_spreads():
    rng = random.Random(1)

    assert len({Backoff(base=10).delay_s(1, rng) for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("value", "base", "cap"),
    [(5, 5, 600), (timedelta(minutes=1), 60, 600), (3600, 3600, 3600), (Backoff(base=1, cap=9), 1, 9)],
)
def test_of_takes_seconds_timedelta_and_backoff(value, base, cap):
    made = Backoff.of(value)

    assert (made.base_s, made.cap_s) == (base, cap)


def test_timedelta_and_seconds_are_equal():
    assert Backoff(base=timedelta(seconds=2), cap=timedelta(minutes=10)) == Backoff()


def test_json_round_trip():
    backoff = Backoff(base=1.5, cap=timedelta(hours=1), jitter=False, factor=3)

    assert Backoff.from_json(backoff.to_json()) == backoff


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Backoff(base=-1), r"Backoff\(base=…\): -1 is out of range"),
        (lambda: Backoff(cap=float("nan")), r"Backoff\(cap=…\): nan is out of range"),
        (lambda: Backoff(base=20, cap=10), "cap must not be below base"),
        (lambda: Backoff(factor=0.5), r"factor=0.5\) must be a number from 1"),
        (lambda: Backoff(jitter=1), r"jitter=1\) must be True or False"),
        (lambda: Backoff.of("5"), "'5' is not a backoff; give seconds"),
        (lambda: Backoff.of(True), "True is not a backoff"),
        (lambda: Backoff.from_json({"base": 1}), "Not a stored backoff"),
    ],
)
def test_impossible_value_is_refused(make, text):
    with pytest.raises(InvalidOption, match=text):
        make()
