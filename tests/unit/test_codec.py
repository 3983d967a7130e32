"""Arguments and results: equal in value and type when they come back, or refused where they are given."""

from __future__ import annotations

import dataclasses
import enum
import io
import math
import subprocess
import sys
from collections import OrderedDict, namedtuple
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

import orjson
import pytest
from django.contrib.auth.models import AnonymousUser, Group, Permission
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from jobrail_django import codec
from jobrail_django.codec import dumps, dumps_envelope, loads, loads_envelope, peek_envelope
from jobrail_django.errors import DecodeError, EncodeError, UnknownPayloadVersion


class Colour(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    LOW = 1


class Word(str, enum.Enum):
    HI = "hi"


class Holder:
    class Inner(enum.Enum):
        A = 1


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Data:
    a: int


Point = namedtuple("Point", "x y")


def same(a, b):
    """Tell whether two values are equal in value and type, all the way down; NaN is equal to itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):  # the order is kept too
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if isinstance(a, Decimal):
        return a.as_tuple() == b.as_tuple()
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, (datetime, time)):
        zones = getattr(a.tzinfo, "key", a.tzinfo) == getattr(b.tzinfo, "key", b.tzinfo)
        return zones and a.fold == b.fold and a.replace(tzinfo=None) == b.replace(tzinfo=None)
    return a == b


def nested(depth, make=lambda inner: [inner]):
    value = 1
    for _ in range(depth):
        value = make(value)
    return value


VALUES = {
    # K9
    "18 digits": 130775545883395173,
    "2^53+1": 2**53 + 1,
    "-2^63": -(2**63),
    "2^63": 2**63,
    "-2^64": -(2**64),
    "10^40": 10**40,
    "10^5000": -(10**5000),
    "0.1": 0.1,
    "1e308": 1e308,
    "1.0": 1.0,
    "-0.0": -0.0,
    "True": True,
    # K10
    "empty list": [],
    "empty dict": {},
    "list in dict": {"a": []},
    "list in list": [[]],
    "None": None,
    "empty text": "",
    "odd keys": {"__proto__": {}, "1": [{}], "": None},
    # K7
    "uuid": UUID("12345678123456781234567812345678"),
    "decimal": Decimal("1.10"),
    "decimal NaN": Decimal("NaN"),
    "decimal -Infinity": Decimal("-Infinity"),
    "decimal exponent": Decimal("-0E+30"),
    "date": date(2026, 2, 28),
    "time": time(1, 2, 3, 4),
    "time with zone": time(1, 2, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "time with offset": time(1, 2, tzinfo=timezone(timedelta(hours=-3))),
    "naive datetime": datetime(2026, 1, 2, 3, 4, 5, 6),
    "utc datetime": datetime(2026, 1, 2, tzinfo=timezone.utc),
    "fold": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "fold without zone": datetime(2026, 10, 25, 2, 30, fold=1),
    "odd offset": datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=3208, microseconds=5))),
    "first moment": datetime.min,
    "last moment": datetime.max.replace(tzinfo=ZoneInfo("Asia/Tokyo")),
    "timedelta": timedelta(days=-3, microseconds=1),
    "largest timedelta": timedelta.max,
    "tuple": (1, (2,), []),
    "set": {1, "a", None, (2, 3)},
    "frozenset": frozenset({frozenset({1}), 2}),
    "bytes": b"\x00\xff",
    "enum": Colour.RED,
    "int enum": Level.LOW,
    "str enum": Word.HI,
    "enum in a class": Holder.Inner.A,
    "one flag": Flags.B,
    "enum key": {Word.HI: 1},
    "int keys": {1: "a", None: 2, (1, 2): [3], "x": 4},
    "dollar key": {"$": "datetime", "v": "x"},
    "dollar deeper": [{"a": {"$": 1}}],
    "dollar text": ["$", '"$"'],
    # K3, K11
    "NUL": {"a\x00b": "\x00"},
    "text": "Grüße \U0001f600 עברית e\u0301 \u2028",
    # depth
    "100 lists": nested(100),
    "100 tuples": nested(100, lambda inner: (inner,)),
    "100 int keys": nested(100, lambda inner: {1: inner}),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_value_comes_back_equal(value):
    """SCENARIOS K7, K8, K9, K10, K11: as a result, an argument, and a keyword argument."""
    assert same(loads(dumps(value)), value)

    envelope = loads_envelope(dumps_envelope("t", (value,), {"kw": value}))
    assert same(list(envelope.args), [value])
    assert same(dict(envelope.kwargs), {"kw": value})


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
zones = st.none() | st.sampled_from(sorted(available_timezones())).map(ZoneInfo) | st.just(timezone(timedelta(hours=5)))
moments = st.datetimes(timezones=zones, allow_imaginary=True)
scalars = (
    plain
    | st.decimals()
    | st.uuids()
    | st.dates()
    | st.times()
    | moments
    | st.timedeltas()
    | st.binary()
    | st.sampled_from([*Colour, *Level, *Word])
)
hashable = st.recursive(
    scalars.filter(lambda value: not (isinstance(value, Decimal) and value.is_nan())),  # cannot be found again
    lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=3),
    max_leaves=3,
)


def containers(inner):
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.just("$"), inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(hashable, max_size=4)
    )


values = st.recursive(scalars, containers, max_leaves=12)


@given(values)
def test_any_value_comes_back_equal(value):
    assert same(loads(dumps(value)), value)


@given(moments)
def test_any_moment_comes_back(moment):
    """SCENARIOS K8."""
    back = loads(dumps(moment))

    assert (back.isoformat(), back.fold, back.utcoffset()) == (moment.isoformat(), moment.fold, moment.utcoffset())


def test_json_is_stored_as_json():
    value = {"a": [1, 1.5, None, True, "x", {"b": {}}]}

    assert dumps(value) == b'{"a":[1,1.5,null,true,"x",{"b":{}}]}'


def test_stored_text_is_valid_json_without_a_raw_nul():
    """SCENARIOS K3: PostgreSQL's text takes it."""
    stored = dumps_envelope("t", ("\x00",), {})

    assert b"\x00" not in stored
    assert stored.decode("utf-8")


def test_order_of_a_set_does_not_show():
    """The stored form of a set is the same in every process, so that equal arguments are recognised."""
    code = "from jobrail_django.codec import dumps; print(dumps({'a', 'b', 'c', (1, 'x'), None}).decode())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, timeout=60
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(seen) == 1


class Text(str):
    def __str__(self):
        return "another"


class Number(int):
    def __int__(self):
        return 0


class Moment(datetime):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (mark_safe("a"), "a"),
        (Text("a"), "a"),
        ({Text("k"): 1}, {"k": 1}),
        (Number(7), 7),
        (type("Real", (float,), {})(1.5), 1.5),
        (Moment(2026, 1, 2, tzinfo=timezone.utc), datetime(2026, 1, 2, tzinfo=timezone.utc)),
        (gettext_lazy("Yes"), "Yes"),
    ],
    ids=["safe", "str", "str key", "int", "float", "datetime", "lazy"],
)
def test_subclass_of_a_scalar_comes_back_as_the_scalar(value, expected):
    assert same(loads(dumps(value)), expected)


