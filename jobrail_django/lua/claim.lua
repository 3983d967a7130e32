#!lua flags=allow-oom
--[[
claim: lease up to `limit` ready jobs of one queue to one slot.

Safe to repeat with the same n: the same jobs come back. Promotes what is due first. Leases nothing of
a paused queue, and nothing to a caller that believes in another epoch.

KEYS
  1 ready      zset    job id by (priority, seq)         rw
  2 scheduled  zset    job id by due time, ms            rw
  3 retrying   zset    job id by due time, ms            rw
  4 leases     zset    job id by lease expiry, ms        rw
  5 changed    zset    job id by first change, ms        w
  6 meta       hash    epoch, paused, seq                rw
  7 slot       string  last request of this slot         rw
  8 wake       list    one element wakes one worker      rw
ARGV
  1 prefix     string  prefix of the queue's keys, same hash tag as KEYS
  2 now_ms     int     "" = server time
  3 slot       string  name of the slot, without spaces
  4 n          int     number of this request, grows per slot
  5 ack        int     highest n whose reply the slot has seen, 0 = none
  6 limit      int     0..100
  7 lease_ms   int     1000..86400000
  8 epoch      string  the epoch the caller believes in
RETURNS
  OK           now_ms, next due time in ms or "", {id, rev, attempts, losses, limits, at, round, cancel, payload} *
  PAUSED
  STALE        n of the slot's last request
  NEEDS_EPOCH  the queue's epoch or ""
CHANGES
  ready → running
  scheduled → ready
  retrying → ready
COST
  O(limit log N), and up to 200 promotions
]]
--@include clock read job payload_of ready changed wake types due take

local now = now_ms(ARGV[2])
local keys = { ready = KEYS[1], scheduled = KEYS[2], retrying = KEYS[3], leases = KEYS[4],
  changed = KEYS[5], meta = KEYS[6], slot = KEYS[7], wake = KEYS[8] }
local want = claim_wanted(unpack(ARGV, 3, 8))
if not want then
  return redis.error_reply("JOBRAILARG claim takes n, ack, a limit of 0..100 and lease_ms as integers")
end
check_types({ KEYS[1], KEYS[4], KEYS[5] }, {}, { KEYS[8] }, {}) -- take reads the others before it writes
return take(keys, ARGV[1], now, want)
