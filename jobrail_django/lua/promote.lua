#!lua flags=allow-oom
--[[
promote: move due jobs from `retrying` and `scheduled` to `ready`.

Claims promote as well; this serves queues that nobody claims from at the moment.

KEYS
  1 ready      zset    job id by (priority, seq)         rw
  2 scheduled  zset    job id by due time, ms            rw
  3 retrying   zset    job id by due time, ms            rw
  4 changed    zset    job id by first change, ms        w
  5 meta       hash    seq of the queue                  rw
  6 wake       list    one element wakes one worker      rw
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 limit      int     1..100, of each of the two
RETURNS
  OK           number moved, next due time in ms or ""; one that has passed: more is left
CHANGES
  scheduled → ready
  retrying → ready
COST
  O(limit log N)
]]
--@include clock read ready changed wake types due

local now, limit = now_ms(ARGV[2]), tonumber(ARGV[3])
if not limit or limit < 1 or limit > 100 then
  return redis.error_reply("JOBRAILARG promote takes a limit of 1..100")
end
check_types({ KEYS[1], KEYS[2], KEYS[3], KEYS[4] }, { KEYS[5] }, { KEYS[6] }, {})
local moved, due = promote_due({ ready = KEYS[1], scheduled = KEYS[2], retrying = KEYS[3], changed = KEYS[4],
  meta = KEYS[5] }, ARGV[1], now, limit)
if moved > 0 then
  wake_one(KEYS[6])
end
return { "OK", moved, due }
