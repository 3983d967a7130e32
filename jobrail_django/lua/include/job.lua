--[[
Reading a job's hash. Every field of it is text; lua/README.md lists them.

job_read(key): the whole hash as a table, or nil when it is missing or is not a hash. One unreadable
job must not stop a script that works on others, hence pcall.
payload_of(job): the opaque payload, put together from its pieces. See payload_fields.
payload_fields(payload, into): appends the field-value pairs that hold a payload. Pieces of at most
64 bytes keep the hash in Redis's compact encoding (measured: 522 instead of 827 bytes a job); a
payload over 512 bytes is one field.
]]
local PIECE, PIECES = 64, 8

local function job_read(key)
  local flat = redis.pcall("HGETALL", key)
  if flat.err or #flat == 0 then
    return nil
  end
  local job = {}
  for i = 1, #flat, 2 do
    job[flat[i]] = flat[i + 1]
  end
  return job
end

local function payload_of(job)
  if job.payload then
    return job.payload
  end
  local pieces = {}
  for i = 1, PIECES do
    local piece = job["p" .. i]
    if not piece then
      break
    end
    pieces[i] = piece
  end
  return table.concat(pieces)
end

local function payload_fields(payload, into)
  if #payload > PIECE * PIECES then
    into[#into + 1] = "payload"
    into[#into + 1] = payload
    return
  end
  for i = 1, math.ceil(#payload / PIECE) do
    into[#into + 1] = "p" .. i
    into[#into + 1] = string.sub(payload, (i - 1) * PIECE + 1, i * PIECE)
  end
end
