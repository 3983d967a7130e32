"""How values look on a page. Whatever comes from data is escaped here or by the template, never marked safe."""

from __future__ import annotations

import json
from datetime import datetime

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..querysets import cut
from ..states import State

#: Characters of a long value on a page; the whole of it can be downloaded.
SHOWN = 16_000

_STATES = {state.value for state in State}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def pill(state: str) -> SafeString:
    """Show a state in its colour; a word that is no state has none."""
    kind = state if state in _STATES else "unknown"
    return format_html('<span class="jobrail-state jobrail-{}">{}</span>', kind, state.replace("_", " "))


def identifier(job_id: object) -> SafeString:
    """Show an id by its beginning and its end, the whole of it as its title.

    Jobs enqueued in the same minute begin alike, so the beginning alone would not tell them apart.
    """
    text = str(job_id)
    return format_html('<span class="jobrail-id" title="{}">{}…{}</span>', text, text[:8], text[-6:])


def age(moment: datetime | None) -> SafeString | str:
    """Show how long ago a moment was, in its largest unit, with the moment as its title."""
    if moment is None:
        return "–"
    now = timezone.now() if timezone.is_aware(moment) else datetime.now()
    text = period((now - moment).total_seconds())
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), moment.isoformat(" "), text)


def stamp(moment: datetime | None) -> str:
    """Write a moment to the millisecond, in the current time zone."""
    if moment is None:
        return ""
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return local.isoformat(" ", "milliseconds")


def period(seconds: float) -> str:
    """Write a period of time in its largest unit, "in …" when it is still to come."""
    if seconds < 0:
        return f"in {period(-seconds)}"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds * 1000)} ms"


def duration(start: datetime | None, end: datetime | None) -> str:
    """Write the time between two moments, to the millisecond when short."""
    if start is None or end is None:
        return "–"
    seconds = (end - start).total_seconds()
    return f"{seconds:.3f} s" if 0 <= seconds < 60 else period(seconds)


def pretty(text: str) -> str:
    """Indent JSON for reading; what is too long or no JSON stays as it is. Head and tail of a long value."""
    if len(text) <= SHOWN:
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return cut(text, SHOWN)


def arguments(payload: str) -> str:
    """Show the arguments of an encoded job as JSON, or the payload where it cannot be read so."""
    if len(payload) <= SHOWN:
        try:
            envelope = json.loads(payload)
            text = json.dumps({key: envelope[key] for key in ("args", "kwargs")}, indent=2, ensure_ascii=False)
        except (ValueError, KeyError, TypeError, RecursionError):
            return pretty(payload)
        return cut(text, SHOWN)
    return cut(payload, SHOWN)


def size(text: str | None) -> str:
    """Write the size of a text in characters."""
    return f"{len(text or ''):,} characters".replace(",", " ")