def cycle():
    value = {"a": []}
    value["a"].append(value)
    return value


def local_enum():
    return enum.Enum("Local", "A").A


class NoOffset(tzinfo):
    def utcoffset(self, moment):
        return None


REFUSED = {
    "nan": (math.nan, "of type float is nan, which JSON does not have; pass None, or a Decimal"),
    "infinity": (-math.inf, "is -inf, which JSON does not have"),
    "surrogate": ("a\ud800", "has a lone surrogate, which is no text; pass bytes"),
    "cycle": (cycle(), "contains itself"),
    "depth": (nested(101), "is nested deeper than 100 levels"),
    "object": (object(), "of type object cannot be stored"),
    "complex": (1j, "of type complex cannot be stored"),
    "dataclass": (Data(1), r"test_codec.Data cannot be stored; pass dataclasses.asdict\(…\) of it"),
    "namedtuple": (Point(1, 2), "would come back as a plain tuple; pass tuple"),
    "ordered dict": (OrderedDict(a=1), r"collections.OrderedDict would come back as a plain dict; pass dict\(…\)"),
    "bytearray": (bytearray(b"a"), r"pass bytes\(…\) of it"),
    "generator": ((i for i in "a"), r"pass list\(…\) of it"),
    "exception": (OSError(1), r"pass str\(…\) of it"),
    "class": (OSError, "pass its name"),
    "function": (cycle, "pass its name"),
    "file": (io.StringIO(), "is an open file; save it and pass its path"),
    "request": (HttpRequest(), "pass the values that the task needs"),
    "queryset": (Group.objects.none(), r"pass list\(queryset.values_list\('pk', flat=True\)\)"),
    "unsaved": (Group(name="a"), "Group is not saved; save it first"),
    "unsaved with key": (Group(pk=3), "is not saved"),
    "anonymous": (SimpleLazyObject(AnonymousUser), "cannot be stored"),
    "lazy text": (SimpleLazyObject(lambda: "a"), "cannot be stored"),
    "local enum": (local_enum(), "is an enum that a worker cannot find by its name"),
    "two flags": (Flags.A | Flags.B, r"is a combination of flags; pass its .value"),
    "zone without offset": (time(1, tzinfo=NoOffset()), "without an offset"),
}


