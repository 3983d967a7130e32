--[[
put(fields, name, value): appends one pair to the field-value pairs of an HSET.
]]
local function put(fields, name, value)
  local n = #fields
  fields[n + 1], fields[n + 2] = name, value
end
