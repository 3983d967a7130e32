#!lua flags=allow-oom
--[[
heartbeat: renew up to 100 leases, and learn which jobs to stop.

A lease that has expired is still renewed as long as no one has recovered the job. Also notes which
jobs have started, so that only those are charged if the worker dies. Changes no state. Repeating it
does no harm.

KEYS
  1 leases     zset    job id by lease expiry, ms        w
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 lease_ms   int     1000..86400000
  4 count      int     1..100; then three values a lease:
    id         string  job id
    claim      string  claim id
    ran        string  "1" = the handler has started, "" = not yet
RETURNS
  OK           {id} of leases that are lost, {id} of jobs whose cancellation was asked for
CHANGES
  none
COST
  O(count log N)
]]
--@include clock read

local prefix, now, lease_ms, count = ARGV[1], now_ms(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not lease_ms or not count or count < 1 or count > 100 or #ARGV ~= 4 + 3 * count then
  return redis.error_reply("JOBRAILARG heartbeat takes lease_ms and 1..100 leases of 3 values")
end

local lost, cancel, renewed, started = {}, {}, {}, {}
local expiry = string.format("%.0f", now + lease_ms)
for i = 1, count do
  local at = 4 + (i - 1) * 3
  local id, claim, ran = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local job = read("HMGET", prefix .. "job:" .. id, "state", "claim", "ran", "cancel")
  if not job or job[1] ~= "running" or job[2] ~= claim then
    lost[#lost + 1] = id
  else
    renewed[#renewed + 1] = expiry
    renewed[#renewed + 1] = id
    if ran == "1" and job[3] ~= claim then
      started[#started + 1] = id
      started[#started + 1] = claim
    end
    if job[4] and job[4] ~= "" then
      cancel[#cancel + 1] = id
    end
  end
end
if #renewed > 0 then -- the first write: a key of another type fails here
  redis.call("ZADD", KEYS[1], unpack(renewed))
end
for i = 1, #started, 2 do
  redis.call("HSET", prefix .. "job:" .. started[i], "ran", started[i + 1])
end
return { "OK", lost, cancel }
