-- Concurrency: at most so many units at the same time, each held by a lease. (prelude.lua, then this.)
--
-- Policy: max.
--
-- State: one sorted set.
--
--   "FENCE WEIGHT OWNER"  a lease; its score is the tick at which it ends (NEVER: at no time)
--   live                  how many units all leases here hold, those included that have ended by time since: -1 - units
--   gate                  the key's gate (absent: none): -1 - gate
--   birth                 the birth of the limit that this belongs to (absent: 0): -1 - birth
--   till                  until when the key lives (absent: for ever, as by a manual clock): -1 - till
--
-- The scores of leases are not negative, those of the others are. So one range of scores, from the lowest to now, is all that a
-- decision has to know: the others, and the leases that are over. What is live is `live` without these. Whoever is admitted removes
-- them. A denial writes nothing.
--
-- A fence comes from a counter of the limit (`ids`), which only grows, whatever becomes of the key. A lease is found by its fence,
-- weight and owner, which are its name: ending it is one ZREM, which succeeds once. It is renewed only while it is there and not
-- over. So what was lost stays lost, and the units of whoever holds them now are untouched.
--
-- Why it is right. `live` changes together with the leases, in one script. So there are never more than `max` units of leases that
-- are not over, but for starts that are recorded, which are counted and not asked. A clock that is set back lets leases last longer.
--
-- acquire weight lease owner       lease: ticks, or -1: without end
-- start lease owner                the same for one unit, whether there is room or not
--     -> {0, now, taken, slot, fence, expiry, live, gate, soonest}; slot is the weight; expiry as below; live and gate are after it;
--        soonest: when the first lease ends, 0: none does (told after a denial, else 0)
-- view                             -> {0, now, live, gate, soonest}; writes nothing
-- complete slot fence owner        -> {0, now, was_held}; for cancel too, and for what `start` has recorded
-- renew slot fence owner lease     -> {0, now, is_held, expiry}; an end is never made earlier; expiry -1: at no time
-- evict owner                      -> {0, now, units}: ends all leases of an owner
-- pause delay -> {0, now, gate}; clear -> {0, now}
--
-- Commands: HMGET, TIME, ZRANGEBYSCORE; an admission HINCRBY and ZADD more (PEXPIRE now and then, ZREMRANGEBYSCORE if some are
-- over), a denial ZRANGEBYSCORE more. An end: HMGET, TIME, ZREM, ZINCRBY (of the last one DEL). All O(log n), but `evict`: O(n).

local NEVER = 9007199254740991

local most = policy[1]
local live, over, key_gate, till, is_stale = 0, 0, 0, 0, false

-- Reads what is said above.
local function load()
    local found, born, units_over = call("ZRANGEBYSCORE", state_key, "-inf", format("%d", now), "WITHSCORES"), 0, 0
    for i = 1, #found, 2 do
        local name, value = found[i], -1 - floor(tonumber(found[i + 1]))
        if name == "live" then live = value
        elseif name == "gate" then key_gate = value
        elseif name == "birth" then born = value
        elseif name == "till" then till = value
        else over, units_over = over + 1, units_over + tonumber(string.match(name, " (%d+) "))
        end
    end
    live = live - units_over
    if born ~= birth then
        is_stale = #found > 0
        live, over, key_gate, till = 0, 0, 0, 0
    end
    gate = max(gate, key_gate)
end

-- When the first lease ends that is not over; 0: none does.
local function soonest()
    if is_stale then return 0 end
    local first = call("ZRANGEBYSCORE", state_key, "(" .. format("%d", now), "+inf", "WITHSCORES", "LIMIT", 0, 1)[2]
    first = first and floor(tonumber(first)) or NEVER
    return first < NEVER and first or 0
end

-- Writes these scores and members; the key is needed until the tick `needed`.
local function save(needed, ...)
    local scores = { ... }
    local function note(name, value)
        scores[#scores + 1] = -1 - value
        scores[#scores + 1] = name
    end
    if is_stale then
        call("DEL", state_key)
    elseif over > 0 then
        call("ZREMRANGEBYSCORE", state_key, 0, format("%d", now))
    end
    note("live", live)
    if key_gate > 0 then note("gate", key_gate) end
    if birth > 0 then note("birth", birth) end
    local lives = not is_manual and needed > till
    if lives then
        till = needed == NEVER and NEVER or max(needed, now) + max(needed - now, 0) + SECOND
        note("till", till)
    end
    for i = 1, #scores, 2 do scores[i] = format("%d", scores[i]) end
    call("ZADD", state_key, (table.unpack or unpack)(scores))
    if lives and till == NEVER then
        call("PERSIST", state_key)
    elseif lives then
        call("PEXPIRE", state_key, format("%d", quotient(till - now, 1000) + 1))
    end
    note_time()
end

local function ends(lease) return lease < 0 and NEVER or now + lease end

local function told(expiry) return expiry < NEVER and expiry or -1 end

local function name_of(slot, fence, owner) return format("%d %d %d", fence, slot, owner) end

local function take(weight, lease, owner, is_asked)
    load()
    -- Leases that may have been lost are over by then.
    if born > 0 then gate = max(gate, born + max(lease, 0)) end
    if is_asked and (gate > now or live + weight > most) then return { 0, now, 0, 0, 0, 0, live, gate, soonest() } end
    local fence, expiry = call("HINCRBY", limit_key, "ids", 1), ends(lease)
    live = live + weight
    save(expiry, expiry, name_of(weight, fence, owner))
    return { 0, now, 1, weight, fence, told(expiry), live, gate, 0 }
end

-- Takes these units off `live`. A key without leases is gone, but for its gate.
local function give_back(units)
    if tonumber(call("ZINCRBY", state_key, format("%d", units), "live")) < -1 then return end
    load()
    call("DEL", state_key)
    if key_gate > now then
        live, over, till = 0, 0, 0
        save(key_gate)
    end
end

if op == "acquire" then
    return take(arguments[1], arguments[2], arguments[3], true)
elseif op == "start" then
    return take(1, arguments[1], arguments[2], false)
elseif op == "view" then
    load()
    return { 0, now, live, gate, soonest() }
elseif op == "complete" then
    local slot, fence, owner = arguments[1], arguments[2], arguments[3]
    local was_held = call("ZREM", state_key, name_of(slot, fence, owner))
    if was_held == 1 then give_back(slot) end
    return { 0, now, was_held }
elseif op == "renew" then
    local slot, fence, owner, lease = arguments[1], arguments[2], arguments[3], arguments[4]
    local name = name_of(slot, fence, owner)
    local expiry = floor(tonumber(call("ZSCORE", state_key, name) or 0))
    load()
    if is_stale or expiry <= now then return { 0, now, 0, 0 } end
    expiry = max(expiry, ends(lease))
    save(expiry, expiry, name)
    return { 0, now, 1, told(expiry) }
elseif op == "evict" then
    local owner, units = format("%d", arguments[1]), 0
    for _, name in ipairs(call("ZRANGEBYSCORE", state_key, 0, "+inf")) do
        local weight, of = string.match(name, "^%d+ (%d+) (%d+)$")
        if of == owner then units = units + tonumber(weight) * call("ZREM", state_key, name) end
    end
    if units > 0 then give_back(units) end
    return { 0, now, units }
elseif op == "pause" then
    load()
    key_gate = max(key_gate, now + arguments[1])
    save(key_gate)
    return { 0, now, key_gate }
elseif op == "clear" then
    call("DEL", state_key)
    return { 0, now }
end
