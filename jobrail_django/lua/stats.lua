#!lua flags=no-writes
--[[
stats: how many jobs of a queue are in each state, in one consistent look.

KEYS
  1 ready      zset    job id by (priority, seq)         r
  2 scheduled  zset    job id by due time, ms            r
  3 retrying   zset    job id by due time, ms            r
  4 leases     zset    job id by lease expiry, ms        r
  5 changed    zset    job id by first change, ms        r
  6 meta       hash    epoch, paused                     r
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
RETURNS
  OK           ready, scheduled, retrying, running, changed, paused (0 or 1), epoch or "", ms until the next waiting job is due (0 = now) or "", age in ms of the job that is next or "", age in ms of the oldest change or ""
CHANGES
  none
COST
  O(1)
]]
--@include clock read

local prefix, now = ARGV[1], now_ms(ARGV[2])
local counts = {}
for i = 1, 5 do
  counts[i] = redis.call("ZCARD", KEYS[i])
end
local next_due = ""
for i = 2, 3 do
  local head = redis.call("ZRANGE", KEYS[i], 0, 0, "WITHSCORES")
  if head[1] and (next_due == "" or tonumber(head[2]) < tonumber(next_due)) then
    next_due = head[2]
  end
end
local until_due = next_due ~= "" and math.max(0, tonumber(next_due) - now) or ""
local function age(since)
  return since and math.max(0, now - since) or ""
end
local first = redis.call("ZRANGE", KEYS[1], 0, 0)[1]
local oldest = redis.call("ZRANGE", KEYS[5], 0, 0, "WITHSCORES")
local meta = redis.call("HMGET", KEYS[6], "paused", "epoch")
local at = first and read("HGET", prefix .. "job:" .. first, "at")
return {
  "OK", counts[1], counts[2], counts[3], counts[4], counts[5], meta[1] == "1" and 1 or 0, meta[2] or "", until_due,
  age(tonumber(at)), age(tonumber(oldest[2])),
}
