-- Concurrency: a limited number of units at the same time, each held by a lease. (prelude.lua, then this.)
--
-- Policy: max, and the cooldown if there is one: the units of a start are taken for so long after its end.
--
-- State: one sorted set.
--
--   "FENCE WEIGHT OWNER SITE PROCESS BEGAN"  a lease; its score is the tick at which its units are free: when it ends (NEVER:
--                         never), and the cooldown is over. Once its start has ended, its owner's four numbers are 0
--   live                  the units of all leases here, including those that have expired since: -1 - units
--   gate                  the key's gate (absent: none): -1 - gate
--   birth                 the birth of the limit that this belongs to (absent: 0): -1 - birth
--   till                  until when the key lives (absent: for ever, as by a manual clock): -1 - till
--
-- The scores of leases are not negative; those of the other members are. So a decision needs only one range of scores,
-- from the lowest to now: the other members, and the expired leases. The live units are `live` without the expired
-- leases. An admission removes these. A denial writes nothing.
--
-- An owner is a process: a unique number, and the means by which other processes of its site can ask their kernel about
-- it: the site (a machine, and the set of its processes that see each other; 0: unknown), its number there, and when it
-- began.
--
-- A fence comes from a counter of the limit (`ids`), which only grows, whatever happens to the key. A lease is found by
-- its fence, weight and owner, which make up its name. Ending it is one ZREM, which succeeds once. It can be renewed
-- only while it exists and has not expired. So a lost lease stays lost, and the units of their present holder are
-- untouched.
--
-- Why it is right. `live` changes together with the leases, in one script. So the unexpired leases never have more than
-- `max` units, except for recorded starts, which are counted without being checked. Setting the clock back makes leases
-- last longer.
--
-- Who waits. KEYS[4], with `acquire`, `view` and `leave`, has in its field `w` the first waiter of each line that asks here:
-- OWNER'S-NUMBER PRIORITY ASKED SINCE TILL, five numbers each. ASKED is when it asked, by its own clock: that and the owner
-- name it. SINCE is the same by this clock. So the first of them is the first of all waiters, and only it starts. Its line
-- shows it with each request, and takes it back when it leaves; without a request it is gone at TILL. This admits nothing,
-- so it cannot exceed a limit, and nothing is lost with it. The limit's field `line` is after every TILL of its keys: nobody else
-- looks at KEYS[4]. (It is written again with each TILL that is later, so it is lost only as long as a TILL may be.)
--
-- Below, OWNER denotes the owner's four numbers, and `turn` is any number; it selects the part of a long list that is
-- examined.
--
-- acquire weight lease OWNER turn order priority asked waited life
--                                     lease: ticks, or -1: without an end. order: 0, it takes what is free; 1, it does not
--                                     wait, and starts only if it comes before all who do; 2, it is a waiter, who asked at
--                                     this time, has waited so long, and asks again before `life` is over
-- start lease OWNER                   the same for one unit, whether there is capacity or not
--     -> {clock, now, taken, slot, fence, expiry, live, gate, soonest, others…}; slot is the weight; expiry as below;
--        after a denial slot is the number of waiters that come first, fence 1 if units are free, and expiry 1 if the owner
--        alone holds units (given to waiters); live and gate are after it; soonest: when the first lease ends, 0: none does (given after a denial, else 0); others: after a
--        denial for lack of capacity, some other owners of the site that hold leases: number, process and when it began
-- view weight OWNER turn order priority
--                                     -> {clock, now, live, gate, soonest, ahead, others…}; ahead: as slot above; writes nothing
-- complete slot fence OWNER ran       -> {clock, now, was_held}; also for leases recorded by `start`; ran 0: for cancel, so the
--                                        units are free at once
-- settle slot fence OWNER units       -> {clock, now, was_held}: only so many units cool down, or more than it had, and the others are
--                                        free at once; only with a cooldown
-- renew slot fence OWNER lease again  -> {clock, now, is_held, expiry}; an end never becomes earlier; expiry -1: never.
--                                        again 1: if leases may have been lost, it is held again, as long as no other
--                                        start is admitted for that reason
-- evict number                        -> {clock, now, units}: ends all leases of an owner; units: those that are free at once
-- leave number priority asked         -> {clock, now}; a waiter stops waiting
-- pause delay -> {clock, now, gate}; clear -> {0, now}
--
-- Commands: HMGET, TIME, ZRANGEBYSCORE. In addition, an admission needs HINCRBY and ZADD (sometimes PEXPIRE and `list`, and
-- ZREMRANGEBYSCORE if leases have expired), and a denial two ZRANGEBYSCORE, of a waiter a third one, and HSET and PEXPIRE now and
-- then. While somebody waits, each of them needs HGET. An end: HMGET, TIME, ZREM, ZINCRBY (for the last lease, one DEL and ZREM;
-- with a cooldown, ZRANGEBYSCORE and ZADD). All O(log n), except `evict`: O(n).

