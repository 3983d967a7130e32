"""The tree of errors, and the names the package exports."""

from __future__ import annotations

import builtins
import copy
import pickle
import subprocess
import sys
from datetime import timedelta

import pytest

import jobrail_django
from jobrail_django import errors
from jobrail_django.errors import (
    InvalidOption,
    JobCancelled,
    JobRailError,
    LeaseLost,
    Release,
    Retry,
    TaskInterrupt,
    TimeLimitExceeded,
    did_you_mean,
)

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, BaseException) and value.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", ALL)
def test_error_is_in_the_tree_and_takes_no_builtin_name(kind):
    assert issubclass(kind, (JobRailError, TaskInterrupt))
    assert not hasattr(builtins, kind.__name__)


@pytest.mark.parametrize("kind", ALL)
def test_error_survives_pickle_and_copy(kind):
    error = kind("what happened")
    error.added = 1

    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == "what happened"
        assert vars(twin) == vars(error)


@pytest.mark.parametrize("kind", [TimeLimitExceeded, JobCancelled, LeaseLost])
def test_interrupt_passes_a_broad_except(kind):
    """SCENARIOS D2: ``except Exception`` in a task does not swallow it; it is made without arguments."""
    with pytest.raises(kind) as caught:
        try:
            raise kind
        except Exception:
            pytest.fail("swallowed")

    assert str(caught.value) == kind.__doc__.splitlines()[0]


@pytest.mark.parametrize(
    ("delay", "expected"),
    [(None, None), (0, 0.0), (1.5, 1.5), (timedelta(minutes=1), 60.0)],
)
@pytest.mark.parametrize("kind", [Retry, Release])
def test_delay_is_kept_in_seconds(kind, delay, expected):
    assert kind("later", delay=delay).delay_s == expected
    assert kind("later").reason == "later"


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "5", True])
def test_delay_that_is_none_is_refused(delay):
    with pytest.raises(InvalidOption, match=r"Retry\(delay=…\): "):
        Retry(delay=delay)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("LEESE_SECONDS", "; did you mean 'LEASE_SECONDS'?"), ("redis", "; did you mean 'REDIS'?"), ("xyz", "")],
)
def test_did_you_mean_names_the_closest(name, expected):
    assert did_you_mean(name, ["REDIS", "LEASE_SECONDS"]) == expected


def test_public_errors_are_exported():
    public = {kind.__name__ for kind in ALL if not kind.__name__.startswith("_")}

    assert public <= set(jobrail_django.__all__)
    assert all(getattr(jobrail_django, name) is getattr(errors, name) for name in public)


def test_unknown_export_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tasks_'"):
        _ = jobrail_django.tasks_


def test_import_of_the_package_reads_no_setting_and_no_model():
    code = """if 1:
        import sys
        import jobrail_django
        assert [name for name in sys.modules if name.startswith("jobrail_django.")] == []
        import jobrail_django.taskdef, jobrail_django.options, jobrail_django.registry
        from jobrail_django import Backoff, Retry, current_job, task
        from django.conf import settings
        assert callable(task) and not settings.configured
        assert not any(name.startswith("django.db.models") for name in sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
