#!lua
--[[
retry: run a dead or cancelled job in a new round, or one that waits for its retry at once.

A new round has all its attempts and losses again and keeps the job's history. Safe to repeat: a job
already past the round that the caller names, or past the wait, is left alone.

KEYS
  1 ready      zset    job id by (priority, seq)         rw
  2 retrying   zset    job id by due time, ms            rw
  3 changed    zset    job id by first change, ms        w
  4 meta       hash    seq of the queue                  rw
  5 wake       list    one element wakes one worker      rw
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 id         string  job id
  4 round      int     the round that the caller has seen
RETURNS
  OK           state, rev
  NOT_ALLOWED  state; ready, scheduled, running or succeeded
  NOT_FOUND
CHANGES
  dead → ready
  cancelled → ready
  retrying → ready
COST
  O(log N)
]]
--@include clock read put job ready changed wake types

local prefix, now, id, round = ARGV[1], now_ms(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if not round then
  return redis.error_reply("JOBRAILARG retry takes the round as an integer")
end
check_types({ KEYS[1], KEYS[2], KEYS[3] }, { KEYS[4] }, { KEYS[5] }, {})
local key = prefix .. "job:" .. id
local job = job_read(key)
if not job then
  return { "NOT_FOUND" }
end
local rev, tried = tonumber(job.rev) or 0, (tonumber(job.attempts) or 0) + (tonumber(job.losses) or 0)
local waits_no_more = (job.state == "ready" or job.state == "running") and tonumber(job.hurried) == tried
if (tonumber(job.round) or 1) > round or waits_no_more then
  return { "OK", job.state, rev }
end
local over = job.state == "dead" or job.state == "cancelled"
if not over and job.state ~= "retrying" then
  return { "NOT_ALLOWED", job.state or "" }
end
local fields = { "state", "ready", "rev", rev + 1, "due", "", "reason", "", "cancel", "", "claim", "",
  "hurried", over and "" or tried }
if over then
  put(fields, "round", round + 1)
  put(fields, "attempts", 0)
  put(fields, "losses", 0)
  put(fields, "finished", "")
end
local seq = redis.call("HINCRBY", KEYS[4], "seq", 1)
redis.call("ZREM", KEYS[2], id)
redis.call("HSET", key, unpack(fields))
redis.call("PERSIST", key)
redis.call("ZADD", KEYS[1], ready_score(tonumber(job.prio) or 0, seq), id)
note_changes(KEYS[3], { id }, now)
wake_one(KEYS[5])
return { "OK", "ready", rev + 1 }
