-- The beginning of every script of a limit: the family's script (log.lua, bucket.lua, …) is appended to this text.
--
-- KEYS[1]  the limit: a hash with `version`, `gate`, `floor`, `birth`, `born`, `out`, `said`, `clock`, `losses`, `line`, and
--          `k:HASH`, the version of a key's own policy.
-- KEYS[2]  the state of one key by its family; its name ends with the key's HASH, 32 hex digits. Absent if the whole
--          limit is meant.
-- KEYS[3]  with KEYS[2]: the states of all keys (of leases: of all keys with leases), by their expiry: a sorted set of HASHes
-- KEYS[4]  for `adopt`: those of them that an earlier policy has left; for `grant`: the holders of granted units of
--          the key
--
-- ARGV     op, the version of the policy that the caller knows, the run of the server that it calls, the limit's
--          creation time as the caller knows it (0: it does not), the run from which the limit has come (0: unknown,
--          ?: it may be asked), the time whose writes the server loses at most (-: unknown), what the caller's clock
--          says of the server's (see below), time ("": the server's), the
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
-- counts as full of starts at that time); `cleared`, when it or a key was last reset; `floor_seen`, the latest time that
-- was recorded; `out`, until when machines may start what they were granted of any key; `awaited` (`line`), until when somebody may
-- wait for leases of a key.
local version, own_version, gate, floor_seen, birth, born, run_seen, made, waiting, out, cleared, awaited, corrections, losses
local hash = string.sub(state_key or "", -32)
do
    local known = call("HMGET", limit_key, "version", "k:" .. hash, "gate", "floor", "birth", "born", "run", "made", "waiting", "out", "cleared", "line", "clock", "losses")
    corrections, losses = known[13], known[14]
    for i = 1, 12 do known[i] = tonumber(known[i] or 0) end
    version, own_version, gate, floor_seen, birth, born, run_seen, made, waiting, out, cleared, awaited = unpack(known, 1, 12)
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
-- are moved on by it, but what has started did so by now. Several callers may see the same step. So earlier
-- corrections are subtracted, but only if they and what their callers vouched for leave no time in which there may have
-- been another step. See corrections.rs for a model.
--
-- `clock`: the sum of all corrections; until when nothing starts (0: there is no doubt); then of each doubt, and of the
-- last corrections, in the order in which they were reported: from, to, amount, since when its caller vouches for the
-- time before `from`, and until when nothing starts because of it (0: it is a correction).
--
-- What a caller says: "r FROM TO AMOUNT SINCE", a report; "v FROM TO", it vouches; or nothing.
local FLOOR_LAG, MOST_DOUBT, MOST_STEPS = SECOND, 2 * SECOND, 8

-- `losses`: what the server has lost by a restart or a failover, where the caller knows the longest time whose writes it
-- loses: the number of the last loss, then of the last MOST_LOSSES, the newest first, when it was noticed, and that
-- time. What was lost was written in such a time, which ended at most as long after the loss was noticed. Until then nothing starts.
-- losses.rs argues why that is right.
local MOST_LOSSES = 8

-- The last loss: its number (0: there was none), when it was noticed, and up to when starts may have been lost.
local lost_number, lost_at, lost_by = 0, 0, 0

