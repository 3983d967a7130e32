#!lua flags=no-writes
--[[
changes: read the jobs that have changed longest ago since the mirror stored them.

KEYS
  1 changed    zset    job id by first change, ms        r
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 limit      int     1..100
RETURNS
  OK           age in ms of the oldest change, changed ids in all, {id, field, value, field, value, …} *; {id} alone = the job's data is missing
CHANGES
  none
COST
  O(log N + limit)
]]
--@include clock read

local now, limit = now_ms(ARGV[2]), tonumber(ARGV[3])
if not limit or limit < 1 or limit > 100 then
  return redis.error_reply("JOBRAILARG changes takes a limit of 1..100")
end
local ids = redis.call("ZRANGE", KEYS[1], 0, limit - 1, "WITHSCORES")
local reply = { "OK", ids[2] and math.max(0, now - tonumber(ids[2])) or 0, redis.call("ZCARD", KEYS[1]) }
for i = 1, #ids, 2 do
  local flat = read("HGETALL", ARGV[1] .. "job:" .. ids[i])
  local entry = { ids[i] }
  for j = 1, flat and #flat or 0 do
    entry[j + 1] = flat[j]
  end
  reply[#reply + 1] = entry
end
return reply
