"""How exceptions are recorded: bounded, readable, whatever they do."""

from __future__ import annotations

import json
import sys
import time

import pytest

from jobrail_django.worker.failure import (
    FRAME_LIMIT,
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    error_record,
    message,
    traceback_text,
    type_name,
)

#: Room for the mark of a cut.
MARK = 60


def raised(exc: BaseException) -> BaseException:
    """The exception with a traceback."""
    try:
        raise exc
    except BaseException as found:
        return found


def record(exc: BaseException) -> dict[str, str]:
    return json.loads(error_record(exc))


def test_record_has_type_message_and_traceback():
    found = record(raised(ValueError("no row 5")))

    assert found["type"] == "builtins.ValueError"
    assert found["message"] == "no row 5"
    assert found["traceback"].startswith("Traceback (most recent call last):\n")
    assert found["traceback"].endswith("ValueError: no row 5\n")
    assert "raise exc" in found["traceback"]


def test_causes_are_told_in_order():
    try:
        try:
            raise KeyError("first")
        except KeyError as exc:
            raise ValueError("second") from exc
    except ValueError as exc:
        text = record(exc)["traceback"]

    assert text.index("KeyError: 'first'") < text.index("direct cause") < text.index("ValueError: second")


def test_long_message_keeps_head_and_tail():
    # K4
    exc = raised(ValueError("head" + "x" * 50_000_000 + "tail"))

    before = time.monotonic()
    found = record(exc)

    assert time.monotonic() - before < 5
    assert found["message"].startswith("head")
    assert found["message"].endswith("tail")
    assert "characters cut" in found["message"]
    assert len(found["message"]) <= MESSAGE_LIMIT + MARK
    assert len(found["traceback"]) <= TRACEBACK_LIMIT + MARK


def test_chain_of_500_causes_is_bounded():
    exc: BaseException = ValueError("0")
    for i in range(1, 500):
        try:
            raise ValueError(f"cause {i} " + "x" * 1000) from exc
        except ValueError as found:
            exc = found

    text = record(exc)["traceback"]

    assert len(text) <= TRACEBACK_LIMIT + MARK
    assert "characters cut" in text
    assert text.startswith("ValueError: 0\n")


def test_end_of_a_long_chain_is_kept():
    # The exception itself stands last: it is what people look for.
    exc: BaseException = ValueError("0")
    for i in range(1, 500):
        try:
            raise ValueError(f"cause {i} " + "x" * 1000) from exc
        except ValueError as found:
            exc = found

    assert "ValueError: cause 499 x" in record(exc)["traceback"]


@pytest.mark.parametrize("size", [1, TRACEBACK_LIMIT // 2, TRACEBACK_LIMIT - 200, TRACEBACK_LIMIT, 200_001])
def test_mark_counts_what_was_cut(size):
    exc = ValueError("x" * size)
    whole = f"ValueError: {exc}\n"

    text = traceback_text(exc)

    if len(whole) <= TRACEBACK_LIMIT:
        assert text == whole
    else:
        head, mark, tail = text.split("\n", 2)
        assert len(head) + len(tail) + int(mark.split()[1]) == len(whole)
        assert whole.startswith(head)
        assert whole.endswith(tail)


def test_cycle_of_causes_ends():
    first, second = raised(ValueError("a")), raised(ValueError("b"))
    first.__cause__, second.__cause__ = second, first

    assert "ValueError: a" in traceback_text(first)


def test_recursion_keeps_the_innermost_frames():
    def down(n: int) -> None:
        if n == 0:
            raise ValueError("bottom")
        down(n - 1)

    try:
        down(400)
    except ValueError as exc:
        text = traceback_text(exc)

    assert text.count("in down") + text.count("Previous line repeated") <= FRAME_LIMIT
    assert 'raise ValueError("bottom")' in text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="new in Python 3.11")
def test_group_of_exceptions_is_shown_with_its_members():
    group = ExceptionGroup("several", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])  # noqa: F821

    text = record(raised(group))["traceback"]

    assert "ValueError: one" in text
    assert "KeyError: 'two'" in text


class Local(Exception):
    class Inner(Exception):
        pass


def test_type_is_module_and_qualified_name():
    class Here(Exception):
        pass

    assert type_name(Local.Inner()) == f"{__name__}.Local.Inner"
    assert type_name(Here()).endswith("test_type_is_module_and_qualified_name.<locals>.Here")


def test_long_type_fits_its_column():
    assert len(type_name(type("X" * 1000, (Exception,), {})())) == 255


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), KeyboardInterrupt(), RecursionError()])
def test_text_that_cannot_be_read_is_said_so(error):
    class Mute(Exception):
        def __str__(self) -> str:
            raise error

    found = record(raised(Mute()))

    assert found["message"] == f"<the text of this exception cannot be read: {type(error).__name__}>"
    assert "raise exc" in found["traceback"] or "cannot be formatted" in found["traceback"]


def test_text_of_no_unicode_is_escaped():
    found = record(raised(ValueError("a\ud800b\0c")))

    assert found["message"] == "a\\ud800b\0c"
    error_record(raised(ValueError("\0"))).decode()


def test_empty_message_is_empty():
    assert message(ValueError()) == ""


def test_source_that_is_gone_does_no_harm():
    code = compile("def f(): raise ValueError('gone')", "/nonexistent/file.py", "exec")
    space: dict[str, object] = {}
    exec(code, space)

    try:
        space["f"]()  # type: ignore[operator]
    except ValueError as exc:
        assert 'File "/nonexistent/file.py", line 1, in f' in traceback_text(exc)
