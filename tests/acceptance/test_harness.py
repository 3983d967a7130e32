"""The harness itself: its check finds what is wrong, and its proxy breaks what it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..integration.rail import Rail
from ..servers import RedisServer
from .harness.conservation import Conservation
from .harness.proxy import CommandReader, Proxy
from .harness.rig import Rig

KEYS = "own:{default}:"


@pytest.fixture
def client(server: RedisServer, proxy: Proxy) -> redis.Redis:
    return redis.Redis(port=proxy.port, protocol=2, socket_timeout=0.5, retry=Retry(NoBackoff(), 0))


DAMAGES: dict[str, Callable[[redis.Redis, str], object]] = {
    "a job is gone": lambda redis, job: (redis.delete(f"{KEYS}job:{job}"), redis.zrem(f"{KEYS}ready", job)),
    "a job is in no place": lambda redis, job: redis.zrem(f"{KEYS}ready", job),
    "a job is in two places": lambda redis, job: redis.zadd(f"{KEYS}scheduled", {job: 1}),
    "a job is in a place of another state": lambda redis, job: redis.hset(f"{KEYS}job:{job}", "state", "running"),
    "a place holds what is no job": lambda redis, job: redis.zadd(f"{KEYS}ready", {"nobody": 1}),
    "a rev went back": lambda redis, job: redis.hset(f"{KEYS}job:{job}", "rev", "0"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_conservation_check_finds_damage(own_rig: Rig, damage: Callable[[redis.Redis, str], object]) -> None:
    rail = Rail(own_rig.broker)
    (job,) = rail.enqueue()
    check = Conservation(own_rig.connect, "own", ["default"])
    check.accept([job], "default")
    with own_rig.connect() as direct:
        check.check(direct)
        assert check.violations == []

        damage(direct, job)
        check.check(direct)
        direct.flushdb()  # the test's own server; the rig's own check shall not see it

    assert len(check.violations) == 1
    own_rig.conservation.violations.clear()


def test_conservation_check_knows_ended_jobs(own_rig: Rig) -> None:
    rail = Rail(own_rig.broker)
    rail.enqueue()
    rail.succeed()
    check = Conservation(own_rig.connect, "own", ["default"])
    with own_rig.connect() as direct:
        (job,) = rail.unmirrored()
        check.accept([job], "default")
        check.check(direct)
        direct.delete(f"{KEYS}job:{job}")
        check.check(direct)  # it had ended
        assert check.violations == []

        with pytest.raises(AssertionError, match="has no row"):
            check.assert_rows_equal_redis(direct)


def test_conservation_watches_all_the_time(own_rig: Rig) -> None:
    before = own_rig.conservation.looks
    time.sleep(0.5)
    assert own_rig.conservation.looks > before


def test_reader_cuts_bytes_into_commands() -> None:
    reader = CommandReader()
    whole = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nPING\r\n"

    found = [command for i in range(len(whole)) for command in reader.feed(whole[i : i + 1])]

    assert found == [("get", whole[:-14]), ("ping", whole[-14:])]


def test_lost_reply_means_a_command_carried_out(server: RedisServer, proxy: Proxy, client: redis.Redis) -> None:
    proxy.lose_replies({"incrby"}, 1)
    proxy.lose_replies({"append"}, 1, silent=True)

    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    with pytest.raises(redis.TimeoutError):
        client.append("text", "x")

    assert (client.get("n"), client.get("text")) == (b"1", b"x")
    assert (proxy.lost["incrby"], proxy.lost["append"]) == (1, 1)


def test_cut_after_the_nth_command(server: RedisServer, proxy: Proxy, client: redis.Redis) -> None:
    proxy.cut_after(3)

    assert [client.incr("n"), client.incr("n")] == [1, 2]
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert proxy.has_cut.wait(1)
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    proxy.restore()

    assert client.get("n") == b"3"


def test_stalled_connections_stay_open_and_mute(server: RedisServer, proxy: Proxy, client: redis.Redis) -> None:
    client.incr("n")
    proxy.stall()
    began = time.monotonic()

    with pytest.raises(redis.TimeoutError):
        client.incr("n")

    assert time.monotonic() - began > 0.4
    assert client.get("n") == b"1"  # over a new connection


def test_delay_slows_each_command(server: RedisServer, proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    proxy.delay_s = 0.1
    began = time.monotonic()

    client.incr("n")

    assert 0.1 <= time.monotonic() - began < 0.5


def test_proxy_leaves_no_thread(server: RedisServer) -> None:
    def own_threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "_forward" in thread.name or thread.name == "proxy"]

    with Proxy(server.port) as proxy, redis.Redis(port=proxy.port, protocol=2) as client:
        client.ping()
        proxy.stall()
        assert own_threads()
    end = time.monotonic() + 5
    while own_threads() and time.monotonic() < end:
        time.sleep(0.01)

    assert own_threads() == []
