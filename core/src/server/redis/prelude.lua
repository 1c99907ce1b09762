-- The beginning of every script of a limit: the family's script (log.lua, bucket.lua, …) is appended to this text.
--
-- KEYS[1]  the limit: a hash with `version`, `gate`, `floor`, `birth`, `born`, `out`, `said`, `clock`, and `k:HASH`, the version of a
--          key's own policy.
-- KEYS[2]  the state of one key by its family; its name ends with the key's HASH, 32 hex digits. Absent if the whole
--          limit is meant.
-- KEYS[3]  with KEYS[2]: the states of all keys, by their expiry: a sorted set of HASHes
-- KEYS[4]  for `adopt`: those of them that an earlier policy has left; for `grant`: the holders of granted units of
--          the key
--
-- ARGV     op, the version of the policy that the caller knows, the run of the server that it calls, the limit's
--          creation time as the caller knows it (0: it does not), the run from which the limit has come (0: unknown,
--          ?: it may be asked), what the caller's clock says of the server's (see below), time ("": the server's), the
--          number of the policy's numbers, these numbers, the op's arguments.
--
-- A state must outlive its counts, under any policy. So a caller that applies another policy has each state rewritten
-- under it (`adopt`), the first to expire first, and until that is done there is no further change. `waiting` is when
-- the first of the remaining ones expires. If it has expired, a caller that must know whether a key was used adopts
-- them first (-2). A state that expired before any caller came is lost, and counts like data that the server has lost.
--
-- The first number of an answer is the server's clock, or negative; most answers continue with `now`, the limit's time.
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
local version, own_version, gate, floor_seen, birth, born, run_seen, made, waiting, out, corrections
local hash = string.sub(state_key or "", -32)
do
    local known = call("HMGET", limit_key, "version", "k:" .. hash, "gate", "floor", "birth", "born", "run", "made", "waiting", "out", "clock")
    corrections = known[11]
    for i = 1, 10 do known[i] = tonumber(known[i] or 0) end
    version, own_version, gate, floor_seen, birth, born, run_seen, made, waiting, out = unpack(known, 1, 10)
end

-- The caller knows a policy that does not apply. It must read the present one first.
local holds = own_version > 0 and own_version or version
if holds == 0 or holds ~= tonumber(ARGV[2]) then return { -1 } end

-- The policy under which a state is written.
local mark = holds

local clock
if is_manual then
    clock = tonumber(ARGV[4])
else
    local time = call("TIME")
    clock = (tonumber(time[1]) - EPOCH) * SECOND + tonumber(time[2])
end

-- The server's clock may be set. A state is then moved by the difference, when it is next used.
--
-- *Back.* Time never runs backwards by more than FLOOR_LAG: until then, the latest recorded time applies. If the clock is
-- behind by more, that time is given up. The states that were written later than the clock shows go back with it, as
-- if no time had passed since.
--
-- *Forward.* Only a caller can tell, by its own clock: two readings of the server's clock lie further apart than the
-- time from before the first request to after the second answer. It *reports* both, and by how much. But it may be its
-- own clock that stood still, as when its machine was paused. Any other caller whose readings agree with its clock
-- *vouches* for the time between them. So a report begins a doubt. Nothing starts, and others cut off what they vouch
-- for. What is left after the amount itself, or MOST_DOUBT, is a correction: all states that were written before it
-- are moved on by it. (Never by more than the time since they were written.) A report of a step that is corrected already
-- finds nothing left: corrections of overlapping times are subtracted.
--
-- `clock`: the sum of all corrections; until when nothing starts, 0 if there is no doubt; the doubt, then the last
-- corrections: from, to and amount of each.
--
-- What a caller says: "r FROM TO AMOUNT", a report; "v FROM TO", it vouches; or nothing.
local FLOOR_LAG, MOST_DOUBT, CORRECTIONS = SECOND, 2 * SECOND, 8
local now = max(clock, floor_seen)
local ahead, hold = 0, 0
local run, known_made, come_from, word = string.match(ARGV[3], "^(%d+) (%d+) (%S+) ?(.*)$")
local is_report = word and string.sub(word, 1, 1) == "r"
if not is_manual and (corrections or is_report or floor_seen - clock > FLOOR_LAG) then
    local fixes, doubt, was = {}, nil, corrections
    if corrections then
        local n = {}
        for number in string.gmatch(corrections, "%d+") do n[#n + 1] = tonumber(number) end
        ahead, hold = n[1], n[2]
        for i = 3, #n, 3 do fixes[#fixes + 1] = { n[i], n[i + 1], n[i + 2] } end
        if hold > 0 then doubt = table.remove(fixes, 1) end
    end
    local function settle()
        local amount = doubt[3]
        ahead, fixes[#fixes + 1] = ahead + amount, doubt
        if #fixes > CORRECTIONS then table.remove(fixes, 1) end
        if gate > clock then
            gate = gate + amount
            call("HSET", limit_key, "gate", format("%d", gate))
        end
        if born > 0 then
            born = min(born + amount, max(born, clock))
            call("HSET", limit_key, "born", format("%d", born))
        end
        doubt, hold = nil, 0
    end
    local function doubts(from, to, amount)
        doubt, hold = { from, to, amount }, max(hold, clock + min(amount, MOST_DOUBT))
    end
    local from, to, amount = string.match(word, "^%a (%d+) (%d+) ?(%d*)$")
    from, to, amount = tonumber(from), tonumber(to), tonumber(amount)
    if floor_seen - clock > FLOOR_LAG then
        if doubt then settle() end
        if gate > floor_seen then
            gate = gate - (floor_seen - clock)
            call("HSET", limit_key, "gate", format("%d", gate))
        end
        -- Earlier readings say nothing about this time.
        fixes, from, now, floor_seen = {}, nil, clock, clock
        -- No machine relies on an answer for longer than this.
        out = min(out, clock + 2 * SECOND)
        call("HSET", limit_key, "floor", format("%d", clock), "out", format("%d", out))
        if born > clock then
            born = clock
            call("HSET", limit_key, "born", format("%d", born))
        end
    end
    if from and to <= clock and is_report then
        for _, fix in ipairs(fixes) do
            if fix[1] < to and from < fix[2] then amount = amount - fix[3] end
        end
        if doubt and doubt[1] < to and from < doubt[2] then amount = amount - doubt[3] end
        if amount > 0 and doubt then
            doubts(min(from, doubt[1]), max(to, doubt[2]), amount + doubt[3])
        elseif amount > 0 then
            doubts(from, to, amount)
        end
    elseif from and to <= clock and doubt then
        if from <= doubt[1] then doubt[1] = max(doubt[1], min(to, doubt[2])) end
        if to >= doubt[2] then doubt[2] = min(doubt[2], max(from, doubt[1])) end
        local left = min(doubt[3], doubt[2] - doubt[1])
        hold = hold - (min(doubt[3], MOST_DOUBT) - min(left, MOST_DOUBT))
        doubt[3] = left
        if left == 0 then doubt, hold = nil, 0 end
    end
    if doubt and clock >= hold then settle() end
    if doubt then table.insert(fixes, 1, doubt) end
    local texts = { format("%d %d", ahead, hold) }
    for i, fix in ipairs(fixes) do texts[i + 1] = format("%d %d %d", unpack(fix)) end
    corrections = table.concat(texts, " ")
    if corrections ~= was and corrections ~= "0 0" then call("HSET", limit_key, "clock", corrections) end
end

-- By how much a state has to be moved that was last written at `seen` (0: never), with this sum of corrections.
local function moved_by(seen, of)
    if is_manual or seen == 0 then return 0 end
    if seen > now + FLOOR_LAG then return now - seen end
    return min(ahead - of, max(now - seen, 0))
end

-- Another run of the server, or another server, has this by now: the last starts may be missing. Or the caller knew the
-- limit before it was recreated, and its earlier starts are unknown.
--
-- In a cluster, a limit may have moved here from another node, which loses nothing. So the caller is asked (-3) whether
-- the server on which it was last used is still the primary that it was then; if so, the caller says so.
if not is_manual then
    if run_seen > 0 and tonumber(run) ~= run_seen then
        if come_from == "?" then return { -3, run_seen } end
        if tonumber(come_from) == run_seen then
            run_seen = tonumber(run)
            call("HSET", limit_key, "run", run)
        end
    end
    local lost = tonumber(run) ~= run_seen and now or tonumber(known_made) > 0 and tonumber(known_made) ~= made and made or 0
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
        return { clock, now }
    end
    if till > 0 and not call("ZSCORE", KEYS[3], hash) then call("ZADD", KEYS[3], format("%d", till), hash) end
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

-- Extends the life of the state to the tick `needed` at least. `set` is the previous return value (0: none), and is
-- stored in the state. It calls PEXPIRE only when the life is too short, and then doubles it and adds a second.
local function live_until(set, needed)
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
    return { clock, now, gate }
end

-- Resets all keys: what was written before this counts as absent. (But no start happens while machines may start what
-- they were granted.)
if op == "clear" and not state_key then
    call("HINCRBY", limit_key, "birth", 1)
    call("HDEL", limit_key, "gate", "born", "floor")
    if out > now then call("HSET", limit_key, "gate", format("%d", out)) end
    return { clock, now }
end
