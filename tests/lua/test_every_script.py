"""What every script has to stand up to: keys of another type, a full Redis, a prefix that strays, a lost cache."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import redis

from jobrail_django.broker.keys import QueueKeys
from jobrail_django.broker.scripts import Script, load
from jobrail_django.errors import BrokerUnavailable, ScriptError

from ..servers import RedisServer
from .cases import CASES
from .rig import Rig, snapshot

SCRIPTS = [pytest.param(script, id=script.value) for script in Script]

#: Scripts that bring new work; a full Redis refuses them and lets all others pass.
BRING_WORK = {Script.ENQUEUE, Script.RETRY}

#: Keys that a script overwrites whatever they are.
OVERWRITTEN = {(Script.BEAT, 2)}


@pytest.fixture(scope="module")
def own_client() -> Iterator[redis.Redis]:
    """A server whose settings a test may change: one node in cluster mode that owns all slots."""
    with RedisServer(cluster=True) as server, server.client() as client:
        yield client


@pytest.fixture
def own_rig(own_client: redis.Redis) -> Iterator[Rig]:
    rig = Rig(own_client, f"test-{uuid.uuid4().hex[:12]}")
    yield rig
    own_client.config_set("maxmemory", 0)
    for key in own_client.scan_iter(match=f"{rig.prefix}:*"):
        own_client.delete(key)


def test_every_script_has_a_case() -> None:
    assert set(CASES) == set(Script)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs_where_all_slots_are_checked_h9(own_rig: Rig, script: Script) -> None:
    case = CASES[script]
    case.seed(own_rig)

    replies = case.run(own_rig, script)

    assert {reply[0] for reply in replies} <= set(load(script).header.statuses)


def _strays() -> list[object]:
    bare = {script for script, case in CASES.items() if case.bare}
    return [pytest.param(script, id=script.value) for script in Script if script not in bare]


@pytest.mark.parametrize("script", _strays())
def test_script_that_strays_to_another_slot_is_refused_and_writes_nothing(own_rig: Rig, script: Script) -> None:
    case = CASES[script]
    case.seed(own_rig)
    before = own_rig.state()
    other = QueueKeys(own_rig.prefix, "another").prefix

    # Its keys are this queue's, and the jobs it then names by the prefix are another's.
    with pytest.raises(ScriptError, match="same slot|non local key"):
        case.run(own_rig, script, prefix=other)

    assert own_rig.state() == before


@pytest.mark.parametrize(
    ("script", "position"),
    [
        pytest.param(script, i + 1, id=f"{script.value}-{name}")
        for script in Script
        for i, (name, _, _) in enumerate(load(script).header.keys)
        if (script, i + 1) not in OVERWRITTEN
    ],
)
def test_key_of_another_type_fails_before_the_first_write(rig: Rig, script: Script, position: int) -> None:
    case = CASES[script]
    case.seed(rig)
    key = rig.key_of(script, position)
    rig.client.delete(key)
    rig.client.sadd(key, "a set, which no key is")
    before = rig.state()

    with pytest.raises(ScriptError, match="WRONGTYPE"):
        case.run(rig, script)

    assert rig.state() == before


@pytest.mark.parametrize("script", SCRIPTS)
def test_full_redis_refuses_new_work_and_lets_work_end_h8(own_rig: Rig, script: Script) -> None:
    case = CASES[script]
    case.seed(own_rig)
    before = own_rig.state()
    own_rig.client.config_set("maxmemory", 1)

    if script in BRING_WORK:
        with pytest.raises(BrokerUnavailable, match="maxmemory"):
            case.run(own_rig, script)
        assert own_rig.state() == before
    else:
        assert {reply[0] for reply in case.run(own_rig, script)} <= set(load(script).header.statuses)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_that_redis_has_forgotten_is_sent_again_h5(own_rig: Rig, script: Script) -> None:
    case = CASES[script]
    case.seed(own_rig)
    own_rig.client.script_flush()

    replies = case.run(own_rig, script)

    assert {reply[0] for reply in replies} <= set(load(script).header.statuses)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_leaves_other_queues_and_prefixes_alone(rig: Rig, redis_client: redis.Redis, script: Script) -> None:
    stranger = Rig(redis_client, f"{rig.prefix}0")
    CASES[script].seed(stranger)
    before = snapshot(redis_client, stranger.prefix)
    CASES[script].seed(rig)

    CASES[script].run(rig, script)

    assert snapshot(redis_client, stranger.prefix) == before
    for key in redis_client.scan_iter(match=f"{stranger.prefix}:*"):
        redis_client.delete(key)
