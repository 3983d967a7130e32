"""`docs/scenarios.md` names tests: each of them exists, and so does each number's row once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "scenarios.md"
ROW = re.compile(r"\| ([A-N]\d+) \| [^|]+ \| ([^|]+) \| ?([^|]*)\|")


def rows() -> list[tuple[str, str, str]]:
    """Return number, tests and what is still to come of every row."""
    found = [
        ROW.fullmatch(line) for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [A-N]\d", line)
    ]
    assert all(found), "every row has four columns"
    return [match.groups() for match in found if match]  # type: ignore[misc]


def names_in(file: Path) -> set[str]:
    """Return the names of a file's tests, those in classes as Class::name."""

    def within(node: ast.Module | ast.ClassDef, prefix: str) -> set[str]:
        names = set()
        for child in node.body:
            if isinstance(child, ast.ClassDef):
                names |= within(child, f"{prefix}{child.name}::")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(prefix + child.name)
        return names

    return within(ast.parse(file.read_text(encoding="utf-8")), "")


def test_every_number_has_one_row_with_a_test_or_a_word_why_not():
    numbers = Counter(number for number, _, _ in rows())

    assert len(numbers) > 100
    assert set(numbers.values()) == {1}
    assert [number for number, tests, later in rows() if "::" not in tests and not later.strip()] == []


@pytest.mark.parametrize("file", sorted({name for _, tests, _ in rows() for name in re.findall(r"`([^`:]+)::", tests)}))
def test_every_named_test_exists(file: str):
    named = {name for _, tests, _ in rows() for name in re.findall(rf"`{re.escape(file)}::([^`]+)`", tests)}

    assert named - names_in(TESTS / file) == set()
