#!lua flags=allow-oom
--[[
settle: record how up to 100 attempts ended and, in the same step, claim the slot's next jobs.

Each outcome is checked against its claim id; one that no longer holds its job changes nothing. Safe
to repeat: an outcome that was already recorded answers as it did, and the claim is safe by its n.

Verbs: `succeed`; `retry` (waits delay_ms, or ends dead when the attempts are used up); `dead`;
`cancel`; `release` (started, charged nothing, waits delay_ms if not 0); `return` (not started, keeps its place);
`strand` (not started, its worker died: as return, and next claimed alone); `lost` (started, its worker died:
charged a loss); `park` (not started, nobody here can run it: waits delay_ms, charged nothing).
A job whose cancellation was asked for ends cancelled where it would otherwise have run again.

KEYS
  1 ready      zset    job id by (priority, seq)         rw
  2 scheduled  zset    job id by due time, ms            rw
  3 retrying   zset    job id by due time, ms            rw
  4 leases     zset    job id by lease expiry, ms        rw
  5 changed    zset    job id by first change, ms        w
  6 meta       hash    epoch, paused, seq                rw
  7 slot       string  last request of this slot         rw
  8 wake       list    one element wakes one worker      rw
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 slot       string  name of the slot, without spaces
  4 n          int     number of the claim, "" = claim nothing
  5 ack        int     highest n whose reply the slot has seen, 0 = none
  6 limit      int     0..100
  7 lease_ms   int     1000..86400000
  8 epoch      string  the epoch the caller believes in
  9 count      int     0..100; then nine values an outcome:
    id         string  job id
    claim      string  claim id under which it ran
    verb       string  see above
    outcome    string  of the attempt: succeeded, failed, timed_out, released, cancelled
    ago_ms     int     from the start of the attempt to this call, >= 0
    ran_ms     int     duration of the attempt, 0..ago_ms
    delay_ms   int     >= 0
    data       bytes   result of `succeed`, error of the others; "" = none
    reason     string  for people; "" = none
RETURNS
  OK           {{OK | LEASE_LOST | NOT_FOUND, state, rev} *}, reply of the claim or {}
CHANGES
  running → succeeded
  running → retrying
  running → dead
  running → cancelled
  running → ready
  running → scheduled
  ready → running
  scheduled → ready
  retrying → ready
COST
  O((count + limit) log N), and up to 200 promotions
]]
--@include clock read put limits job payload_of ready changed wake types attempt cancelled lose due take

local prefix, now, count = ARGV[1], now_ms(ARGV[2]), tonumber(ARGV[9])
local FIELDS = 9
local keys = { ready = KEYS[1], scheduled = KEYS[2], retrying = KEYS[3], leases = KEYS[4],
  changed = KEYS[5], meta = KEYS[6], slot = KEYS[7], wake = KEYS[8] }
local STATE_AFTER = { succeed = "succeeded", retry = "retrying", dead = "dead", cancel = "cancelled",
  release = "scheduled", ["return"] = "ready", strand = "ready", lost = "ready", park = "retrying" }
local STARTED = { succeed = true, retry = true, dead = true, cancel = true, release = true }
local FINAL = { succeeded = true, dead = true, cancelled = true }

-- The outcome whose values follow ARGV[at], or nil when they are not what the header says.
local function outcome_at(at)
  local out = { id = ARGV[at + 1], claim = ARGV[at + 2], verb = ARGV[at + 3], outcome = ARGV[at + 4],
    ago = tonumber(ARGV[at + 5]), ran = tonumber(ARGV[at + 6]), delay = tonumber(ARGV[at + 7]),
    data = ARGV[at + 8], reason = ARGV[at + 9], job = nil }
  return STATE_AFTER[out.verb] and out.ago and out.ran and out.delay and out or nil
end

-- The job of an outcome if it may be settled, and what to answer if not.
local function held_job(out)
  local v = read("HMGET", prefix .. "job:" .. out.id, "state", "rev", "claim", "token", "attempts", "losses",
    "limits", "round", "cancel", "left", "key", "score")
  if not v or not v[1] then
    return nil, { "NOT_FOUND", "", 0 }
  end
  local job = { state = v[1], rev = tonumber(v[2]) or 0, claim = v[3], token = v[4], attempts = v[5], losses = v[6],
    limits = v[7], round = v[8], cancel = v[9], left = v[10], key = v[11], score = v[12], own = nil }
  if job.state == "running" and job.claim == out.claim then
    if out.verb == "cancel" or (job.cancel or "") ~= "" then
      job.own = own_key(prefix, job, out.id)
    end
    return job
  end
  local recorded = job.claim == out.claim or job.left == out.claim .. " " .. out.verb
  return nil, { recorded and "OK" or "LEASE_LOST", job.state, job.rev }
