-- Fixed windows and the sliding window counter, aligned to 1970. (prelude.lua, counted.lua, this.)
--
-- Policy: limit, length, is_smooth, phase. The phase is the Unix time of tick 0 in µs (0 with a manual clock).
--
-- State, in addition to the fields of counted.lua:
--
--   w  the newest window in which anything is counted, a number since 1970
--   n  its units
--   q  the units of the window before it
--   f  the first window in which anything may have been counted
--   u  the units that were counted earlier, by another policy; or in f or later, beyond the limit (absent: 0)
--   c  until when
--
-- A start of weight w fits into its window if `units + w <= limit`; in the sliding window counter, if `before * (length
-- - elapsed) + (units + w) * length <= limit * length`, where `before` is the number of units of the window before. It
-- takes the first moment with capacity from the newest window on, which is solved for. A start in the future (a place)
-- is counted in the window in which it is ready, and is valid until that window ends.
--
-- Why it is right. No start is counted in a window older than the newest, so the count of the window before is final. A
-- start happens no earlier than `ready` and no later than `stamp`, the last tick of the window that counts it; later in
-- a window there is only more capacity. So a window never holds more than the limit. If a clock is set back, the newest
-- window is in the future, and starts are counted there. The counts of windows before the last two are no longer known.
-- Where that might matter, because a place in the newest window was given back, or the policy changes, such a window counts as
-- full (`edit`, and the change).
--
-- No product is larger than 2^53: units are below 2^30, and `floor(room * length / before)` is worked out in two pieces.
--
-- decide, record  -> {clock, now, ready, taken, ticket, stamp, ahead, is_place, w, n, q, gate}; ahead is 0
-- view            -> {clock, now, ready, w, n, q, gate}
--     The returned state is the one after the decision, with the later of both gates. From them the caller computes, in 128 bits,
--     remaining = 0 while gate > now or w is later than this window; else limit - units - (before * (length - elapsed) / length
--     rounded up), at least 0; and empty = max(gate, the start of the latest of w, w + lasts if n > 0, w - 1 + lasts if q > 0),
--     where lasts is 1, or 2 if it is smooth. (Of an unused key w, n and q are 0.) decide weight delay patience (grace) reserves
--     forced again; record (one unit, forced); view weight (may be 0). The delay: no start before this much later; patience -1:
--     unlimited.
-- cancel ticket stamp weight ahead only_place, settle ticket stamp weight ahead actual -> {clock, now, was_there}
-- present, pause, clear: see counted.lua.
-- adopt           -> {clock, now}: rewrites the state under the policy that applies, so that it lives as long as that policy needs. No
--     state is ever two policies behind: see prelude.lua.
--
-- Commands: HMGET, TIME, HMGET. In addition, an admission needs one HSET (in a new life HINCRBY, HSET, PEXPIRE and
-- `list`), and a place HGET, HLEN and HINCRBY.

local limit, length, is_smooth, phase = policy[1], policy[2], policy[3] == 1, policy[4]
local lasts = is_smooth and 2 or 1
local MOST, PIECE = 1073741823, 4194304

local function window_of(tick) return quotient(tick + phase, length) end

local function start_of(window) return window * length - phase end

-- floor(room * length / before), for room < before <= MOST.
local function part_of_length(room, before)
    local high = room * quotient(length, PIECE)
    local whole = quotient(high, before)
    return whole * PIECE + quotient((high - whole * before) * PIECE + room * (length % PIECE), before)
end

local newest, units, before, first, earlier, earlier_until = load(lasts * length, "w", "n", "q", "f", "u", "c")

local function units_of(window)
    return window == newest and units or window == newest - 1 and before or 0
end

-- The counts that windows before the last two may have had, and that may still matter.
local function unknown(here)
    local lost = newest - 2
    if lost >= 0 and lost + lasts > here then return lost end
end

