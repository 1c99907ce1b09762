-- The beginning of every script of a limit: the family's script (log.lua, bucket.lua, …) is appended to this text.
--
-- KEYS[1]  the limit: a hash with `version`, `gate`, `floor`, `birth`, `born`, `out`, `said`, and `k:HASH`, the version of a key's own
--          policy.
-- KEYS[2]  the state of one key by its family; its name ends with the key's HASH, 32 hex digits. Absent if the whole
--          limit is meant.
-- KEYS[3]  with KEYS[2]: the states of all keys (of leases: of all keys with leases), by their expiry: a sorted set of HASHes
-- KEYS[4]  for `adopt`: those of them that an earlier policy has left; for `grant`: the holders of granted units of
--          the key
--
-- ARGV     op, the version of the policy that the caller knows, the run of the server that it calls, the limit's
--          creation time as the caller knows it (0: it does not), the run from which the limit has come (0: unknown,
--          ?: it may be asked), time ("": the server's), the number of the policy's numbers, these numbers, the op's
--          arguments.
--
-- A state must outlive its counts, under any policy. So a caller that applies another policy has each state rewritten
-- under it (`adopt`), the first to expire first, and until that is done there is no further change. `waiting` is when
-- the first of the remaining ones expires. If it has expired, a caller that must know whether a key was used adopts
-- them first (-2). A state that expired before any caller came is lost, and counts like data that the server has lost.
--
-- All numbers are integers below 2^53, which a double holds exactly. Time is in ticks of 1 µs since 2024-01-01T00:00:00Z.
-- Redis and Valkey run Lua 5.1, Dragonfly 5.4: there `/` makes a float even of integers, so every quotient goes through
-- `quotient`, and texts are made by `%d`.

local call, floor, max, min, format = redis.call, math.floor, math.max, math.min, string.format
local unpack = unpack or table.unpack

local EPOCH = 1704067200
local SECOND = 1000000

-- The quotient of two integers, rounded down. (Exact: the true one differs from the integer above by more than a double's error.)
local function quotient(a, b) return floor(a / b) end

local op, is_manual = ARGV[1], ARGV[4] ~= ""
local limit_key, state_key = KEYS[1], KEYS[2]

-- The numbers of the policy, and the op's arguments.
local policy, arguments = {}, {}
do
    local count = tonumber(ARGV[5])
    for i = 6, #ARGV do
        if i <= 5 + count then policy[i - 5] = tonumber(ARGV[i]) else arguments[i - 5 - count] = tonumber(ARGV[i]) end
    end
end

-- The fields of the limit: `gate`, before which no start happens; `birth`, which grows when the whole limit is cleared
-- (a state that was written before that counts as absent); `born`, up to when starts may have been lost (an absent key
-- counts as full of starts at that time); `floor_seen`, the latest time that was recorded; `out`, until when machines
-- may start what they were granted of any key.
local version, own_version, gate, floor_seen, birth, born, run_seen, made, waiting, out
local hash = string.sub(state_key or "", -32)
do
    local known = call("HMGET", limit_key, "version", "k:" .. hash, "gate", "floor", "birth", "born", "run", "made", "waiting", "out")
    for i = 1, 10 do known[i] = tonumber(known[i] or 0) end
    version, own_version, gate, floor_seen, birth, born, run_seen, made, waiting, out = unpack(known)
end

-- The caller knows a policy that does not apply. It must read the present one first.
local holds = own_version > 0 and own_version or version
if holds == 0 or holds ~= tonumber(ARGV[2]) then return { -1 } end

-- The policy under which a state is written.
local mark = holds

-- Time never runs backwards by more than FLOOR_LAG, whatever the server's clock does. Where even that would admit one
-- start too many, a family also records the time in its state, and raises `now` to it.
local FLOOR_LAG = SECOND
local now
if is_manual then
    now = tonumber(ARGV[4])
else
    local time = call("TIME")
    now = (tonumber(time[1]) - EPOCH) * SECOND + tonumber(time[2])
end
local clock = now
now = max(now, floor_seen)

-- Another run of the server, or another server, has this by now: the last starts may be missing. Or the caller knew the
-- limit before it was recreated, and its earlier starts are unknown.
--
-- In a cluster, a limit may have moved here from another node, which loses nothing. So the caller is asked (-3) whether
-- the server on which it was last used is still the primary that it was then; if so, the caller says so.
if not is_manual then
    local run, known, from = string.match(ARGV[3], "^(%d+) (%d+) (.+)$")
    if run_seen > 0 and tonumber(run) ~= run_seen then
        if from == "?" then return { -3, run_seen } end
        if tonumber(from) == run_seen then
            run_seen = tonumber(run)
            call("HSET", limit_key, "run", run)
        end
    end
    local lost = tonumber(run) ~= run_seen and now or tonumber(known) > 0 and tonumber(known) ~= made and made or 0
    if lost > born then
        born = lost
        call("HSET", limit_key, "run", run, "born", format("%d", born))
    end
end

if op == "adopt" then
    local till = tonumber(call("ZSCORE", KEYS[4], hash) or 0)
    call("ZREM", KEYS[4], hash)
    local first = call("ZRANGE", KEYS[4], 0, 0, "WITHSCORES")[2]
    if first then
        call("HSET", limit_key, "waiting", format("%d", first))
    else
        call("HDEL", limit_key, "waiting")
    end
    if call("EXISTS", state_key) == 0 then
        local since = 0
        for _, at in ipairs(call("HMGET", limit_key, "since", "s:" .. hash)) do since = max(since, tonumber(at or 0)) end
        if not is_manual and till > since and till <= now and since > born then
            call("HSET", limit_key, "born", format("%d", since))
        end
        return { 0, now }
    end
    if (till > 0 or is_manual) and not call("ZSCORE", KEYS[3], hash) then call("ZADD", KEYS[3], format("%d", till), hash) end
elseif waiting > 0 and waiting <= now and state_key and not is_manual and call("EXISTS", state_key) == 0 then
    return { -2 }
end

-- Called by every operation that writes.
local function note_time()
    if now - floor_seen > FLOOR_LAG then
        call("HSET", limit_key, "floor", format("%d", now))
        floor_seen = now
    end
end

-- Records until when the state lives. Some expired states leave the list at the same time.
local function list(till)
    call("ZADD", KEYS[3], format("%d", till), hash)
    if is_manual then return end
    local over = call("ZRANGEBYSCORE", KEYS[3], "-inf", format("(%d", now), "LIMIT", 0, 2)
    if #over > 0 then call("ZREM", KEYS[3], unpack(over)) end
    local left = quotient(till - now, 1000) + 1
    if call("PTTL", KEYS[3]) < left then call("PEXPIRE", KEYS[3], format("%d", 2 * left)) end
end

-- The state is absent: until when it lives by the list, at most for `most` from now on; 0: there was none. If there was, the
-- server has lost it, as by eviction, and no start happens until then.
local function lost_until(most)
    local till = not is_manual and tonumber(call("ZSCORE", KEYS[3], hash) or 0) or 0
    if till <= now then return 0 end
    if till > now + most then
        till = now + most
        call("ZADD", KEYS[3], format("%d", till), hash)
    end
    return till
end

-- Removes the state, which is not lost then.
local function drop()
    call("DEL", state_key)
    call("ZREM", KEYS[3], hash)
end

-- Extends the life of the state to the tick `needed` at least. `set` is the previous return value (0: none), and is
-- stored in the state. It calls PEXPIRE only when the life is too short, and then doubles it and adds a second.
local function live_until(set, needed)
    if is_manual then list(set) end
    if is_manual or needed <= set then return set end
    -- Never in the past: that would delete it.
    local till = max(needed, now) + max(needed - now, 0) + SECOND
    call("PEXPIRE", state_key, format("%d", quotient(till - now, 1000) + 1))
    list(till)
    return till
end

-- A gate of the whole limit. (The gate of one key is in the key's state.)
if op == "pause" and not state_key then
    gate = max(gate, now + arguments[1])
    call("HSET", limit_key, "gate", format("%d", gate))
    note_time()
    return { 0, now, gate }
end

-- Resets all keys: what was written before this counts as absent. (But no start happens while machines may start what
-- they were granted.)
if op == "clear" and not state_key then
    call("HINCRBY", limit_key, "birth", 1)
    call("HDEL", limit_key, "gate", "born", "floor")
    if out > now then call("HSET", limit_key, "gate", format("%d", out)) end
    return { 0, now }
end
