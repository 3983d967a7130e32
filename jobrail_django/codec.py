"""Arguments and results as JSON text, so that what comes back is equal in value and type, or is refused at once.

JSON's own types are written as they are. Everything else is an object ``{"$": tag, "v": …}``; a dict that has the key
``"$"`` itself, or keys that are no texts, is written as the tag ``map``. Nothing is ever pickled, and decoding imports
nothing: an enum's class must be loaded already, a model must belong to an installed app.
"""

from __future__ import annotations

import base64
import hashlib
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from .errors import DecodeError, EncodeError, UnknownPayloadVersion

#: Version of the envelope that this release writes, and the newest that it reads.
VERSION = 1
#: Deepest nesting of containers in an argument or result.
MAX_DEPTH = 100
#: Deepest nesting of stored JSON: two levels for each container of a value, and some for the envelope.
_MAX_STORED_DEPTH = 2 * MAX_DEPTH + 10

#: Longest path in an error, in characters; keys can be long.
_MAX_PATH = 400

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a job carries: the task's name, its arguments, and the explicit options of the call.

    From `peek_envelope` the arguments are in their stored JSON form; from `loads_envelope` they are values.
    """

    version: int
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    #: The arguments are values already: plain JSON, or decoded.
    is_plain: bool = False

    def arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the values that the arguments stand for, positional and by keyword; loads model instances fresh.

        Raises:
            DecodeError: An argument cannot be read.
            ObjectDoesNotExist: A row that an argument refers to is gone: the model's own ``DoesNotExist``.
        """
        if self.is_plain:
            return self.args, self.kwargs
        return (
            [_decode(item, 0) for item in self.args],
            {key: _decode(item, 0) for key, item in self.kwargs.items()},
        )