-- Sets the counts to these `{window, units}`; unknown ones count as full.
local function set(known, lost, here)
    local function sum(window)
        local all = 0
        for i = 1, #known do
            if not window or known[i][1] == window then all = all + known[i][2] end
        end
        return all
    end
    if lost then known[#known + 1] = { lost, max(limit - sum(), 0) } end
    newest = max(here, lost or 0)
    for i = 1, #known do
        if known[i][2] > 0 then newest = max(newest, known[i][1]) end
    end
    local function all_of(window)
        local all = sum(window)
        if lost and lost >= window and window >= 0 then all = max(all, limit) end
        return min(all, MOST)
    end
    units, before = all_of(newest), all_of(newest - 1)
end

-- The state was written under another policy. Units of a window that had begun count at its end or, if that had not
-- come, at the time of the change. Places are not carried over.
local old, changed = policy_before()
if old then
    local old_limit, old_length = old[1], old[2]
    local here, known, lost = window_of(changed), {}, 0
    -- What is older than both windows stays known only as a number.
    local function add(window, count)
        if window >= here - 1 then known[#known + 1] = { window, count } else lost = lost + count end
    end
    for window = newest - 1, newest do
        if window * old_length - phase <= changed then
            add(window_of(min((window + 1) * old_length - 1 - phase, changed)), units_of(window))
        end
    end
    -- Any other one may have been full.
    local last = min(newest - 2, quotient(changed + phase, old_length))
    for window = here, here - 1, -1 do
        local begins = max(quotient(window * length, old_length), first)
        if last >= begins then
            add(window, min((last - begins + 1) * old_limit, MOST))
            last = begins - 1
        end
    end
    if last >= first then lost = lost + (last - first + 1) * old_limit end
    if earlier > 0 then add(window_of(min(earlier_until, changed)), earlier) end
    set(known, nil, here)
    first, earlier_until = here - 1, changed
    earlier = min(lost + max(units - limit, 0) + max(before - limit, 0), MOST)
elseif era == 0 then
    first = window_of(now)
end

-- The clock was set back by more than the windows that count. How much was used in the one that it shows now is not
-- known. (A clock that is set forward only begins the next window sooner.)
local is_far_back = is_moving and back < -lasts * length
if is_far_back then
    newest, units, before = window_of(now), max(units, limit), limit
    first = newest - 1
end

-- Where an earlier state may have been lost, all windows in which it might count are full.
if born > 0 then gate = max(gate, born + lasts * length) end
if lost_by > 0 then gate = max(gate, start_of(window_of(lost_by) + lasts)) end

-- Until when the state is needed.
local function needed() return max(start_of(newest + lasts), key_gate) end

local function keep(ticket, stamp)
    live()
    local fields = { "w", newest, "n", units, "q", before, ticket, stamp }
    local function add(name, value)
        fields[#fields + 1] = name
        fields[#fields + 1] = value
    end
    if is_new or is_far_back then add("f", first) end
    if is_new and earlier > 0 then
        add("u", earlier)
        add("c", earlier_until)
    end
    save(needed(), fields)
end

if is_far_back then keep() end

-- Keeps a state while anything was counted in it, or may have been: a longer window may contain that.
local function keep_or_forget()
    if units + before > 0 or earlier > 0 or first < newest - 1 then keep() else forget() end
end

-- The first moment from this tick on with capacity for this weight: the window, and the tick. The second window after
-- the newest has nothing in it and nothing before it. (FAR: never, since no window has that capacity.)
local function earliest(weight, from)
    local first = max(window_of(from), newest)
    for window = first, first + 2 do
        local start = start_of(window)
        local room, elapsed = limit - units_of(window) - weight, max(from - start, 0)
        local last = is_smooth and units_of(window - 1) or 0
        if room >= 0 then
            if room < last then elapsed = max(elapsed, length - part_of_length(room, last)) end
            if elapsed < length then return window, start + elapsed end
        end
    end
    return first, FAR
end

local function decide(weight, delay, patience, reserves, forced)
    local opens = max(gate, hold, delay > 0 and now + delay or 0)
    local window, ready = earliest(weight, max(opens, now))
    local waits = ready > now and not forced
    if waits and (ready == FAR or patience >= 0 and ready - now > patience) then
        return { clock, now, ready, 0, 0, 0, 0, 0, newest, units, before, opens }
    end
    if forced then window = max(window_of(now), newest) end
    if window ~= newest then newest, units, before = window, 0, units_of(window - 1) end
    units = min(units + weight, MOST)
    local is_place, stamp, ticket = waits or reserves, start_of(window + 1) - 1, nil
    if is_place then
        ticket = open_place(lasts * length)
        keep(ticket, stamp)
    else
        keep()
        ticket = era
    end
    return { clock, now, ready, 1, ticket, stamp, 0, is_place and 1 or 0, newest, units, before, opens }
end

-- Changes the counts: takes back units of a start, and adds a debt.
local function edit(window, back, debt)
    local here = window_of(now)
    local known, lost = {}, unknown(here)
    for i = newest - 1, newest do
        known[#known + 1] = { i, max(units_of(i) - (i == window and back or 0), 0) }
    end
    known[3] = { here, debt }
    set(known, lost, here)
    keep_or_forget()
end

-- Ends a start: units are returned, or more are owed.
local function finish(actual, only_place)
    local ticket, stamp, weight = arguments[1], arguments[2], arguments[3]
    local is_over = stamp + lasts * length <= now
    if is_over and actual <= weight then return { clock, now, 0 } end
    -- A start of the policy before counts at the end of its window or, if that had not come, at the time of the change.
    local before_change = not only_place and former_of(ticket)
    local window = window_of(before_change and min(stamp, before_change.ended) or stamp)
    local known = (before_change or is_known(ticket, only_place)) and units_of(window) > 0
    local debt = (known or is_over) and min(max(actual - weight, 0), limit) or 0
    if known or debt > 0 then edit(window, known and max(weight - actual, 0) or 0, debt) end
    return { clock, now, known and 1 or 0 }
end

if op == "decide" then
    local weight, delay, patience, _, reserves, forced = unpack(arguments)
    return decide(weight, delay, patience, reserves == 1, forced == 1)
elseif op == "record" then
    return decide(1, 0, 0, false, true)
elseif op == "view" then
    local weight, _, opens = arguments[1], nil, max(gate, hold)
    local ready = opens
    if weight > 0 then _, ready = earliest(min(weight, limit), max(opens, now)) end
    return { clock, now, ready, newest, units, before, opens }
elseif op == "present" then
    return present()
elseif op == "cancel" then
    return finish(0, arguments[5] == 1)
elseif op == "settle" then
    return finish(arguments[5], false)
elseif op == "adopt" then
    if is_stale then keep_or_forget() end
    return { clock, now }
end