@pytest.mark.parametrize(("value", "text"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_come_back_is_refused_with_path_type_and_remedy(value, text):
    """SCENARIOS K6, K7, K11: at enqueue, with the place inside the argument."""
    with pytest.raises(EncodeError, match=r"^args\[1\]\['items'\]\[2\].*" + text) as caught:
        dumps_envelope("t", (1, {"items": [0, 1, value]}), {})

    assert caught.value.path.startswith("args[1]['items'][2]")
    assert caught.value.type_name

    with pytest.raises(EncodeError, match=r"^result\b.*" + text):
        dumps(value, root="result")


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        (("\ud800",), {}, "args[0]"),
        ((), {"a": {"b": ("x", 1j)}}, "kwargs['a']['b'][1]"),
        ((), {"a": "\ud800"}, "kwargs['a']"),
        (({"\ud800": 1},), {}, "args[0] key"),
        (({1j: 1},), {}, "args[0] key"),
        (({1, 1j},), {}, "args[0]{…}"),
        (({1: [1j]},), {}, "args[0][1][0]"),
    ],
)
def test_path_leads_to_the_value(args, kwargs, path):
    with pytest.raises(EncodeError) as caught:
        dumps_envelope("t", args, kwargs)

    assert caught.value.path == path


def test_long_path_is_cut():
    with pytest.raises(EncodeError) as caught:
        dumps({"k" * 10_000: 1j})

    assert len(str(caught.value)) < 600


def test_many_branches_of_a_cycle_end():
    value = []
    value.extend([value] * 50)

    with pytest.raises(EncodeError, match="contains itself"):
        dumps(value)


# Envelope


def test_envelope_keeps_its_parts():
    envelope = loads_envelope(dumps_envelope("shop.tasks.f", (1, [2]), {"b": None, "a": 2}, {"timeout": 5.0}))

    assert (envelope.version, envelope.task, list(envelope.args)) == (1, "shop.tasks.f", [1, [2]])
    assert list(envelope.kwargs.items()) == [("b", None), ("a", 2)]
    assert envelope.options == {"timeout": 5.0}


def test_keyword_named_like_the_tag_comes_back():
    assert loads_envelope(dumps_envelope("t", (), {"$": "date", "v": 1})).kwargs == {"$": "date", "v": 1}


def test_peek_reads_nothing_but_the_frame():
    data = dumps_envelope("t", (Colour.RED,), {}).replace(b"Colour", b"Gone")

    envelope = peek_envelope(data)

    assert envelope.task == "t"
    assert envelope.args[0]["$"] == "enum"
    with pytest.raises(DecodeError, match="Gone"):
        envelope.arguments()


@pytest.mark.parametrize("version", [2, 99, 0])
def test_unknown_version_is_told_apart(version):
    data = orjson.dumps({"v": version, "anything": 1})

    with pytest.raises(UnknownPayloadVersion, match=f"version {version}, this JobRail reads 1") as caught:
        loads_envelope(data)

    assert caught.value.version == version


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\x80\x04\x95",
        b"\xff",
        b"[]",
        b"null",
        b'"x"',
        b"{}",
        b'{"v":"1"}',
        b'{"v":1}',
        b'{"v":1,"task":1,"args":[],"kwargs":{},"options":{}}',
        b'{"v":1,"task":"t","args":{},"kwargs":{},"options":{}}',
        b'{"v":1,"task":"t","args":[],"kwargs":[],"options":{}}',
        b'{"v":1,"task":"t","args":[],"kwargs":{},"options":null}',
    ],
)
def test_what_is_no_envelope_is_refused(data):
    """SCENARIOS N1: a pickle is only bytes that are no JSON."""
    with pytest.raises(DecodeError) as caught:
        loads_envelope(data)

    assert not isinstance(caught.value, UnknownPayloadVersion)


