--[[
payload_fields(payload, fields): appends the field-value pairs that hold a job's opaque payload. Needs put.

Pieces of at most 64 bytes keep the hash in Redis's compact encoding (measured: 522 instead of 827 bytes a
job); a payload over 512 bytes is one field.
]]
local PIECE, PIECES = 64, 8

local function payload_fields(payload, fields)
  if #payload > PIECE * PIECES then
    put(fields, "payload", payload)
    return
  end
  for i = 1, math.ceil(#payload / PIECE) do
    put(fields, "p" .. i, string.sub(payload, (i - 1) * PIECE + 1, i * PIECE))
  end
end
