#!lua flags=allow-oom
--[[
mirrored: the mirror has stored these jobs as of these revs.

A job that has not changed since leaves `changed`; if it has ended, its hash goes after tombstone_ms, in
which a repeated enqueue still finds it. Attempts that are stored leave the hash. Repeating it does no harm.

KEYS
  1 changed    zset    job id by first change, ms        w
ARGV
  1 prefix        string  prefix of the queue's keys, same hash tag as KEYS
  2 tombstone_ms  int     1..3600000
  3 count         int     1..100; then two values a job:
    id            string  job id
    rev           int     the rev that was stored; 0 = its data was missing
RETURNS
  OK           number of jobs that left changed
CHANGES
  none
COST
  O(count log N), and the fields of these jobs
]]
--@include read types

local prefix, tombstone_ms, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not tombstone_ms or not count or count < 1 or count > 100 or #ARGV ~= 3 + 2 * count then
  return redis.error_reply("JOBRAILARG mirrored takes tombstone_ms and 1..100 jobs of 2 values")
end
check_types({ KEYS[1] }, {}, {}, {})
local FINAL = { succeeded = true, dead = true, cancelled = true }

-- Removes the attempts that are stored: those recorded with this rev or an earlier one. One by one, because there
-- is no end to what was recorded while the mirror was away, and Lua hands at most 8,000 values to a call.
local function drop_attempts(key, rev)
  for _, name in ipairs(redis.call("HKEYS", key)) do
    local recorded = tonumber(string.match(name, "^[ae]:(%d+)$"))
    if recorded and recorded <= rev then
      redis.call("HDEL", key, name)
    end
  end
end

local done = {}
for i = 1, count do
  local id, rev = ARGV[2 + 2 * i], tonumber(ARGV[3 + 2 * i])
  local key = prefix .. "job:" .. id
  local job = read("HMGET", key, "state", "rev")
  if not job or not job[1] then
    done[#done + 1] = id
  else
    local now_rev = tonumber(string.match(job[2] or "", "^%d+$")) -- nil: damaged, and never to be stored
    local same = not now_rev or now_rev == rev
    if same then
      done[#done + 1] = id
    end
    if same and FINAL[job[1]] then
      redis.call("PEXPIRE", key, tombstone_ms)
    else
      drop_attempts(key, rev)
    end
  end
end
if #done > 0 then
  redis.call("ZREM", KEYS[1], unpack(done))
end
return { "OK", #done }
