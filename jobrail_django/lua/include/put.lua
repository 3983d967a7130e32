--[[
put(list, name, value): appends one pair to the field-value pairs of an HSET, or the score-member pairs of a ZADD.
]]
local function put(list, name, value)
  local n = #list
  list[n + 1], list[n + 2] = name, value
end
