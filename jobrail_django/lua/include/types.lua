--[[
check_types(zsets, hashes, lists, strings): reads each key once, so that a key of the wrong type
makes the script fail before its first write. Redis does not roll a script back.
]]
local function check_types(zsets, hashes, lists, strings)
  for i = 1, #zsets do
    redis.call("ZCARD", zsets[i])
  end
  for i = 1, #hashes do
    redis.call("HLEN", hashes[i])
  end
  for i = 1, #lists do
    redis.call("LLEN", lists[i])
  end
  for i = 1, #strings do
    redis.call("STRLEN", strings[i])
  end
end
