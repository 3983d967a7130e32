#!lua flags=allow-oom
--[[
reap: recover the jobs whose leases have expired, and say what else the queue's upkeep has to do.

Any number of reapers may call this at once; each expired job is recovered once. When no reaper has
called for longer than half a lease while jobs were running, Redis or all reapers were away, and so
perhaps were the heartbeats: then nothing is recovered for hold_ms (HELD), so that workers that are
alive can renew first. An id without a readable job is dropped from `leases`. Where jobs are ready, it
wakes a worker: an earlier wake-up may have gone to a worker that is frozen or cut off.

KEYS
  1 ready      zset    job id by (priority, seq)         rw
  2 scheduled  zset    job id by due time, ms            r
  3 retrying   zset    job id by due time, ms            r
  4 leases     zset    job id by lease expiry, ms        rw
  5 changed    zset    job id by first change, ms        rw
  6 meta       hash    reaped, held, paused              rw
  7 wake       list    one element wakes one worker      rw
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 limit      int     1..100
  4 gap_ms     int     half a lease; 0 = the caller knows of a gap
  5 hold_ms    int     one heartbeat
RETURNS
  OK           {{id, new state or "missing"} *}, 1 = expired leases are left, 1 = waiting jobs are due, ids in changed
  HELD         {}, 0, 1 = waiting jobs are due, ids in changed
CHANGES
  running → ready
  running → dead
  running → cancelled
COST
  O(limit log N)
]]
--@include clock read put job limits changed wake types attempt cancelled lose

local prefix, now, limit = ARGV[1], now_ms(ARGV[2]), tonumber(ARGV[3])
local gap_ms, hold_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
if not limit or limit < 1 or limit > 100 or not gap_ms or not hold_ms then
  return redis.error_reply("JOBRAILARG reap takes a limit of 1..100, gap_ms and hold_ms")
end
check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5] }, { KEYS[6] }, { KEYS[7] }, {})
local keys = { ready = KEYS[1], leases = KEYS[4] }

local due = 0
for i = 2, 3 do
  local head = redis.call("ZRANGE", KEYS[i], 0, 0, "WITHSCORES")
  if head[1] and tonumber(head[2]) <= now then
    due = 1
  end
end
local meta = redis.call("HMGET", KEYS[6], "reaped", "held", "paused")
local any_running = redis.call("ZCARD", keys.leases) > 0
local held = tonumber(meta[2]) or 0
if gap_ms == 0 or meta[1] and now - (tonumber(meta[1]) or 0) > gap_ms then
  held = now + hold_ms
end

local ids, jobs = {}, {}
if any_running and now >= held then
  ids = redis.call("ZRANGE", keys.leases, "-inf", now, "BYSCORE", "LIMIT", 0, limit + 1)
end
local more = #ids > limit and 1 or 0
for i = 1, math.min(#ids, limit) do
  local job = job_read(prefix .. "job:" .. ids[i])
  if job and (job.cancel or "") ~= "" then
    job.own = own_key(prefix, job, ids[i])
  end
  jobs[i] = job or false
end

-- All is read; from here on it writes.
if redis.call("ZCARD", keys.ready) > 0 and meta[3] ~= "1" then
  wake_one(KEYS[7])
end
if any_running then
  redis.call("HSET", KEYS[6], "reaped", now, "held", held)
end
local recovered, changed = {}, {}
for i = 1, #jobs do
  local job, state = jobs[i], "missing"
  if job and job.state == "running" then
    local started = job.claim and job.ran == job.claim and (tonumber(job.claimed) or now) or nil
    state = lose(keys, prefix, ids[i], job, now, started, "")
  else
    redis.call("ZREM", keys.leases, ids[i])
  end
  recovered[i] = { ids[i], state }
  changed[i] = ids[i]
end
note_changes(KEYS[5], changed, now)
if #recovered > 0 then
  wake_one(KEYS[7])
end
return { any_running and now < held and "HELD" or "OK", recovered, more, due, redis.call("ZCARD", KEYS[5]) }
