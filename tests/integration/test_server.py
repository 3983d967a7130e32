"""What JobRail says of the server it is given (SCENARIOS A8)."""

from __future__ import annotations

import logging

import pytest

from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import ServerInfo
from jobrail_django.conf import get_settings
from jobrail_django.upkeep.loop import Upkeep
from tests.servers import RedisServer


def info(**changed) -> ServerInfo:
    return ServerInfo(
        **{"name": "Redis", "version": "7.0.0", "policy": "noeviction", "has_append_only_file": True, **changed}
    )


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"version": "6.2.14"}, "too old"),
        ({"name": "Valkey", "version": "7.0.1"}, "too old"),
        ({"policy": "allkeys-lru"}, "'allkeys-lru'"),
        ({"has_append_only_file": False}, "appendonly is off"),
    ],
)
def test_each_risk_is_named(changed, word):
    (problem,) = info(**changed).problems()

    assert word in problem


def test_good_server_has_no_problem():
    assert info().problems() == []
    assert info(name="Valkey", version="10.0.0").problems() == []


@pytest.mark.django_db
def test_worker_warns_of_eviction_at_its_start(jobrail, caplog):
    with RedisServer(aof=True, options=("--maxmemory-policy", "allkeys-lru")) as server, server.client() as client:
        with caplog.at_level(logging.WARNING, "jobrail_django"):
            Upkeep(Broker(client, "test"), get_settings(), lambda: True).run()

    assert [r.getMessage() for r in caplog.records if r.action == "server_problem"] == [
        "maxmemory-policy is 'allkeys-lru': the server deletes jobs when its memory is short; set it to 'noeviction'."
    ]


def test_user_who_may_not_ask_is_no_fault(jobrail):
    with RedisServer() as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "+@all", "-info")
        with server.client(username="plain", password="pw") as plain:
            assert Broker(plain, "test").server() is None
        assert Broker(client, "test").server() is not None
