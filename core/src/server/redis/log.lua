-- The log: rates over one or several windows, delays, even spacing; and rates above 4,096 units, in slices.
--
-- Policy   slice, interval, then limit and length of each window: at most `limit` units in any `length` ticks.
--          slice: 0, or the length in ticks of the slices of the window (its only one).
--          interval: 0, or the spacing of starts, which job durations shorten; then the last window is (1, interval), and as
--          many jobs are remembered as the first window has units.
--
-- State: a list
--
--     [jobs] oldest … newest head
--
-- An entry is a start, a place, or all starts of a slice: 15 bytes, followed by the rare parts.
--
--     stamp, 7 bytes     from when on it counts: in a window until stamp + length. It starts no later than this.
--     sum, 4 bytes       the units of all entries up to this one. By it, the entry that holds a given unit is found.
--     number, 4 bytes    what identifies it: the low bits of its ticket
--     units and state    as text, unless they are "1S":  S  it has started        P  a place, which has not started
--                                                        M  all starts of a slice  X  its cost is settled
--                                                        G  a grant, followed by the numbers of its units that were
--                                                           taken back: see `grant`
--
-- The head is text with the facts about the newest entry and the whole list (see FIELDS). So a denial reads the head
-- and one entry for each window; an admission writes its entry over the head, and the new head after it. `jobs` exists
-- where the interval adapts: the number of ended jobs, the sum, and the duration of each of the last jobs.
--
-- Why it is right
--
-- 1. Stamps never decrease along the list: none is smaller than the one before it. So the units that count in a window
--    are the end of the list, and a start of k units fits into a window of n once the unit n - k + 1 back has left it.
-- 2. A start happens no earlier than `ready` and no later than its stamp, by a time that never runs backwards for a
--    key: `seen` is the time of the last write. So no window ever holds more than its limit.
-- 3. Sums grow from entry to entry. So a search finds the entry that holds a unit, at the first attempt if all weights
--    are equal. Sums and numbers wrap at 2^32. A list holds fewer units than that: `trim`.
-- 4. Dropped starts count as started at `gone`, their latest stamp. That matters only where twice the limit was recorded
--    or is owed, and where a policy changes to a longer window: then `remember` gives them the latest stamps that their
--    policy allows.
-- 5. In slices a start counts from up to a slice later than it happened, and starts of the same slice share an entry. A
--    place has its own entry until it starts. So a window has at most 8,192 entries, and the places.
--
-- Cost in commands, in addition to HMGET and TIME: a denial reads 2 (1 where the limit is 1; a few more in search of
-- weights), an admission writes 2 more. LTRIM and PEXPIRE are occasional. Edits of units (`cancel`, `settle`) rewrite
-- everything newer than the start. The first call after a change of policy drops the places of the previous one, and
-- the durations of jobs.

local byte, match = string.byte, string.match

-- The number of slices of a window. And a number that is later than any time.
local SLICES, FOREVER = 8192, 4503599627370496

-- How long it is known at least which machines have asked. And the most bytes that record the ended units of a grant.
local SITES_KEPT, MOST_ENDED = 60 * SECOND, 8000

local GRANT = byte("G")

-- A promise lies at most this many lengths of a grant ahead. Over that time, clocks drift apart by a fifth of one.
-- (`Lengths` also depends on this.)
local FAR = 100

