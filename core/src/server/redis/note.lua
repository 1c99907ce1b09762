-- Stores the declarations under a name.
--
-- KEYS: the limit, the list of its keys' states, and the list of those that an earlier policy has left (see
--       prelude.lua).
-- ARGV: the run of the server on which the limit is created (0: it does not matter), whether there may have been starts
--       before, whether the override was learned, the time ("": the server's). Then fields: names and values, `-`, and the names of those to remove. The
--       operator's policy (`o`) applies if there is one, otherwise the declared policy (`p`).
-- -> {made, waiting, earlier}: when the limit was created, whether states wait to be written under another policy, and whether
--    another policy has applied before, under which machines may still start; {-2}: some do, and must be written first.

local limit, list, waiting = KEYS[1], KEYS[2], KEYS[3]
local run, is_wiped, is_learned, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if is_learned == "1" then
    -- An operator's override, whose text has one line, stays. It may be there since the caller looked.
    local found = redis.call("HMGET", limit, "policy", "override", "made")
    if not found[1] or (found[2] and not string.find(found[2], "\n", 1, true)) then return { tonumber(found[3] or 0), 0, 0 } end
end
if now == "" then
    local time = redis.call("TIME")
    now = string.format("%d", (tonumber(time[1]) - 1704067200) * 1000000 + tonumber(time[2]))
end

local found = redis.call("HMGET", limit, "o", "p", "version", "waiting")
local put_above, declared, version, is_waiting = found[1], found[2], found[3], found[4]
-- The keys that get another own policy, or lose theirs.
local keys = {}
local function sets(field, value)
    if field == "o" then put_above = value end
    if field == "p" then declared = value end
    local key = string.match(field, "^k:(.*)$")
    if key and redis.call("HGET", limit, field) ~= value then keys[#keys + 1] = key end
end
local i = 5
while ARGV[i] ~= "-" do
    sets(ARGV[i], ARGV[i + 1])
    i = i + 2
end
for j = i + 1, #ARGV do sets(ARGV[j], false) end
local holds = put_above or declared
local is_other = holds ~= version
if is_waiting and (holds and is_other or #keys > 0) then return { -2 } end

if redis.call("EXISTS", limit) == 0 and run ~= "0" then
    redis.call("HSET", limit, "run", run, "made", now)
    if is_wiped == "1" then redis.call("HSET", limit, "born", now) end
end
redis.call("HSETNX", limit, "ids", now)
for j = 5, i - 1, 2 do redis.call("HSET", limit, ARGV[j], ARGV[j + 1]) end
for j = i + 1, #ARGV do redis.call("HDEL", limit, ARGV[j]) end
if holds and is_other then
    redis.call("HSET", limit, "since", now, "version", holds)
    if redis.call("EXISTS", list) == 1 then
        redis.call("RENAME", list, waiting)
        redis.call("PERSIST", waiting)
    end
elseif is_other then
    redis.call("HDEL", limit, "version")
end
for _, key in ipairs(keys) do
    redis.call("HSET", limit, "s:" .. key, now)
    local till = redis.call("ZSCORE", list, key)
    if till then
        redis.call("ZREM", list, key)
        redis.call("ZADD", waiting, till, key)
    end
end
local first = redis.call("ZRANGE", waiting, 0, 0, "WITHSCORES")[2]
if first then redis.call("HSET", limit, "waiting", string.format("%d", first)) end
local times = redis.call("HMGET", limit, "made", "since")
local earlier = #keys > 0 or times[2] ~= times[1]
return { tonumber(times[1] or 0), first and 1 or 0, earlier and 1 or 0 }
