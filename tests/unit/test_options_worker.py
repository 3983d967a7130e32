"""What a worker is asked to do."""

from __future__ import annotations

import pytest

from jobrail_django.errors import ConfigurationError, UnknownQueue
from jobrail_django.worker.options import MAX_WEIGHT, WorkerOptions, parse_queues

DECLARED = ("default", "mail", "reports")


def test_no_name_means_all_queues():
    assert parse_queues([], DECLARED) == {"default": 1, "mail": 1, "reports": 1}


def test_names_and_weights_are_kept_in_order():
    assert list(parse_queues(["mail=3", "default"], DECLARED).items()) == [("mail", 3), ("default", 1)]


def test_largest_weight_is_accepted():
    assert parse_queues([f"mail={MAX_WEIGHT}"], DECLARED) == {"mail": MAX_WEIGHT}


def test_unknown_queue_is_refused_with_the_closest():
    with pytest.raises(UnknownQueue) as caught:
        parse_queues(["mial"], DECLARED)

    assert str(caught.value) == (
        "Unknown queue 'mial'; did you mean 'mail'? JOBRAIL['QUEUES'] declares 'default', 'mail', 'reports'."
    )
    assert caught.value.queue == "mial"


def test_empty_name_is_refused():
    with pytest.raises(UnknownQueue, match="Unknown queue ''"):
        parse_queues(["=3"], DECLARED)


def test_several_names_in_one_value_are_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match=r"'mail,default'.*--queue mail --queue default"):
        parse_queues(["mail,default"], DECLARED)


def test_queue_named_twice_is_refused():
    with pytest.raises(ConfigurationError, match=r"Queue 'mail' is named twice; .*--queue mail=2"):
        parse_queues(["mail", "default", "mail=2"], DECLARED)


@pytest.mark.parametrize("weight", ["", "0", "-1", "1.5", "x", "1001", "1e3", " 2", "9" * 5000, "²"])
def test_weight_that_is_no_whole_number_in_range_is_refused(weight):
    with pytest.raises(ConfigurationError) as caught:
        parse_queues([f"mail={weight}"], DECLARED)

    text = str(caught.value)
    assert "of queue 'mail'" in text
    assert "expected a whole number from 1 to 1000" in text
    assert len(text) < 300


def test_defaults_are_those_of_the_docstring():
    options = WorkerOptions(queues={"default": 1}, processes=1, threads=4)

    assert (options.upkeep, options.burst, options.max_jobs, options.max_memory_mb) == (True, False, 0, 0)