local NEVER = 9007199254740991
-- How many leases a denial examines, and how many owners it returns at most.
local LOOKS, MOST_OWNERS = 32, 8
-- For how long a waiter is known at most without another request, and how many are.
local MOST_LIFE, MOST_WAITERS = 2 * SECOND, 64

-- Any number of leases may begin in any time.
born = max(born, lost_by)

local most, cooldown = policy[1], policy[2] or 0
local live, over, key_gate, till, is_stale = 0, 0, 0, 0, false

-- Reads the state described above.
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

-- When the first unexpired lease ends, or with a cooldown, when so many units are free; 0: that is not known.
local function soonest(weight)
    if is_stale then return 0 end
    local units = cooldown > 0 and max(live + weight - most, 1) or 1
    local found = call("ZRANGEBYSCORE", state_key, "(" .. format("%d", now), "+inf", "WITHSCORES", "LIMIT", 0, units)
    for i = 1, #found, 2 do
        units = units - (cooldown > 0 and tonumber(string.match(found[i], " (%d+) ")) or 1)
        local at = floor(tonumber(found[i + 1]))
        if units <= 0 then return at < NEVER and at or 0 end
    end
    return 0
end

-- Writes these scores and members. The key is needed until the tick `needed`.
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
    if lives or is_manual then list(till) end
    note_time()
end

-- Removes the key, which is not in the list of keys with leases any more.
local function remove()
    call("DEL", state_key)
    call("ZREM", KEYS[3], hash)
end

local function ends(lease) return lease < 0 and NEVER or now + lease + cooldown end

local function reported(expiry) return expiry < NEVER and expiry - cooldown or -1 end

-- The name of a lease, and the position of the owner's four numbers among the arguments.
local function name_of(slot, fence, at)
    return format("%d %d %d %d %d %d", fence, slot, unpack(arguments, at, at + 3))
end

