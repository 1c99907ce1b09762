-- The parts shared by bucket.lua and window.lua: one hash per key, and its open places. (prelude.lua, this, then one of
-- them.)
--
--   e  era: the ticket of earlier starts. A key that is forgotten, cleared or put under another policy gets a new one
--   m  the policy under which the state was written (`mark`)
--   p  its numbers
--   y, z, P  the era under the policy before, when it ended, and its numbers (absent: there was none)
--   b  the birth of the limit that it belongs to (absent: 0)
--   g  the key's gate (absent: none)
--   x  until when the key lives (absent: for ever, as by a manual clock)
--   o  the number of fields at which expired places are removed (absent: PLACES)
--   v  when it was last written (absent, as by a manual clock: it does not matter)
--   a  the sum of the corrections by which it has been moved (absent: 0; see the prelude)
--   N  a number: an open place, valid until the tick that it holds
--
-- A place is one start. The caller that starts with it or gives it back removes its field first, so it counts once. Its
-- ticket N and all eras come from one counter of the limit (`ids`), which only grows, so an old ticket never means
-- anything new. A start made with a place is identified by the era from then on (`present` returns it). A new life of
-- the key begins with DEL, so no place outlives a clear or another policy. Starts outlive one change of policy.
--
-- pause delay -> {clock, now, gate}; clear -> {0, now}; present: below

-- The longest wait of any caller: 366 days. And a number that is later than any time.
local LONGEST, FAR = 31622400000000, 4503599627370496
local PLACES = 64
local unpack = table.unpack or unpack

-- floor(a * b / c) and the remainder, for a below 2^53 and b, c below 2^50, bit by bit. FAR and 0 if it is FAR or more.
local function share(a, b, c)
    local whole, rest, bit = 0, 0, FAR
    while bit >= 1 do
        rest = 2 * rest
        if a >= bit then a, rest = a - bit, rest + b end
        local times = quotient(rest, c)
        whole, rest, bit = 2 * whole + times, rest - times * c, quotient(bit, 2)
        if whole >= FAR then return FAR, 0 end
    end
    return whole, rest
end

-- The known facts about the key. Stale: its contents no longer count and go with the next write. New: a life begins.
local era, was_marked, key_gate, till, is_there, is_stale, is_new

-- By how much its moments have to be moved: see the prelude.
local back, on, is_moving = 0, 0, false

-- Reads these fields too, and returns their values (absent: 0). A lost state counts for `memory` at most.
local function load(memory, ...)
    local raw = call("HMGET", state_key, "e", "m", "b", "g", "x", "v", "a", ...)
    for i = 1, #raw do raw[i] = tonumber(raw[i] or 0) end
    is_there = raw[1] > 0 or raw[4] > 0
    if raw[3] ~= birth then
        is_stale = is_there
        for i = 1, #raw do raw[i] = 0 end
    end
    era, was_marked, key_gate, till = raw[1], raw[2], raw[4], raw[5]
    back, on = moves_of(raw[6], raw[7])
    is_moving = is_there and (back < 0 or on > 0)
    if key_gate > raw[6] then key_gate = moved(key_gate, back, on, now) end
    if not is_there then
        key_gate = lost_until(memory)
        is_stale = key_gate > 0
    end
    gate = max(gate, key_gate)
    return unpack(raw, 8)
end

