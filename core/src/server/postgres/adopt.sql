-- The state of a bucket or of windows can be carried over from one policy to the next, but not to the one after that:
-- its value under the third policy depends on when the second applied. So a caller that changes a policy has all states
-- rewritten under it (`adopt`). While some states are *behind*, the limit cannot be changed again (see `note`). Rows of
-- logs and of leases are complete under any sequence of policies.
--
-- States that are behind are not removed (see `kept_until`), so they may be adopted in any order and at any time.

DO $$ BEGIN
    IF to_regclass('workglow_limit.counted_mark') IS NULL THEN
        CREATE INDEX counted_mark ON workglow_limit.counted (limit_id, mark) WHERE mark > 0;
    END IF;
END $$;

-- Some keys whose states are behind, by the text of the policy that applies to them. (Even with old planner statistics,
-- it must read no more of them than it returns.)
CREATE OR REPLACE FUNCTION workglow_limit.behind(of_limit bigint) RETURNS TABLE (policy text, hashes uuid[])
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    v bigint := (SELECT version FROM workglow_limit.limits WHERE id = of_limit);
BEGIN
    -- In the order of their hashes, so that two callers that adopt them do not wait for each other.
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

-- Rewrites states under the policy that applies to them. If that policy belongs to neither family, none of them counts.
CREATE OR REPLACE FUNCTION workglow_limit.adopt(
    of_family text, lim text, hashes uuid[], v bigint, at bigint, patience bigint, p bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    k uuid;
    l record;
BEGIN
    FOREACH k IN ARRAY hashes LOOP
        IF of_family = 'b' THEN
            PERFORM workglow_limit.decide_bucket('adopt', lim, k, v, '{0}', at, patience, p, '{}');
        ELSIF of_family = 'w' THEN
            PERFORM workglow_limit.decide_window('adopt', lim, k, v, '{0}', at, patience, p, '{}');
        ELSE
            l := workglow_limit.counted_look(lim, k, '-', v, '{0}', at);
            CONTINUE WHEN l.answer IS NOT NULL;
            PERFORM workglow_limit.counted_lock(l.limit_id, k, '-', l.birth, at, l.now, patience);
            l := workglow_limit.counted_look(lim, k, '-', v, '{0}', at);
            CONTINUE WHEN l.answer IS NOT NULL;
            PERFORM workglow_limit.counted_forget(l.c, at, l.now, l.floor);
        END IF;
    END LOOP;
END $$;
