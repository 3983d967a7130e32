--[[
claim_wanted(slot, n, ack, limit, lease_ms, epoch): what a slot asks for, nil when a number is not one.
take(keys, prefix, now, want): the claim itself, shared by `claim` and `settle`. Needs job, payload_of,
ready, changed, wake, due. Reads all its
keys but ready, leases, changed and wake before it writes.

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
local function claim_wanted(slot, n, ack, limit, lease_ms, epoch)
  local want = { slot = slot, n = tonumber(n), ack = tonumber(ack), limit = tonumber(limit),
    lease_ms = tonumber(lease_ms), epoch = epoch }
  return want.n and want.ack and want.limit and want.limit <= 100 and want.lease_ms and want or nil
end

local function given_before(prefix, claim, ids)
  local batch = {}
  for id in string.gmatch(ids, "%S+") do
    local job = job_read(prefix .. "job:" .. id)
    if job and job.state == "running" and job.claim == claim then
      batch[#batch + 1] = { id = id, job = job, score = job.score or "0" }
    end
  end
  return batch
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
    tonumber(job.attempts) or 0,
    tonumber(job.losses) or 0,
    job.limits or "",
    job.at or "",
    job.round or "1",
    job.cancel or "",
    payload_of(job),
  }
end

local function repeated(now, due, batch)
  local reply = { "OK", now, due }
  for i = 1, #batch do
    reply[i + 3] = described(batch[i].id, batch[i].job, tonumber(batch[i].job.token) or 0)
  end
  return reply
end

local function lease_batch(keys, prefix, now, want, due, batch)
  local n = string.format("%.0f", want.n)
  local claim, claimed = want.slot .. ":" .. n, string.format("%.0f", now)
  local expiry = string.format("%.0f", now + want.lease_ms)
  local ids, leases, reply = {}, {}, { "OK", now, due }
  for i = 1, #batch do
    local id, job = batch[i].id, batch[i].job
    local key, rev = prefix .. "job:" .. id, (tonumber(job.rev) or 0) + 1
    local token = string.format("%.0f", rev)
    redis.call("HSET", key, "state", "running", "rev", token, "token", token, "claim", claim, "claimed", claimed,
      "score", batch[i].score)
    if job.alone == "1" then
      redis.call("HSET", key, "alone", "")
    end
    if i == 1 then
      redis.call("HSET", key, "ran", claim)
    end
    ids[i] = id
    leases[2 * i - 1], leases[2 * i] = expiry, id
    reply[i + 3] = described(id, job, rev)
  end
  if #ids > 0 then
    redis.call("ZREM", keys.ready, unpack(ids))
    redis.call("ZADD", keys.leases, unpack(leases))
    note_changes(keys.changed, ids, now)
  end
  redis.call("SET", keys.slot, n .. " " .. table.concat(ids, " "), "PX", math.max(60000, 2 * want.lease_ms))
  return reply
end

local function take(keys, prefix, now, want)
  local meta = redis.call("HMGET", keys.meta, "epoch", "paused")
  if meta[1] ~= want.epoch then
    return { "NEEDS_EPOCH", meta[1] or "" }
  end
  local last, given = string.match(redis.call("GET", keys.slot) or "", "^(%d+)(.*)$")
  last = last or "0"
  if want.n < tonumber(last) then
    return { "STALE", last }
  end
  local due = next_due(keys)
  if want.n == tonumber(last) or want.ack < tonumber(last) then
    local batch = given_before(prefix, want.slot .. ":" .. last, given)
    if want.n == tonumber(last) then
      return repeated(now, due, batch)
    elseif #batch > 0 then
      return lease_batch(keys, prefix, now, want, due, batch)
    end
  end
  if meta[2] == "1" then
    return { "PAUSED" }
  end
  if due ~= "" and tonumber(due) <= now then
    local _
    _, due = promote_due(keys, prefix, now, 100)
  end
  local batch, missing = {}, {}
  if want.limit > 0 then
    batch, missing = next_ready(keys, prefix, want.limit)
  end
  if #missing > 0 then
    redis.call("ZREM", keys.ready, unpack(missing))
    note_changes(keys.changed, missing, now)
  end
  local reply = lease_batch(keys, prefix, now, want, due, batch)
  if redis.call("ZCARD", keys.ready) > 0 then
    wake_one(keys.wake)
  end
  return reply
end
