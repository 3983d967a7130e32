"""The decorator, the options, and the check of arguments."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from jobrail_django import task
from jobrail_django.backoff import Backoff
from jobrail_django.errors import (
    InvalidArguments,
    InvalidOption,
    InvalidTask,
    UnknownOption,
    UnknownPayloadVersion,
    UnsupportedOption,
)
from jobrail_django.options import UNSUPPORTED, CallOptions, DecoratorOptions, TaskOptions

pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.fixture
def send(make_task):
    return make_task("@task\ndef send(order_id: int, *, copy=False) -> str: return f'{order_id} {copy}'").send


def test_call_runs_the_function(send):
    assert send(3, copy=True) == "3 True"


def test_defaults(send):
    assert send.name == "made.send"
    assert (send.queue_name, send.priority) == ("default", 0)
    assert send.options == TaskOptions()
    assert not send.is_async


def test_decorator_with_options(make_task):
    source = """
        from datetime import timedelta
        @task(queue_name="mail", priority=10, max_attempts=5, max_losses=2, backoff=7, timeout=timedelta(minutes=1),
              retry_on=OSError, discard_on=(KeyError, LookupError), on_commit=False, using="default",
              idempotency_window=timedelta(hours=1))
        async def send(): ...
    """
    made = make_task(source).send

    assert made.is_async
    assert made.options == TaskOptions(
        queue_name="mail",
        priority=10,
        max_attempts=5,
        max_losses=2,
        backoff=Backoff(base=7),
        timeout=60.0,
        retry_on=(OSError,),
        discard_on=(KeyError, LookupError),
        on_commit=False,
        using="default",
        idempotency_window=3600.0,
    )


def test_empty_parentheses_are_the_same_as_none(make_task):
    assert make_task("@task()\ndef send(): ...").send.options == TaskOptions()


# What can be a task


class Holder:
    def method(self):
        """Stand for a bound method."""

    @staticmethod
    def static():
        """Stand for a function inside a class."""


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.mark.parametrize(
    ("func", "text"),
    [
        (lambda: None, "is not at the top level of a module; move the function there"),
        (Holder().method, "is no plain function"),
        (Holder.static, "is not at the top level"),
        (Holder, "is no plain function"),
        (print, "is no plain function"),
        ("mail", "'mail' is no plain function"),
        (generator, "is a generator: a call would not run it"),
        (async_generator, "is a generator"),
    ],
)
def test_what_a_worker_cannot_run_is_refused(func, text):
    with pytest.raises(InvalidTask, match=text):
        task(func)


def test_function_inside_a_function_is_refused():
    def nested(): ...

    with pytest.raises(InvalidTask, match="not at the top level"):
        task(nested)


def test_function_of_the_script_itself_is_refused(make_task):
    with pytest.raises(InvalidTask, match=r"'__main__\.send' is in the script itself"):
        make_task("@task\ndef send(): ...", name="__main__")


def test_name_too_long_for_its_column_is_refused(make_task):
    with pytest.raises(InvalidTask, match="has 305 characters; at most 255"):
        make_task(f"@task\ndef {'f' * 300}(): ...")


def test_context_has_to_be_the_first_parameter(make_task):
    with pytest.raises(InvalidTask, match=r"first parameter must be named 'context'; its signature is \(order_id\)"):
        make_task("@task(takes_context=True)\ndef send(order_id): ...")


# Options


def test_using_returns_another_task(send):
    other = send.using(priority=5).using(timeout=3)

    assert (other.priority, other.options.timeout) == (5, 3.0)
    assert other.overrides == {"priority", "timeout"}
    assert (other.name, other.func) == (send.name, send.func)
    assert (send.priority, send.overrides) == (0, frozenset())
    assert other != send
    assert other == send.using(priority=5, timeout=timedelta(seconds=3))
    assert len({send, other}) == 2


def test_using_none_resets(send):
    assert (
        send.using(run_after=5, idempotency_key="k").using(run_after=None, idempotency_key=None).options == send.options
    )


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_option_of_a_later_version_is_refused(send, name):
    with pytest.raises(UnsupportedOption, match=f"'{name}' is not supported yet in this version") as caught:
        send.using(**{name: 1})

    assert caught.value.option == name


def test_unknown_option_is_refused_with_the_closest(send):
    with pytest.raises(UnknownOption, match=r"Unknown option 'prioritty'; did you mean 'priority'\?"):
        send.using(prioritty=1)


def test_refusal_in_the_decorator_names_the_task(make_task):
    with pytest.raises(UnknownOption, match=r"Task 'made.send': Unknown option 'queue'"):
        make_task("@task(queue='mail')\ndef send(): ...")


@pytest.mark.parametrize("name", ["run_after", "idempotency_key"])
def test_option_of_a_call_is_refused_in_the_decorator(make_task, name):
    with pytest.raises(InvalidOption, match=rf"belongs to one call: write .using\({name}=…\)"):
        make_task(f"@task({name}=1)\ndef send(): ...")


@pytest.mark.parametrize("name", ["retry_on", "discard_on", "takes_context"])
def test_option_of_the_function_is_refused_in_using(send, name):
    with pytest.raises(InvalidOption, match=rf"belongs to the function: write @task\({name}=…\)"):
        send.using(**{name: (OSError,)})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("priority", 101, "101 must be a whole number from -100 to 100"),
        ("priority", -101, "-101 must be"),
        ("priority", 3.5, "3.5 must be"),
        ("priority", True, "True must be"),
        ("priority", None, "None must be"),
        ("max_attempts", 0, "0 must be a whole number from 1"),
        ("max_losses", "3", "'3' must be"),
        ("timeout", 0, "0 is out of range; give above 0"),
        ("timeout", timedelta(days=50_000), "out of range"),
        ("timeout", "60", "'60' is not a duration"),
        ("backoff", -1, "-1 is out of range"),
        ("queue_name", "a b", "'a b' cannot name a queue"),
        ("queue_name", "", "'' cannot name a queue"),
        ("queue_name", "x" * 65, "expected 1 to 64"),
        ("run_after", -1, "-1 is out of range"),
        ("run_after", timedelta(seconds=-1), "out of range"),
        ("run_after", "tomorrow", "'tomorrow' is not a duration"),
        ("on_commit", 1, "1 must be True or False"),
        ("using", "", "expected a text of 1 to 255 characters"),
        ("idempotency_key", "", "not str of 0 characters"),
        ("idempotency_key", "k" * 256, "not str of 256 characters"),
        ("idempotency_key", 7, "not int"),
        ("idempotency_key", "\ud800", "lone surrogate"),
        ("idempotency_window", 0, "0 is out of range"),
    ],
)
def test_value_out_of_range_is_refused(send, name, value, text):
    """SCENARIOS E24 and F2: nothing is clamped."""
    with pytest.raises(InvalidOption, match=f"Option '{name}': .*{text}") as caught:
        send.using(**{name: value})

    assert caught.value.option == name


@pytest.mark.parametrize("value", ["OSError", (OSError, 3), [OSError], OSError()])
def test_retry_on_takes_exception_classes_only(value):
    with pytest.raises(InvalidOption, match="no exception class"):
        TaskOptions().with_decorator({"retry_on": value})


@pytest.mark.parametrize("value", [-100, 0, 100])
def test_priority_bounds_are_accepted(send, value):
    assert send.using(priority=value).priority == value


def test_large_values_are_kept_exactly(send):
    """SCENARIOS E24."""
    made = send.using(timeout=timedelta(hours=25), run_after=timedelta(days=400))

    assert made.options.timeout == 90_000.0
    assert made.options.run_after == timedelta(days=400)


def test_run_after_keeps_an_aware_moment_also_a_past_one(send):
    past = datetime(2001, 1, 1, tzinfo=ZoneInfo("Asia/Shanghai"))

    assert send.using(run_after=past).options.run_after is past


def test_naive_run_after_is_refused_with_time_zones(send, settings):
    """SCENARIOS E6."""
    settings.USE_TZ = True

    with pytest.raises(InvalidOption, match=r"datetime.datetime\(2026, 1, 6, 20, 52\) is naive, and USE_TZ is on"):
        send.using(run_after=datetime(2026, 1, 6, 20, 52))


@pytest.mark.parametrize("environment", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_naive_run_after_without_time_zones_is_in_that_of_the_site(send, settings, monkeypatch, environment):
    """SCENARIOS E6: whatever the zone of the process."""
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Shanghai"
    monkeypatch.setenv("TZ", environment)

    made = send.using(run_after=datetime(2026, 1, 6, 20, 52))

    assert made.options.run_after == datetime(2026, 1, 6, 12, 52, tzinfo=timezone.utc)


def test_typed_names_are_those_accepted(send):
    decorator = set(DecoratorOptions.__annotations__) | set(CallOptions.__annotations__)

    assert decorator == set(TaskOptions.__dataclass_fields__)


# Options that travel with the payload


def test_only_explicit_options_that_the_worker_needs_travel(make_task):
    send = make_task("@task(timeout=5, backoff=3)\ndef send(): ...").send

    assert send.call_options() == {}
    assert send.using(priority=3, max_attempts=9).call_options() == {}
    assert send.using(timeout=timedelta(minutes=1)).call_options() == {"timeout": 60.0}


def test_travelling_options_arrive(send):
    caller = send.using(timeout=1.5, backoff=Backoff(base=1, cap=4, jitter=False))

    arrived = send.with_call_options(json.loads(json.dumps(caller.call_options())))

    assert arrived.options == caller.options


def test_none_travels_and_means_the_setting(make_task):
    send = make_task("@task(timeout=5)\ndef send(): ...").send

    assert send.with_call_options(send.using(timeout=None).call_options()).options.timeout is None


def test_option_of_a_newer_release_is_an_unknown_version(send):
    with pytest.raises(UnknownPayloadVersion, match="'atomic', which this version does not know"):
        send.with_call_options({"atomic": True})


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2), {}), ((1,), {"order_id": 2}), ((1,), {"cpoy": True})],
)
def test_arguments_that_do_not_fit_are_refused(send, args, kwargs):
    with pytest.raises(InvalidArguments, match=r"do not fit the task 'made.send': .*\(order_id: int, \*, copy=False\)"):
        send.check_arguments(args, kwargs)


def test_refusal_of_arguments_shows_no_value(send):
    with pytest.raises(InvalidArguments) as caught:
        send.check_arguments(("s3cret", "s3cret"), {})

    assert "s3cret" not in str(caught.value)


def test_arguments_that_fit_pass(send):
    send.check_arguments((1,), {"copy": True})
    send.check_arguments((), {"order_id": 1})


def test_context_is_not_given_by_the_caller(make_task):
    send = make_task("@task(takes_context=True)\ndef send(context, order_id): ...").send

    send.check_arguments((1,), {})
    with pytest.raises(InvalidArguments):
        send.check_arguments((None, 1), {})
