-- A state of buckets or windows can be carried over from one policy to the next, but not to the one after that: what it is by the third
-- depends on when the second held. So whoever changes a policy has all states written anew by it (`adopt`); and as long as some are
-- *behind*, nobody changes the limit again (see `note`). Rows of logs and of leases say all, whatever held meanwhile.
--
-- What is behind is not taken away (see `kept_until`), so it may be adopted in any order, and at any time.

CREATE INDEX IF NOT EXISTS counted_mark ON workglow_limit.counted (limit_id, mark) WHERE mark > 0;

-- Some keys whose states are behind, by the text of the policy that holds for them. (However old the planner's statistics are, it shall
-- read no more of them than it answers.)
CREATE OR REPLACE FUNCTION workglow_limit.behind(of_limit bigint) RETURNS TABLE (policy text, hashes uuid[])
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v bigint := (SELECT version FROM workglow_limit.limits WHERE id = of_limit);
BEGIN
    -- (In the order of their hashes, so that of two who adopt them neither waits for the other.)
    RETURN QUERY
    SELECT coalesce(split_part(o.policy, E'\n', 1), l.overriding, l.policy), array_agg(b.hash ORDER BY b.hash)
    FROM (
        (SELECT c.hash FROM workglow_limit.counted c WHERE c.limit_id = of_limit AND c.mark > 0 AND c.era > 0 AND c.mark < v AND NOT EXISTS (
            SELECT FROM workglow_limit.own o WHERE o.limit_id = c.limit_id AND o.hash = c.hash AND o.version > 0) LIMIT 100)
        UNION ALL
        (SELECT c.hash FROM workglow_limit.counted c WHERE c.limit_id = of_limit AND c.mark > 0 AND c.era > 0 AND c.mark > v AND NOT EXISTS (
            SELECT FROM workglow_limit.own o WHERE o.limit_id = c.limit_id AND o.hash = c.hash AND o.version > 0) LIMIT 100)
        UNION ALL
        (SELECT c.hash FROM workglow_limit.own o JOIN workglow_limit.counted c ON c.limit_id = o.limit_id AND c.hash = o.hash
            WHERE o.limit_id = of_limit AND c.mark > 0 AND c.era > 0 AND c.mark <> o.version LIMIT 100)
    ) b
    JOIN workglow_limit.limits l ON l.id = of_limit
    LEFT JOIN workglow_limit.own o ON o.limit_id = l.id AND o.hash = b.hash
    GROUP BY 1;
END $$;

-- Writes states anew by the policy that holds for them. By one of neither family none of them counts.
CREATE OR REPLACE FUNCTION workglow_limit.adopt(
    of_family text, lim text, hashes uuid[], v bigint, at bigint, patience bigint, p bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    k uuid;
    l record;
BEGIN
    FOREACH k IN ARRAY hashes LOOP
        IF of_family = 'b' THEN
            PERFORM workglow_limit.decide_bucket('adopt', lim, k, v, 0, at, patience, p, '{}');
        ELSIF of_family = 'w' THEN
            PERFORM workglow_limit.decide_window('adopt', lim, k, v, 0, at, patience, p, '{}');
        ELSE
            l := workglow_limit.counted_look(lim, k, '-', v, 0, at);
            CONTINUE WHEN l.answer IS NOT NULL;
            PERFORM workglow_limit.counted_lock(l.limit_id, k, '-', l.birth, at, l.now, patience);
            l := workglow_limit.counted_look(lim, k, '-', v, 0, at);
            CONTINUE WHEN l.answer IS NOT NULL;
            PERFORM workglow_limit.counted_forget(l.c, at, l.now, l.floor);
        END IF;
    END LOOP;
END $$;