local function numbers_of(text)
    local numbers = {}
    for number in string.gmatch(text, "%d+") do numbers[#numbers + 1] = tonumber(number) end
    return numbers
end

-- The era, end and numbers of the policy before, if this call finds that it has ended.
local former

-- The numbers of the policy under which the state was written, and when that policy ended; nil if it is the present
-- one.
local function policy_before()
    if era == 0 or was_marked == mark then return nil end
    local since = call("HMGET", limit_key, "since", "s:" .. hash, "k:" .. hash)
    local of_limit, of_key = tonumber(since[1] or now), tonumber(since[2] or since[3] and now or 0)
    local ended = min(now, since[3] and of_key or max(of_limit, of_key))
    former = { era = era, ended = ended, numbers = numbers_of(call("HGET", state_key, "p")) }
    era, is_stale = 0, true
    return former.numbers, ended
end

-- The end and the numbers of the policy before, if this is the ticket of a start that it admitted.
local function former_of(ticket)
    if not former and not is_stale then
        local found = call("HMGET", state_key, "y", "z", "P")
        if found[1] then former = { era = tonumber(found[1]), ended = tonumber(found[2]), numbers = numbers_of(found[3]) } end
    end
    return former and former.era == ticket and former or nil
end

local function next_id() return call("HINCRBY", limit_key, "ids", 1) end

-- Begins a life, if there is none.
local function live()
    if era == 0 then era, is_new = next_id(), true end
end

-- Writes these fields, and those with which a life begins. The key is needed until the tick `needed`.
local function save(needed, fields)
    local function add(name, value)
        fields[#fields + 1] = name
        fields[#fields + 1] = value
    end
    if is_stale then
        call("DEL", state_key)
        is_there, till = false, 0
        if key_gate > now then add("g", key_gate) end
    end
    if birth > 0 and not is_there then add("b", birth) end
    if not is_manual then add("v", now) end
    if ahead > 0 then add("a", ahead) end
    if is_moving and key_gate > 0 then add("g", key_gate) end
    if is_new then
        add("e", era)
        add("m", mark)
        add("p", table.concat(policy, " "))
    end
    if is_new and former then
        add("y", former.era)
        add("z", former.ended)
        add("P", table.concat(former.numbers, " "))
    end
    local lives = not is_manual and needed > till
    if lives then
        till = max(needed, now) + max(needed - now, 0) + SECOND
        add("x", till)
    end
    for i = 1, #fields do
        if type(fields[i]) == "number" then fields[i] = format("%d", fields[i]) end
    end
    call("HSET", state_key, unpack(fields))
    if lives then call("PEXPIRE", state_key, format("%d", quotient(till - now, 1000) + 1)) end
    if lives or is_new and is_manual then list(till) end
    note_time()
end

-- Forgets everything except the key's gate.
local function forget()
    drop()
    till, is_there, is_stale, is_new = 0, false, false, false
    if key_gate > now then save(key_gate, { "g", key_gate }) end
end

-- Adds a place before the hash is saved, and returns its ticket. Places that ended `memory` ago have no meaning any
-- more.
local function open_place(memory)
    local most = tonumber(call("HGET", state_key, "o") or PLACES)
    if not is_stale and call("HLEN", state_key) >= most then
        local all = call("HGETALL", state_key)
        for i = 1, #all, 2 do
            if tonumber(all[i]) and tonumber(all[i + 1]) + memory <= now then call("HDEL", state_key, all[i]) end
        end
        call("HSET", state_key, "o", format("%d", 2 * call("HLEN", state_key) + PLACES))
    end
    return next_id()
end

-- Removes a place. Returns whether it was open.
local function close_place(ticket)
    return not is_stale and era > 0 and call("HDEL", state_key, format("%d", ticket)) == 1
end

-- Returns whether this is the ticket of a start, or of an unused place, which is used by this call.
local function is_known(ticket, only_place)
    return era > 0 and ticket == era and not only_place or ticket ~= era and close_place(ticket)
end

if op == "pause" then
    load(LONGEST)
    local closed = key_gate
    key_gate = max(key_gate, now + arguments[1])
    if key_gate > closed then save(key_gate, { "g", key_gate }) end
    return { clock, now, key_gate }
end

if op == "clear" then
    drop()
    return { clock, now }
end

-- A place starts once: from `ready` on, if it is not late, not behind a gate, and belongs to this life.
-- present ticket stamp weight longest ready -> {clock, now, started, stamp, ticket}: started 1, and it is identified by `ticket` from
--     now on; 0: it is late, used, or overtaken by a gate or another policy; 2: too early, nothing has happened.
local function present()
    local ticket, stamp, ready = arguments[1], arguments[2], arguments[5]
    if now < ready then return { clock, now, 2, ready, ticket } end
    if gate > now or now > stamp or was_marked ~= mark or not close_place(ticket) then return { clock, now, 0, stamp, ticket } end
    return { clock, now, 1, stamp, era }
end
