"""Headers, bodies, records, broker and README say the same."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from enum import Enum
from importlib import resources
from pathlib import Path

import pytest
import redis

from jobrail_django.broker.broker import Broker
from jobrail_django.broker.records import CancelStatus, ClaimStatus, EnqueueStatus, RetryStatus, SettleStatus
from jobrail_django.broker.scripts import Header, Script, load, parse_header
from jobrail_django.states import State

from ..servers import RedisServer, server_binary
from .cases import CASES
from .rig import Rig

SCRIPTS = [pytest.param(script, id=script.value) for script in Script]

LUA = Path(str(resources.files("jobrail_django").joinpath("lua")))
INCLUDES = sorted((LUA / "include").glob("*.lua"))

#: Statuses of one answer among many, by their script.
ENUMS: dict[Script, type[Enum]] = {
    Script.ENQUEUE: EnqueueStatus,
    Script.CLAIM: ClaimStatus,
    Script.SETTLE: SettleStatus,
    Script.CANCEL: CancelStatus,
    Script.RETRY: RetryStatus,
}

#: Words in capitals that are no statuses: options of commands, and an error's code.
OPTIONS = {"NX", "PX", "BYSCORE", "LIMIT", "WITHSCORES", "WRONGTYPE"}

#: Commands that only look at a key's type, or count.
LOOKS = {"ZCARD", "HLEN", "LLEN", "STRLEN"}


def text_of(script: Script) -> str:
    return (LUA / f"{script.value}.lua").read_text(encoding="utf-8")


def body_of(text: str) -> str:
    """Return a script without its comments."""
    return re.sub(r"--[^\n]*", "", re.sub(r"--\[\[.*?\]\]", "", text, flags=re.DOTALL))


def section(text: str, name: str) -> str:
    found = re.search(rf"^{name}\n(.*?)(?=^[A-Z]+$|^\]\])", text, re.DOTALL | re.MULTILINE)
    assert found, f"no section {name}"
    return found[1]


def includes_of(text: str) -> list[str]:
    found = re.search(r"^--@include (.+)$", text, re.MULTILINE)
    return found[1].split() if found else []


def numbers_used(body: str, table: str) -> set[int]:
    """Return the positions of KEYS or ARGV that a body names, in loops from one number to another too."""
    used = {int(number) for number in re.findall(rf"{table}\[(\d+)\]", body)}
    for match in re.finditer(rf"{table}\[i\]", body):
        loops = re.findall(r"for i = (\d+), (\d+) do", body[: match.start()])
        assert loops, f"{table}[i] outside a loop with fixed ends"
        used |= set(range(int(loops[-1][0]), int(loops[-1][1]) + 1))
    for first, last in re.findall(rf"unpack\({table}, (\d+), (\d+)\)", body):
        used |= set(range(int(first), int(last) + 1))
    return used


# The list of scripts


def test_scripts_are_the_files() -> None:
    assert {path.stem for path in LUA.glob("*.lua")} == {script.value for script in Script}


def test_scripts_are_methods_of_the_broker() -> None:
    methods = {name for name, _ in inspect.getmembers(Broker, inspect.isfunction)}

    assert {script.value for script in Script} <= methods
    for script in Script:
        assert f"Script.{script.name}" in inspect.getsource(getattr(Broker, script.value))


def test_scripts_are_the_list_of_the_readme() -> None:
    readme = (LUA / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", readme.partition("## The scripts")[2], re.MULTILINE)

    assert listed == [script.value for script in Script]


def test_readme_names_every_field_of_a_job_that_scripts_write() -> None:
    readme = (LUA / "README.md").read_text(encoding="utf-8")
    text = "".join(body_of(load(script).text) for script in Script)
    put = set(re.findall(r'put\(fields, "([a-z]+)",', text))
    listed = set(re.findall(r"`([a-z]+)`", readme.partition("### `job:<id>`")[2].partition("An attempt reads")[0]))

    assert put and put <= listed


@pytest.mark.parametrize("script", SCRIPTS)
def test_readme_names_the_script_as_a_writer_of_each_key_that_its_header_says_it_writes(script: Script) -> None:
    readme = (LUA / "README.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| `(?:<prefix>:\{jobrail\}:)?([a-z]+)(?::<\w+>)?` \| \w+ \| [^|]* \| ([^|]*) \|", readme, re.M)
    )

    for name, _, access in load(script).header.keys:
        writers = rows[name]
        named = script.value in re.findall(r"\w+", writers)
        assert named == ("w" in access), f"README on {name}: {writers}"


# Headers


@pytest.mark.parametrize("script", SCRIPTS)
def test_header_is_read(script: Script) -> None:
    header = load(script).header

    assert header.name == script.value
    assert header.keys
    assert header.statuses
    numbered = [len(re.findall(r"^  \d+ ", section(text_of(script), name), re.MULTILINE)) for name in ("KEYS", "ARGV")]
    assert numbered == [len(header.keys), len(header.arguments)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_header_numbers_and_words_are_known(script: Script) -> None:
    text = text_of(script)

    for name in ("KEYS", "ARGV"):
        numbers = [int(number) for number in re.findall(r"^  (\d+) ", section(text, name), re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))
    for _, kind, access in load(script).header.keys:
        assert kind in {"zset", "hash", "list", "string"}
        assert access in {"r", "w", "rw"}
    assert set(re.findall(r"^    \w+ +(\w+) |^  \d+ \w+ +(\w+) ", section(text, "ARGV"), re.MULTILINE)) <= {
        (kind, "") for kind in ("string", "int", "bytes")
    } | {("", kind) for kind in ("string", "int", "bytes")}
    states = {state.value for state in State} | {"none"}
    assert {state for change in load(script).header.changes for state in change} <= states


@pytest.mark.parametrize("script", SCRIPTS)
def test_lines_fit(script: Script) -> None:
    code = text_of(script).partition("]]\n")[2]

    assert max(len(line) for line in code.splitlines()) <= 120


def test_header_with_a_section_missing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"lacks \['COST'\]"):
        parse_header(text_of(Script.PAUSE).replace("\nCOST\n", "\n"))


def test_header_that_is_not_at_the_top_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin"):
        parse_header("\n" + text_of(Script.PAUSE))


# Headers against bodies


@pytest.mark.parametrize("script", SCRIPTS)
def test_keys_of_the_body_are_those_of_the_header(script: Script) -> None:
    used = numbers_used(body_of(text_of(script)), "KEYS")

    assert used == set(range(1, len(load(script).header.keys) + 1))


@pytest.mark.parametrize("script", SCRIPTS)
def test_arguments_of_the_body_are_those_of_the_header(script: Script) -> None:
    used = numbers_used(body_of(text_of(script)), "ARGV")

    assert used == set(range(1, len(load(script).header.arguments) + 1))


@pytest.mark.parametrize("script", SCRIPTS)
def test_repeated_arguments_of_the_body_are_those_of_the_header(script: Script) -> None:
    text = text_of(script)
    body = body_of(text)
    declared = len(re.findall(r"^    \w+ +\w+ ", section(text, "ARGV"), re.MULTILINE))
    checked = re.search(r"#ARGV ~= (\d+) \+ (\w+) \* count", body)
    if not checked:
        assert declared == 0
        return
    fields = re.search(r"local FIELDS = (\d+)", body)
    each = int(checked[2]) if checked[2].isdigit() else int(fields[1]) if fields else 0

    assert (int(checked[1]), each) == (len(load(script).header.arguments), declared)
    if "ARGV[at + " in body:
        assert {int(number) for number in re.findall(r"ARGV\[at \+ (\d+)\]", body)} == set(range(1, declared + 1))


def statuses_in(text: str) -> set[str]:
    """Return the words in capitals of a body that are no commands and no options."""
    body = re.sub(r'(?:redis\.p?call|read)\("[A-Z]+"', "", body_of(text))
    return set(re.findall(r'"([A-Z][A-Z_]+)"', body)) - OPTIONS


@pytest.mark.parametrize("script", SCRIPTS)
def test_statuses_of_the_body_are_those_of_the_header(script: Script) -> None:
    text = text_of(script)
    used = statuses_in(text)
    for name in includes_of(text):
        if name != "take" or script is Script.CLAIM:  # settle's header refers to claim's
            used |= statuses_in((LUA / "include" / f"{name}.lua").read_text(encoding="utf-8"))
    declared = set(re.findall(r"\b[A-Z][A-Z_]+\b", section(text, "RETURNS")))

    assert used == declared
    assert set(load(script).header.statuses) <= declared


@pytest.mark.parametrize("script", ENUMS, ids=str)
def test_statuses_are_those_of_the_records(script: Script) -> None:
    declared = set(re.findall(r"\b[A-Z][A-Z_]+\b", section(text_of(script), "RETURNS")))
    known = {member.value for member in ENUMS[script]}
    if script is Script.CLAIM:
        known -= {ClaimStatus.NONE.value}  # no claim was made

    assert declared | {"OK"} == known | {"OK"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_flags_let_work_end_and_no_more_begin_in_a_full_redis(script: Script) -> None:
    header = load(script).header
    writes = any("w" in access for _, _, access in header.keys)

    wanted: tuple[str, ...] = ("allow-oom",) if writes else ("no-writes",)
    if script in (Script.ENQUEUE, Script.RETRY):
        wanted = ()
    assert header.flags == wanted


# What bodies do to keys, seen on a server


@pytest.fixture(scope="module")
def watched() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def commands_of(script: Script, server: RedisServer) -> list[tuple[str, list[tuple[str, set[str]]]]]:
    """Return the commands that a script's case runs, each with its keys and what it does to them."""
    found = []
    with server.client() as client, server.client() as other, other.monitor() as monitor:
        rig = Rig(client, script.value)
        CASES[script].seed(rig)
        client.delete(rig.keys.wake)
        client.echo("seeded")
        CASES[script].run(rig, script)
        client.echo("done")
        watching = False
        for entry in monitor.listen():
            parts = entry["command"].split(" ")
            watching = watching or parts == ["ECHO", "seeded"]
            if parts == ["ECHO", "done"]:
                break
            if watching and entry["client_type"] == "lua" and parts[0] != "TIME":
                keys = client.execute_command("COMMAND GETKEYSANDFLAGS", *parts)
                found.append((parts[0], [(key.decode(), {flag.decode() for flag in flags}) for key, flags in keys]))
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_keys_are_read_and_written_as_the_header_says(watched: RedisServer, script: Script) -> None:
    rig = Rig(watched.client(), script.value)
    header: Header = load(script).header
    names = {rig.key_of(script, i + 1): (name, access) for i, (name, _, access) in enumerate(header.keys)}
    looked, read, written = set(), set(), set()
    for command, keys in commands_of(script, watched):
        for key, flags in keys:
            name = names.get(key, ("", ""))[0]
            if not name:
                assert re.search(r"\}:(job|key):", key), f"{command} touches {key}, which no header names"
                continue
            if "RO" not in flags:
                written.add(name)
            if command in LOOKS:
                looked.add(name)
            elif "RO" in flags or "access" in flags:
                read.add(name)

    assert written == {name for name, access in names.values() if "w" in access}
    assert read <= {name for name, access in names.values() if "r" in access} <= read | looked


