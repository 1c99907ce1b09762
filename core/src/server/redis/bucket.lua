-- Token buckets and leaky buckets. (prelude.lua, counted.lua, this.)
--
-- Policy: parts, ticks, rest, size, is_leaky. A unit costs `ticks` and `rest`/`parts` of one. (The numbers of `Bucket`:
-- n, p div n, p mod n, the size; a `shift` is not needed, because a tick and its parts are two numbers here.) Cost of
-- all units: at most 366 days.
--
-- State, in addition to the fields of counted.lua:
--
--   t, r  when the bucket has recovered from all that was started: a tick, and parts of one
--   l     the latest stamp of any place, or end of any start (absent: 0)
--   u     the total ever returned, in ticks (absent: 0)
--   c, d  until when it recovers from the amount taken over from a bucket of another policy, in the form of t and r (absent: none)
--
-- A *token bucket* may be behind by its size: a start of weight w is ready at `T + cost(w) - cost(size)`. A *leaky
-- bucket* is never behind: a start is ready at `T`, and a waiter takes a turn while at most `size` units wait, its own
-- included. Then T becomes `max(T, stamp) + cost(w)`, where the stamp is the last moment at which the start may happen:
-- now, or the end of a place's grace.
--
-- Why it is right. Take any starts of a token bucket, of which the first was admitted with stamp s, and the last was
-- ready at r. When the last one was decided, T was at least s plus the cost of the others, and with its own cost at
-- most r + cost(size). So together they cost at most cost(size) + r - s: the size, and what drips in the meantime. In a
-- leaky bucket a start is ready only when all before it have been paid for. T is exact. It never decreases except where
-- a start is taken back (`give_back`), so setting a clock back lets no start happen early.
--
-- No product is larger than 2^53: a weight is at most 2^30, parts are at most 10^9, and `cost` multiplies them in two pieces.
--
-- decide, record  -> {clock, now, ready, taken, ticket, stamp, ahead, is_place, t, r, gate}
-- view            -> {clock, now, ready, t, r, gate}
--     The returned state is the one after the decision: T, and the later of both gates. From them the caller computes, in 128 bits,
--     remaining = 0 while gate > now; else of a leaky bucket 0 while T > now, else the size; of a token bucket
--     (cost(size) - max(T - now, 0)) / cost(1), at least 0; and empty = max(T rounded up, gate).
--     decide weight delay patience grace reserves forced again; record (one unit, forced); view weight (may be 0). The delay: no
--     start before this much later; patience -1: unlimited.
-- cancel ticket stamp weight ahead only_place, settle ticket stamp weight ahead actual -> {clock, now, was_there}
-- present, pause, clear: see counted.lua.
-- adopt           -> {clock, now}: rewrites the state under the policy that applies, so that it lives as long as that policy needs. No
--     state is ever two policies behind: see prelude.lua.
--
-- Commands: HMGET, TIME, HMGET. In addition, an admission needs one HSET (in a new life HINCRBY, HSET, PEXPIRE and
-- `list`), and a place HGET, HLEN and HINCRBY.

local parts, ticks, rest, size, is_leaky = policy[1], policy[2], policy[3], policy[4], policy[5] == 1
local HALF = 32768

-- Moments and costs are pairs: ticks, and parts of one.
local function plus(t, r, by, parts_by)
    r = r + parts_by
    if r >= parts then return t + by + 1, r - parts end
    return t + by, r
end

local function minus(t, r, by, parts_by)
    r = r - parts_by
    if r < 0 then return t - by - 1, r + parts end
    return t - by, r
end

local function is_before(t, r, other_t, other_r) return t < other_t or t == other_t and r < other_r end

-- `ahead` of a place that took a bucket which had recovered, and so much before its stamp (or before now).
local IDLE = 140737488355328

local function up(t, r) return r > 0 and t + 1 or t end

-- The cost of this many units, at most 2^32.
local function cost(units)
    if ticks > 0 and units > FAR / ticks then return FAR, 0 end
    local high = rest * quotient(units, HALF)
    local whole = quotient(high, parts)
    local low = (high - whole * parts) * HALF + rest * (units % HALF)
    local more = quotient(low, parts)
    return units * ticks + whole * HALF + more, low - more * parts
end

-- T, and the rest of the state.
local t, r, last, returned, carried_t, carried_r = load(up(cost(size + 1)), "t", "r", "l", "u", "c", "d")

