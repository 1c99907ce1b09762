-- Gives up waiting states that are gone, or whose policy is unknown. KEYS: the limit, and the list of waiting states.
-- Their counts are lost.

local limit = KEYS[1]
if redis.call("HEXISTS", limit, "waiting") == 0 then return { 0 } end
local since, born = (table.unpack or unpack)(redis.call("HMGET", limit, "since", "born"))
if since and tonumber(since) > tonumber(born or 0) then redis.call("HSET", limit, "born", since) end
redis.call("HDEL", limit, "waiting")
redis.call("DEL", KEYS[2])
return { 0 }
