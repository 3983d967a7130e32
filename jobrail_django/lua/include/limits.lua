--[[
limits_of(limits): the two numbers of a job's field `limits`, "max_attempts,max_losses".
]]
local function limits_of(limits)
  local attempts, losses = string.match(limits or "", "^(%d+),(%d+)$")
  return tonumber(attempts) or 1, tonumber(losses) or 1
end
