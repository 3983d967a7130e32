--[[
own_key(prefix, job, id): the name of a job's idempotency key if it is still this job's, else nil. Needs read;
for a script's reading part. A job that ends cancelled lets go of it: work that was called off may be asked for
again.
cancel_job(fields, own, now, reason): the field-value pairs of a job that ends cancelled; deletes `own`, its key
or nil. Needs put.
]]
local function own_key(prefix, job, id)
  if not job.key then
    return nil
  end
  local key = prefix .. "key:" .. job.key
  local held = read("GET", key)
  return held and string.sub(held, 1, #id + 1) == id .. " " and key or nil
end

local function cancel_job(fields, own, now, reason)
  put(fields, "state", "cancelled")
  put(fields, "finished", now)
  put(fields, "due", "")
  put(fields, "reason", reason)
  if own then
    redis.call("DEL", own)
  end
end