-- Adds some other owners of a site to an answer.
local function with_others(answer, at)
    local owner, site, turn = format("%d", arguments[at]), format("%d", arguments[at + 1]), arguments[at + 4]
    if is_stale or site == "0" then return answer end
    local count, from, seen = call("ZCARD", state_key), 0, {}
    if count > LOOKS then from = turn % count end
    for _, name in ipairs(call("ZRANGEBYSCORE", state_key, format("(%d", now), "+inf", "LIMIT", from, LOOKS)) do
        local of, at_site, process, began = string.match(name, "^%d+ %d+ (%d+) (%d+) (%d+) (%d+)$")
        if at_site == site and of ~= owner and not seen[of] and #answer < 9 + 3 * MOST_OWNERS then
            seen[of] = true
            for _, number in ipairs({ of, process, began }) do answer[#answer + 1] = tonumber(number) end
        end
    end
    return answer
end

-- The waiters that are known, and whether any were written.
local function waiters()
    local known, text = {}, call("HGET", KEYS[4], "w") or ""
    for owner, priority, asked, since, till in string.gmatch(text, "(%d+) (%-?%d+) (%d+) (%-?%d+) (%d+)") do
        local waiter = { owner, tonumber(priority), asked, tonumber(since), tonumber(till) }
        -- (The clock may have been set back.)
        if waiter[5] > now and waiter[5] <= now + MOST_LIFE then known[#known + 1] = waiter end
    end
    return known, text ~= ""
end

local function comes_before(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    return a[4] < b[4]
end

local function write_waiters(known)
    local texts = {}
    for i, waiter in ipairs(known) do texts[i] = format("%s %d %s %d %d", unpack(waiter)) end
    if #texts > 0 then
        call("HSET", KEYS[4], "w", table.concat(texts, " "))
        if not is_manual then call("PEXPIRE", KEYS[4], format("%d", 2 * quotient(MOST_LIFE, 1000))) end
    else
        call("DEL", KEYS[4])
    end
end

-- The waiter that an owner has shown, and its number among those that are known.
local function find_waiter(known, owner, priority, asked)
    for i, waiter in ipairs(known) do
        if waiter[1] == owner and waiter[2] == priority and waiter[3] == asked then return waiter, i end
    end
end

-- Returns how many waiters come before this caller, and what notes whether it has started.
local function stand_in_line(at)
    local order, priority, asked, waited, life = unpack(arguments, at, at + 4)
    if not order or order == 0 then return 0, function() end end
    local known, is_written = {}, false
    if awaited > now then known, is_written = waiters() end
    local owner = format("%d", arguments[at - 5])
    local own, i = { owner, priority, format("%d", asked), now - waited, 0 }, nil
    if order == 2 then
        local shown, number = find_waiter(known, owner, priority, own[3])
        own, i = shown or own, number
    end
    local ahead = 0
    for _, waiter in ipairs(known) do
        if waiter ~= own and comes_before(waiter, own) then ahead = ahead + 1 end
    end
    return ahead, function(has_started)
        if has_started then
            if i then table.remove(known, i) end
            if i or is_written and #known == 0 then write_waiters(known) end
        elseif order == 2 and own[5] - now < quotient(life, 2) and (i or #known < MOST_WAITERS) then
            own[5] = now + min(life, MOST_LIFE)
            if not i then known[#known + 1] = own end
            write_waiters(known)
            if awaited < own[5] then call("HSET", limit_key, "line", format("%d", own[5] + MOST_LIFE)) end
        end
    end
end

-- Returns 1 if nobody but this owner holds units. (Of many leases nobody looks.)
local function holds_all(owner)
    if is_stale or live <= 0 or live > LOOKS then return 0 end
    for _, name in ipairs(call("ZRANGEBYSCORE", state_key, format("(%d", now), "+inf")) do
        if string.match(name, "^%d+ %d+ (%d+) ") ~= owner then return 0 end
    end
    return 1
end

local function take(weight, lease, at, is_asked)
    load()
    -- Leases that may have been lost have expired by then.
    if born > 0 then gate = max(gate, born + max(lease, 0) + cooldown) end
    gate = max(gate, hold)
    local ahead, note_start = 0, function() end
    if is_asked then ahead, note_start = stand_in_line(at + 5) end
    if is_asked and (gate > now or live + weight > most or ahead > 0) then
        note_start(false)
        local is_own = arguments[at + 5] == 2 and holds_all(format("%d", arguments[at])) or 0
        local answer = { clock, now, 0, ahead, live + weight > most and 0 or 1, is_own, live, gate, soonest(weight) }
        return live + weight > most and with_others(answer, at) or answer
    end
    note_start(true)
    local fence, expiry = call("HINCRBY", limit_key, "ids", 1), ends(lease)
    live = live + weight
    save(expiry, expiry, name_of(weight, fence, at))
    return { clock, now, 1, weight, fence, reported(expiry), live, gate, 0 }
end

-- The start of a lease that was just removed has ended, or its owner died: these units cool down, if its units count. Returns
-- whether they do.
local function cool(fence, weight, units)
    if cooldown == 0 or units == 0 then return false end
    load()
    if is_stale then return false end
    live = live - weight + units
    save(now + cooldown, now + cooldown, format("%d %d 0 0 0 0", fence, units))
    return true
end

-- Subtracts these units from `live`. A key without leases is removed, except for its gate.
local function give_back(units)
    if tonumber(call("ZINCRBY", state_key, format("%d", units), "live")) < -1 then return end
    load()
    remove()
    if key_gate > now then
        live, over, till = 0, 0, 0
        save(key_gate)
    end
end

if op == "acquire" then
    return take(arguments[1], arguments[2], 3, true)
elseif op == "start" then
    return take(1, arguments[1], 2, false)
elseif op == "view" then
    load()
    local answer = { clock, now, live, gate, soonest(arguments[1]), (stand_in_line(7)) }
    return live + arguments[1] > most and with_others(answer, 2) or answer
elseif op == "complete" then
    local slot, fence = arguments[1], arguments[2]
    local was_held = call("ZREM", state_key, name_of(slot, fence, 3))
    if was_held == 1 and not (arguments[7] == 1 and cool(fence, slot, slot)) then give_back(slot) end
    return { clock, now, was_held }
elseif op == "settle" then
    local slot, fence = arguments[1], arguments[2]
    local was_held = call("ZREM", state_key, name_of(slot, fence, 3))
    if was_held == 1 and not cool(fence, slot, arguments[7]) then give_back(slot) end
    return { clock, now, was_held }
elseif op == "renew" then
    local slot, fence, lease, again = arguments[1], arguments[2], arguments[7], arguments[8]
    local name = name_of(slot, fence, 3)
    local expiry = floor(tonumber(call("ZSCORE", state_key, name) or 0))
    load()
    -- (An automatic renewal may be of a time when there was another cooldown. Its units are still taken.)
    if is_stale or expiry <= now + (expiry < NEVER and again == 0 and cooldown or 0) then
        local may_be_lost = born > 0 and now < born + lease
        if is_stale or again == 0 or not may_be_lost then return { clock, now, 0, 0 } end
        if expiry <= now then live = live + slot end
    end
    expiry = max(expiry, ends(lease))
    save(expiry, expiry, name)
    return { clock, now, 1, reported(expiry) }
elseif op == "evict" then
    local owner, units = format("%d", arguments[1]), 0
    for _, name in ipairs(call("ZRANGEBYSCORE", state_key, cooldown > 0 and format("(%d", now) or 0, "+inf")) do
        local fence, weight, of = string.match(name, "^(%d+) (%d+) (%d+) ")
        if of == owner then
            call("ZREM", state_key, name)
            weight = tonumber(weight)
            if not cool(tonumber(fence), weight, weight) then units = units + weight end
        end
    end
    if units > 0 then give_back(units) end
    return { clock, now, units }
elseif op == "leave" then
    local known = waiters()
    local _, i = find_waiter(known, format("%d", arguments[1]), arguments[2], format("%d", arguments[3]))
    if i then
        table.remove(known, i)
        write_waiters(known)
    end
    return { clock, now }
elseif op == "pause" then
    load()
    key_gate = max(key_gate, now + arguments[1])
    save(key_gate)
    return { clock, now, key_gate }
elseif op == "clear" then
    remove()
    return { clock, now }
end
