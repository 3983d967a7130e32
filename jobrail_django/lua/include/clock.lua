--[[
now_ms(given): the one reading of the clock that a script makes.

`given` is ARGV's now_ms: "" means the server's clock; tests pass integer milliseconds since 1970.
The clock is not frozen while a script runs, so the value is read once and handed on.
]]
local function now_ms(given)
  if given ~= "" then
    return tonumber(given)
  end
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