local slice, interval = policy[1], policy[2]
local limits, lengths, capacity, largest, longest, shortest = {}, {}, policy[3], 0, 0, policy[4]
for i = 3, #policy, 2 do
    local limit, length = policy[i], policy[i + 1]
    limits[#limits + 1], lengths[#lengths + 1] = limit, length
    capacity, largest, longest = min(capacity, limit), max(largest, limit), max(longest, length)
    shortest = min(shortest, length)
end

------------------------------------------------------------------------------------------------------------------ head

-- birth, mark     see the prelude
-- stamp           of the newest entry; 0: there is none
-- total           its sum, not wrapped
-- number          the last number assigned
-- units, count    of all entries, and their number
-- seen            when this was last written
-- set             until when the state lives
-- check           the number of entries at which some are next dropped
-- gate            no start happens before this
-- gone            the latest stamp of a dropped start; 0: none was dropped. (They had `total` - `units` units.)
-- mixed           1: an earlier policy has admitted some of them, or of the entries
-- and where the interval adapts
-- spacing         one more than the distance to the next start; 0: the interval
-- average         the average duration of the last jobs, at most the interval
-- jobs            1: the list has them
-- and once the server's clock was corrected
-- ahead           the sum of the corrections by which it has been moved (see the prelude). Then stamps that callers know
--                 may differ from those here.
-- and once the server has lost data
-- losses          the number of the last loss that is counted here
local FIELDS = "%d %d %d %d %d %d %d %d %d %d %d %d %d"
local FOUND = "^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)"

local head = { spacing = 0, average = 0, jobs = 0, ahead = 0, losses = 0 }
local found = call("LINDEX", state_key, -1)
if found then
    local h, rest = head, nil
    h.birth, h.mark, h.stamp, h.total, h.number, h.units, h.count, h.seen, h.set, h.check, h.gate, h.gone, h.mixed, rest =
        match(found, FOUND)
    for field, value in pairs(h) do h[field] = tonumber(value) end
    if rest ~= "" then
        local spacing, average, jobs = match(rest, "^ (%d+) (%d+) (%d+)")
        if spacing then h.spacing, h.average, h.jobs = tonumber(spacing), tonumber(average), tonumber(jobs) end
        h.ahead = tonumber(match(rest, "@(%d+)") or 0)
        h.is_moved = match(rest, "@") ~= nil
        h.losses = tonumber(match(rest, "#(%d+)") or 0)
    end
end
local is_absent = not found or head.birth ~= birth
local is_stale = found and is_absent
if is_absent then
    -- Numbers begin with the time, so that no ticket of an earlier life means anything in this one.
    head = {
        birth = birth, mark = mark, stamp = 0, total = 0, number = now, units = 0, count = 0, seen = 0, set = 0, check = 16,
        gate = 0, gone = 0, mixed = 0, spacing = 0, average = 0, jobs = 0, ahead = ahead, losses = 0,
    }
end
local back, on = moves_of(head.seen, head.ahead)
local is_moving = back < 0 or on > 0
if back == 0 then now = max(now, head.seen) end
-- Machines may still start what they were granted.
if not found then head.gate = lost_until(longest + slice + 2 * SECOND) end

--------------------------------------------------------------------------------------------------------------- reading

local WRAP = 0x100000000
local STAMP, SUM, NUMBER, REST = 1, 8, 12, 16

local function word_at(text, at)
    local a, b, c, d = byte(text, at, at + 3)
    return ((a * 256 + b) * 256 + c) * 256 + d
end

local function long_at(text, at)
    local a, b, c = byte(text, at, at + 2)
    return ((a * 256 + b) * 256 + c) * WRAP + word_at(text, at + 3)
end

local function units_and_state(entry)
    if #entry < REST then return 1, "S" end
    local units, state = match(entry, "^(%d+)(%a.*)$", REST)
    return tonumber(units), state
end

-- The entry this far back: 0 is the newest.
local function entry_at(back) return call("LINDEX", state_key, -2 - back) end

-- The last entry that is less than `bound` behind, and how far back it is. The newest is one; the one beyond the oldest
-- is about `most` behind. It guesses by the distance; if that does not help, it halves the range.
local function behind(entry, by)
    if by == STAMP then return head.stamp - long_at(entry, STAMP) end
    return ((by == SUM and head.total or head.number) - word_at(entry, by)) % WRAP
end

-- The last entry that is less than `bound` behind, and how far back it is. The newest is one; the one beyond the oldest is
-- about `most` behind. It guesses by the distance, and where that does not help it halves.
local function search(by, bound, most)
    local low, high, least, found, tries = 0, head.count, 0, nil, 0
    while high - low > 1 and not (by == SUM and least == bound - 1) do
        tries = tries + 1
        local part = tries <= 6 and (bound - 1 - least) / max(most - least, 1) or 0.5
        local back = min(max(low + floor(part * (high - low) + 0.5), low + 1), high - 1)
        local entry = entry_at(back)
        local distance = behind(entry, by)
        if distance < bound then low, least, found = back, distance, entry else high, most = back, distance end
    end
    return found or entry_at(0), low
end

-- The last entry that counts from later than `since`, in the form of `search`. The newest is one.
local function search_since(since)
    local oldest = call("LINDEX", state_key, head.jobs)
    local distance = behind(oldest, STAMP)
    if distance < head.stamp - since then return oldest, head.count - 1 end
    return search(STAMP, head.stamp - since, distance)
end

-- The earliest moment for a start, if its gate opens then.
local function ready_from(gate, weight)
    local ready = gate
    for i = 1, weight > 0 and #limits or 0 do
        -- When the unit that has to leave the window counts from.
        local back, from = limits[i] - weight + 1, head.stamp
        if back > head.units then
            from = head.gone
        elseif back > 1 then
            from = long_at(search(SUM, back, head.units), STAMP)
        end
        if from > 0 then ready = max(ready, from + lengths[i]) end
    end
    return ready
end

-- The heaviest start that would be admitted now, and when nothing counts any more.
local function look(gate)
    local remaining, empty = gate <= now and largest or 0, gate
    for i = 1, #limits do
        -- No tick is before 1.
        local since, newest = max(now - lengths[i], 0), max(head.stamp, head.gone)
        if remaining == 0 then
            -- It cannot be less.
        elseif head.gone > since then
            remaining = 0
        elseif head.stamp > since then
            local entry = search_since(since)
            remaining = max(min(remaining, limits[i] - behind(entry, SUM) - units_and_state(entry)), 0)
        else
            remaining = min(remaining, limits[i])
        end
        if newest > 0 then empty = max(empty, newest + lengths[i]) end
    end
    return remaining, empty
end

-- The number of units that the list remembers at least, and the number of places that it can have.
local function room()
    if slice > 0 then return 2 * largest end
    local room, least = 16, 2 * max(largest, capacity == 1 and 32 or 8)
    while room < least do room = 2 * room end
    return room
end

-- Returns whether there is no space for another place. An eighth is reserved for exchanged places.
local function is_crowded(stamp, weight, is_again)
    if slice > 0 then return head.count >= 2 * SLICES or stamp - now > SLICES * slice end
    local room = room()
    local back = max(room - weight - (is_again and 0 or room / 8), 1)
    if back > head.units then return false end
    local entry = search(SUM, back, head.units)
    local _, state = units_and_state(entry)
    return long_at(entry, STAMP) >= now + (state == "P" and 0 or 1)
end

-------------------------------------------------------------------------------------------------------------- deciding

local gate = max(gate, head.gate)
-- How long a machine trusts an answer: it starts nothing that it was granted unless it has asked since then. (`Terms`
-- also depends on this.)
local trust = min(quotient(shortest, 2), 2 * SECOND)
-- Possibly lost starts count as a full limit. Machines may start earlier grants for this long.
if born > 0 then gate = max(gate, born + longest + trust) end
if lost_by > 0 then gate = max(gate, lost_by + trust) end
local opens = max(gate, hold)

-- Until when machines trust an answer about any key of the limit. Keys may differ in `trust`.
local function said() return tonumber(call("HGET", limit_key, "said") or 0) end

-- The losses that still count and are not counted here, the oldest first: when each was noticed, the time in which all
-- that was lost has started, and its end.
local to_count = {}
if head.losses ~= lost_number then
    local numbers = all_losses()
    for i = 2, #numbers, 2 do
        local by = numbers[i] + numbers[i + 1] + trust
        if lost_number - quotient(i, 2) + 1 > head.losses and by + longest > now then
            table.insert(to_count, 1, { at = numbers[i], span = numbers[i + 1] + trust, by = by })
        end
    end
    head.losses = lost_number
end

local weight, ready, stamp, is_place, is_looking

-- The answer of a call that does not write; nil if it does.
local function answer_at_once()
    if interval > 0 then lengths[#lengths] = head.spacing > 0 and head.spacing - 1 or interval end
    if op == "view" then
        local remaining, empty = look(opens)
        return { clock, now, ready_from(opens, arguments[1]), remaining, empty }
    end
    weight, ready, is_place, is_looking = 1, now, false, false
    local patience, grace, is_again = 0, 0, false
    if op == "decide" then
        local delay, is_reserved, is_forced = arguments[2], arguments[5] == 1, arguments[6] == 1
        weight, patience, grace = arguments[1], arguments[3], arguments[4]
        is_again, is_looking = arguments[7] == 1, arguments[8] == 1
        if weight < 1 or weight > capacity then return redis.error_reply("ERR a weight has to be 1 to the capacity") end
        if not is_forced then ready = ready_from(delay > 0 and max(opens, now + delay) or opens, weight) end
        is_place = ready > now or is_reserved
    end
    if is_place then ready = max(ready, now) end
    stamp = (is_place and ready + grace or now) + max(slice - 1, 0)
    local is_late = patience >= 0 and ready - now > patience
    if is_late or is_place and is_crowded(stamp, weight, is_again) then
        local remaining, empty = 0, 0
        if is_looking then remaining, empty = look(opens) end
        return { clock, now, ready, 0, 0, 0, 0, 0, remaining, empty }
    end
end

local is_deciding = op == "decide" or op == "record" or op == "view"
if is_deciding and head.mark == mark and not is_moving and #to_count == 0 then
    local answer = answer_at_once()
    if answer then return answer end
end

--------------------------------------------------------------------------------------------------------------- writing

local char, sub = string.char, string.sub
local unpack = unpack or table.unpack

local function word(value)
    return char(quotient(value, 0x1000000), quotient(value, 0x10000) % 256, quotient(value, 0x100) % 256, value % 256)
end

-- Seven bytes.
local function long(value) return sub(word(quotient(value, WRAP)), 2) .. word(value % WRAP) end

local function entry_of(stamp, sum, number, units, state)
    local rest = (units ~= 1 or state ~= "S") and format("%d", units) .. state or ""
    return long(stamp) .. word(sum % WRAP) .. word(number % WRAP) .. rest
end

-- Extends the life of the state while something counts, and returns the new head.
local function new_head()
    local h = head
    -- As long as a loss counts for keys without a state, this one tells that it is counted.
    h.set = live_until(h.set, max(h.stamp + longest, h.gate, lost_by > 0 and lost_by + trust + longest or 0))
    local rest = interval > 0 and format(" %d %d %d", h.spacing, h.average, h.jobs) or ""
    if h.ahead > 0 or h.is_moved then rest = format("%s @%d", rest, h.ahead) end
    if h.losses > 0 then rest = format("%s #%d", rest, h.losses) end
    return format(
        FIELDS, h.birth, h.mark, h.stamp, h.total, h.number, h.units, h.count, now, h.set, h.check, h.gate, h.gone, h.mixed
    ) .. rest
end

-- Writes the newest entry, if there is a new one, and the head.
local function put(entry)
    note_time()
    if is_stale then call("DEL", state_key) end
    if is_absent then
        call("RPUSH", state_key, entry or "")
    elseif entry then
        call("LSET", state_key, -1, entry)
    end
    is_absent, is_stale = false, false
    if entry then call("RPUSH", state_key, new_head()) else call("LSET", state_key, -1, new_head()) end
end

local function forget_jobs()
    if head.jobs == 1 then call("LPOP", state_key) end
    head.jobs, head.average = 0, 0
end

-- Drops starts that are in no window any more, and starts for which there is no space.
local function trim()
    if head.count < head.check and head.units <= 2 * largest then return end
    local room, keep, since = room(), head.count, max(now - longest, 0)
    if head.count < head.check and head.units <= room + room / 8 then return end
    local _, back = nil, -1
    if head.stamp > since then
        _, back = search_since(since)
        keep = back + 1
        if head.units > room then
            _, back = search(SUM, room, head.units)
            keep = min(keep, back + 1)
        end
    else
        keep = 0
    end
    if keep < head.count then
        local dropped = entry_at(keep)
        head.gone, head.units, head.count = max(head.gone, long_at(dropped, STAMP)), behind(dropped, SUM), keep
        if keep == 0 then head.stamp = 0 end
        local jobs = head.jobs == 1 and call("LPOP", state_key)
        call("LTRIM", state_key, -1 - keep, -1)
        if jobs then call("LPUSH", state_key, jobs) end
    end
    head.check = keep + max(16, quotient(keep, 8))
end

-- Adds the newest start, to the newest entry if that is a slice in progress. Returns its ticket.
local function push(stamp, units, state)
    trim()
    head.total, head.units = head.total + units, head.units + units
    if state == "M" and now <= head.stamp then
        local newest = entry_at(0)
        local others, other_state = units_and_state(newest)
        if other_state == "M" then
            local number = head.number - behind(newest, NUMBER)
            call("LSET", state_key, -2, entry_of(head.stamp, head.total, number, others + units, state))
            put()
            return number
        end
    end
    head.stamp, head.number, head.count = max(stamp, head.stamp), head.number + 1, head.count + 1
    put(entry_of(head.stamp, head.total, head.number, units, state))
    return head.number
end

-- Returns whether no start is in any window.
local function is_idle() return head.count == 0 or head.stamp + longest <= now end

if head.mark ~= mark or not is_deciding or is_moving or #to_count > 0 then
    -- The rare operations.

    -- Applies `edit` to the newest entries, of which the oldest is `back` from the end, and rewrites them.
    local function rewrite(back, edit)
        local entries, before, after = {}, 0, 0
        for i, text in ipairs(call("LRANGE", state_key, -2 - back, -2)) do
            local units, state = units_and_state(text)
            entries[i] = { stamp = long_at(text, STAMP), number = word_at(text, NUMBER), units = units, state = state }
            before = before + units
        end
        edit(entries)
        call("LTRIM", state_key, 0, -3 - back)
        if back + 1 == head.count and head.jobs == 0 then head.set = 0 end -- an empty list is no key
        local sum, texts = head.total - before, {}
        for i, entry in ipairs(entries) do
            after = after + entry.units
            texts[#texts + 1] = entry_of(entry.stamp, sum + after, entry.number, entry.units, entry.state)
            if #texts == 1000 or i == #entries then
                call("RPUSH", state_key, unpack(texts))
                texts = {}
            end
        end
        head.total, head.units, head.count = sum + after, head.units + after - before, head.count + #entries - back - 1
        head.stamp = head.count > 0 and long_at(call("LINDEX", state_key, -1), STAMP) or 0
        call("RPUSH", state_key, "")
        put()
    end

    -- Makes dropped starts count that the windows of this policy may contain, as late as the policy of the state, which has
    -- admitted them, allows. (See `History::remember` in history.rs, which does the same.)
    local function remember(entries)
        local known, lost, since = 0, head.total - head.units, max(now - longest, 0)
        for i = 1, #entries do known = known + entries[i].units end
        if head.gone <= since or lost <= 0 or largest <= known then return end

        -- From the newest unit back. Of the unit that is a window's limit later than the next one: its run, and the units of that
        -- run before it.
        local runs, bounds = {}, {}
        local function bind()
            local before = {}
            for n in string.gmatch(head.mixed == 0 and call("HGET", limit_key, format("n:%d", head.mark)) or "", "%d+") do
                before[#before + 1] = tonumber(n)
            end
            -- The length of an interval that adapts is not known.
            bounds = {}
            for i = 3, #before - (before[2] and before[2] > 0 and 2 or 0), 2 do
                bounds[#bounds + 1] = { free = before[i], length = before[i + 1], run = #runs + 1, at = 0 }
            end
        end
        local function next_unit()
            local latest, most = FOREVER, FOREVER
            for _, bound in ipairs(bounds) do
                if bound.free > 0 then
                    most = min(most, bound.free)
                else
                    local run = runs[bound.run]
                    latest, most = min(latest, run.stamp - bound.length), min(most, run.units - bound.at)
                end
            end
            return latest, most
        end
        local function add(stamp, units)
            runs[#runs + 1] = { stamp = stamp, units = units }
            for _, bound in ipairs(bounds) do
                local free = min(bound.free, units)
                bound.free, bound.at = bound.free - free, bound.at + units - free
                while runs[bound.run] and bound.at >= runs[bound.run].units do
                    bound.at, bound.run = bound.at - runs[bound.run].units, bound.run + 1
                end
            end
        end

        bind()
        local is_within = true
        for i = #entries, 1, -1 do
            local left = entries[i].units
            while left > 0 do
                local latest, most = next_unit()
                is_within = is_within and entries[i].stamp <= latest
                add(entries[i].stamp, min(most, left))
                left = left - min(most, left)
            end
        end
        -- Otherwise there are debts, or starts recorded beyond the limit.
        if not is_within then bind() end

        local free, pads, stamp = min(largest - known, lost), {}, head.gone
        stamp = entries[1] and min(stamp, entries[1].stamp) or stamp
        while free > 0 do
            local latest, most = next_unit()
            -- With that many entries, the others count as the last one.
            if #pads < SLICES then stamp = max(min(stamp, latest), 0) end
            if stamp <= since then break end
            local units, last = min(most, free), pads[#pads]
            add(stamp, units)
            if last and last.stamp - stamp < max(slice, 1) then
                last.units = last.units + units
            else
                pads[#pads + 1] = { stamp = stamp, units = units }
            end
            free, lost, head.total = free - units, lost - units, head.total - units
        end
        head.gone = lost > 0 and stamp or 0
        local number, more = ((entries[1] and entries[1].number or head.number) - 1) % WRAP, #pads
        for i = #entries, 1, -1 do entries[i + more] = entries[i] end
        for i, pad in ipairs(pads) do
            entries[more + 1 - i] = { stamp = pad.stamp, number = number, units = pad.units, state = "X" }
        end
    end

    if is_moving then
        -- The server's clock was set.
        head.gone, head.ahead, head.is_moved = moved(head.gone, back, on, now), ahead, true
        if head.gate > head.seen then head.gate = moved(head.gate, back, on, now) end
        gate = max(gate, head.gate)
        opens = max(gate, hold)
        rewrite(head.count - 1, function(entries)
            for i = 1, #entries do entries[i].stamp = moved(entries[i].stamp, back, on, now) end
        end)
    end

    if head.mark ~= mark then
        -- Starts of another policy still count. Places do not: they are exchanged when they are presented.
        forget_jobs()
        rewrite(head.count - 1, function(entries)
            local kept = 0
            for i = 1, #entries do
                local entry = entries[i]
                entries[i] = nil
                if entry.state ~= "P" then
                    kept = kept + 1
                    entries[kept] = entry
                end
            end
            remember(entries)
            head.mark, head.spacing, head.mixed = mark, 0, (#entries > 0 or head.gone > 0) and 1 or 0
        end)
    end

    -- Adds units that count from a moment on.
    local function count_from(moment, units)
        if head.stamp <= moment then return push(moment, units, "X") end
        -- Places lie ahead of it.
        local _, back = search_since(moment)
        rewrite(back, function(entries)
            -- No later start has its number. An earlier one with that number is found before it.
            local number = (entries[1].number - 1) % WRAP
            table.insert(entries, 1, { stamp = moment, number = number, units = units, state = "X" })
        end)
    end

    -- The server has lost starts: as many count as the windows allowed in that time (see losses.rs). Under a policy that
    -- has changed since then, which is another one than admitted them, the windows count as full. Tickets of lost
    -- starts are not given out again: no script takes less than 4 µs.
    for _, loss in ipairs(to_count) do
        local units, skipped = largest, quotient(loss.span, 4) + 1024
        local changed = changed_at()
        if changed == 0 or changed + FLOOR_LAG < loss.at then
            -- (An interval that adapts may have been shorter.)
            for i = 1, #limits - (interval > 0 and 1 or 0) do
                units = min(units, limits[i] * (quotient(loss.span, lengths[i]) + 1))
            end
        end
        head.number = head.number + (skipped < WRAP / 64 and skipped or WRAP)
        head.spacing = 0
        count_from(loss.by, units)
    end

    -- The entry of a ticket, while it exists: the entry, its position, its units and state.
    local function find(ticket, stamp, weight)
        local age = head.number - ticket
        if stamp + longest <= now or head.count == 0 or age < 0 or age >= WRAP then return nil end
        local entry, back = search(NUMBER, age + 1, head.count)
        local units, state = units_and_state(entry)
        if behind(entry, NUMBER) ~= age or state == "X" then return nil end
        local from = long_at(entry, STAMP)
        -- A grant may have ended sooner than the caller that started from it knows.
        local is_stamp = from == stamp or head.is_moved or byte(state) == GRANT and from < stamp
        if is_stamp and (units == weight or state == "M" or byte(state) == GRANT) then return entry, back, units, state end
    end

    -- Records the end of a unit of a grant, which happens once. nil: it had ended, or there is no space to record it.
    local function ended(state, unit)
        local name = format("%d:", unit)
        if #state > MOST_ENDED or string.find(state, ":" .. name, 1, true) then return nil end
        return (state == "G" and "G:" or state) .. name
    end

    -- Leaves this many units in an entry.
    local function shrink(back, units, state)
        rewrite(back, function(entries)
            if units > 0 then
                entries[1].units, entries[1].state = units, state
            else
                table.remove(entries, 1)
            end
        end)
    end

    -- Adds units that are owed from now on.
    local function owe(units)
        if slice > 0 then return push(now + slice - 1, units, "M") end
        count_from(now, units)
    end

    local ops = {}

    -- Ends a grant: nothing starts from it any more. This many of its units stay; they started before now.
    local function finish(entry, back, units, state, stay, low, high)
        for bit = 0, low + high > 0 and 63 or -1 do
            local word = bit < 32 and low or high
            if quotient(word, 2 ^ (bit % 32)) % 2 == 1 then state = ended(state, bit + 1) or state end
        end
        local before = back + 1 < head.count and long_at(entry_at(back + 1), STAMP) or head.gone
        local stamp = min(long_at(entry, STAMP), max(before, now + 1 + max(slice - 1, 0)))
        if stay >= units then
            local text = entry_of(stamp, word_at(entry, SUM), word_at(entry, NUMBER), units, state)
            if text == entry then return end
            call("LSET", state_key, -2 - back, text)
            if back == 0 then head.stamp = stamp end
            return put()
        end
        rewrite(back, function(entries)
            local mine = entries[1]
            mine.units, mine.state, mine.stamp = stay, state, stamp
            if stay == 0 then table.remove(entries, 1) end
        end)
    end

    -- Grants a machine (a *site*) units that it may start without a request, and takes back unused units of earlier
    -- grants. A grant of k units is a place for k: they start from `ready` on, before `ready + g`, and count from then
    -- on. So it is an entry of the list like any other. Its stamp is a tick later, because `now` was rounded down.
    -- Grants that are ready later than now are promises.
    --
    -- want       how many now; least: the minimum of a grant
    -- future     how many later, if there are none now
    -- most       the maximum number of grants
    -- g          how long each lasts
    -- reports    of earlier grants that have ended: ticket, stamp, how many units stay (the others will never start),
    --            and which of the first 64 takings were given back, in two words. A report has the same effect however
    --            often it comes.
    -- -> {clock, now, born, gate, next, remaining, empty, then of each grant: ticket, ready, end, stamp, units}
    --    born: since when earlier grants are not known any more (or `cleared`, or the last loss); next: when `least` more
    --    become free; remaining, empty: as of `view`.
    --
    -- The requests of a site are numbered, in growing order. If its last request is repeated, the answer is the same
    -- grants.
    --
    -- While the server's clock is behind a time that it has shown before, nothing is granted and nothing changes. The
    -- clock may be set right again, and starts that were granted or ended in between would count from too early.
    function ops.grant(site, seq, want, least, future, most, g, ...)
        local sites, name, granted = KEYS[4], format("%d", site), {}
        if clock < now then return { clock, now, max(born, cleared, lost_at), gate, 2 * now - clock, 0, now } end
        if hold > now then most = 0 end
        local reports = { ... }
        for i = 1, #reports, 5 do
            local ticket, stamp, stay, low, high = unpack(reports, i, i + 4)
            local entry, back, units, state = find(ticket, stamp, 0)
            if entry and byte(state) == GRANT then finish(entry, back, units, state, stay, low, high) end
        end
        local function report(ticket, ready, ends, stamp, units)
            for _, number in ipairs({ ticket, ready, ends, stamp, units }) do granted[#granted + 1] = number end
        end

        local last, texts = call("HGET", sites, name), {}
        local last_seq = last and tonumber(match(last, "^%d+ (%d+)")) or 0
        if last_seq == seq then
            for ticket, ready, ends, stamp in string.gmatch(last, "(%d+):(%d+):(%d+):(%d+)") do
                ticket, ready, ends, stamp = tonumber(ticket), tonumber(ready), tonumber(ends), tonumber(stamp)
                local entry, _, units = find(ticket, stamp, 0)
                if entry and ends > now and not head.is_moved then report(ticket, ready, ends, stamp, units) end
            end
        end
        -- If nothing of it can start any more, it counts as reset.
        if last_seq <= seq and #granted == 0 then
            local function grant(ready, units)
                local ends = ready + g
                local ticket = push(ends + 1 + max(slice - 1, 0), units, "G")
                report(ticket, ready, ends, head.stamp, units)
                texts[#texts + 1] = format("%d:%d:%d:%d", ticket, ready, ends, head.stamp)
                if ends > out then out = ends end
            end
            -- The rest of a start would be of no use.
            local function whole(units) return units - units % least end
            local known = call("HLEN", sites)
            local share = max(quotient(capacity - 1, 6 * max(8, known)) + 1, least)
            local free = look(opens)
            local given = whole(min(want, free, max(share, quotient(free, 2))))
            if given > 0 and most > 0 then
                grant(now, given)
                most = most - 1
            else
                given = 0
            end
            local left = min(future, share) - given
            while free - given < least and left >= least and most > 0 and head.units < room() do
                -- As many as are ready at about that time.
                local units, fails = least, left + 1
                local first = ready_from(opens, least)
                if first - now > FAR * g then break end
                local latest = first + quotient(g, 8)
                while fails - units > 1 do
                    local middle = quotient(units + fails, 2)
                    if ready_from(opens, middle) <= latest then units = middle else fails = middle end
                end
                units = whole(units)
                grant(max(ready_from(opens, units), now), units)
                left, most = left - units, most - 1
            end
            -- Sites that have not asked for long are forgotten whenever their number has doubled.
            local keeps = max(longest, SITES_KEPT)
            if known >= tonumber(call("HGET", sites, "most") or 32) then
                local all, kept = call("HGETALL", sites), 0
                for i = 1, #all, 2 do
                    local asked = tonumber(match(all[i + 1], "^(%d+) "))
                    if asked and asked + keeps <= now then call("HDEL", sites, all[i]) else kept = kept + 1 end
                end
                call("HSET", sites, "most", format("%d", 2 * kept + 32))
            end
            call("HSET", sites, name, format("%d %d ", now, seq) .. table.concat(texts, " "))
            if not is_manual then call("PEXPIRE", sites, format("%d", quotient(keeps, 1000) + 1000)) end
        end
        call("HSET", limit_key, "out", format("%d", out), "said", format("%d", max(said(), now + trust)))
        local remaining, empty = look(opens)
        local next = max(ready_from(opens, least), now + 1)
        return { clock, now, max(born, cleared, lost_at), gate, next, remaining, empty, unpack(granted) }
    end

    -- The rest of its grace is returned, except for what the entry before still needs, and at most a window.
    function ops.present(ticket, stamp, weight, _, ready)
        local entry, back, _, state = find(ticket, stamp, weight)
        -- It has been moved with the others.
        local since = entry and long_at(entry, STAMP) - stamp or 0
        ready, stamp = ready + since, stamp + since
        if now < ready then return { clock, now, 2, ready, 0 } end
        if state ~= "P" or now > stamp or gate > now then return { clock, now, 0, 0, 0 } end
        local before = back + 1 < head.count and entry_at(back + 1)
        local from, sum = max(now + max(slice - 1, 0), stamp + 1 - longest), word_at(entry, SUM)
        local others, other_state = 0, nil
        if before then
            from = max(from, long_at(before, STAMP))
            others, other_state = units_and_state(before)
        end
        from = min(from, stamp)
        if slice > 0 and other_state == "M" and long_at(before, STAMP) >= now then
            -- It joins the slice before it.
            call("LREM", state_key, -1, entry)
            from, ticket, head.count = long_at(before, STAMP), head.number - behind(before, NUMBER), head.count - 1
            weight = weight + others
        end
        call("LSET", state_key, -2 - back, entry_of(from, sum, ticket, weight, slice > 0 and "M" or "S"))
        if back == 0 then head.stamp = from end
        put()
        return { clock, now, 1, from, ticket }
    end

    function ops.cancel(ticket, stamp, weight, unit, is_only_place)
        local entry, back, units, state = find(ticket, stamp, weight)
        if not entry or is_only_place == 1 and state ~= "P" then return { clock, now, 0 } end
        if byte(state) == GRANT then state = ended(state, unit) end
        if not state then return { clock, now, 0 } end
        shrink(back, max(units - weight, 0), state)
        return { clock, now, 1 }
    end

    function ops.settle(ticket, stamp, weight, unit, actual)
        local entry, back, units, state = find(ticket, stamp, weight)
        if not entry and stamp + longest > now then return { clock, now, 0 } end
        if entry then
            local settled = state == "M" and state or "X"
            if byte(state) == GRANT then settled = ended(state, unit) end
            if not settled then return { clock, now, 0 } end
            if actual < weight then
                shrink(back, max(units - weight + actual, 0), settled)
            elseif settled ~= state then
                call("LSET", state_key, -2 - back, entry_of(long_at(entry, STAMP), word_at(entry, SUM), ticket, units, settled))
            end
        end
        if actual > weight then owe(min(actual - weight, capacity)) end
        return { clock, now, entry and 1 or 0 }
    end

    function ops.pause(delay)
        if delay > 0 and now + delay > head.gate then
            head.gate = now + delay
            put()
        end
        return { clock, now, head.gate }
    end

    function ops.clear()
        -- Machines may still start what they were granted.
        local opens = min(out, said())
        drop()
        call("HSET", limit_key, "cleared", format("%d", now))
        -- An absent state would count the last loss again.
        if opens > now or lost_by > 0 and lost_by + trust + longest > now then
            is_absent, is_stale, head.gate = true, false, opens > now and opens or 0
            head.stamp, head.total, head.units, head.count, head.set = 0, 0, 0, 0, 0
            head.gone, head.mixed, head.jobs = 0, 0, 0
            put()
        end
        return { clock, now }
    end

    -- A job has ended. (If no start is in a window, the next start forgets the durations of jobs.)
    function ops.complete(began)
        if interval == 0 or is_idle() then return { clock, now } end
        -- Their sum, which may be 2^57, in parts of 2^20 ticks and the remainder.
        local PART = 0x100000
        local text = head.jobs == 1 and call("LINDEX", state_key, 0) or "0 0 0 "
        local ended, high, low, at = match(text, "^(%d+) (%d+) (%d+) ()")
        local packed, took = sub(text, at), max(now - began, 0)
        local slot = 7 * (ended % limits[1])
        high, low = high + quotient(took, PART), low + took % PART
        if #packed > slot then
            local old = long_at(packed, slot + 1)
            high, low = high - quotient(old, PART), low - old % PART
        end
        packed = sub(packed, 1, slot) .. long(took) .. sub(packed, slot + 8)
        text = format("%d %d %d ", ended + 1, high, low) .. packed
        if head.jobs == 1 then call("LSET", state_key, 0, text) else call("LPUSH", state_key, text) end
        -- A sum of 2^52 is more than any interval times the largest number of jobs.
        local average = high < WRAP and quotient(high * PART + low, #packed / 7) or interval
        head.jobs, head.average = 1, min(average, interval)
        put()
        return { clock, now }
    end

    -- The state was written above, if another policy applies by now.
    function ops.adopt() return { clock, now } end

    if not is_deciding then return ops[op](unpack(arguments)) end
    local answer = answer_at_once()
    if answer then return answer end
end

if interval > 0 then
    if is_idle() then forget_jobs() end
    -- From the next start on. A reported time for it still applies.
    head.spacing = 1 + max(interval - head.average, 0)
    lengths[#lengths] = head.spacing - 1
end
local ticket = push(stamp, weight, is_place and "P" or slice > 0 and "M" or "S")
local remaining, empty = 0, 0
if is_looking then remaining, empty = look(opens) end
return { clock, now, ready, 1, ticket, head.stamp, 0, is_place and 1 or 0, remaining, empty }
