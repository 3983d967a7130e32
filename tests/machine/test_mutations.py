"""That the tests can fail: each guard of the scripts is missed by one of them when it is gone."""

from __future__ import annotations

import pytest

from jobrail_django.broker.scripts import Script, load

from .guards import GUARDS, Guard
from .mutations import try_all, without


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: f"{guard.file}: {guard.what}")
def test_each_guard_is_where_the_list_says(guard: Guard) -> None:
    before = {script: load(script).text for script in Script}

    with without(guard):
        changed = [script for script in Script if load(script).text != before[script]]

    assert changed
    assert {script: load(script).text for script in Script} == before


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_each_guard_is_missed_when_it_is_gone() -> None:
    unnoticed = [found.guard for found in try_all(GUARDS, tests="if missed") if not found.noticed]

    assert unnoticed == []
