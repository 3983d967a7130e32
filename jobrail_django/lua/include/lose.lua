--[[
lose(keys, prefix, id, job, now): recover one running job whose worker is gone. Needs attempt,
cancelled, limits. Writes the job, `leases` and `ready`; the caller notes the change.

A job known to have started is charged one loss and gets an attempt `lost`; it ends dead once its
losses reach max_losses, or max_attempts if that is smaller. One that merely sat in a batch goes back
uncharged, and will be claimed alone. Both keep their place in `ready`. If its cancellation was
asked for, it ends cancelled. Returns the new state.
]]
local function lose(keys, prefix, id, job, now)
  local fields = { "rev", tonumber(job.rev) + 1, "claim", "", "ran", "" }
  local state = "ready"
  if job.ran == "1" then
    local losses = tonumber(job.losses or 0) + 1
    local max_attempts, max_losses = limits_of(job.limits)
    add_attempt(fields, job, "lost", tonumber(job.claimed), math.max(now, tonumber(job.claimed)), "")
    fields[#fields + 1] = "losses"
    fields[#fields + 1] = losses
    if losses >= math.min(max_losses, max_attempts) then
      state = "dead"
      for _, value in ipairs({ "state", "dead", "finished", now, "reason",
        "lost its worker " .. losses .. (losses == 1 and " time" or " times") }) do
        fields[#fields + 1] = value
      end
    end
  else
    fields[#fields + 1] = "alone"
    fields[#fields + 1] = "1"
  end
  if job.cancel and job.cancel ~= "" then
    state = "cancelled"
    cancelled_fields(fields, now, "cancelled while running, its worker was lost")
    free_key(prefix, job, id)
  end
  if state == "ready" then
    fields[#fields + 1] = "state"
    fields[#fields + 1] = "ready"
    redis.call("ZADD", keys.ready, job.score, id)
  end
  redis.call("ZREM", keys.leases, id)
  redis.call("HSET", prefix .. "job:" .. id, unpack(fields))
  return state
end
