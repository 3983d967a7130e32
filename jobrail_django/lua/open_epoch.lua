#!lua flags=allow-oom
--[[
open_epoch: give a queue that has no epoch the proposed one. An epoch is missing in a queue that was
never used and in one whose Redis lost its data.

KEYS
  1 meta       hash    epoch                             rw
ARGV
  1 epoch      string  proposed epoch, without spaces
RETURNS
  OK           the queue's epoch, 1 = it is the proposed one and new, 0 = it had one
CHANGES
  none
COST
  O(1)
]]
local new = redis.call("HSETNX", KEYS[1], "epoch", ARGV[1])
return { "OK", redis.call("HGET", KEYS[1], "epoch"), new }
