--[[
next_due(keys): when the next of the waiting jobs is due, in ms as text, "" when none waits.
promote_due(keys, prefix, now, limit): move up to `limit` due jobs of each of `retrying` and
`scheduled` to `ready`, in due order; each enters `ready` at the end of its priority. Needs read,
ready, changed. Returns how many moved and next_due; one that has passed means that more is left.
]]
local function next_due(keys)
  local a = redis.call("ZRANGE", keys.retrying, 0, 0, "WITHSCORES")[2]
  local b = redis.call("ZRANGE", keys.scheduled, 0, 0, "WITHSCORES")[2]
  if a and b then
    return tonumber(a) < tonumber(b) and a or b
  end
  return a or b or ""
end

local function promote_from(key, keys, prefix, now, limit)
  local ids = redis.call("ZRANGE", key, "-inf", now, "BYSCORE", "LIMIT", 0, limit)
  if #ids == 0 then
    return 0
  end
  local jobs, scores = {}, {}
  for i = 1, #ids do
    jobs[i] = read("HMGET", prefix .. "job:" .. ids[i], "state", "rev", "prio") or {}
  end
  local seq = redis.call("HINCRBY", keys.meta, "seq", #ids) - #ids
  for i = 1, #ids do
    if jobs[i][1] then
      local rev = (tonumber(jobs[i][2]) or 0) + 1
      redis.call("HSET", prefix .. "job:" .. ids[i], "state", "ready", "rev", rev, "due", "")
      scores[#scores + 1] = ready_score(tonumber(jobs[i][3]) or 0, seq + i)
      scores[#scores + 1] = ids[i]
    end
  end
  redis.call("ZREM", key, unpack(ids))
  if #scores > 0 then
    redis.call("ZADD", keys.ready, unpack(scores))
  end
  note_changes(keys.changed, ids, now)
  return #ids
end

local function promote_due(keys, prefix, now, limit)
  local moved, due = 0, next_due(keys)
  if due ~= "" and tonumber(due) <= now then
    moved = promote_from(keys.retrying, keys, prefix, now, limit)
      + promote_from(keys.scheduled, keys, prefix, now, limit)
    due = next_due(keys)
  end
  return moved, due
end
