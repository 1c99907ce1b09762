-- Removes the declarations under a name, and of its keys. KEYS: the limit. -> {0}, or {-2}: states must first be written under the policy.

if redis.call("HEXISTS", KEYS[1], "waiting") == 1 then return { -2 } end
for _, field in ipairs(redis.call("HKEYS", KEYS[1])) do
    if string.find(field, "^[kst]:") then redis.call("HDEL", KEYS[1], field) end
end
redis.call("HDEL", KEYS[1], "policy", "p", "override", "o", "version")
-- A name that leads to another place still does if it is declared again: see places.rs.
if string.sub(redis.call("HGET", KEYS[1], "composite") or "", 1, 1) ~= "\n" then redis.call("HDEL", KEYS[1], "composite") end
return { 0 }