def test_script_that_writes_is_refused_where_its_flag_says_it_does_not(watched: RedisServer) -> None:
    text = load(Script.PAUSE).text.replace("#!lua flags=allow-oom", "#!lua flags=no-writes")

    with watched.client() as client, pytest.raises(redis.ResponseError, match="[Ww]rite"):
        client.eval(text, 3, "{q}ready", "{q}meta", "{q}wake", "1")


# Includes


@pytest.mark.parametrize("path", INCLUDES, ids=lambda path: path.stem)
def test_include_defines_functions_and_constants_only_and_says_which(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    top = [line for line in body_of(text).splitlines() if line and not line.startswith((" ", "end"))]
    defined = re.findall(r"^local function (\w+)", text, re.MULTILINE)

    assert text.startswith("--[[\n")
    assert all(re.match(r"local function \w+\(|local [A-Z, ]+ = [\d, ]+$", line) for line in top), top
    head = text.partition("]]")[0]
    assert any(f"{name}(" in head for name in defined)
    assert "KEYS[" not in text and "ARGV[" not in text


@pytest.mark.parametrize("script", SCRIPTS)
def test_includes_are_used_and_listed_before_what_needs_them(script: Script) -> None:
    names = includes_of(text_of(script))
    texts = {name: (LUA / "include" / f"{name}.lua").read_text(encoding="utf-8") for name in names}
    defined = {function: name for name in names for function in re.findall(r"^local function (\w+)", texts[name], re.M)}
    bodies = {**{name: body_of(text) for name, text in texts.items()}, "": body_of(text_of(script))}

    used = set()
    for user, body in bodies.items():
        for function, name in defined.items():
            if name != user and re.search(rf"\b{function}\(", body):
                used.add(name)
                assert user == "" or names.index(name) < names.index(user), f"{user} needs {name} before it"
    assert used == set(names)
    known = {path.stem for path in INCLUDES}
    assert set(names) <= known


def test_every_include_is_included() -> None:
    assert {name for script in Script for name in includes_of(text_of(script))} == {path.stem for path in INCLUDES}


# Servers


def _servers() -> list[object]:
    redis_server = shutil.which("redis-server")
    missing = pytest.mark.skipif(redis_server is None, reason="redis-server is not on PATH")
    return [pytest.param(server_binary(), id="default"), pytest.param(redis_server, id="redis-server", marks=missing)]


@pytest.mark.parametrize("binary", _servers())
def test_every_script_compiles(binary: str) -> None:
    with RedisServer(binary=binary) as server, server.client() as client:
        for script in Script:
            assert client.script_load(load(script).text) == load(script).sha
