--[[
cancelled_fields(fields, now, reason): the field-value pairs of a job that ends cancelled.
free_key(prefix, job, id): lets go of a cancelled job's idempotency key, if it is still this job's:
work that was called off may be asked for again.
]]
local function cancelled_fields(fields, now, reason)
  for _, value in ipairs({ "state", "cancelled", "finished", now, "due", "", "reason", reason }) do
    fields[#fields + 1] = value
  end
end

local function free_key(prefix, job, id)
  if job.key and job.key ~= "" then
    local key = prefix .. "key:" .. job.key
    local held = redis.call("GET", key)
    if held and string.sub(held, 1, #id) == id then
      redis.call("DEL", key)
    end
  end
end