@pytest.mark.parametrize(
    "stored",
    [
        {"$": "unknown", "v": 1},
        {"$": 1},
        {"$": []},
        {"$": "datetime"},
        {"$": "datetime", "v": "yesterday"},
        {"$": "datetime", "v": "2026-01-01", "zone": "Mars/Base"},
        {"$": "datetime", "v": "2026-01-01", "zone": "../../etc/passwd"},
        {"$": "datetime", "v": "2026-01-01", "offset": [9]},
        {"$": "datetime", "v": "2026-01-01", "fold": 7},
        {"$": "decimal", "v": "1,5"},
        {"$": "int", "v": "xyz"},
        {"$": "bytes", "v": "*"},
        {"$": "uuid", "v": "1"},
        {"$": "map", "v": [1]},
        {"$": "map", "v": [[], 1]},
        {"$": "set", "v": [[]]},
        {"$": "set", "v": 5},
        {"$": "timedelta", "v": [10**12, 0, 0]},
        {"$": "enum", "v": ["os"]},
        {"$": "enum", "v": ["os", "system", "x"]},
        {"$": "enum", "v": ["enum", "Enum", "mro"]},
        {"$": "enum", "v": [__name__, "Colour", "BLUE"]},
        {"$": "enum", "v": [__name__, "Colour.__members__", "RED"]},
        {"$": "enum", "v": ["antigravity", "X", "Y"]},
        {"$": "enum", "v": [1, 2, 3]},
        {"$": "model", "v": ["auth.nothing", 1, "default"]},
        {"$": "model", "v": ["os.path", 1, "default"]},
        {"$": "model", "v": ["auth", 1, "default"]},
        {"$": "model", "v": [None, 1, "default"]},
        {"$": "model", "v": ["auth.group", 1, "elsewhere"]},
        {"$": "model", "v": ["auth.group"]},
        b'{"$":"tuple","v":[' * 400 + b"]}" * 400,
    ],
    ids=lambda stored: str(stored)[:60],
)
def test_stored_data_that_makes_no_sense_is_refused(stored):
    """SCENARIOS N2: whatever the text says, nothing is imported and nothing else is raised."""
    loaded = "antigravity" in sys.modules

    with pytest.raises(DecodeError):
        loads(stored if isinstance(stored, bytes) else orjson.dumps(stored))

    assert ("antigravity" in sys.modules) == loaded


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$", "v", "a"]), inner)
        | st.fixed_dictionaries(
            {"$": st.sampled_from(sorted(codec._DECODERS)), "v": inner},
            optional={"zone": inner, "offset": inner, "fold": inner},
        )
    ),
    max_leaves=10,
)


@given(json_values)
def test_any_json_decodes_or_is_refused(value):
    data = orjson.dumps(value)

    try:
        loads(data)
    except DecodeError as error:
        assert str(error).startswith("The stored data")


def test_fingerprint_is_of_task_and_arguments_only():
    def of(*args, task="t", options=None, **kwargs):
        return codec.fingerprint(dumps_envelope(task, args, kwargs, options))

    assert of(1, a=1, b={2}) == of(1, b={2}, a=1, options={"timeout": 5.0})
    assert len({of(1), of(2), of("1"), of([1]), of((1,)), of(1.0), of(True), of(a=1), of(1, task="u")}) == 9


# Model instances


@pytest.fixture
def group(db):
    return Group.objects.create(name="before")


def test_model_instance_travels_as_a_reference_and_is_loaded_fresh(group):
    """SCENARIOS K6."""
    data = dumps_envelope("t", (group,), {"g": [group]})
    Group.objects.update(name="after")

    envelope = loads_envelope(data)

    assert b"before" not in data
    assert envelope.args[0] == group
    assert envelope.kwargs["g"][0].name == "after"


def test_lazy_model_instance_travels_as_the_instance(group):
    assert loads(dumps(SimpleLazyObject(lambda: group))) == group


def test_model_instance_that_is_gone_is_its_own_error(group):
    """SCENARIOS K6: an error that ``discard_on=(Group.DoesNotExist,)`` can name."""
    data = dumps_envelope("t", (group,), {})
    group.delete()

    with pytest.raises(Group.DoesNotExist):
        loads_envelope(data)
    assert peek_envelope(data).task == "t"


def test_model_instance_hidden_by_its_manager_is_found(group, monkeypatch):
    monkeypatch.setattr(type(Group.objects), "get_queryset", lambda manager: Group._base_manager.none())

    assert loads(dumps(group)) == group


def test_primary_key_of_the_wrong_kind_is_refused(db):
    with pytest.raises(DecodeError, match="unreadable model"):
        loads(orjson.dumps({"$": "model", "v": ["auth.group", "x", "default"]}))


def test_two_models_do_not_mix(group, django_assert_num_queries):
    permission = Permission.objects.order_by("pk").first()

    with django_assert_num_queries(2):
        assert same(loads(dumps([group, permission])), [group, permission])
