"""What holds after every script, whatever it did."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jobrail_django.broker.scripts import Script, load
from jobrail_django.states import FINAL, State

Whole = Mapping[str, Any]
Fields = Mapping[str, Any]

#: The zset that holds a job of each state that waits or runs.
PLACES = {"ready": "ready", "scheduled": "scheduled", "retrying": "retrying", "running": "leases"}

#: Everything that may be under a queue's prefix, and the shared data of the workers.
NAMES = {*PLACES.values(), "changed", "meta", "wake", "job", "key", "slot", "{jobrail}"}

_FINAL = {state.value for state in FINAL}
_STATES = {state.value for state in State}


def jobs_in(state: Whole) -> dict[str, dict[str, Any]]:
    """Return the fields of each job's hash, by its short id."""
    jobs: dict[str, dict[str, Any]] = {}
    for path, value in state.items():
        if path.startswith("job:") and "/" in path:
            job, _, name = path.removeprefix("job:").partition("/")
            jobs.setdefault(job, {})[name] = value
    return jobs


def members(state: Whole, zset: str) -> set[str]:
    """Return the members of a zset."""
    return {path.removeprefix(zset + "/") for path in state if path.startswith(zset + "/")}


def check_state(state: Whole, damaged: Collection[str] = ()) -> None:
    """One place per job, the one of its state; no place holds what is no job; running means leased."""
    jobs = jobs_in(state)
    for job, fields in jobs.items():
        if job not in damaged:
            _check_place(state, job, fields)
            _check_fields(state, job, fields)
    for zset in PLACES.values():
        orphans = members(state, zset) - set(jobs) - set(damaged)
        assert not orphans, f"{zset} holds {orphans}, which are no jobs"
    strange = {path for path in state if path.replace("@", "/").partition("/")[0].partition(":")[0] not in NAMES}
    assert not strange, f"no part of the data model: {strange}"
    assert len(members(state, "wake")) <= 1, "wake holds more than one element"


def _check_place(state: Whole, job: str, fields: Fields) -> None:
    assert fields["state"] in _STATES, f"{job} has the state {fields['state']!r}"
    found = [name for name, zset in PLACES.items() if job in members(state, zset)]
    wanted = [] if fields["state"] in _FINAL else [fields["state"]]
    assert found == wanted, f"{job} is {fields['state']} and is found among the {found}"


def _check_fields(state: Whole, job: str, fields: Fields) -> None:
    ended, waits = fields["state"] in _FINAL, fields["state"] in ("scheduled", "retrying")
    assert bool(fields.get("finished")) == ended, f"{job} is {fields['state']}, finished={fields.get('finished')!r}"
    assert bool(fields.get("due")) == waits, f"{job} is {fields['state']}, due={fields.get('due')!r}"
    if waits:
        assert int(fields["due"]) == state[f"{fields['state']}/{job}"], (
            f"{job} is due at another time than its place says"
        )
    if fields["state"] == "running":
        assert fields["claim"], f"{job} runs without a claim"
        assert int(fields["token"]) <= int(fields["rev"]), f"{job} has a token from the future"
        assert fields.get("alone", "") == "", f"{job} runs and is still marked alone"
    attempts, losses = (int(limit) for limit in fields["limits"].split(","))
    assert int(fields.get("attempts", 0)) <= attempts, f"{job} had more attempts than allowed"
    assert int(fields.get("losses", 0)) <= losses, f"{job} was lost more often than allowed"


def check_call(script: Script, before: Whole, after: Whole, damaged: Collection[str] = ()) -> None:
    """A rev only grows; what changes raises it and is noted for the mirror; states move as the header says."""
    was, now = jobs_in(before), jobs_in(after)
    assert set(was) <= set(now), f"{script.value} removed the jobs {set(was) - set(now)}"
    legal = _reachable(script)
    for job, fields in now.items():
        if job in damaged or was.get(job) == fields:
            continue
        old, new = was.get(job, {}), fields
        assert int(new["rev"]) >= int(old.get("rev", 0)), f"{script.value} took {job} back to an older rev"
        source, target = old.get("state", "none"), new["state"]
        if source != target:
            assert (source, target) in legal, f"{script.value} took {job} from {source} to {target}"
        if new["rev"] == old.get("rev"):
            _check_quiet_change(script, job, old, new)
        else:
            assert f"changed/{job}" in after, f"{script.value} changed {job} and the mirror does not learn of it"
    assert int(after.get("meta/seq", 0)) >= int(before.get("meta/seq", 0)), "the sequence went back"


def _check_quiet_change(script: Script, job: str, old: Fields, new: Fields) -> None:
    """Without a new rev, a heartbeat may note the start, and stored attempts may go."""
    names = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    allowed = {
        Script.HEARTBEAT: names <= {"ran"},
        Script.MIRRORED: all(name[:2] in ("a:", "e:") and name not in new for name in names),
    }
    assert allowed.get(script, False), f"{script.value} changed {names} of {job} without a new rev"


def _reachable(script: Script) -> set[tuple[str, str]]:
    """Return the changes of a header and all that two or three of them make in one call."""
    steps = set(load(script).header.changes)
    found = set(steps)
    for _ in steps:
        found |= {(source, target) for source, middle in found for start, target in steps if middle == start}
    return found