-- The server's clock was set. Unless the bucket is behind by more, it is behind by its size at most.
if is_moving then
    local full = now + cost(size) + 1
    t, last, carried_t = moved(t, back, on, full), moved(last, back, on, now), moved(carried_t, back, on, full)
end

-- The state was written under another policy. The bucket is behind by as many units, and as large a part of one, as at
-- the time of the change. Places further away, such as those behind a gate, are not carried over.
local old, changed = policy_before()
if old then
    local old_parts, old_size, unit = old[1], old[4], old[2] * old[1] + old[3]
    local function units(of_t, of_r)
        of_t, of_r = of_t - changed, of_r
        if of_t < 0 then return 0, 0 end
        local whole, left = share(of_t, old_parts, unit)
        left = left + of_r
        local more = quotient(left, unit)
        left = left - more * unit
        if left == 0 then return whole + more, 0 end
        return whole + more + 1, unit - left
    end
    local held, spare = units(t, r)
    if held == 0 then
        t, r, carried_t, carried_r = 0, 0, 0, 0
    else
        held = min(held, max(units(carried_t, carried_r), old_size) + old_size, 4294967296)
        spare = share(spare, ticks * parts + rest, unit)
        t, r = plus(changed, 0, cost(held))
        t, r = minus(t, r, quotient(spare, parts), spare % parts)
        carried_t, carried_r, last = t, r, max(last, changed)
    end
end

-- Where an earlier state may have been lost, the bucket counts as emptied at that time.
born = max(born, lost_by)
if born > 0 then
    local lost_t, lost_r = plus(born, 0, cost(size))
    if is_before(t, r, lost_t, lost_r) then t, r = lost_t, lost_r end
end

