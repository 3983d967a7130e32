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
--@include clock job limits ready changed wake types attempt cancelled lose due take

local prefix, now, count = ARGV[1], now_ms(ARGV[2]), tonumber(ARGV[9])
local FIELDS = 9
local keys = { ready = KEYS[1], scheduled = KEYS[2], retrying = KEYS[3], leases = KEYS[4],
  changed = KEYS[5], meta = KEYS[6], slot = KEYS[7], wake = KEYS[8] }
local VERBS = { succeed = true, retry = true, dead = true, cancel = true, release = true, ["return"] = true,
  strand = true, lost = true, park = true }
if not count or count > 100 or #ARGV ~= 9 + FIELDS * count then
  return redis.error_reply("JOBRAILARG settle takes 0..100 outcomes of 9 values")
end
for i = 1, count do
  if not VERBS[ARGV[9 + (i - 1) * FIELDS + 3]] then
    return redis.error_reply("JOBRAILARG settle does not know this verb")
  end
end
check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5] }, { KEYS[6] }, { KEYS[8] }, { KEYS[7] })

local READ = { "state", "rev", "token", "claim", "claimed", "attempts", "losses", "limits", "round", "score", "cancel",
  "ran", "key" }

local function outcome_at(at)
  return { id = ARGV[at + 1], claim = ARGV[at + 2], verb = ARGV[at + 3], outcome = ARGV[at + 4],
    ago = tonumber(ARGV[at + 5]), ran = tonumber(ARGV[at + 6]), delay = tonumber(ARGV[at + 7]),
    data = ARGV[at + 8], reason = ARGV[at + 9] }
end

-- The job of an outcome if it may still be settled, and what to answer if not.
local function held_job(out, seen)
  local values = redis.pcall("HMGET", prefix .. "job:" .. out.id, unpack(READ))
  if values.err or not values[1] then
    return nil, { "NOT_FOUND", "", 0 }
  end
  local job = {}
  for i = 1, #READ do
    job[READ[i]] = values[i] or nil
  end
  if job.claim ~= out.claim then
    return nil, { "LEASE_LOST", job.state, tonumber(job.rev) }
  end
  if job.state ~= "running" or seen[out.id] then
    return nil, { "OK", job.state, tonumber(job.rev) }
  end
  return job
end

local function put(fields, ...)
  for _, value in ipairs({ ... }) do
    fields[#fields + 1] = value
  end
end

-- Where an attempt that did not end its job sends it: the new state.
local function again(job, out, fields)
  if job.cancel and job.cancel ~= "" then
    cancelled_fields(fields, now, "cancelled while running")
    free_key(prefix, job, out.id)
    return "cancelled"
  end
  if out.verb == "return" or out.verb == "strand" or (out.verb == "release" and out.delay == 0) then
    put(fields, "state", "ready", "claim", "", "ran", "", "alone", out.verb == "strand" and "1" or "")
    redis.call("ZADD", keys.ready, job.score, out.id)
    return "ready"
  end
  local state = out.verb == "release" and "scheduled" or "retrying"
  put(fields, "state", state, "due", now + out.delay, "reason", out.reason, "ran", "")
  redis.call("ZADD", keys[state], now + out.delay, out.id)
  return state
end

local function ended(job, out, fields)
  if out.verb == "succeed" then
    put(fields, "state", "succeeded", "finished", now, "result", out.data, "reason", "")
    return "succeeded"
  end
  if out.verb == "cancel" then
    cancelled_fields(fields, now, out.reason)
    free_key(prefix, job, out.id)
    return "cancelled"
  end
  put(fields, "state", "dead", "finished", now, "reason", out.reason)
  return "dead"
end

local STARTED = { succeed = true, retry = true, dead = true, cancel = true, release = true }

local function settle_one(job, out)
  if out.verb == "lost" then
    job.ran = "1"
    return lose(keys, prefix, out.id, job, now)
  end
  local fields = { "rev", tonumber(job.rev) + 1 }
  if STARTED[out.verb] then
    local started = math.max(now - out.ago, 0)
    add_attempt(fields, job, out.outcome, started, started + out.ran, out.verb ~= "succeed" and out.data or "")
    if out.verb ~= "release" then
      put(fields, "attempts", tonumber(job.attempts or 0) + 1)
    end
  end
  local max_attempts = limits_of(job.limits)
  if out.verb == "retry" and tonumber(job.attempts or 0) + 1 >= max_attempts and (job.cancel or "") == "" then
    out.verb = "dead"
  end
  local ends = out.verb == "succeed" or out.verb == "dead" or out.verb == "cancel"
  local state = (ends and ended or again)(job, out, fields)
  redis.call("HSET", prefix .. "job:" .. out.id, unpack(fields))
  return state
end

local replies, seen, pending = {}, {}, {}
for i = 1, count do
  local out = outcome_at(9 + (i - 1) * FIELDS)
  local job, reply = held_job(out, seen)
  replies[i] = reply or false
  if job then
    seen[out.id] = true
    pending[#pending + 1] = { i = i, job = job, out = out }
  end
end
local ids = {}
for i = 1, #pending do
  local job, out = pending[i].job, pending[i].out
  replies[pending[i].i] = { "OK", settle_one(job, out), tonumber(job.rev) + 1 }
  ids[i] = out.id
end
if #ids > 0 then
  redis.call("ZREM", keys.leases, unpack(ids))
  note_changes(keys.changed, ids, now)
end

local claimed = {}
if ARGV[4] ~= "" then
  claimed = take(keys, prefix, now, { slot = ARGV[3], n = tonumber(ARGV[4]), ack = tonumber(ARGV[5]),
    limit = math.min(tonumber(ARGV[6]), 100), lease_ms = tonumber(ARGV[7]), epoch = ARGV[8] })
elseif redis.call("ZCARD", keys.ready) > 0 then
  wake_one(keys.wake)
end
return { "OK", replies, claimed }
