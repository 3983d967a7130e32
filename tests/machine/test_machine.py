"""The state machine over the real scripts."""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import QueueMachine

COMMON = settings(
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
CI = settings(COMMON, max_examples=100, stateful_step_count=60)
LONG = settings(COMMON, max_examples=2_000, stateful_step_count=100)


@pytest.fixture
def machine(redis_client: redis.Redis, prefix: str) -> type[QueueMachine]:
    """The machine on this test's server; a printed failure is replayed with `state = machine()`."""
    return QueueMachine.on(redis_client, prefix)


@pytest.mark.timeout(900)  # a failure takes up to five minutes to shrink
def test_scripts_agree_with_the_model(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(machine, settings=CI)

    assert machine.steps >= 2_000


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_scripts_agree_with_the_model_for_long(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
