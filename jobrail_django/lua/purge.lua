#!lua flags=allow-oom
--[[
purge: cancel up to `limit` waiting jobs of a queue. Running jobs are not touched.

KEYS
  1 ready      zset    job id by (priority, seq)         rw
  2 scheduled  zset    job id by due time, ms            rw
  3 retrying   zset    job id by due time, ms            rw
  4 changed    zset    job id by first change, ms        w
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 limit      int     1..100
  4 reason     string  for people
RETURNS
  OK           number cancelled, jobs that still wait
CHANGES
  ready → cancelled
  scheduled → cancelled
  retrying → cancelled
COST
  O(limit log N)
]]
--@include clock read put job changed types cancelled

local prefix, now, limit = ARGV[1], now_ms(ARGV[2]), tonumber(ARGV[3])
if not limit or limit < 1 or limit > 100 then
  return redis.error_reply("JOBRAILARG purge takes a limit of 1..100")
end
check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, {}, {}, {})

local found, left = {}, 0
for i = 1, 3 do
  local ids = {}
  if #found < limit then
    ids = redis.call("ZRANGE", KEYS[i], 0, limit - #found - 1)
  end
  for _, id in ipairs(ids) do
    local job = job_read(prefix .. "job:" .. id)
    found[#found + 1] = { id = id, place = KEYS[i], job = job, own = job and own_key(prefix, job, id) }
  end
  left = left + redis.call("ZCARD", KEYS[i]) - #ids
end
local changed = {}
for i = 1, #found do
  local id, job = found[i].id, found[i].job
  redis.call("ZREM", found[i].place, id)
  if job then
    local fields = { "rev", (tonumber(job.rev) or 0) + 1 }
    cancel_job(fields, found[i].own, now, ARGV[4])
    redis.call("HSET", prefix .. "job:" .. id, unpack(fields))
  end
  changed[i] = id
end
note_changes(KEYS[4], changed, now)
return { "OK", #found, left }
