"""How an exception is recorded: bounded text, whatever the exception does."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

import orjson

from ..querysets import cut

#: Longest message that is kept, in characters.
MESSAGE_LIMIT = 4_000
#: Longest traceback that is kept, in characters.
TRACEBACK_LIMIT = 48_000
#: Frames kept of each exception.
FRAME_LIMIT = 50


def type_name(exc: BaseException) -> str:
    """Return the dotted name of an exception's class."""
    kind = type(exc)
    return f"{kind.__module__}.{kind.__qualname__}"[:255]


def message(exc: BaseException) -> str:
    """Return the text of an exception, or say that it has none to give."""
    try:
        return cut(str(exc), MESSAGE_LIMIT)
    except BaseException as broken:  # whatever it is, it is about the exception and not for this thread
        return f"<the text of this exception cannot be read: {type(broken).__name__}>"


def traceback_text(exc: BaseException) -> str:
    """Format an exception with its causes; a long text loses its middle, so that the exception itself stays."""
    try:
        parts = traceback.TracebackException.from_exception(exc, limit=-FRAME_LIMIT).format()
        return _joined(parts, TRACEBACK_LIMIT)
    except BaseException as broken:
        return f"<the traceback cannot be formatted: {type(broken).__name__}>"


def _joined(parts: Iterable[str], limit: int) -> str:
    """Join texts as `cut` would cut their whole, and never hold much more than that."""
    head, tail, gone = "", "", 0
    for part in parts:
        room = limit - len(head)
        head += part[:room]
        tail += part[room:]
        if len(tail) > 2 * limit:
            gone += len(tail) - limit
            tail = tail[-limit:]
    if not tail:
        return head
    half = limit // 2
    gone += len(head) + len(tail) - 2 * half
    return f"{head[:half]}\n… {gone} characters cut …\n{(head + tail)[-half:]}"


def error_record(exc: BaseException) -> bytes:
    """Encode an exception as the JSON object that an attempt keeps: type, message, traceback."""
    record = {"type": type_name(exc), "message": message(exc), "traceback": traceback_text(exc)}
    clean = {key: text.encode("utf-8", "backslashreplace").decode() for key, text in record.items()}
    return orjson.dumps(clean)
