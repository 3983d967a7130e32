--[[
lose(keys, prefix, id, job, now, started, err): recover one running job whose worker is gone. `started` is when its
handler started, in ms, nil = it is not known to have started; `err` is the error record of the attempt, "" = none;
`job.own` is its own_key if its cancellation was asked for. Needs put, attempt, cancelled, limits.
Writes the job, `leases` and `ready`; the caller notes the change.

A job that had started is charged one loss and gets an attempt `lost`; it ends dead once its losses
reach max_losses, or max_attempts if that is smaller. One that merely sat in a batch goes back
uncharged, and will be claimed alone. Both keep their place in `ready`. If its cancellation was
asked for, it ends cancelled. Returns the new state.
]]
local function lose(keys, prefix, id, job, now, started, err)
  local rev = (tonumber(job.rev) or 0) + 1
  local fields = { "rev", rev, "claim", "" }
  local state = "ready"
  if started then
    local losses = (tonumber(job.losses) or 0) + 1
    local max_attempts, max_losses = limits_of(job.limits)
    add_attempt(fields, job, rev, "lost", started, math.max(now, started), err)
    put(fields, "losses", losses)
    if losses >= math.min(max_losses, max_attempts) then
      state = "dead"
      put(fields, "finished", now)
      put(fields, "reason", "lost its worker " .. losses .. (losses == 1 and " time" or " times"))
    end
  else
    put(fields, "alone", "1")
  end
  if (job.cancel or "") ~= "" then
    state = "cancelled"
    cancel_job(fields, job.own, now, "cancelled while running, its worker was lost")
  else
    put(fields, "state", state)
  end
  if state == "ready" then
    redis.call("ZADD", keys.ready, tonumber(job.score) or 0, id)
  end
  redis.call("ZREM", keys.leases, id)
  redis.call("HSET", prefix .. "job:" .. id, unpack(fields))
  return state
end