def dumps_envelope(
    task: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> bytes:
    """Encode a job's call as UTF-8 JSON text.

    Args:
        task: Name of the task.
        args: Positional arguments.
        kwargs: Keyword arguments.
        options: Explicit options of this call, plain JSON.

    Raises:
        EncodeError: An argument would not come back equal; the error says which, its type, and what to pass instead.
    """
    plain_args, plain_kwargs = list(args), dict(kwargs)
    if not _is_plain(plain_args, 0):
        plain_args = [_encode(item, f"args[{i}]", ()) for i, item in enumerate(plain_args)]
    if not _is_plain(plain_kwargs, 0):
        plain_kwargs = {_text(key, "kwargs"): _encode(item, f"kwargs[{key!r}]", ()) for key, item in kwargs.items()}
    envelope = {"v": VERSION, "task": task, "args": plain_args, "kwargs": plain_kwargs, "options": dict(options or {})}
    try:
        return orjson.dumps(envelope)
    except TypeError:  # a lone surrogate, which only the slow way can point at
        for i, item in enumerate(args):
            _encode(item, f"args[{i}]", ())
        for key, item in kwargs.items():
            _encode(item, f"kwargs[{_text(key, 'kwargs')!r}]", ())
        raise


def peek_envelope(data: bytes | str) -> Envelope:
    """Read an envelope without reading its arguments: touches no database, needs no class, for showing and routing.

    Raises:
        DecodeError: It is no envelope.
        UnknownPayloadVersion: A newer JobRail wrote it.
    """
    raw = _parse(data)
    if not isinstance(raw, dict) or not isinstance(raw.get("v"), int):
        raise DecodeError("The payload is no envelope of JobRail: it is JSON, but has no version")
    if raw["v"] != VERSION:
        raise UnknownPayloadVersion(
            f"The payload has version {raw['v']!r}, this JobRail reads {VERSION}; a newer worker can run it",
            version=raw["v"],
        )
    for key, kind in {"task": str, "args": list, "kwargs": dict, "options": dict}.items():
        if not isinstance(raw.get(key), kind):
            raise DecodeError(f"The payload has no {key!r} of the type {kind.__name__}")
    return Envelope(
        version=VERSION,
        task=raw["task"],
        args=raw["args"],
        kwargs=raw["kwargs"],
        options=raw["options"],
        is_plain=not _may_have_tags(data),
    )


def loads_envelope(data: bytes | str) -> Envelope:
    """Read an envelope with its arguments; may query the database for model instances.

    Raises:
        DecodeError: It cannot be read.
        UnknownPayloadVersion: A newer JobRail wrote it.
        ObjectDoesNotExist: A row that an argument refers to is gone.
    """
    envelope = peek_envelope(data)
    if envelope.is_plain:
        return envelope
    args, kwargs = envelope.arguments()
    return replace(envelope, args=args, kwargs=kwargs, is_plain=True)


def dumps(value: object, *, root: str = "value") -> bytes:
    """Encode one value, such as a result, as UTF-8 JSON text.

    Args:
        value: Anything of the table in the docs.
        root: Its name in error messages.

    Raises:
        EncodeError: It would not come back equal.
    """
    if _is_plain(value, 0):
        try:
            return orjson.dumps(value)
        except TypeError:
            pass  # a lone surrogate
    return orjson.dumps(_encode(value, root, ()))


def loads(data: bytes | str) -> Any:
    """Decode what `dumps` returned; may query the database for model instances.

    Raises:
        DecodeError: It cannot be read.
        ObjectDoesNotExist: A row that it refers to is gone.
    """
    value = _parse(data)
    return _decode(value, 0) if _may_have_tags(data) else value


def fingerprint(payload: bytes) -> str:
    """Return 32 hex digits that are equal for envelopes of one task with equal arguments, in any order of keywords."""
    raw = orjson.loads(payload)
    text = orjson.dumps([raw["task"], raw["args"], raw["kwargs"]], option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, digest_size=16).hexdigest()


# Encoding


def _is_plain(value: Any, depth: int) -> bool:
    """Tell whether orjson writes `value` so that it reads back the same; surrogates are left to orjson."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return _INT64_MIN <= value <= _INT64_MAX  # type: ignore[no-any-return]
    if kind is float:
        return math.isfinite(value)
    if depth >= MAX_DEPTH:
        return False
    if kind is list:
        for item in value:
            if not _is_plain(item, depth + 1):
                return False
        return True
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not _is_plain(item, depth + 1):
                return False
        return "$" not in value
    return False


def _refuse(value: object, path: str, why: str, remedy: str) -> NoReturn:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if len(path) > _MAX_PATH:
        path = f"{path[: _MAX_PATH // 2]}…{path[-_MAX_PATH // 2 :]}"
    raise EncodeError(f"{path} of type {name} {why}; {remedy}", path=path, type_name=name)


def _text(value: str, path: str) -> str:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(value, path, "has a lone surrogate, which is no text", "pass bytes, or decode with errors='replace'")
    return text


def _tag(tag: str, value: object, **more: object) -> dict[str, object]:
    return {"$": tag, "v": value, **more}


def _encode(value: Any, path: str, parents: tuple[int, ...]) -> Any:
    """Return the JSON form of `value`; `parents` holds the ids of the containers around it."""
    if value is None or isinstance(value, bool):
        return value
    if value.__class__ is not type(value):  # a lazy object that poses as what it will be
        return _encode_foreign(value, path, parents)
    for kinds, encode in _ENCODERS:
        if isinstance(value, kinds):
            return encode(value, path)
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return _encode_container(value, path, parents)
    return _encode_foreign(value, path, parents)


def _encode_container(value: Any, path: str, parents: tuple[int, ...]) -> Any:
    kind = type(value)
    if kind not in (list, tuple, dict, set, frozenset):
        base = next(base for base in (list, tuple, dict, set, frozenset) if isinstance(value, base)).__name__
        _refuse(value, path, f"would come back as a plain {base}", f"pass {base}(…) of it")
    if id(value) in parents:
        _refuse(value, path, "contains itself", "pass a value without the cycle")
    if len(parents) >= MAX_DEPTH:
        _refuse(value, path, f"is nested deeper than {MAX_DEPTH} levels", "pass a flatter value")
    inner = (*parents, id(value))
    if kind is dict:
        return _encode_dict(value, path, inner)
    if kind in (set, frozenset):
        items = [_encode(item, f"{path}{{…}}", inner) for item in value]
        return _tag(kind.__name__, sorted(items, key=orjson.dumps))
    items = [_encode(item, f"{path}[{i}]", inner) for i, item in enumerate(value)]
    return items if kind is list else _tag("tuple", items)


def _encode_dict(value: dict[Any, Any], path: str, inner: tuple[int, ...]) -> Any:
    plain_keys = "$" not in value and all(isinstance(key, str) and not isinstance(key, Enum) for key in value)
    if plain_keys:
        return {_text(key, f"{path} key"): _encode(item, f"{path}[{key!r}]", inner) for key, item in value.items()}
    pairs: list[Any] = []
    for key, item in value.items():
        pairs += [_encode(key, f"{path} key", inner), _encode(item, f"{path}[{key!r}]", inner)]
    return _tag("map", pairs)


def _encode_str(value: str, path: str) -> object:
    return _text(value, path)


def _encode_int(value: int, path: str) -> object:
    number = int.__int__(value)
    return number if _INT64_MIN <= number <= _INT64_MAX else _tag("int", format(number, "x"))


def _encode_float(value: float, path: str) -> object:
    if not math.isfinite(value):
        _refuse(value, path, f"is {value!r}, which JSON does not have", "pass None, or a Decimal")
    return float.__float__(value)


def _encode_datetime(value: datetime, path: str) -> object:
    naive = datetime.isoformat(value.replace(tzinfo=None))
    if type(value) is not datetime and value.replace(tzinfo=None) != datetime.fromisoformat(naive):
        _refuse(value, path, "is finer than a microsecond", "round it, or pass its text")
    return _with_zone("datetime", value, naive, path)


def _encode_time(value: time, path: str) -> object:
    return _with_zone("time", value, value.replace(tzinfo=None).isoformat(), path)


def _with_zone(tag: str, value: datetime | time, naive: str, path: str) -> object:
    """Tag a moment with its zone: by name where it has one (then `fold` matters), else by its offset."""
    more: dict[str, object] = {"fold": 1} if value.fold else {}
    zone: tzinfo | None = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key:
        more["zone"] = zone.key
    elif zone is not None:
        offset = value.utcoffset()
        if offset is None:
            _refuse(value, path, f"has the zone {zone!r} without an offset", "use zoneinfo.ZoneInfo or no zone")
        more["offset"] = _timedelta_parts(offset)
    return _tag(tag, naive, **more)


def _timedelta_parts(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _encode_enum(value: Enum, path: str) -> object:
    kind = type(value)
    if kind.__module__ == "__main__" or _loaded_enum(kind.__module__, kind.__qualname__) is not kind:
        _refuse(
            value, path, "is an enum that a worker cannot find by its name", "move the class to a module's top level"
        )
    if kind.__members__.get(value._name_ or "") is not value:
        _refuse(value, path, "is a combination of flags", "pass its .value")
    return _tag("enum", [kind.__module__, kind.__qualname__, value._name_])


#: Types with one fixed form, in the order in which they are tried: an enum may be a str too, a datetime is a date.
_ENCODERS: tuple[tuple[type | tuple[type, ...], Callable[[Any, str], Any]], ...] = (
    (Enum, _encode_enum),
    (str, _encode_str),
    (int, _encode_int),
    (float, _encode_float),
    (datetime, _encode_datetime),
    (date, lambda value, path: _tag("date", value.isoformat())),
    (time, _encode_time),
    (timedelta, lambda value, path: _tag("timedelta", _timedelta_parts(value))),
    (Decimal, lambda value, path: _tag("decimal", str(value))),
    (UUID, lambda value, path: _tag("uuid", str(value))),
    (bytes, lambda value, path: _tag("bytes", base64.b64encode(value).decode())),
)


def _encode_foreign(value: Any, path: str, parents: tuple[int, ...]) -> Any:
    """Encode a model instance or a lazy text; refuse everything else with the remedy for its kind."""
    from django.db.models import Model, QuerySet
    from django.http import HttpRequest
    from django.utils.functional import Promise

    if isinstance(value, Promise):
        return _text(str(value), path)
    if isinstance(value, Model):
        return _encode_model(value, path, parents)
    remedies: tuple[tuple[Any, str], ...] = (
        (QuerySet, "pass list(queryset.values_list('pk', flat=True))"),
        (HttpRequest, "pass the values that the task needs"),
        ((bytearray, memoryview), "pass bytes(…) of it"),
        (types.GeneratorType, "pass list(…) of it"),
        (BaseException, "pass str(…) of it"),
        ((type, types.FunctionType, types.MethodType), "pass its name and look it up in the task"),
    )
    for kinds, remedy in remedies:
        if isinstance(value, kinds):
            _refuse(value, path, "cannot be stored", remedy)
    if is_dataclass(value):
        _refuse(value, path, "cannot be stored", "pass dataclasses.asdict(…) of it")
    if hasattr(value, "read") or hasattr(value, "chunks"):
        _refuse(value, path, "is an open file", "save it and pass its path, or pass its bytes")
    _refuse(value, path, "cannot be stored", "pass JSON types, or a type of the codec's table in the docs")


def _encode_model(value: Any, path: str, parents: tuple[int, ...]) -> Any:
    if value.pk is None or value._state.adding:
        _refuse(value, path, "is not saved", "save it first, or pass its values")
    key = _encode(value.pk, f"{path}.pk", parents)
    return _tag("model", [value._meta.label_lower, key, value._state.db])


# Decoding


def _parse(data: bytes | str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise DecodeError(f"The stored data is no JSON text: {exc}") from exc


def _may_have_tags(data: bytes | str) -> bool:
    return b'"$"' in data if isinstance(data, bytes) else '"$"' in data


def _decode(value: Any, depth: int) -> Any:
    if depth > _MAX_STORED_DEPTH:
        raise DecodeError(f"The stored data is nested deeper than {_MAX_STORED_DEPTH} levels")
    if isinstance(value, list):
        return [_decode(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: _decode(item, depth + 1) for key, item in value.items()}
    tag = value["$"]
    decode = _DECODERS.get(tag) if isinstance(tag, str) else None
    if decode is None:
        raise DecodeError(f"The stored data has the unknown tag {str(tag)[:100]!r}")
    content = _decode(value.get("v"), depth + 1)
    try:
        return decode(content, value)
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as exc:
        raise DecodeError(f"The stored data has an unreadable {tag}: {type(exc).__name__}: {exc}") from exc


def _decode_map(content: list[Any], tagged: dict[str, Any]) -> dict[Any, Any]:
    keys, values = content[0::2], content[1::2]
    return dict(zip(keys, values, strict=True))


def _zone(tagged: dict[str, Any]) -> tzinfo | None:
    if "zone" in tagged:
        try:
            return ZoneInfo(tagged["zone"])
        except (ZoneInfoNotFoundError, OSError) as exc:
            raise ValueError(f"no time zone {str(tagged['zone'])[:100]!r} on this machine") from exc
    if "offset" in tagged:
        return timezone(timedelta(*tagged["offset"]))
    return None


def _decode_datetime(content: str, tagged: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(content).replace(tzinfo=_zone(tagged), fold=tagged.get("fold", 0))


def _decode_time(content: str, tagged: dict[str, Any]) -> time:
    return time.fromisoformat(content).replace(tzinfo=_zone(tagged), fold=tagged.get("fold", 0))


def _loaded_enum(module: str, qualname: str) -> type[Enum] | None:
    """Return the enum of that name in a module that is loaded already; runs no code of it and imports nothing."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    return found if isinstance(found, type) and issubclass(found, Enum) else None


def _decode_enum(content: list[str], tagged: dict[str, Any]) -> Enum:
    module, qualname, name = content
    kind = _loaded_enum(module, qualname)
    if kind is None:
        raise ValueError(f"no loaded module has the enum {module}.{qualname}; import it where the task is defined")
    return kind.__members__[name]


def _decode_model(content: list[Any], tagged: dict[str, Any]) -> Any:
    from django.apps import apps
    from django.core.exceptions import ValidationError
    from django.db import connections

    label, key, database = content
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError, AttributeError) as exc:
        raise ValueError(f"no installed app has the model {label!r}") from exc
    if database not in connections.databases:
        raise ValueError(f"no database has the alias {database!r}")
    try:
        return model._base_manager.using(database).get(pk=key)
    except ValidationError as exc:
        raise ValueError(f"{label!r} has no primary key such as {key!r}") from exc


_DECODERS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "map": _decode_map,
    "tuple": lambda content, tagged: tuple(content),
    "set": lambda content, tagged: set(content),
    "frozenset": lambda content, tagged: frozenset(content),
    "int": lambda content, tagged: int(content, 16),
    "datetime": _decode_datetime,
    "date": lambda content, tagged: date.fromisoformat(content),
    "time": _decode_time,
    "timedelta": lambda content, tagged: timedelta(*content),
    "decimal": lambda content, tagged: Decimal(content),
    "uuid": lambda content, tagged: UUID(content),
    "bytes": lambda content, tagged: base64.b64decode(content, validate=True),
    "enum": _decode_enum,
    "model": _decode_model,
}
