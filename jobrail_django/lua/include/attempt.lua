--[[
add_attempt(fields, job, outcome, started, finished, error): appends the record of one started
execution to the field-value pairs of an HSET. It is named by the claim's rev, so a job never has the
same attempt twice and attempts sort by time. `number` counts attempts and losses so far, plus one.
]]
local function add_attempt(fields, job, outcome, started, finished, err)
  local number = tonumber(job.attempts or 0) + tonumber(job.losses or 0) + 1
  fields[#fields + 1] = "a:" .. job.token
  fields[#fields + 1] =
    string.format("%s %d %s %.0f %.0f %s", job.round, number, outcome, started, finished, job.claim)
  if err ~= "" then
    fields[#fields + 1] = "e:" .. job.token
    fields[#fields + 1] = err
  end
end
