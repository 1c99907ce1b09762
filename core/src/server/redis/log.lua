-- The log: rates over one or several windows, delays, even distances; and rates above 4,096 units, in slices.
--
-- Policy   slice, interval, then limit and length of each window: at most `limit` units in any `length` ticks.
--          slice: 0, or into pieces of how many ticks the window is cut (its only one).
--          interval: 0, or the distance between starts, which is shortened by what jobs take; then the last window is
--          (1, interval), and as many jobs are remembered as the first window has units.
--
-- State: a list
--
--     [jobs] oldest … newest head
--
-- An entry is a start, a place for one, or all starts of a slice: 15 bytes, and behind them what is rare.
--
--     stamp, 7 bytes     from when on it counts: in a window until stamp + length. It starts no later than this.
--     sum, 4 bytes       the units of all entries up to this one. By it the entry is found that holds the unit so far back.
--     number, 4 bytes    what it is known by: the low bits of its ticket
--     units and state    as text, unless they are "1S":  S  it has started        P  a place: it has not started yet
--                                                        M  all starts of a slice  X  what it cost is settled
--
-- The head is text: what is to be known of the newest entry and of the whole list (see FIELDS). So a denial reads the head and
-- an entry for each window; an admission writes its entry over the head, and the new head behind it.
-- `jobs` is there where the interval adapts: how many have ended, their sum, and what each of the last took.
--
-- Why it is right
--
-- 1. Stamps never decrease along the list: none is made smaller than the one before it. So what counts in a window is the
--    end of the list, and a start of k units has room in a window of n once the unit n - k + 1 back has left it.
-- 2. A start happens no earlier than `ready` and no later than its stamp, by a time that never runs backwards for a key:
--    `seen` is the time of the last write. So no window ever holds more than its limit.
-- 3. Sums grow from entry to entry. So a search finds the entry that holds a unit, at the first look where all weigh the same.
--    Sums and numbers wrap at 2^32. A list holds fewer units than that: `trim`.
-- 4. What was dropped counts as started at `gone`, the latest stamp of it. That matters only where a policy changes to a
--    longer window, or where twice the limit was recorded.
-- 5. In slices a start counts from up to a slice later than it happened, and starts of the same slice share an entry. A place
--    has an entry of its own until it starts. So a window has at most 8,192 entries, and the places.
--
-- Cost in commands, beside HMGET and TIME: a denial reads 2 (1 where the limit is 1; a few more in search of weights), an
-- admission writes 2 more. LTRIM and PEXPIRE come now and then. What edits units (`cancel`, `settle`) writes all that is newer
-- than the start anew. The first call after a change of policy drops the places of the one before, and what jobs took.

local byte, char, sub, match = string.byte, string.char, string.sub, string.match
local unpack = unpack or table.unpack