end

local function state_after(job, out)
  local state = STATE_AFTER[out.verb]
  if FINAL[state] then
    return state
  elseif (job.cancel or "") ~= "" then
    return "cancelled"
  elseif out.verb == "retry" and (tonumber(job.attempts) or 0) + 1 >= limits_of(job.limits) then
    return "dead"
  elseif out.verb == "release" and out.delay == 0 then
    return "ready"
  end
  return state
end

-- What the end of its round adds to a job's fields.
local function end_job(fields, job, out, state)
  if state == "cancelled" then
    cancel_job(fields, job.own, now, out.verb == "cancel" and out.reason or "cancelled while running")
    return
  end
  put(fields, "state", state)
  put(fields, "finished", now)
  put(fields, "reason", out.reason)
  if state == "succeeded" then
    put(fields, "result", out.data)
  end
end

-- What the return of a job to where it waits adds to its fields.
local function put_back(fields, job, out, state)
  put(fields, "state", state)
  put(fields, "left", out.claim .. " " .. out.verb)
  if state == "ready" then
    put(fields, "claim", "")
    if out.verb == "strand" then
      put(fields, "alone", "1")
    end
    redis.call("ZADD", keys.ready, tonumber(job.score) or 0, out.id)
    return
  end
  put(fields, "due", now + out.delay)
  put(fields, "reason", out.reason)
  redis.call("ZADD", keys[state], now + out.delay, out.id)
end

local function settle_one(job, out)
  local key, started = prefix .. "job:" .. out.id, math.max(now - out.ago, 0)
  if out.verb == "lost" then
    local state = lose(keys, prefix, out.id, job, now, started, out.data)
    redis.call("HSET", key, "left", out.claim .. " lost")
    return state
  end
  local state, rev = state_after(job, out), job.rev + 1
  local fields = { "rev", rev }
  if STARTED[out.verb] then
    add_attempt(fields, job, rev, out.outcome, started, started + out.ran, out.verb == "succeed" and "" or out.data)
    if out.verb ~= "release" then
      put(fields, "attempts", (tonumber(job.attempts) or 0) + 1)
    end
  end
  local finish = FINAL[state] and end_job or put_back
  finish(fields, job, out, state)
  redis.call("HSET", key, unpack(fields))
  return state
end

if not count or count > 100 or #ARGV ~= 9 + FIELDS * count then
  return redis.error_reply("JOBRAILARG settle takes 0..100 outcomes of 9 values")
end
local outcomes, want = {}, nil
for i = 1, count do
  outcomes[i] = outcome_at(9 + (i - 1) * FIELDS)
  if not outcomes[i] then
    return redis.error_reply("JOBRAILARG settle takes known verbs, and times in ms")
  end
end
if ARGV[4] ~= "" then
  want = claim_wanted(unpack(ARGV, 3, 8))
  if not want then
    return redis.error_reply("JOBRAILARG settle takes n, ack, a limit of 0..100 and lease_ms as integers")
  end
end
check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5] }, { KEYS[6] }, { KEYS[8] }, { KEYS[7] })

local replies, first, ids = {}, {}, {}
for i = 1, count do
  local out = outcomes[i]
  local job, reply = held_job(out)
  replies[i] = reply or false
  if job and not first[out.id] then
    first[out.id], out.job = i, job
    ids[#ids + 1] = out.id
  end
end
for i = 1, count do
  local out = outcomes[i]
  if out.job then
    replies[i] = { "OK", settle_one(out.job, out), out.job.rev + 1 }
  elseif not replies[i] then
    replies[i] = replies[first[out.id]] -- the same once more
  end
end
if #ids > 0 then
  redis.call("ZREM", keys.leases, unpack(ids))
  note_changes(keys.changed, ids, now)
end

local claimed = {}
if want then
  claimed = take(keys, prefix, now, want)
elseif redis.call("ZCARD", keys.ready) > 0 then
  wake_one(keys.wake)
end
return { "OK", replies, claimed }