-- Writes T; for a place also its ticket and stamp; and everything else if more than T has changed.
local function keep(is_all, ticket, stamp)
    local fields = { "t", t, "r", r }
    local function add(name, value)
        fields[#fields + 1] = name
        fields[#fields + 1] = value
    end
    live()
    if is_all or is_stale then
        add("l", last)
        add("u", returned)
        if carried_t > 0 then
            add("c", carried_t)
            add("d", carried_r)
        end
    end
    if ticket then add(ticket, stamp) end
    save(max(up(t, r), key_gate), fields)
end

if is_moving then keep(true) end

local function ready_for(weight, opens)
    if weight == 0 then return opens end
    local turn_t, turn_r = t, r
    if not is_leaky then turn_t, turn_r = minus(t, r, cost(max(size - weight, 0))) end
    local turn = up(turn_t, turn_r)
    return turn <= now and opens or max(turn, opens)
end

-- Until when a leaky bucket's queue is too full for this start to wait in it; nil if it may wait. At most `size` units
-- wait, including this one, behind one that has just started (at a gate, none has), each with the grace of this one.
local function when_it_may_wait(weight, grace, opens)
    local others = size - weight
    if not is_leaky or grace > 0 and others > FAR / grace then return nil end
    local from_t, from_r = minus(t, r, cost(others + 1))
    from_t = from_t - others * grace
    local reached_t, reached_r = minus(opens, 0, ticks, rest)
    if is_before(reached_t, reached_r, now, 0) then reached_t, reached_r = now, 0 end
    return is_before(reached_t, reached_r, from_t, from_r) and max(up(from_t, from_r), 0) or nil
end

local function decide(weight, delay, patience, grace, reserves, forced, again)
    local opens = max(gate, hold, delay > 0 and now + delay or 0)
    local ready = ready_for(weight, opens)
    local function denied() return { clock, now, ready, 0, 0, 0, 0, 0, t, r, opens } end
    local waits = ready > now and not forced
    if waits then
        patience = patience < 0 and LONGEST or min(patience, LONGEST)
        local queue = patience > 0 and not again and when_it_may_wait(weight, grace, opens)
        if queue then
            ready = max(queue, ready - patience)
            return denied()
        end
        if ready - now > patience then return denied() end
    end
    local is_place = waits or reserves
    local stamp = is_place and max(ready, now) + grace or now
    local ahead = max(t - stamp, 0) + returned
    if is_place and t <= stamp and (t < stamp or r == 0) then ahead = IDLE + stamp - max(up(t, r), now) end
    local after_t, after_r = t, r
    if t < stamp then after_t, after_r = stamp, 0 end
    after_t, after_r = plus(after_t, after_r, cost(weight))
    if after_t > FAR then return denied() end
    t, r = after_t, after_r
    local ticket
    if is_place then
        last = max(last, stamp)
        ticket = open_place(up(cost(size + 1)))
        keep(true, ticket, stamp)
    else
        keep()
        ticket = era
    end
    return { clock, now, ready, 1, ticket, stamp, ahead, is_place and 1 or 0, t, r, opens }
end

-- Takes back units of a start, except those that have returned over time since then, since they may have been used. Say
-- the start cost c, at s, and later starts were admitted until l. Take one of these, at a: from it on, all cost no more
-- than has been counted since the start, less c. So without the start, the bucket has recovered from them c - (a - s)
-- earlier than now, or sooner. If it was behind by b (`ahead`) at s, because of earlier starts, it has recovered
-- another b earlier, less the part of that which was returned in between. Hence c - (l - s - b) is safe, and it is
-- everything while the bucket is busy.
--
-- If nothing was admitted after a place, and nothing was ahead of it, the bucket is what it was before, also where the
-- place had moved it on to its stamp (`IDLE`). All other places were before that.
--
-- Where another policy admitted the start, as many units as had come back by its rate until it ended are as many that
-- have come back. If the present one gives them back faster, what was returned says less about `ahead`.
local function give_back(stamp, weight, ahead, units, before_change)
    if ahead >= IDLE then
        local moved_t, moved_r = plus(stamp, 0, cost(weight))
        if units == weight and t == moved_t and r == moved_r then
            local before = stamp - (ahead - IDLE)
            last = max(min(last, before + 1), now)
            returned = returned + max(up(t, r) - max(before, now), 0)
            t, r = max(before, now), 0
            return
        end
        ahead = 0
    end
    local gone
    if before_change then
        local old_parts, unit = before_change.numbers[1], before_change.numbers[2] * before_change.numbers[1] + before_change.numbers[3]
        -- (An estimate is enough: where both rates are nearly the same, so are both answers.)
        local is_faster = ticks + rest / parts < unit / old_parts
        local elapsed = before_change.ended - stamp - (is_faster and 0 or max(ahead - returned, 0))
        local whole, left = share(max(elapsed, 0), old_parts, unit)
        gone = up(cost(left > 0 and whole + 1 or whole)) + max(last - before_change.ended, 0)
    else
        gone = max(last - stamp - max(ahead - returned, 0), 0)
    end
    local back_t, back_r = cost(units)
    local most_t, most_r = cost(weight)
    most_t = most_t - gone
    if is_before(most_t, most_r, back_t, back_r) then back_t, back_r = most_t, most_r end
    local behind_t, behind_r = t - now, r
    if is_before(behind_t, behind_r, back_t, back_r) then back_t, back_r = behind_t, behind_r end
    if back_t < 0 then return end
    t, r = minus(t, r, back_t, back_r)
    returned = returned + up(back_t, back_r)
end

-- Ends a start: units are returned, or more are owed.
local function finish(actual, only_place)
    local ticket, stamp, weight, ahead = arguments[1], arguments[2], arguments[3], arguments[4]
    local is_over = stamp + up(cost(size + 1)) <= now
    if is_over and actual <= weight then return { clock, now, 0 } end
    local before_change = not only_place and former_of(ticket)
    local known = (before_change or is_known(ticket, only_place)) and up(t, r) > now
    local debt = (known or is_over) and min(max(actual - weight, 0), size) or 0
    if known or debt > 0 then
        if t < now then t, r = now, 0 end
        last = max(last, now)
        if known then give_back(stamp, weight, ahead, max(weight - actual, 0), before_change) end
        if debt > 0 then t, r = plus(t, r, cost(debt)) end
        if is_before(t, r, carried_t, carried_r) then carried_t, carried_r = t, r end
        if up(t, r) > now then keep(true) else forget() end
    end
    return { clock, now, known and 1 or 0 }
end

if op == "decide" then
    local weight, delay, patience, grace, reserves, forced, again = unpack(arguments)
    return decide(weight, delay, patience, grace, reserves == 1, forced == 1, again == 1)
elseif op == "record" then
    return decide(1, 0, 0, 0, false, true, false)
elseif op == "view" then
    return { clock, now, ready_for(arguments[1], max(gate, hold)), t, r, max(gate, hold) }
elseif op == "present" then
    return present()
elseif op == "cancel" then
    return finish(0, arguments[5] == 1)
elseif op == "settle" then
    return finish(arguments[5], false)
elseif op == "adopt" then
    if is_stale then
        if up(t, r) > now then keep(true) else forget() end
    end
    return { clock, now }
end
