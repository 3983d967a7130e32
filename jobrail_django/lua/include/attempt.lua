--[[
add_attempt(fields, job, rev, outcome, started, finished, err): appends the record of one started
execution to the field-value pairs of an HSET. Its fields carry the rev that the job gets with it, so that the
mirror, which has stored a job as of some rev, can tell which attempts it has. `number` counts attempts
and losses so far, plus one. Times are integer ms below 10^14. Needs put.
]]
local function add_attempt(fields, job, rev, outcome, started, finished, err)
  local number = (tonumber(job.attempts) or 0) + (tonumber(job.losses) or 0) + 1
  put(fields, "a:" .. rev, (job.token or "0") .. " " .. (job.round or "1") .. " " .. number .. " " .. outcome .. " "
    .. started .. " " .. finished .. " " .. job.claim)
  if err ~= "" then
    put(fields, "e:" .. rev, err)
  end
end
