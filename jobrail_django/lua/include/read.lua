--[[
read(command, key, …): the reply of a command that reads, or nil when the key is of another type, because one
such job must not stop a script that works on others. Any other error is raised: a key of a slot that is moving to
another node cannot be read at the moment, and its job is not to be taken for missing.
]]
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == "table" and reply.err then
    if not string.find(reply.err, "WRONGTYPE", 1, true) then
      error(reply)
    end
    return nil
  end
  return reply
end
