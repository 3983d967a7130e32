--[[
payload_of(job): the opaque payload of a job that was read, put together from its pieces. See payload_fields.
]]
local function payload_of(job)
  if job.payload then
    return job.payload
  end
  local pieces, i = {}, 1
  while job["p" .. i] do
    pieces[i] = job["p" .. i]
    i = i + 1
  end
  return table.concat(pieces)
end
