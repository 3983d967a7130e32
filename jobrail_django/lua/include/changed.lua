--[[
note_changes(changed_key, ids, now): tells the mirror that these jobs have changed. The score is the
moment of the first change that the mirror has not stored, so the lowest score is the mirror's lag.
At most 100 ids a call.
]]
local function note_changes(changed_key, ids, now)
  if #ids == 0 then
    return
  end
  local args, score = {}, string.format("%.0f", now) -- once: Redis would write the number out for each id
  for i = 1, #ids do
    args[2 * i - 1], args[2 * i] = score, ids[i]
  end
  redis.call("ZADD", changed_key, "NX", unpack(args))
end
