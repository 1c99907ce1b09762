--!df flags=allow-undeclared-keys
-- What is in use of a limit, for observers. It changes nothing, and examines a bounded number of keys.
--
-- KEYS[1]  the limit
-- KEYS[2]  the list of the states of its keys: of leases `holders`, otherwise `keys`
-- ARGV     the time ("": the server's); the family of the states (l, b, w or c); the numbers of keys to examine from the end of the list,
--          which are needed longest, and from a place in it; that place; then the HASHes of keys to examine in any case
--
-- -> {policy, override, now, gate, born, keys, place, then of each of these keys that has a state: HASH, the text of its own policy
--    (absent: ""), numbers}: the texts of the policies; the time; `gate` and `born` as in prelude.lua, and `born` also for
--    a loss that is known by its time; the number of keys in the list,
--    and where another call continues. The numbers of a key begin with its gate, and continue by its family:
--
--      l  of each window of its policy the units that count, and from when on fewer do, if these are all units
--      b  t and r, and the numbers of the policy that wrote them
--      w  w, n and q, and the numbers of the policy that wrote them
--      c  the units of its leases
--
-- Which keys have states is known only here, so their names are not in KEYS. All are in the slot of KEYS[1]. (The first line is for
-- Dragonfly, which otherwise refuses that.)
--
-- Commands: HMGET, TIME, two ZRANGE, ZCOUNT, ZCARD, ZSCORE; of each key HMGET (of a log about ten LINDEX, of leases ZRANGEBYSCORE), and a
-- field of the limit; of a key with its own policy two HGET.

local call, floor, max, format, byte, match = redis.call, math.floor, math.max, string.format, string.byte, string.match
local unpack = unpack or table.unpack

local limit_key, list_key = KEYS[1], KEYS[2]
local is_manual, family = ARGV[1] ~= "", ARGV[2]
local last_ones, some, place = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local states = limit_key .. ":" .. family .. ":"

local known = call("HMGET", limit_key, "policy", "override", "version", "gate", "floor", "birth", "born", "waiting", "losses")
local birth, born = known[6] or "0", tonumber(known[7] or 0)

local now
if is_manual then
    now = tonumber(ARGV[1])
else
    local time = call("TIME")
    now = (tonumber(time[1]) - 1704067200) * 1000000 + tonumber(time[2])
end
now = max(now, tonumber(known[5] or 0))

local function numbers_of(text)
    local numbers = {}
    for number in string.gmatch(text or "", "%-?%d+") do numbers[#numbers + 1] = tonumber(number) end
    return numbers
end

------------------------------------------------------------------------------------------------------------------ states

-- See log.lua.
local function log(state, policy)
    local head = numbers_of(call("LINDEX", state, -1))
    if format("%d", head[1] or -1) ~= birth then return nil end
    local stamp, total, units, count, key_gate, gone = head[3], head[4], head[6], head[7], head[11], head[12]
    local now = max(now, head[8])

    local function word_at(text, at)
        local a, b, c, d = byte(text, at, at + 3)
        return ((a * 256 + b) * 256 + c) * 256 + d
    end
    local function stamp_of(entry)
        local a, b, c = byte(entry, 1, 3)
        return ((a * 256 + b) * 256 + c) * 4294967296 + word_at(entry, 4)
    end
    local function units_after(entry) return (total - word_at(entry, 8)) % 4294967296 end
    -- The oldest entry of which this is true; it is true of all newer ones.
    local function oldest(is_true)
        local function entry_at(back) return call("LINDEX", state, -2 - back) end
        local low, high, found = 0, count, nil
        local entry, back = entry_at(count - 1), count - 1
        while true do
            if is_true(entry) then low, found = back, entry else high = back end
            if high - low <= 1 then return found or entry_at(0) end
            back = floor((low + high) / 2)
            entry = entry_at(back)
        end
    end

    local numbers = format("%d", key_gate)
    for i = 3, #policy, 2 do
        local limit, length, used, free = policy[i], policy[i + 1], 0, 0
        -- The interval, which jobs may have shortened.
        if policy[2] > 0 and i == #policy - 1 and (head[14] or 0) > 0 then length = head[14] - 1 end
        local since = max(now - length, 0)
        if gone > since then
            used = limit
        elseif stamp > since then
            local entry = oldest(function(entry) return stamp_of(entry) > since end)
            used = units_after(entry) + tonumber(match(entry, "^(%d+)", 16) or 1)
        end
        if used >= limit then
            -- The unit that has to leave the window first.
            local from = gone
            if units >= limit then from = stamp_of(oldest(function(entry) return units_after(entry) < limit end)) end
            free = from + length
        end
        numbers = numbers .. format(" %d %d", used, free)
    end
    return numbers
end

-- See counted.lua, bucket.lua and window.lua. The numbers are texts already.
local function counted(state, ...)
    local found = call("HMGET", state, "b", "g", "e", "p", ...)
    if (found[1] or "0") ~= birth then return nil end
    if not found[3] then return found[2] or nil end
    for i = 5, 4 + select("#", ...) do found[i] = found[i] or "0" end
    return (found[2] or "0") .. " " .. table.concat(found, " ", 5) .. " " .. (found[4] or "")
end

-- See leases.lua.
local function leases(state)
    local found, values, over = call("ZRANGEBYSCORE", state, "-inf", format("%d", now), "WITHSCORES"), {}, 0
    for i = 1, #found, 2 do
        local weight = match(found[i], "^%d+ (%d+) ")
        if weight then over = over + tonumber(weight) else values[found[i]] = -1 - floor(tonumber(found[i + 1])) end
    end
    if not values.live or format("%d", values.birth or 0) ~= birth then return nil end
    return format("%d %d", values.gate or 0, max(values.live - over, 0))
end

local function read(state, policy)
    if family == "l" then return log(state, policy) end
    if family == "b" then return counted(state, "t", "r") end
    if family == "w" then return counted(state, "w", "n", "q") end
    return leases(state)
end

-------------------------------------------------------------------------------------------------------------------- keys

local hashes, is_known = {}, {}
local function add(hash)
    if not is_known[hash] then hashes[#hashes + 1] = hash end
    is_known[hash] = true
end
for i = 6, #ARGV do add(ARGV[i]) end
local count = 0
-- Not even a list for this is made where the key "" is the only one.
if call("EXISTS", list_key) == 1 then
    for _, hash in ipairs(call("ZRANGE", list_key, format("%d", -last_ones), -1)) do add(hash) end
    local next = call("ZRANGE", list_key, format("%d", place), format("%d", place + some - 1))
    for _, hash in ipairs(next) do add(hash) end
    place = #next < some and 0 or place + some
    -- By a test's clock nothing expires.
    count = is_manual and call("ZCARD", list_key) or call("ZCOUNT", list_key, format("%d", now), "+inf")
    local till = call("ZSCORE", list_key, ARGV[6])
    if till and (is_manual or tonumber(till) >= now) then count = count - 1 end
end
-- States that are to be rewritten for another policy: see prelude.lua.
if known[8] then count = count + call("ZCARD", limit_key .. ":waiting") end

local fields = {}
for i, hash in ipairs(hashes) do fields[i] = "k:" .. hash end
local own = call("HMGET", limit_key, unpack(fields))

-- What was lost lately: see prelude.lua. (A key of a log shows it once it counts it.)
local policies, lost_at, lost_in = {}, match(known[9] or "", "^%d+ (%d+) (%d+)")
if lost_at and family ~= "l" then
    local lost_by = tonumber(lost_at) + tonumber(lost_in)
    if family == "w" and known[3] then
        -- The beginning of the window, in all of which starts may be missing.
        local length = numbers_of(call("HGET", limit_key, "n:" .. known[3]))[2]
        if length then lost_by = lost_by - (lost_by + 1704067200 * 1000000) % length end
    end
    born = max(born, lost_by)
end
local answer = { known[1], known[2], format("%d", now), known[4] or "0", format("%d", born), count, place }
for i, hash in ipairs(hashes) do
    local version = own[i] or known[3]
    if not version then break end
    policies[version] = policies[version] or numbers_of(call("HGET", limit_key, "n:" .. version))
    local numbers = read(states .. hash, policies[version])
    if numbers then
        answer[#answer + 1] = hash
        answer[#answer + 1] = own[i] and call("HGET", limit_key, "t:" .. hash) or ""
        answer[#answer + 1] = numbers
    end
end
return answer
