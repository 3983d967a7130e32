--[[
payload_of(job): the opaque payload of a job that was read, put together from its pieces. See payload_fields.
]]
local function payload_of(job)
  if job.payload then
    return job.payload
  end
  local pieces, piece = {}, job.p1
  while piece do
    pieces[#pieces + 1] = piece
    piece = job["p" .. #pieces + 1]
  end
  return table.concat(pieces)
end
