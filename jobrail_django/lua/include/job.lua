--[[
Reading a job's hash. Every field of it is text, and a number that is absent or damaged counts as 0;
lua/README.md lists them.

job_read(key): the whole hash as a table, or nil when it is missing or is not a hash. Needs read.
]]
local function job_read(key)
  local flat = read("HGETALL", key)
  if not flat or #flat == 0 then
    return nil
  end
  -- Made at its usual size: a table that grows field by field costs more than the HGETALL.
  local job = { state = nil, rev = nil, limits = nil, at = nil, p1 = nil, p2 = nil, p3 = nil, claim = nil, token = nil }
  for i = 1, #flat, 2 do
    job[flat[i]] = flat[i + 1]
  end
  return job
end
