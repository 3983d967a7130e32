#!lua
--[[
enqueue: put up to 100 new jobs of one queue into `ready`, or into `scheduled` when they are due later.

Safe to repeat: a job id that exists is left alone, unless the job is dead or cancelled and this is a later
round; then what the mirror has not stored of its history is kept. A key that another job holds gives that job
when the fingerprint is the same. Nothing is written for such jobs.

KEYS
  1 ready      zset    job id by (priority, seq)         w
  2 scheduled  zset    job id by due time, ms            rw
  3 changed    zset    job id by first change, ms        w
  4 meta       hash    seq of the queue                  rw
  5 wake       list    one element wakes one worker      rw
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 count      int     1..100; then twelve values a job:
    id         string  36 characters
    payload    bytes   opaque
    priority   int     -100..100, larger runs sooner
    due        int     ms since 1970, "" = see delay
    delay      int     ms from now, "" = at once
    attempts   int     max_attempts, >= 1
    losses     int     max_losses, >= 1
    key        string  digest of the idempotency key, "" = none
    mark       string  fingerprint of task and arguments, without spaces
    window     int     ms for which the key is held, >= 1
    floor      int     a rev that the new one must exceed, >= 0
    round      int     >= 1
RETURNS
  OK           {NEW | EXISTS | DUPLICATE | CONFLICT, id, state, rev} *
CHANGES
  none → ready
  none → scheduled
  dead → ready
  dead → scheduled
  cancelled → ready
  cancelled → scheduled
COST
  O(count log N)
]]
--@include clock put payload_fields ready changed wake types

local prefix, now, count = ARGV[1], now_ms(ARGV[2]), tonumber(ARGV[3])
local FIELDS = 12
local OVER = { dead = true, cancelled = true }
if not count or count < 1 or count > 100 or #ARGV ~= 3 + FIELDS * count then
  return redis.error_reply("JOBRAILARG enqueue takes 1..100 jobs of 12 values")
end
check_types({ KEYS[1], KEYS[2], KEYS[3] }, {}, { KEYS[5] }, {})

-- The new job whose values follow ARGV[at], or nil when a number is not one or out of its range.
local function new_job(at)
  local priority, due, delay = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local attempts, losses, window = tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7]), tonumber(ARGV[at + 10])
  local floor, round = tonumber(ARGV[at + 11]), tonumber(ARGV[at + 12])
  local times = (due or ARGV[at + 4] == "") and (delay or ARGV[at + 5] == "")
  if not (times and priority and attempts and losses and window and floor and round) or priority < -100
    or priority > 100 or attempts < 1 or losses < 1 or window < 1 or floor < 0 or round < 1 then
    return nil
  end
  due = due or now + (delay or 0)
  return { at = at, id = ARGV[at + 1], priority = priority, due = due, state = due > now and "scheduled" or "ready",
    key = ARGV[at + 8], mark = ARGV[at + 9], rev = floor + 1, round = round, known = false }
end

-- The answer for a job that is there already, or whose key another job holds; nil for one to be made.
local function standing(new, keys_seen)
  local known = redis.call("HMGET", prefix .. "job:" .. new.id, "state", "rev", "round")
  if known[1] then
    local rev = tonumber(known[2]) or 0
    if not OVER[known[1]] or (tonumber(known[3]) or 1) >= new.round then
      return { "EXISTS", new.id, known[1], rev }
    end
    new.rev, new.known = math.max(new.rev, rev + 1), true
  end
  if new.key == "" then
    return nil
  end
  local held = keys_seen[new.key] or redis.call("GET", prefix .. "key:" .. new.key)
  local id, mark = string.match(held or "", "^(%S+) (%S*)$")
  if not id or id == new.id then
    keys_seen[new.key] = new.id .. " " .. new.mark
    return nil
  end
  return { mark == new.mark and "DUPLICATE" or "CONFLICT", id, "", 0 }
end

-- Removes what an ended round has left in a job's hash, but for its history.
local function forget_round(key)
  for _, name in ipairs(redis.call("HKEYS", key)) do
    if not string.match(name, "^[ae]:") then
      redis.call("HDEL", key, name)
    end
  end
  redis.call("PERSIST", key)
end

local replies, jobs, keys_seen, id_seen = { "OK" }, {}, {}, {}
local ready_count = 0
for i = 1, count do
  local new = new_job(3 + (i - 1) * FIELDS)
  if not new then
    return redis.error_reply("JOBRAILARG enqueue takes numbers in their ranges")
  end
  local reply = id_seen[new.id] or standing(new, keys_seen)
  if not reply then
    jobs[#jobs + 1] = new
    ready_count = ready_count + (new.state == "ready" and 1 or 0)
    reply = { "NEW", new.id, new.state, new.rev }
    id_seen[new.id] = { "EXISTS", new.id, new.state, new.rev }
  end
  replies[i + 1] = reply
end

local seq = ready_count > 0 and redis.call("HINCRBY", KEYS[4], "seq", ready_count) - ready_count or 0
local enqueued = string.format("%.0f", now)
local ready, scheduled, ids = {}, {}, {}
for i = 1, #jobs do
  local new = jobs[i]
  local at, key = new.at, prefix .. "job:" .. new.id
  if new.known then
    forget_round(key)
  end
  local fields = { "state", new.state, "rev", string.format("%.0f", new.rev), "limits",
    ARGV[at + 6] .. "," .. ARGV[at + 7], "at", enqueued }
  if new.round > 1 then
    put(fields, "round", new.round)
  end
  if new.priority ~= 0 then
    put(fields, "prio", new.priority)
  end
  if new.state == "ready" then
    seq = seq + 1
    put(ready, ready_score(new.priority, seq), new.id)
  else
    put(fields, "due", new.due)
    put(scheduled, new.due, new.id)
  end
  if new.key ~= "" then
    put(fields, "key", new.key)
    redis.call("SET", prefix .. "key:" .. new.key, new.id .. " " .. new.mark, "PX", ARGV[at + 10])
  end
  payload_fields(ARGV[at + 2], fields)
  redis.call("HSET", key, unpack(fields))
  ids[i] = new.id
end

if #ready > 0 then
  redis.call("ZADD", KEYS[1], unpack(ready))
end
local new_head = false
if #scheduled > 0 then
  redis.call("ZADD", KEYS[2], unpack(scheduled))
  local head = redis.call("ZRANGE", KEYS[2], 0, 0)[1]
  for i = 2, #scheduled, 2 do
    new_head = new_head or scheduled[i] == head
  end
end
note_changes(KEYS[3], ids, now)
if #ready > 0 or new_head then
  wake_one(KEYS[5])
end
return replies