-- The numbers of `losses`.
local function all_losses()
    local numbers = {}
    for number in string.gmatch(losses or "0", "%d+") do numbers[#numbers + 1] = tonumber(number) end
    lost_number, lost_at, lost_by = numbers[1], numbers[2] or 0, numbers[2] and numbers[2] + numbers[3] or 0
    return numbers
end

local function write_losses(numbers)
    for i = 1, #numbers do numbers[i] = format("%d", numbers[i]) end
    losses = table.concat(numbers, " ")
    call("HSET", limit_key, "losses", losses)
    all_losses()
end

if losses then all_losses() end
local now = max(clock, floor_seen)
local ahead, hold = 0, 0
local run, known_made, come_from, loses, word = string.match(ARGV[3], "^(%d+) (%d+) (%S+) (%S+) ?(.*)$")
loses = tonumber(loses)
local is_report = word and string.sub(word, 1, 1) == "r"
if corrections then
    local sum, till = string.match(corrections, "^(%d+) (%d+)")
    ahead, hold = tonumber(sum), tonumber(till)
end
if not is_manual and (hold > 0 or is_report or floor_seen - clock > FLOOR_LAG) then
    local steps, numbers = {}, {}
    for number in string.gmatch(corrections or "0 0", "%d+") do numbers[#numbers + 1] = tonumber(number) end
    for i = 3, #numbers, 5 do
        local from, to, amount, since, till = unpack(numbers, i, i + 4)
        steps[#steps + 1] = { from = from, to = to, amount = amount, since = since, till = till }
    end
    -- What is left of a doubt.
    local function left(doubt)
        local amount, at = min(doubt.amount, doubt.to - doubt.from), doubt.from
        for _, fix in ipairs(steps) do
            if fix.till == 0 and fix.to > doubt.from and fix.since <= at then
                amount, at = amount - fix.amount, max(at, fix.to)
                if at >= doubt.to then return amount end
            end
        end
        return min(doubt.amount, doubt.to - doubt.from)
    end
    local was_set_back = floor_seen - clock > FLOOR_LAG
    local said = {}
    for number in string.gmatch(word, "%d+") do said[#said + 1] = tonumber(number) end
    if not was_set_back and said[2] and said[2] <= clock then
        for _, doubt in ipairs(steps) do
            if not is_report and doubt.till > 0 then
                local before = left(doubt)
                if said[1] <= doubt.from then doubt.from = max(doubt.from, min(said[2], doubt.to)) end
                if said[2] >= doubt.to then doubt.to = min(doubt.to, max(said[1], doubt.from)) end
                doubt.till = max(doubt.till - (min(before, MOST_DOUBT) - min(left(doubt), MOST_DOUBT)), 1)
            end
        end
        if is_report and #steps < 2 * MOST_STEPS then
            steps[#steps + 1] = { from = said[1], to = said[2], amount = said[3], since = said[4], till = clock + min(said[3], MOST_DOUBT) }
        end
    end
    local kept, moved = {}, 0
    hold = 0
    for _, step in ipairs(steps) do
        local amount = step.till > 0 and left(step) or 0
        if step.till > 0 and amount > 0 and (was_set_back or step.till <= clock) then
            step.amount, step.till, moved = amount, 0, moved + amount
        end
        if step.till == 0 or amount > 0 then kept[#kept + 1] = step end
        hold = max(hold, amount > 0 and step.till or 0)
    end
    ahead = ahead + moved
    if moved > 0 and gate > clock then
        gate = gate + moved
        call("HSET", limit_key, "gate", format("%d", gate))
    end
    if moved > 0 and born > 0 then born = min(born + moved, max(born, clock)) end
    if was_set_back then
        if gate > floor_seen then
            gate = gate - (floor_seen - clock)
            call("HSET", limit_key, "gate", format("%d", gate))
        end
        born = min(born, clock)
        -- No machine relies on an answer for longer than this.
        out = min(out, clock + 2 * SECOND)
        local said = min(tonumber(call("HGET", limit_key, "said") or 0), clock + 2 * SECOND)
        -- Earlier readings say nothing about this time.
        kept, now, floor_seen = {}, clock, clock
        call("HSET", limit_key, "floor", format("%d", clock), "out", format("%d", out), "said", format("%d", said))
    end
    if born > 0 and (moved > 0 or was_set_back) then call("HSET", limit_key, "born", format("%d", born)) end
    if losses and (moved > 0 or was_set_back) then
        local numbers = all_losses()
        for i = 2, #numbers, 2 do
            numbers[i] = min(numbers[i] + moved, max(numbers[i], clock))
            if was_set_back then numbers[i] = min(numbers[i], clock) end
        end
        write_losses(numbers)
    end
    local texts = { format("%d %d", ahead, hold) }
    for i = max(1, #kept - 2 * MOST_STEPS + 1), #kept do
        local step = kept[i]
        if step.till > 0 or i > #kept - MOST_STEPS then
            texts[#texts + 1] = format("%d %d %d %d %d", step.from, step.to, step.amount, step.since, step.till)
        end
    end
    local text = table.concat(texts, " ")
    if text ~= (corrections or "0 0") then call("HSET", limit_key, "clock", text) end
end

-- By how much a state has to be moved that was last written at `seen` (0: never), with this sum of corrections: back, and
-- then on.
local function moves_of(seen, of)
    if is_manual or seen == 0 then return 0, 0 end
    return seen > now + FLOOR_LAG and now - seen or 0, max(ahead - of, 0)
end

-- The moment after that, which is at most `latest` unless it is later anyway: what has started did so by now.
local function moved(moment, back, on, latest)
    if moment == 0 then return 0 end
    moment = max(moment + back, 1)
    return min(moment + on, max(moment, latest)) + (moment > latest and on or 0)
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
    local is_recreated = tonumber(known_made) > 0 and tonumber(known_made) ~= made
    if loses and run_seen > 0 and tonumber(run) ~= run_seen and not is_recreated then
        if loses > 0 then
            local numbers = all_losses()
            -- Nothing has started since the last loss, so nothing more was lost.
            if now <= lost_by then
                numbers[2], numbers[3] = now, max(numbers[3], loses)
            else
                numbers[1] = numbers[1] + 1
                table.insert(numbers, 2, now)
                table.insert(numbers, 3, loses)
            end
            if #numbers > 1 + 2 * MOST_LOSSES then
                table.remove(numbers)
                born = max(born, table.remove(numbers))
                call("HSET", limit_key, "born", format("%d", born))
            end
            write_losses(numbers)
            -- No number that was given out is given out again.
            call("HINCRBY", limit_key, "ids", loses + 1024)
        end
        run_seen = tonumber(run)
        call("HSET", limit_key, "run", run)
    end
    local lost = tonumber(run) ~= run_seen and now or is_recreated and made or 0
    if lost > born then
        born = lost
        call("HSET", limit_key, "run", run, "born", format("%d", born))
    end
end

-- When the policy of the limit or of the key was last changed; 0: never. Where changes may be lost, nothing starts by
-- one before it is certain to stay.
local function changed_at()
    local since, of_key = unpack(call("HMGET", limit_key, "since", "s:" .. hash))
    local at = max(tonumber(since or 0), tonumber(of_key or 0))
    return at > made and at or 0
end
if loses and loses > 0 then
    local at = changed_at()
    if at > 0 and at <= now then gate = max(gate, at + loses) end
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
    return { clock, now, gate }
end

-- Resets all keys: what was written before this counts as absent. (But no start happens while machines may start what
-- they were granted.)
if op == "clear" and not state_key then
    call("HINCRBY", limit_key, "birth", 1)
    call("HDEL", limit_key, "gate", "born", "floor", "losses")
    call("HSET", limit_key, "cleared", format("%d", now))
    if out > now then call("HSET", limit_key, "gate", format("%d", out)) end
    return { clock, now }
end
