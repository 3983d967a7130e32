--[[
wake_one(wake_key): lets one waiting worker look. The list never holds more than one element: who is
woken and leaves work behind wakes the next, so there is no herd. It goes by itself after a minute.
]]
local function wake_one(wake_key)
  if redis.call("LLEN", wake_key) == 0 then
    redis.call("LPUSH", wake_key, "1")
    redis.call("PEXPIRE", wake_key, 60000)
  end
end
