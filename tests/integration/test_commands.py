"""The management commands: what they print, what they refuse, and how they exit."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import CommandError
from django.db import connection

from jobrail_django import enqueue, enqueue_many
from jobrail_django.broker.broker import Broker
from jobrail_django.states import State

from ..probes import tasks
from ..probes.child import eventually
from ..servers import RedisServer, free_port
from .rail import Rail

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> str:
    """Call a command as from a shell, in this process; returns what it printed."""
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=out)
    return out.getvalue()


def refused(*arguments: str) -> str:
    """Call a command that has to fail; returns the text of its CommandError."""
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    return str(caught.value)


# jobrail_stats


def test_stats_are_a_table_with_one_line_a_queue(broker: Broker):
    enqueue_many(tasks.ok, [(1,), (2,), (3,)])
    Rail(broker).claim()
    tasks.mail.using(run_after=60).enqueue("a@b.c")

    header, first, second = run("jobrail_stats").splitlines()

    names = header.split()
    assert names[:7] == ["queue", "ready", "scheduled", "retrying", "running", "changed", "paused"]
    assert dict(zip(names, first.split(), strict=True)) | {"oldest_ready_ms": "", "lag_ms": ""} == {
        "queue": "default",
        "ready": "2",
        "scheduled": "0",
        "retrying": "0",
        "running": "1",
        "changed": "3",
        "paused": "False",
        "oldest_ready_ms": "",
        "lag_ms": "",
    }
    assert dict(zip(names, second.split(), strict=True))["scheduled"] == "1"
    assert len(header) == len(first) == len(second), "columns are aligned"


def test_stats_as_json_are_for_programs(broker: Broker):
    enqueue(tasks.ok)

    found = json.loads(run("jobrail_stats", "--json"))

    assert list(found) == ["default", "mail"]
    assert (found["default"]["ready"], found["default"]["paused"], found["mail"]["ready"]) == (1, False, 0)
    assert found["mail"]["oldest_ready_ms"] is None


def test_stats_of_a_redis_that_is_away(jobrail):
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "REDIS": f"redis://127.0.0.1:{free_port()}/0"}

    assert re.match(
        r"Redis at redis://127.0.0.1:\d+/0 is not available \(.*\); try again later\.", refused("jobrail_stats")
    )


# jobrail_queue


def test_pause_and_resume_say_what_they_did(broker: Broker):
    assert run("jobrail_queue", "pause", "mail") == "Queue 'mail' is paused.\n"
    assert broker.stats("mail").paused is True

    assert run("jobrail_queue", "resume", "mail") == "Queue 'mail' is served again.\n"
    assert broker.stats("mail").paused is False


def test_purge_counts_what_it_cancelled(broker: Broker):
    jobs = enqueue_many(tasks.ok, [(i,) for i in range(120)])

    assert run("jobrail_queue", "purge", "default") == "120 waiting jobs of queue 'default' were cancelled.\n"

    assert {job.refresh().state for job in jobs} == {State.CANCELLED}
    assert run("jobrail_queue", "purge", "default") == "0 waiting jobs of queue 'default' were cancelled.\n"


def test_purge_of_one_job_is_said_in_the_singular(broker: Broker):
    enqueue(tasks.ok)

    assert run("jobrail_queue", "purge", "default") == "1 waiting job of queue 'default' was cancelled.\n"


@pytest.mark.parametrize("action", ["pause", "resume", "purge"])
def test_unknown_queue_is_refused_with_the_closest(jobrail, action):
    text = refused("jobrail_queue", action, "defualt")

    assert text.startswith("Unknown queue 'defualt'; did you mean 'default'?")


@pytest.mark.parametrize("action", ["pause", "resume", "purge"])
def test_queue_command_of_a_redis_that_is_away(jobrail, action):
    jobrail.JOBRAIL = {**jobrail.JOBRAIL, "REDIS": f"redis://127.0.0.1:{free_port()}/0"}

    assert "is not available" in refused("jobrail_queue", action, "default")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: action, name"),
        (["pause"], "the following arguments are required: name"),
        (["stop", "default"], "argument action: invalid choice: 'stop'"),
        (["pause", "default", "mail"], "unrecognized arguments: mail"),
    ],
)
def test_queue_command_needs_an_action_and_a_name(jobrail, arguments, text):
    assert text in refused("jobrail_queue", *arguments)


# jobrail_worker


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-q", "mial"], "Unknown queue 'mial'; did you mean 'mail'?"),
        (["-q", "mail,default"], "Give each its own option: --queue mail --queue default."),
        (["-q", "mail=0"], "The weight '0' of queue 'mail' is not valid"),
        (["-q", "mail", "--queue", "mail=2"], "Queue 'mail' is named twice"),
        (["-p", "0"], "argument -p/--processes: '0' is not a whole number from 1 to 512"),
        (["-p", "1.5"], "argument -p/--processes: '1.5' is not a whole number"),
        (["--processes", "many"], "'many' is not a whole number from 1 to 512"),
        (["-t", "65"], "argument -t/--threads: '65' is not a whole number from 1 to 64"),
        (["--grace", "-1"], "'-1' is not a number of seconds from 0 to 86400"),
        (["--grace", "nan"], "'nan' is not a number of seconds"),
        (["--grace", "1m"], "'1m' is not a number of seconds"),
        (["--max-jobs", "0"], "'0' is not a whole number from 1"),
        (["--max-memory", "1G"], "'1G' is not a whole number from 1"),
        (["--only", "everything"], "argument --only: invalid choice: 'everything'"),
        (["--only", "jobs", "--without", "jobs"], "--only jobs --without jobs leaves nothing to run"),
        (["--only", "jobs", "--without", "upkeep", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_worker_refuses_what_it_cannot_do(jobrail, arguments, text):
    assert text in refused("jobrail_worker", *arguments)


def test_worker_without_a_redis_setting_says_what_to_write(jobrail):
    jobrail.JOBRAIL = {}

    assert "JOBRAIL['REDIS'] is not set; write the alias of a CACHES entry" in refused("jobrail_worker")


def test_worker_with_a_task_module_that_fails_says_which(jobrail, tmp_path, monkeypatch):
    (tmp_path / "brokenworkerapp").mkdir()
    (tmp_path / "brokenworkerapp" / "__init__.py").write_text("")
    (tmp_path / "brokenworkerapp" / "tasks.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    jobrail.INSTALLED_APPS = [*jobrail.INSTALLED_APPS, "brokenworkerapp"]

    assert "'brokenworkerapp.tasks' fails on import with ZeroDivisionError" in refused(
        "jobrail_worker", "--burst", "--skip-checks"
    )


def test_every_command_has_help():
    ours = [name for name, app in get_commands().items() if app == "jobrail_django"]

    assert sorted(ours) == ["jobrail_queue", "jobrail_stats", "jobrail_worker"]
    for name in ours:
        command = load_command_class("jobrail_django", name)
        parser = command.create_parser("manage.py", name)
        assert command.help
        assert all(action.help for action in parser._actions if action.option_strings), name


# In a process of its own


@dataclass
class Started:
    """A command that runs in a process of its own."""

    process: subprocess.Popen[bytes]
    file: Path

    def output(self) -> str:
        return self.file.read_text(errors="replace")

    def end(self) -> tuple[int, str]:
        """Wait for the end; returns exit code and output."""
        return self.process.wait(timeout=90), self.output()


@pytest.fixture
def manage(transactional_db: None, redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start a command as a user does, with other settings of JobRail if given."""
    entry = {name: connection.settings_dict[name] for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT")}
    entry["NAME"] = str(entry["NAME"])
    made: list[Started] = []

    def start(*arguments: str, database: dict[str, Any] | None = None, **settings: Any) -> Started:
        jobrail = {"REDIS": redis_url, "PREFIX": prefix, "QUEUES": ["default", "mail"], **settings}
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "tests.probes.settings",
            "PROBES_JOBRAIL": json.dumps(jobrail),
            "PROBES_DATABASE": json.dumps(entry | (database or {})),
        }
        file = tmp_path / f"output-{len(made)}"
        with open(file, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        made.append(Started(process, file))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


def test_burst_runs_what_is_there_and_ends(manage, broker: Broker):
    jobs = [enqueue(tasks.ok, 1), tasks.mail.enqueue("a@b.c"), tasks.fail_until.enqueue(2)]

    code, output = manage("jobrail_worker", "--burst", "-p", "1").end()

    assert code == 0, output
    assert {job.refresh().state for job in jobs} == {State.SUCCEEDED}
    assert "Worker started" in output
    assert "Worker stopped" in output


def test_burst_serves_the_named_queues_only(manage, broker: Broker):
    served, other = tasks.mail.enqueue("a@b.c"), enqueue(tasks.ok)

    code, output = manage("jobrail_worker", "--burst", "-p", "1", "-q", "mail").end()

    assert code == 0, output
    assert (served.refresh().state, other.refresh().state) == (State.SUCCEEDED, State.READY)


def test_worker_without_tables_says_run_migrate_and_exits_with_4(manage, tmp_path, broker: Broker):
    if connection.vendor != "sqlite":
        pytest.skip("needs a database without tables")
    code, output = manage(
        "jobrail_worker", "--burst", "-p", "1", database={"NAME": str(tmp_path / "empty.sqlite3")}
    ).end()

    assert code == 4, output
    assert "run `manage.py migrate`" in output


def test_wrong_argument_is_a_usage_error_and_no_traceback(manage):
    code, output = manage("jobrail_worker", "-p", "none").end()

    assert code == 2
    assert "usage: " in output
    assert "'none' is not a whole number from 1 to 512" in output
    assert "Traceback" not in output


def test_refusal_exits_with_1_and_no_traceback(manage):
    code, output = manage("jobrail_queue", "pause", "nowhere").end()

    assert code == 1
    assert "CommandError: Unknown queue 'nowhere'" in output
    assert "Traceback" not in output


# N4


@pytest.fixture
def silent() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield listener.getsockname()[1]


@pytest.fixture
def strict() -> Iterator[int]:
    """A server that wants another password."""
    with RedisServer() as server, server.client() as admin:
        admin.config_set("requirepass", "right")
        yield server.port


@pytest.mark.parametrize("state", ["closed", "silent", "strict"])
def test_no_command_shows_the_password_of_redis(manage, request, state):
    port = free_port() if state == "closed" else request.getfixturevalue(state)
    url = f"redis://us3r:s3cr3t-pa55@127.0.0.1:{port}/0?password=s3cr3t-query"
    processes = [
        manage(*arguments, "-v", "3", REDIS=url)
        for arguments in (
            ["check", "--deploy"],
            ["jobrail_stats"],
            ["jobrail_queue", "pause", "default"],
            ["jobrail_stats", "--traceback"],
            ["diffsettings"],
        )
    ]
    worker = manage("jobrail_worker", "-p", "1", "-v", "3", REDIS=url)
    eventually(lambda: all(text in worker.output() for text in ("Redis does not serve", "Upkeep failed")), 40)
    worker.process.send_signal(signal.SIGTERM)

    outputs = [process.end()[1] for process in [*processes, worker]]

    for arguments, output in zip(
        ["check", "stats", "queue", "traceback", "diffsettings", "worker"], outputs, strict=True
    ):
        if arguments != "diffsettings":  # Django's own, which prints every setting
            assert re.findall("s3cr3t|us3r", output) == [], (arguments, output[-3000:])


def test_process_list_shows_no_password(manage, broker: Broker, redis_url: str):
    worker = manage("jobrail_worker", "-p", "1", REDIS=redis_url)
    pid = worker.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        pytest.skip("needs /proc")
    eventually(lambda: len(children.read_text().split()) >= 2)

    for one in [pid, *children.read_text().split()]:
        assert b"redis://" not in Path(f"/proc/{one}/cmdline").read_bytes()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.end()[0] == 0
