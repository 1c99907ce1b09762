-- Finds needed commands that are not permitted. KEYS: a key of no limit, which exists for a moment. -> their names, and why

local key, refused = KEYS[1], {}
local function try(...)
    local answer = redis.pcall(...)
    if type(answer) == "table" and answer.err and not string.find(answer.err, "WRONGTYPE", 1, true) then
        refused[#refused + 1] = string.lower((...)) .. ": " .. answer.err
    end
end
local function done() redis.pcall("DEL", key) end

try("TIME")
try("EXISTS", key)
try("HSET", key, "a", "1")
try("HSETNX", key, "a", "1")
try("HINCRBY", key, "a", "1")
try("HGET", key, "a")
try("HMGET", key, "a")
try("HGETALL", key)
try("HKEYS", key)
try("HLEN", key)
try("HEXISTS", key, "a")
try("HDEL", key, "a")
try("PEXPIRE", key, "1000")
try("PTTL", key)
try("PERSIST", key)
try("DEL", key)
done()
try("RPUSH", key, "a", "b")
try("LPUSH", key, "a")
try("LSET", key, "0", "a")
try("LINDEX", key, "0")
try("LRANGE", key, "0", "-1")
try("LREM", key, "1", "b")
try("LPOP", key)
try("LTRIM", key, "0", "-1")
done()
try("ZADD", key, "1", "a")
try("ZINCRBY", key, "1", "a")
try("ZSCORE", key, "a")
try("ZCARD", key)
try("ZCOUNT", key, "-inf", "+inf")
try("ZRANGE", key, "0", "0")
try("ZRANGEBYSCORE", key, "-inf", "+inf")
try("ZREMRANGEBYSCORE", key, "1", "1")
try("ZREM", key, "a")
done()
try("SADD", key, "a")
try("SMEMBERS", key)
try("SREM", key, "a")
try("SET", key, "a")
try("RENAME", key, key)
done()
return refused
