--[[
promote_due(keys, prefix, now, limit): move up to `limit` due jobs of each of `retrying` and
`scheduled` to `ready`, in due order; each enters `ready` at the end of its priority. Needs ready,
changed. Returns how many moved and the next due time in ms ("" when nothing waits); a next due time
that has passed means that more is left.
]]
local function due_jobs(key, prefix, now, limit)
  local head = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")
  if not head[1] or tonumber(head[2]) > now then
    return {}, {}
  end
  local ids = redis.call("ZRANGE", key, "-inf", now, "BYSCORE", "LIMIT", 0, limit)
  local jobs = {}
  for i = 1, #ids do
    local found = redis.pcall("HMGET", prefix .. "job:" .. ids[i], "rev", "prio")
    jobs[i] = found.err and {} or found
  end
  return ids, jobs
end

local function promote_due(keys, prefix, now, limit)
  local moved, next_due = 0, ""
  for _, key in ipairs({ keys.retrying, keys.scheduled }) do
    local ids, jobs = due_jobs(key, prefix, now, limit)
    if #ids > 0 then
      local seq = redis.call("HINCRBY", keys.meta, "seq", #ids) - #ids
      local scores = {}
      for i = 1, #ids do
        if jobs[i][1] then
          redis.call("HSET", prefix .. "job:" .. ids[i], "state", "ready", "rev", tonumber(jobs[i][1]) + 1, "due", "")
          scores[#scores + 1] = ready_score(tonumber(jobs[i][2]) or 0, seq + i)
          scores[#scores + 1] = ids[i]
        end
      end
      redis.call("ZREM", key, unpack(ids))
      if #scores > 0 then
        redis.call("ZADD", keys.ready, unpack(scores))
      end
      note_changes(keys.changed, ids, now)
      moved = moved + #ids
    end
    local head = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")
    if head[1] and (next_due == "" or tonumber(head[2]) < tonumber(next_due)) then
      next_due = head[2]
    end
  end
  return moved, next_due
end
