#!lua flags=allow-oom
--[[
beat: register a worker, or keep it registered, for ttl_ms. With ttl_ms = 0 it leaves.

KEYS
  1 workers    zset    worker id by expiry, ms           rw
  2 worker     string  JSON that describes the worker    w
ARGV
  1 now_ms     int     "" = server time
  2 id         string  worker id
  3 ttl_ms     int     0..86400000
  4 info       bytes   opaque
RETURNS
  OK
CHANGES
  none
COST
  O(log N + workers that have expired)
]]
--@include clock types

local now, ttl_ms = now_ms(ARGV[1]), tonumber(ARGV[3])
if not ttl_ms then
  return redis.error_reply("JOBRAILARG beat takes ttl_ms as an integer")
end
check_types({ KEYS[1] }, {}, {}, {})
if ttl_ms == 0 then
  redis.call("ZREM", KEYS[1], ARGV[2])
  redis.call("DEL", KEYS[2])
  return { "OK" }
end
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now)
redis.call("ZADD", KEYS[1], now + ttl_ms, ARGV[2])
redis.call("PEXPIRE", KEYS[1], ttl_ms)
redis.call("SET", KEYS[2], ARGV[4], "PX", ttl_ms)
return { "OK" }
