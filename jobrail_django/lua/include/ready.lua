--[[
ready_score(priority, seq): where a job stands in `ready`: larger priorities first, then the order of
`seq`. priority is -100..100 and seq below 2^44, so the sum is exact in a double.
]]
local function ready_score(priority, seq)
  return (100 - priority) * 17592186044416 + seq
end
