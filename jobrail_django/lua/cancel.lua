#!lua flags=allow-oom
--[[
cancel: end a job that waits, or ask a running one to stop.

A waiting job is cancelled at once and never runs. A running one is marked: its worker learns it with
the next heartbeat, and however the attempt ends, the job does not run again. Repeating it does no harm.

KEYS
  1 ready      zset    job id by (priority, seq)         w
  2 scheduled  zset    job id by due time, ms            w
  3 retrying   zset    job id by due time, ms            w
  4 changed    zset    job id by first change, ms        w
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 id         string  job id
  4 reason     string  for people
RETURNS
  CANCELLED    rev
  REQUESTED    rev; the job is running
  FINAL        state; the job had ended
  NOT_FOUND
CHANGES
  ready → cancelled
  scheduled → cancelled
  retrying → cancelled
COST
  O(log N)
]]
--@include clock read put job changed types cancelled

local prefix, now, id = ARGV[1], now_ms(ARGV[2]), ARGV[3]
check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, {}, {}, {})
local places = { ready = KEYS[1], scheduled = KEYS[2], retrying = KEYS[3] }
local job = job_read(prefix .. "job:" .. id)
if not job then
  return { "NOT_FOUND" }
end
if job.state ~= "running" and not places[job.state] then
  return { "FINAL", job.state or "" }
end
if job.state == "running" and (job.cancel or "") ~= "" then
  return { "REQUESTED", tonumber(job.rev) or 0 }
end
local rev = (tonumber(job.rev) or 0) + 1
local own, fields = own_key(prefix, job, id), { "rev", rev }
if job.state == "running" then
  fields[3], fields[4] = "cancel", now
else
  cancel_job(fields, own, now, ARGV[4])
  redis.call("ZREM", places[job.state], id)
end
redis.call("HSET", prefix .. "job:" .. id, unpack(fields))
note_changes(KEYS[4], { id }, now)
return { job.state == "running" and "REQUESTED" or "CANCELLED", rev }
