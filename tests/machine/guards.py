"""The guards of the scripts, each with the text that takes it out: what `mutations` tries, one at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """One guard. `old` occurs once in the file under `lua/`; `new` in its place takes the guard out.

    `what` says what is no longer so. `in_machine`: the state machine has to notice. The others guard against callers'
    bugs, damaged keys and full memory, which the machine does not make, or against what no caller can tell.
    """

    file: str
    what: str
    old: str
    new: str
    in_machine: bool = True


def _unnoted(file: str, line: str) -> Guard:
    return Guard(file, "a change is noted for the mirror", line, "")


def _uncapped(file: str, cap: str) -> Guard:
    return Guard(file, "the number of items is capped", cap, "false", in_machine=False)


def _unread(file: str, line: str) -> Guard:
    return Guard(file, "keys of another type are noticed before the first write", line, "", in_machine=False)


TAKE, LOSE, DUE = "include/take.lua", "include/lose.lua", "include/due.lua"

GUARDS: tuple[Guard, ...] = (
    # Claim ids and states: who holds a job
    Guard("settle.lua", "an outcome counts under the claim that holds the job",
          'if job.state == "running" and job.claim == out.claim then', 'if job.state == "running" then'),
    Guard("settle.lua", "an outcome counts while the job runs",
          'if job.state == "running" and job.claim == out.claim then', "if job.claim == out.claim then"),
    Guard("settle.lua", "a repeated outcome that ended the job is recognised",
          "local recorded = job.claim == out.claim or", "local recorded ="),
    Guard("settle.lua", "a repeated outcome that did not end the job is recognised",
          'job.claim == out.claim or job.left == out.claim .. " " .. out.verb', "job.claim == out.claim"),
    Guard("settle.lua", "one call records one outcome of a job",
          "if job and not first[out.id] then", "if job then"),
    Guard("settle.lua", "a settled job leaves `leases`", 'redis.call("ZREM", keys.leases, unpack(ids))', ""),
    Guard("settle.lua", "a job that is given back loses its claim", 'put(fields, "claim", "")', "", in_machine=False),
    Guard("heartbeat.lua", "a lease is renewed under its claim", "or job[2] ~= claim then", "then"),
    Guard("heartbeat.lua", "a lease is renewed while the job runs", 'job[1] ~= "running" or', ""),
    Guard("heartbeat.lua", "only a handler that runs is noted as started",
          'if ran == "1" and job[3] ~= claim then', "if job[3] ~= claim then"),
    Guard(LOSE, "a job that was lost loses its claim", '{ "rev", rev, "claim", "" }', '{ "rev", rev }'),
    Guard(LOSE, "a job that was lost leaves `leases`", 'redis.call("ZREM", keys.leases, id)', ""),

    # Requests of a slot
    Guard(TAKE, "a request below the last one is STALE", "if want.n < tonumber(last) then", "if false then"),
    Guard(TAKE, "the same request returns the same jobs",
          "if want.n == tonumber(last) or want.ack < tonumber(last) then",
          "if want.n ~= tonumber(last) and want.ack < tonumber(last) then"),
    Guard(TAKE, "a slot that missed a reply gets those jobs again",
          "if want.n == tonumber(last) or want.ack < tonumber(last) then", "if want.n == tonumber(last) then"),
    Guard(TAKE, "a slot that saw the reply does not get those jobs again",
          "if want.n == tonumber(last) or want.ack < tonumber(last) then", "if true then"),
    Guard(TAKE, "only what still runs under the last claim is given again",
          'if job and job.state == "running" and job.claim == claim then', 'if job and job.state == "running" then'),
    Guard(TAKE, "only what still runs is given again",
          'if job and job.state == "running" and job.claim == claim then', "if job and job.claim == claim then"),
    Guard(TAKE, "a claim names the queue's epoch", "if meta[1] ~= want.epoch then", "if false then"),
    Guard(TAKE, "a paused queue leases nothing", 'if meta[2] == "1" then', "if false then"),
    Guard(TAKE, "a batch ends before a job that is to be alone",
          'elseif job.alone == "1" and #batch > 0 then', "elseif false then"),
    Guard(TAKE, "a job that is to be alone ends its batch", '      if job.alone == "1" then\n        break\n      end\n', ""),
    Guard(TAKE, "a job is alone once", 'redis.call("HSET", key, "alone", "")', ""),
    Guard(TAKE, "only the first job of a claim counts as started", "if i == 1 then", "if true then"),
    Guard(TAKE, "the first job of a claim counts as started", "if i == 1 then", "if false then"),
    Guard(TAKE, "a claimed job leaves `ready`", 'redis.call("ZREM", keys.ready, unpack(ids))', ""),
    Guard(TAKE, "who leaves ready jobs behind wakes the next worker",
          'if redis.call("ZCARD", keys.ready) > 0 then', "if false then"),
    Guard(TAKE, "no more is leased than was asked for", "0, limit - 1,", "0, limit,"),
    Guard("include/wake.lua", "`wake` holds one element", 'if redis.call("LLEN", wake_key) == 0 then', "if true then"),
    Guard("open_epoch.lua", "an epoch is not replaced", '"HSETNX", KEYS[1], "epoch", ARGV[1])',
          '"HSET", KEYS[1], "epoch", ARGV[1])'),

    # What an attempt costs
    Guard("settle.lua", "a job is dead when its attempts are used up",
          "(tonumber(job.attempts) or 0) + 1 >= limits_of(job.limits)", "false"),
    Guard("settle.lua", "a release costs nothing", 'if out.verb ~= "release" then', "if true then"),
    Guard("settle.lua", "what had not started leaves no attempt", "if STARTED[out.verb] then", "if true then"),
    Guard("settle.lua", "a stranded job is next claimed alone", 'if out.verb == "strand" then', "if false then"),
    Guard("settle.lua", "a job whose cancellation was asked for does not run again",
          '  elseif (job.cancel or "") ~= "" then\n    return "cancelled"\n', ""),
    Guard(LOSE, "a lost job whose cancellation was asked for does not run again",
          'if (job.cancel or "") ~= "" then', "if false then"),
    Guard(LOSE, "max_attempts bounds the losses too", "math.min(max_losses, max_attempts)", "max_losses"),
    Guard(LOSE, "a job is dead when its losses are used up",
          "if losses >= math.min(max_losses, max_attempts) then", "if false then"),
    Guard(LOSE, "a loss is recorded as an attempt",
          'add_attempt(fields, job, rev, "lost", started, math.max(now, started), err)', ""),
    Guard(LOSE, "what sat in a lost batch is next claimed alone", '    put(fields, "alone", "1")\n', ""),
    Guard("include/attempt.lua", "the next attempt does not overwrite the last one's record",
          'put(fields, "a:" .. rev,', 'put(fields, "a:" .. (job.round or "1"),'),

    # Recovery
    Guard("reap.lua", "a lease is recovered after it has expired",
          '"-inf", now, "BYSCORE", "LIMIT", 0, limit + 1', '"-inf", "+inf", "BYSCORE", "LIMIT", 0, limit + 1'),
    Guard("reap.lua", "nothing is recovered for a while after all were away",
          "if any_running and now >= held then", "if any_running then"),
    Guard("reap.lua", "only a started job is charged for its lost worker", "job.ran == job.claim and", ""),
    Guard("reap.lua", "no more is recovered than was asked for", "for i = 1, math.min(#ids, limit) do", "for i = 1, #ids do"),
    Guard("reap.lua", "a reaper wakes a worker where jobs are ready",
          'if redis.call("ZCARD", keys.ready) > 0 and meta[3] ~= "1" then', "if false then"),
    Guard("reap.lua", "what is no running job is dropped from `leases`, not recovered",
          'if job and job.state == "running" then', "if job then", in_machine=False),
    Guard(DUE, "a job is promoted after it is due",
          '"-inf", now, "BYSCORE", "LIMIT", 0, limit', '"-inf", "+inf", "BYSCORE", "LIMIT", 0, limit'),
    Guard(DUE, "a promoted job leaves the place where it waited", 'redis.call("ZREM", key, unpack(ids))', ""),
    Guard(DUE, "an id without a job is not promoted", "if jobs[i][1] then", "if true then", in_machine=False),

    # Cancel, retry, keys
    Guard("cancel.lua", "a job that has ended is not cancelled",
          'if job.state ~= "running" and not places[job.state] then', "if false then"),
    Guard("cancel.lua", "asking a running job to stop twice changes nothing more",
          'if job.state == "running" and (job.cancel or "") ~= "" then', "if false then"),
    Guard("cancel.lua", "a cancelled job leaves its place", 'redis.call("ZREM", places[job.state], id)', ""),
    Guard("include/cancelled.lua", "a cancelled job frees its own key, not another job's",
          'held and string.sub(held, 1, #id + 1) == id .. " " and key or nil', "held and key or nil"),
    Guard("include/cancelled.lua", "a cancelled job frees its key", "if own then", "if false then"),
    Guard("retry.lua", "a repeated retry does not start another round",
          "if (tonumber(job.round) or 1) > round or waits_no_more then", "if waits_no_more then"),
    Guard("retry.lua", "a repeated retry of a waiting job is recognised",
          "if (tonumber(job.round) or 1) > round or waits_no_more then", "if (tonumber(job.round) or 1) > round then"),
    Guard("retry.lua", "only what has ended or waits for its retry runs again",
          'if not over and job.state ~= "retrying" then', "if false then"),
    Guard("retry.lua", "a retried job loses its tombstone", 'redis.call("PERSIST", key)', ""),
    Guard("retry.lua", "a retried job leaves `retrying`", 'redis.call("ZREM", KEYS[2], id)', ""),
    Guard("retry.lua", "a new round has all its attempts", 'put(fields, "attempts", 0)', ""),
    Guard("retry.lua", "a new round has all its losses", 'put(fields, "losses", 0)', ""),
    Guard("retry.lua", "a retry takes back the cancellation", '"cancel", "", ', ""),

    # Enqueue
    Guard("enqueue.lua", "a job that is there is left alone",
          "if not OVER[known[1]] or (tonumber(known[3]) or 1) >= new.round then", "if false then"),
    Guard("enqueue.lua", "only an ended job is enqueued anew",
          "if not OVER[known[1]] or (tonumber(known[3]) or 1) >= new.round then",
          "if (tonumber(known[3]) or 1) >= new.round then"),
    Guard("enqueue.lua", "an ended job is enqueued anew in a later round only",
          "if not OVER[known[1]] or (tonumber(known[3]) or 1) >= new.round then", "if not OVER[known[1]] then"),
    Guard("enqueue.lua", "a new round has a higher rev", "math.max(new.rev, rev + 1)", "new.rev"),
    Guard("enqueue.lua", "a new job's rev exceeds the floor", "rev = floor + 1", "rev = 1"),
    Guard("enqueue.lua", "a new round keeps what is not mirrored of the history",
          'if not string.match(name, "^[ae]:") then', "if true then"),
    Guard("enqueue.lua", "a new round leaves nothing of the last one", "    forget_round(key)\n",
          '    redis.call("PERSIST", key)\n'),
    Guard("enqueue.lua", "a job enqueued anew loses its tombstone", '  redis.call("PERSIST", key)\n', ""),
    Guard("enqueue.lua", "a key that another job holds gives that job",
          "if not id or id == new.id then", "if true then"),
    Guard("enqueue.lua", "a job does not stand in its own way by its key",
          "if not id or id == new.id then", "if not id then"),
    Guard("enqueue.lua", "the same key with other arguments is a conflict",
          'mark == new.mark and "DUPLICATE" or "CONFLICT"', '"DUPLICATE"'),
    Guard("enqueue.lua", "one id twice in a call is one job", "id_seen[new.id] or standing", "standing"),
    Guard("enqueue.lua", "one key twice in a call is one job", "keys_seen[new.key] or redis.call", "redis.call"),
    Guard("enqueue.lua", "a worker is woken for a ready job", "if #ready > 0 or new_head then", "if new_head then"),
    Guard("enqueue.lua", "numbers are in their ranges", " or attempts < 1 or losses < 1 or window < 1 or floor < 0 or round < 1", "", in_machine=False),

    # The mirror
    Guard("include/changed.lua", "the moment of the first change is kept", '"NX", ', ""),
    Guard("mirrored.lua", "a job that has moved on stays in `changed`", "    if same then\n", "    if true then\n"),
    Guard("mirrored.lua", "a job that has moved on is not deleted", "if same and FINAL[job[1]] then", "if FINAL[job[1]] then"),
    Guard("mirrored.lua", "only a job that has ended is deleted", "if same and FINAL[job[1]] then", "if same then"),
    Guard("mirrored.lua", "attempts that are not stored stay", "if recorded and recorded <= rev then", "if recorded then"),
    Guard("mirrored.lua", "attempts that are stored leave", "recorded <= rev", "recorded < rev"),
    _unnoted("enqueue.lua", "note_changes(KEYS[3], ids, now)"),
    _unnoted(TAKE, "    note_changes(keys.changed, ids, now)\n"),
    _unnoted("settle.lua", "note_changes(keys.changed, ids, now)"),
    _unnoted(DUE, "note_changes(keys.changed, ids, now)"),
    _unnoted("reap.lua", "note_changes(KEYS[5], changed, now)"),
    _unnoted("cancel.lua", "note_changes(KEYS[4], { id }, now)"),
    _unnoted("retry.lua", "note_changes(KEYS[3], { id }, now)"),
    _unnoted("purge.lua", "note_changes(KEYS[4], changed, now)"),

    # Callers' bugs, damaged keys, full memory
    _uncapped("enqueue.lua", "count > 100"),
    _uncapped("settle.lua", "count > 100"),
    _uncapped("heartbeat.lua", "count > 100"),
    _uncapped("promote.lua", "limit > 100"),
    _uncapped("reap.lua", "limit > 100"),
    _uncapped("purge.lua", "limit > 100"),
    _uncapped("changes.lua", "limit > 100"),
    _uncapped("mirrored.lua", "count > 100"),
    Guard(TAKE, "the number of items is capped", "want.limit <= 100 and", "", in_machine=False),
    _unread("enqueue.lua", "check_types({ KEYS[1], KEYS[2], KEYS[3] }, {}, { KEYS[5] }, {})"),
    _unread("claim.lua", "check_types({ KEYS[1], KEYS[4], KEYS[5] }, {}, { KEYS[8] }, {})"),
    _unread("settle.lua", "check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5] }, { KEYS[6] }, { KEYS[8] }, { KEYS[7] })"),
    _unread("promote.lua", "check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, { KEYS[5] }, { KEYS[6] }, {})"),
    _unread("reap.lua", "check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5] }, { KEYS[6] }, { KEYS[7] }, {})"),
    _unread("cancel.lua", "check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, {}, {}, {})"),
    _unread("retry.lua", "check_types({ KEYS[1], KEYS[2], KEYS[3] }, { KEYS[4] }, { KEYS[5] }, {})"),
    _unread("pause.lua", "check_types({ KEYS[1] }, { KEYS[2] }, { KEYS[3] }, {})"),
    _unread("purge.lua", "check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, {}, {}, {})"),
    _unread("mirrored.lua", "check_types({ KEYS[1] }, {}, {}, {})"),
    _unread("beat.lua", "check_types({ KEYS[1] }, {}, {}, {})"),
    Guard("include/read.lua", "a job whose key is of another type stops no other",
          'if not string.find(reply.err, "WRONGTYPE", 1, true) then', "if true then", in_machine=False),
    Guard("settle.lua", "a full server can drain", "#!lua flags=allow-oom", "#!lua", in_machine=False),
    Guard("enqueue.lua", "a full server takes no new jobs", "#!lua\n", "#!lua flags=allow-oom\n", in_machine=False),
)  # fmt: skip
