"""Loads the Lua scripts of `lua/` and reads their headers."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources

_INCLUDE = re.compile(r"^--@include (.+)$", re.MULTILINE)
_HEADER = re.compile(r"\A#!lua[^\n]*\n--\[\[\n(?P<name>\w+): (?P<body>.*?)\n\]\]\n", re.DOTALL)
_SECTION = re.compile(r"^(KEYS|ARGV|RETURNS|CHANGES|COST)$", re.MULTILINE)


class Script(str, Enum):
    """The scripts; each is `lua/<value>.lua` and the `Broker` method of that name."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    SETTLE = "settle"
    HEARTBEAT = "heartbeat"
    PROMOTE = "promote"
    REAP = "reap"
    CANCEL = "cancel"
    RETRY = "retry"
    PAUSE = "pause"
    PURGE = "purge"
    STATS = "stats"
    CHANGES = "changes"
    MIRRORED = "mirrored"
    OPEN_EPOCH = "open_epoch"
    BEAT = "beat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A script's header. `keys` are (name, type, access), `changes` are (source, target)."""

    name: str
    flags: tuple[str, ...]
    keys: tuple[tuple[str, str, str], ...]
    arguments: tuple[str, ...]
    statuses: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A script ready to send: its text with all includes, and the SHA1 that Redis knows it by."""

    text: str
    sha: str
    header: Header


def _read(name: str) -> str:
    return (resources.files("jobrail_django") / "lua" / name).read_text(encoding="utf-8")


def parse_header(text: str) -> Header:
    """Read the header of a script.

    Raises:
        ValueError: the header is missing or has not the form that `lua/README.md` describes.
    """
    match = _HEADER.match(text)
    if not match:
        raise ValueError("the script does not begin with '#!lua' and a header")
    parts = _SECTION.split(match["body"])
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    missing = {"KEYS", "ARGV", "RETURNS", "CHANGES", "COST"} - set(sections)
    if missing:
        raise ValueError(f"the header of {match['name']} lacks {sorted(missing)}")
    keys = re.findall(r"^  \d+ (\w+) +(\w+) .*?(\w+)$", sections["KEYS"], re.MULTILINE)
    first_line = text.split("\n", 1)[0]
    return Header(
        name=match["name"],
        flags=tuple(first_line.partition("flags=")[2].split(",")) if "flags=" in first_line else (),
        keys=tuple(keys),
        arguments=tuple(re.findall(r"^  \d+ (\w+) ", sections["ARGV"], re.MULTILINE)),
        statuses=tuple(re.findall(r"^  ([A-Z_]+)\b", sections["RETURNS"], re.MULTILINE)),
        changes=tuple(re.findall(r"^  (\w+) → (\w+)$", sections["CHANGES"], re.MULTILINE)),
    )


@cache
def load(script: Script) -> Source:
    """Read a script with its includes. The result is kept for the life of the process."""
    text = _read(f"{script.value}.lua")
    header = parse_header(text)

    def included(match: re.Match[str]) -> str:
        return "\n".join(_read(f"include/{name}.lua") for name in match[1].split())

    text = _INCLUDE.sub(included, text)
    return Source(text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), header=header)
