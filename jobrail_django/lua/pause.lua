#!lua flags=allow-oom
--[[
pause: stop or resume the claims of a queue. Running jobs go on; enqueuing goes on.

KEYS
  1 ready      zset    job id by (priority, seq)         r
  2 meta       hash    paused                            rw
  3 wake       list    one element wakes one worker      rw
ARGV
  1 paused     string  "1" = pause, "" = resume
RETURNS
  OK
CHANGES
  none
COST
  O(1)
]]
--@include wake types

check_types({ KEYS[1] }, { KEYS[2] }, { KEYS[3] }, {})
if ARGV[1] == "1" then
  redis.call("HSET", KEYS[2], "paused", "1")
else
  redis.call("HDEL", KEYS[2], "paused")
  if redis.call("ZCARD", KEYS[1]) > 0 then
    wake_one(KEYS[3])
  end
end
return { "OK" }
