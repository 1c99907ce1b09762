-- What is in use of many limits, for observers. It writes nothing, and examines a bounded number of keys.

-- Of each window of a log the units that count, and from when on fewer do, if these are all units.
CREATE OR REPLACE FUNCTION workglow_limit.survey_log(h workglow_limit.logs, p bigint[], at bigint) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    now bigint := greatest(at, h.seen);
    length bigint;
    since bigint;
    used bigint;
    free bigint;
    numbers bigint[] := '{}';
BEGIN
    FOR i IN 3 .. cardinality(p) BY 2 LOOP
        -- The interval, which jobs may have shortened.
        length := CASE WHEN p[2] > 0 AND i = cardinality(p) - 1 AND h.spacing > 0 THEN h.spacing - 1 ELSE p[i + 1] END;
        since := greatest(now - length, 0);
        free := 0;
        used := CASE
            WHEN h.gone > since THEN p[i]
            WHEN h.stamp > since THEN h.total - (workglow_limit.log_since(h, since, false)).before
            ELSE 0
        END;
        IF used >= p[i] THEN
            -- The unit that has to leave the window first.
            free := length + CASE WHEN h.units >= p[i] THEN (workglow_limit.log_at(h.id, h.total - p[i])).stamp ELSE h.gone END;
        END IF;
        numbers := numbers || used || free;
    END LOOP;
    RETURN numbers;
END $$;

-- For each limit a row with its policies, its gate, the time, `born`, the number of keys that were examined in the order of their
-- hashes after `places` (without `no_key`), and the last one of them; then a row for each of these keys and of `keys` (each of the limit `of_limits`) that
-- has a state, with the text of its own policy, its gate, and numbers by its family:
--
--   l  see `survey_log`
--   b  t and r (see bucket.sql), and the numbers of the policy that wrote them
--   w  w, n and q (see window.sql), and the numbers of the policy that wrote them
--   c  the units of its leases
CREATE OR REPLACE FUNCTION workglow_limit.survey(
    names text[], families text[], places uuid[], keys uuid[], of_limits bigint[], at bigint, examined bigint, no_key uuid
) RETURNS TABLE (
    number bigint, hash uuid, policy text, overriding text, gate bigint, numbers bigint[]
) LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    l workglow_limit.limits;
    now bigint;
    walked uuid[];
    looked uuid[];
BEGIN
    FOR i IN 1 .. cardinality(names) LOOP
        SELECT * INTO l FROM workglow_limit.limits s WHERE s.name = names[i];
        now := greatest(coalesce(at, workglow_limit.clock()), l.floor);
        -- From that place on, and then from the first one.
        IF families[i] = 'l' THEN
            walked := ARRAY(
                (SELECT s.hash FROM workglow_limit.logs s WHERE s.limit_id = l.id AND s.hash > places[i] ORDER BY s.hash LIMIT examined)
                UNION ALL
                (SELECT s.hash FROM workglow_limit.logs s WHERE s.limit_id = l.id AND s.hash <= places[i] ORDER BY s.hash LIMIT examined)
                LIMIT examined);
        ELSIF families[i] = 'c' THEN
            walked := ARRAY(
                (SELECT s.hash FROM workglow_limit.holders s WHERE s.limit_id = l.id AND s.hash > places[i] ORDER BY s.hash LIMIT examined)
                UNION ALL
                (SELECT s.hash FROM workglow_limit.holders s WHERE s.limit_id = l.id AND s.hash <= places[i] ORDER BY s.hash LIMIT examined)
                LIMIT examined);
        ELSE
            walked := ARRAY(
                (SELECT s.hash FROM workglow_limit.counted s WHERE s.limit_id = l.id AND s.hash > places[i] ORDER BY s.hash LIMIT examined)
                UNION ALL
                (SELECT s.hash FROM workglow_limit.counted s WHERE s.limit_id = l.id AND s.hash <= places[i] ORDER BY s.hash LIMIT examined)
                LIMIT examined);
        END IF;
        looked := ARRAY(SELECT k.key FROM unnest(walked) AS k (key) UNION SELECT k.key FROM unnest(keys, of_limits) AS k (key, n) WHERE k.n = i);
        RETURN QUERY SELECT i::bigint, walked[cardinality(walked)], l.policy, l.overriding, l.gate,
            ARRAY[now, coalesce(l.born, 0), cardinality(array_remove(walked, no_key))];
        IF families[i] = 'l' THEN
            RETURN QUERY SELECT i::bigint, s.hash, o.policy, NULL::text, s.gate, workglow_limit.survey_log(s, p.numbers, now)
            FROM workglow_limit.logs s
            LEFT JOIN workglow_limit.own o ON o.limit_id = s.limit_id AND o.hash = s.hash
            JOIN workglow_limit.policies p ON p.version = coalesce(o.version, l.version)
            WHERE s.limit_id = l.id AND s.hash = ANY (looked) AND s.birth = l.birth
                AND (at IS NOT NULL OR s.expires > now OR s.mark <> p.version);
        ELSIF families[i] = 'c' THEN
            RETURN QUERY SELECT i::bigint, s.hash, o.policy, NULL::text, s.gate, ARRAY[s.live - coalesce((
                SELECT sum(e.weight) FROM workglow_limit.leases e WHERE e.id = s.id AND e.ends <= now), 0)::bigint]
            FROM workglow_limit.holders s
            LEFT JOIN workglow_limit.own o ON o.limit_id = s.limit_id AND o.hash = s.hash
            WHERE s.limit_id = l.id AND s.hash = ANY (looked) AND s.birth = l.birth
                AND (at IS NOT NULL OR s.expires IS NULL OR s.expires > now);
        ELSE
            RETURN QUERY SELECT i::bigint, s.hash, o.policy, NULL::text, s.gate,
                CASE WHEN s.era > 0 THEN s.state[1:CASE families[i] WHEN 'b' THEN 2 ELSE 3 END] || s.policy ELSE '{}' END
            FROM workglow_limit.counted s
            LEFT JOIN workglow_limit.own o ON o.limit_id = s.limit_id AND o.hash = s.hash
            WHERE s.limit_id = l.id AND s.hash = ANY (looked) AND s.birth = l.birth AND s.family = families[i]::"char"
                AND (at IS NOT NULL OR s.expires > now OR s.era > 0 AND s.mark <> coalesce(o.version, l.version));
        END IF;
    END LOOP;
END $$;