local slice, interval = policy[1], policy[2]
local windows, capacity, largest, longest = {}, policy[3], 0, 0
for i = 3, #policy, 2 do
    windows[#windows + 1] = { limit = policy[i], length = policy[i + 1] }
    capacity, largest, longest = min(capacity, policy[i]), max(largest, policy[i]), max(longest, policy[i + 1])
end

------------------------------------------------------------------------------------------------------------------ head

-- birth, mark     see the prelude
-- stamp           of the newest entry; 0: there is none
-- total           its sum, not wrapped
-- number          the last number that was given
-- units, count    of all entries, and how many there are
-- open            the units of the newest entry if it is a slice's; else 0
-- seen            when this was written
-- set             until when the state lives
-- check           with how many entries it is next time to drop some
-- gate            nobody starts before this
-- gone            the latest stamp of what was dropped; 0: nothing was
-- spacing         one more than the distance to the next start; 0: the interval
-- average         what the last jobs took on average, at most the interval
-- jobs            1: the list has them
local FIELDS = {
    "birth", "mark", "stamp", "total", "number", "units", "count", "open", "seen", "set", "check", "gate", "gone",
    "spacing", "average", "jobs",
}
local WRITTEN, READ = string.rep("%d ", #FIELDS), string.rep("(%d+) ", #FIELDS)

local head, is_absent, is_stale

local function head_text()
    local h = head
    return format(WRITTEN, h.birth, h.mark, h.stamp, h.total, h.number, h.units, h.count, h.open, now, h.set, h.check, h.gate,
        h.gone, h.spacing, h.average, h.jobs)
end

local function read_head()
    local text = call("LINDEX", state_key, -1)
    if text then
        head = {}
        for i, value in ipairs({ match(text, READ) }) do head[FIELDS[i]] = tonumber(value) end
    end
    is_absent = not text or head.birth ~= birth
    is_stale = text and is_absent
    if is_absent then
        -- Numbers begin with the time, so that nobody's ticket of an earlier life stands for something in this.
        head = {
            birth = birth, mark = mark, stamp = 0, total = 0, number = now, units = 0, count = 0, open = 0, seen = 0,
            set = 0, check = 16, gate = 0, gone = born, spacing = 0, average = 0, jobs = 0,
        }
    end
    now = max(now, head.seen)
end

--------------------------------------------------------------------------------------------------------------- entries

local WRAP = 0x100000000
local SUM, NUMBER, REST = 8, 12, 16

local function word(value)
    return char(quotient(value, 0x1000000), quotient(value, 0x10000) % 256, quotient(value, 0x100) % 256, value % 256)
end

local function word_at(text, at)
    local a, b, c, d = byte(text, at, at + 3)
    return ((a * 256 + b) * 256 + c) * 256 + d
end

-- Seven bytes.
local function long(value) return sub(word(quotient(value, WRAP)), 2) .. word(value % WRAP) end

local function long_at(text, at)
    local a, b, c = byte(text, at, at + 2)
    return ((a * 256 + b) * 256 + c) * WRAP + word_at(text, at + 3)
end

local function entry_of(stamp, sum, number, units, state)
    local rest = (units ~= 1 or state ~= "S") and format("%d", units) .. state or ""
    return long(stamp) .. word(sum % WRAP) .. word(number % WRAP) .. rest
end

local function stamp_of(entry) return long_at(entry, 1) end

local function units_and_state(entry)
    if #entry < REST then return 1, "S" end
    local units, state = match(entry, "^(%d+)(%a)$", REST)
    return tonumber(units), state
end

-- The entry so far back: 0 is the newest.
local function entry_at(back) return call("LINDEX", state_key, -2 - back) end
local function oldest() return call("LINDEX", state_key, head.jobs) end

------------------------------------------------------------------------------------------------------------- searching

-- How many units, numbers and ticks an entry is behind the newest: they grow with how far back it is.
local function units_back(entry) return (head.total - word_at(entry, SUM)) % WRAP end
local function numbers_back(entry) return (head.number - word_at(entry, NUMBER)) % WRAP end
local function ticks_back(entry) return head.stamp - stamp_of(entry) end

-- The last entry that is less than `bound` behind, and how far back it is. The newest is one; the one beyond the oldest is
-- about `most` behind. It guesses by the distance, and where that does not help it halves.
local function search(behind, bound, most)
    local low, high, least, found, tries = 0, head.count, 0, nil, 0
    while high - low > 1 and not (behind == units_back and least == bound - 1) do
        tries = tries + 1
        local part = tries <= 6 and (bound - 1 - least) / max(most - least, 1) or 0.5
        local back = min(max(low + floor(part * (high - low) + 0.5), low + 1), high - 1)
        local entry = entry_at(back)
        local distance = behind(entry)
        if distance < bound then low, least, found = back, distance, entry else high, most = back, distance end
    end
    return found or entry_at(0), low
end

-- From when on the unit so far back counts. 0: there is none.
local function counted_from(units)
    if units > head.units then return head.gone end
    if units == 1 then return head.stamp end
    return stamp_of((search(units_back, units, head.units)))
end

-- How many units count from later than `since`. (No tick is before 1.)
local function units_since(since)
    since = max(since, 0)
    if head.gone > since then return largest end
    if head.stamp <= since then return 0 end
    local last = oldest()
    if stamp_of(last) > since then return head.units end
    local entry = search(ticks_back, head.stamp - since, ticks_back(last))
    return units_back(entry) + (units_and_state(entry))
end

-- What a ticket stands for, while it is there: the entry, how far back, its units and state.
local function find(ticket, stamp, weight)
    local age = head.number - ticket
    if stamp + longest <= now or head.count == 0 or age < 0 or age >= WRAP then return nil end
    local entry, back = search(numbers_back, age + 1, head.count)
    local units, state = units_and_state(entry)
    local is_it = numbers_back(entry) == age and stamp_of(entry) == stamp and (units == weight or state == "M")
    if is_it and state ~= "X" then return entry, back, units, state end
end

--------------------------------------------------------------------------------------------------------------- writing

local function keep_alive()
    head.set = live_until(head.set, max(head.stamp + longest, head.gate))
end

-- Writes the head, over the one before if there is one.
local function put_head()
    note_time()
    if is_stale then call("DEL", state_key) end
    if is_absent then call("RPUSH", state_key, "") end
    is_absent, is_stale = false, false
    keep_alive()
    call("LSET", state_key, -1, head_text())
end

local function forget_jobs()
    if head.jobs == 1 then call("LPOP", state_key) end
    head.jobs, head.average = 0, 0
end

-- Drops what is in no window any more, and what is more than twice the limit.
local function trim()
    local most, keep = max(2 * largest, 64), head.count
    if head.count < head.check and head.units <= most + most / 8 then return end
    local since = max(now - longest, 0)
    if head.stamp <= since then
        keep = 0
    else
        local last, _ = oldest(), nil
        if stamp_of(last) <= since then
            _, keep = search(ticks_back, head.stamp - since, ticks_back(last))
            keep = keep + 1
        end
        if head.units > most then
            local _, back = search(units_back, most, head.units)
            keep = min(keep, back + 1)
        end
    end
    if keep < head.count then
        local dropped = entry_at(keep)
        head.gone, head.units, head.count = max(head.gone, stamp_of(dropped)), units_back(dropped), keep
        if keep == 0 then head.stamp, head.open = 0, 0 end
        local jobs = head.jobs == 1 and call("LPOP", state_key)
        call("LTRIM", state_key, -1 - keep, -1)
        if jobs then call("LPUSH", state_key, jobs) end
    end
    head.check = keep + max(16, quotient(keep, 8))
end

-- Adds the newest entry, or to it if that is a slice that has not ended.
local function push(stamp, units, state)
    trim()
    note_time()
    if state == "M" and head.open > 0 and now <= head.stamp then
        head.total, head.units, head.open = head.total + units, head.units + units, head.open + units
        call("LSET", state_key, -2, entry_of(head.stamp, head.total, head.number, head.open, state))
        return put_head()
    end
    head.stamp, head.number, head.count = max(stamp, head.stamp), head.number + 1, head.count + 1
    head.total, head.units, head.open = head.total + units, head.units + units, state == "M" and units or 0
    local entry = entry_of(head.stamp, head.total, head.number, units, state)
    if is_stale then call("DEL", state_key) end
    if is_absent then call("RPUSH", state_key, entry) else call("LSET", state_key, -1, entry) end
    is_absent, is_stale = false, false
    keep_alive()
    call("RPUSH", state_key, head_text())
end

-- Lets `edit` change the newest entries, of which the oldest is so far back, and writes them anew.
local function rewrite(back, edit)
    local entries, before, after = {}, 0, 0
    for i, text in ipairs(call("LRANGE", state_key, -2 - back, -2)) do
        local units, state = units_and_state(text)
        entries[i] = { stamp = stamp_of(text), number = word_at(text, NUMBER), units = units, state = state }
        before = before + units
    end
    edit(entries)
    call("LTRIM", state_key, 0, -3 - back)
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
    head.stamp, head.open = 0, 0
    if head.count > 0 then
        local newest = call("LINDEX", state_key, -1)
        local units, state = units_and_state(newest)
        head.stamp, head.open = stamp_of(newest), state == "M" and units or 0
    elseif head.jobs == 0 then
        head.set = 0 -- an empty list is no key
    end
    call("RPUSH", state_key, "")
    put_head()
end

-- Leaves so many units to an entry.
local function shrink(back, units, state)
    rewrite(back, function(entries)
        if units > 0 then
            entries[1].units, entries[1].state = units, state
        else
            table.remove(entries, 1)
        end
    end)
end

-- Units that are owed from now on.
local function owe(units)
    if slice > 0 then return push(now + slice - 1, units, "M") end
    if head.stamp <= now then return push(now, units, "X") end
    -- Places lie ahead of it.
    local _, back = search(ticks_back, head.stamp - now, ticks_back(oldest()))
    rewrite(back, function(entries)
        -- Its number is no later one's; an earlier one that has it is found before it.
        local number = (entries[1].number - 1) % WRAP
        table.insert(entries, 1, { stamp = now, number = number, units = units, state = "X" })
    end)
end

-- What was started under another policy still counts. Places do not: they are exchanged when they are presented.
local function carry_over()
    forget_jobs()
    head.mark, head.spacing = mark, 0
    if head.count == 0 then return put_head() end
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
    end)
end

-------------------------------------------------------------------------------------------------------------- deciding

local function adapt()
    if interval > 0 then windows[#windows].length = head.spacing > 0 and head.spacing - 1 or interval end
end

local function gate_from(delay) return max(gate, head.gate, delay > 0 and now + delay or 0) end

local function ready_from(gate, weight)
    local ready = gate
    for _, window in ipairs(windows) do
        local from = weight > 0 and counted_from(window.limit - weight + 1) or 0
        if from > 0 then ready = max(ready, from + window.length) end
    end
    return ready
end

-- The heaviest start that would be admitted now, and when nothing counts any more.
local function look()
    local gate, remaining, empty = gate_from(0), largest, 0
    for _, window in ipairs(windows) do
        if gate <= now then remaining = min(remaining, window.limit - units_since(now - window.length)) end
        if head.count > 0 then empty = max(empty, head.stamp + window.length) end
        if head.gone > 0 then empty = max(empty, head.gone + window.length) end
    end
    return gate <= now and max(remaining, 0) or 0, max(gate, empty)
end

-- Are so many places taken that there is no room to remember another? An eighth is for those that are exchanged.
local function is_crowded(stamp, weight, is_again)
    local room, largest = 16, max(largest, capacity == 1 and 32 or 8)
    if slice > 0 then return head.count >= 16384 or stamp - now > longest end
    while room < 2 * largest do room = 2 * room end
    local back = max(room - weight - (is_again and 0 or room / 8), 1)
    if back > head.units then return false end
    local entry = search(units_back, back, head.units)
    local _, state = units_and_state(entry)
    return stamp_of(entry) >= now + (state == "P" and 0 or 1)
end

local function decide(weight, delay, patience, grace, is_reserved, is_forced, is_again, is_looking)
    if weight < 1 or weight > capacity then return redis.error_reply("the weight is not 1 to the capacity") end
    local gate = gate_from(delay)
    local ready = is_forced and now or ready_from(gate, weight)
    local is_place = ready > now or is_reserved
    if is_place then ready = max(ready, now) end
    local stamp = (is_place and ready + grace or now) + max(slice - 1, 0)
    local is_late = patience >= 0 and ready - now > patience
    if is_late or is_place and is_crowded(stamp, weight, is_again) then
        local remaining, empty = 0, 0
        if is_looking then remaining, empty = look() end
        return { 0, now, ready, 0, 0, 0, 0, 0, remaining, empty }
    end
    if interval > 0 and head.stamp + longest <= now then forget_jobs() end
    if interval > 0 then head.spacing = 1 + max(interval - head.average, 0) end
    push(stamp, weight, is_place and "P" or slice > 0 and "M" or "S")
    adapt()
    local remaining, empty = 0, 0
    if is_looking then remaining, empty = look() end
    return { 0, now, ready, 1, head.number, head.stamp, 0, is_place and 1 or 0, remaining, empty }
end

local ops = {}

function ops.decide(weight, delay, patience, grace, is_reserved, is_forced, is_again, is_looking)
    return decide(weight, delay, patience, grace, is_reserved == 1, is_forced == 1, is_again == 1, is_looking == 1)
end

function ops.record() return decide(1, 0, 0, 0, false, true, false, false) end

function ops.view(weight)
    local remaining, empty = look()
    return { 0, now, ready_from(gate_from(0), weight), remaining, empty }
end

-- The rest of its grace comes back, but for what the one before still needs, and no more than a window.
function ops.present(ticket, stamp, weight, _, ready)
    local entry, back, _, state = find(ticket, stamp, weight)
    if now < ready then return { 0, now, 2, 0, 0 } end
    if state ~= "P" or now > stamp or gate_from(0) > now then return { 0, now, 0, 0, 0 } end
    local before = back + 1 < head.count and entry_at(back + 1)
    local units, kind = 0, slice > 0 and "M" or "S"
    local sum, number, from = word_at(entry, SUM), ticket, max(now + max(slice - 1, 0), stamp + 1 - longest)
    if before then from = max(from, stamp_of(before)) end
    from = min(from, stamp)
    local others, other_state = 0, nil
    if before then others, other_state = units_and_state(before) end
    if slice > 0 and other_state == "M" and stamp_of(before) >= now then
        -- Into the slice before it.
        call("LREM", state_key, -1, entry)
        units, from, number, head.count = others, stamp_of(before), head.number - numbers_back(before), head.count - 1
    end
    units = units + weight
    call("LSET", state_key, -2 - back, entry_of(from, sum, number, units, kind))
    if back == 0 then head.stamp, head.open = from, slice > 0 and units or 0 end
    put_head()
    return { 0, now, 1, from, number }
end

function ops.cancel(ticket, stamp, weight, _, is_only_place)
    local entry, back, units, state = find(ticket, stamp, weight)
    if not entry or is_only_place == 1 and state ~= "P" then return { 0, now, 0 } end
    shrink(back, max(units - weight, 0), state)
    return { 0, now, 1 }
end

function ops.settle(ticket, stamp, weight, _, actual)
    local entry, back, units, state = find(ticket, stamp, weight)
    if not entry and stamp + longest > now then return { 0, now, 0 } end
    if entry then
        local settled = state == "M" and state or "X"
        if actual < weight then
            shrink(back, max(units - weight + actual, 0), settled)
        elseif settled ~= state then
            call("LSET", state_key, -2 - back, entry_of(stamp, word_at(entry, SUM), ticket, units, settled))
        end
    end
    if actual > weight then owe(min(actual - weight, capacity)) end
    return { 0, now, entry and 1 or 0 }
end

function ops.pause(delay)
    if delay > 0 and now + delay > head.gate then
        head.gate = now + delay
        put_head()
    end
    return { 0, now, max(head.gate, 0) }
end

function ops.clear()
    call("DEL", state_key)
    return { 0, now }
end

-- A job has ended. (Where no start is in the window, the next one forgets what jobs took.)
function ops.complete(began)
    if interval == 0 or head.stamp + longest <= now then return { 0, now } end
    local most, text = windows[1].limit, head.jobs == 1 and call("LINDEX", state_key, 0) or "0 0 0 "
    -- The sum in two parts, as it may be 2^57: thousandths of a second are too few for that, and what is below.
    local ended, high, low, at = match(text, "^(%d+) (%d+) (%d+) ()")
    local took, packed = max(now - began, 0), sub(text, at)
    local slot, PART = 7 * (ended % most), 0x100000
    high, low = high + quotient(took, PART), low + took % PART
    if #packed > slot then
        local old = long_at(packed, slot + 1)
        high, low = high - quotient(old, PART), low - old % PART
    end
    packed = sub(packed, 1, slot) .. long(took) .. sub(packed, slot + 8)
    text = format("%d %d %d ", ended + 1, high, low) .. packed
    if head.jobs == 1 then call("LSET", state_key, 0, text) else call("LPUSH", state_key, text) end
    -- So long that the interval is less, whatever it is.
    local average = high < WRAP and quotient(high * PART + low, #packed / 7) or interval
    head.jobs, head.average = 1, min(average, interval)
    put_head()
    return { 0, now }
end

-- What may have been lost counts as a whole limit.
if born > 0 then gate = max(gate, born + longest) end

read_head()
if head.mark ~= mark then carry_over() end
adapt()
return ops[op](unpack(arguments))
