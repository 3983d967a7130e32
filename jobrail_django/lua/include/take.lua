--[[
take(keys, prefix, now, want): the claim itself, shared by `claim` and `settle`. Needs job, ready,
changed, wake, due. `want` has slot, n, ack, limit, lease_ms, epoch.

The slot's string holds its last request and what it was given: "n id id …".
- n below the last one is an old request that arrives late: STALE.
- The same n returns the same jobs: those that still run under that claim.
- A higher n whose ack is below the last one says that the slot never saw that reply. What it was
  given then is leased to it again under the new claim, and nothing new.
Otherwise up to `limit` jobs are taken from `ready`, after what is due has been promoted. The first is
taken to have started (`ran`); a job marked `alone` is never taken together with others.

Returns {OK, now, next_due, {job}*} | {PAUSED} | {STALE, n} | {NEEDS_EPOCH, epoch}, with
job = {id, rev, attempts, losses, limits, at, round, cancel, payload}.
]]
local function given_before(keys, prefix, slot)
  local words = {}
  for word in string.gmatch(redis.call("GET", keys.slot) or "0", "%S+") do
    words[#words + 1] = word
  end
  local last = tonumber(words[1])
  local batch = {}
  for i = 2, #words do
    local job = job_read(prefix .. "job:" .. words[i])
    if job and job.state == "running" and job.claim == slot .. ":" .. last then
      batch[#batch + 1] = { id = words[i], job = job, score = job.score }
    end
  end
  return last, batch
end

local function next_ready(keys, prefix, limit)
  local ids = redis.call("ZRANGE", keys.ready, 0, limit - 1, "WITHSCORES")
  local batch, missing = {}, {}
  for i = 1, #ids, 2 do
    local job = job_read(prefix .. "job:" .. ids[i])
    if not job then
      missing[#missing + 1] = ids[i]
    elseif job.alone == "1" and #batch > 0 then
      break
    else
      batch[#batch + 1] = { id = ids[i], job = job, score = ids[i + 1] }
      if job.alone == "1" then
        break
      end
    end
  end
  return batch, missing
end

local function described(id, job, rev)
  return {
    id,
    rev,
    tonumber(job.attempts or 0),
    tonumber(job.losses or 0),
    job.limits or "",
    job.at or "",
    job.round or "1",
    job.cancel or "",
    payload_of(job),
  }
end

local function lease_batch(keys, prefix, now, want, batch)
  local claim = want.slot .. ":" .. string.format("%.0f", want.n)
  local ids, leases, reply = {}, {}, { "OK", now, "" }
  for i = 1, #batch do
    local id, job = batch[i].id, batch[i].job
    local rev = tonumber(job.rev or 0) + 1
    redis.call("HSET", prefix .. "job:" .. id, "state", "running", "rev", rev, "token", rev, "claim", claim,
      "claimed", now, "score", batch[i].score, "ran", i == 1 and "1" or "", "alone", "")
    ids[i] = id
    leases[2 * i - 1] = now + want.lease_ms
    leases[2 * i] = id
    reply[i + 3] = described(id, job, rev)
  end
  if #ids > 0 then
    redis.call("ZREM", keys.ready, unpack(ids))
    redis.call("ZADD", keys.leases, unpack(leases))
    note_changes(keys.changed, ids, now)
  end
  redis.call("SET", keys.slot, string.format("%.0f ", want.n) .. table.concat(ids, " "),
    "PX", math.max(60000, 2 * want.lease_ms))
  return reply
end

local function take(keys, prefix, now, want)
  local meta = redis.call("HMGET", keys.meta, "epoch", "paused")
  if meta[1] ~= want.epoch then
    return { "NEEDS_EPOCH", meta[1] or "" }
  end
  local last, given = given_before(keys, prefix, want.slot)
  if want.n < last then
    return { "STALE", string.format("%.0f", last) }
  end
  if want.n == last then
    local reply = { "OK", now, "" }
    for i = 1, #given do
      reply[i + 3] = described(given[i].id, given[i].job, tonumber(given[i].job.token))
    end
    return reply
  end
  if want.ack < last and #given > 0 then
    return lease_batch(keys, prefix, now, want, given)
  end
  if meta[2] == "1" then
    return { "PAUSED" }
  end
  local _, next_due = promote_due(keys, prefix, now, 100)
  local batch, missing = {}, {}
  if want.limit > 0 then
    batch, missing = next_ready(keys, prefix, want.limit)
  end
  if #missing > 0 then
    redis.call("ZREM", keys.ready, unpack(missing))
    note_changes(keys.changed, missing, now)
  end
  local reply = lease_batch(keys, prefix, now, want, batch)
  reply[3] = next_due
  if redis.call("ZCARD", keys.ready) > 0 then
    wake_one(keys.wake)
  end
  return reply
end
