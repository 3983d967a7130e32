"""How an exception is recorded: bounded text, whatever the exception does."""

from __future__ import annotations

import traceback

import orjson

from ..querysets import cut

#: Longest message that is kept, in characters.
MESSAGE_LIMIT = 4_000
#: Longest traceback that is kept, in characters.
TRACEBACK_LIMIT = 48_000
#: Frames kept of each exception, and exceptions kept of a chain's text.
FRAME_LIMIT = 50


def type_name(exc: BaseException) -> str:
    """Return the dotted name of an exception's class."""
    kind = type(exc)
    return f"{kind.__module__}.{kind.__qualname__}"[:255]


def message(exc: BaseException) -> str:
    """Return the text of an exception, or say that it has none to give."""
    try:
        return cut(str(exc), MESSAGE_LIMIT)
    except Exception as broken:
        return f"<the text of this exception cannot be read: {type(broken).__name__}>"


def traceback_text(exc: BaseException) -> str:
    """Format an exception with its causes; long texts lose their middle."""
    try:
        parts: list[str] = []
        length = 0
        for part in traceback.TracebackException.from_exception(exc, limit=-FRAME_LIMIT).format():
            parts.append(cut(part, TRACEBACK_LIMIT))
            length += len(parts[-1])
            if length > 4 * TRACEBACK_LIMIT:
                parts.append("… more of the chain was left out …\n")
                break
        return cut("".join(parts), TRACEBACK_LIMIT)
    except Exception as broken:
        return f"<the traceback cannot be formatted: {type(broken).__name__}>"


def error_record(exc: BaseException) -> bytes:
    """Encode an exception as the JSON object that an attempt keeps: type, message, traceback."""
    record = {"type": type_name(exc), "message": message(exc), "traceback": traceback_text(exc)}
    clean = {key: text.encode("utf-8", "backslashreplace").decode() for key, text in record.items()}
    return orjson.dumps(clean)
