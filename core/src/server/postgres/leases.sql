-- Concurrency: a limited number of units at the same time, each held by a lease.
--
-- Policy: max, and the cooldown if there is one: the units of a start are taken for so long after its end.
--
-- State: a row of `holders` for each key, and a row of `leases` for each lease.
--
-- A fence comes from a sequence (`ids`), which only grows, whatever happens to the key. A lease is found by its fence,
-- weight and owner. Ending it removes its row, which succeeds once. It can be renewed only while it exists and has not
-- expired. So a lost lease stays lost, and the units of their present holder are untouched.
--
-- Why it is right. A starting caller locks the key's row, and counts what it reads after that. `live` changes together
-- with the leases. So the unexpired leases never have more than `max` units, except for recorded starts, which are
-- counted without being checked. Setting the clock back makes leases last longer. A denial reads both tables from one
-- snapshot, and writes nothing.
--
-- Who waits. `waiters` has the first waiter of each line that asks here. `asked` is when it asked, by its own clock: that
-- and the owner name it. `since` is the same by this clock. So the first of them is the first of all waiters, and only it starts.
-- Its line shows it with each request, and takes it back when it leaves; without a request it is gone at `till`. This admits
-- nothing, so it cannot exceed a limit, and a crash may lose it.
--
-- An owner is a process: a unique number, and the means by which other processes of its site can ask their kernel about
-- it: the site (a machine, and the set of its processes that see each other; 0: unknown), its number there, and when it
-- began. Below, OWNER denotes these four, and `turn` is any number; it selects the part of a long list that is
-- examined.
--
-- acquire weight lease OWNER turn order priority asked waited life
--                                     lease: ticks, or -1: without an end. order: 0, it takes what is free; 1, it does not
--                                     wait, and starts only if it comes before all who do; 2, it is a waiter, who asked at
--                                     this time, has waited so long, and asks again before `life` is over
-- start lease OWNER                   the same for one unit, whether there is capacity or not
--     -> {0, now, taken, slot, fence, expiry, live, gate, soonest, others…}; slot is the weight; expiry as below; after a
--        denial slot is the number of waiters that come first, fence 1 if units are free, and expiry 1 if the owner alone
--        holds units (given to waiters); live and gate are after it;
--        soonest: when the first lease ends, 0: none does (given after a denial, else 0); others: after a denial for lack
--        of capacity, some other owners of the site that hold leases: number, process and when it began
-- view weight OWNER turn order priority
--                                     -> {0, now, live, gate, soonest, ahead, others…}; ahead: as slot above; writes nothing
-- complete slot fence OWNER ran       -> {0, now, was_held}; also for leases recorded by `start`; ran 0: for cancel, so the
--                                        units are free at once
-- settle slot fence OWNER units       -> {0, now, was_held}: only so many units cool down, or more than it had, and the others are
--                                        free at once; only with a cooldown
-- renew slot fence OWNER lease again  -> {0, now, is_held, expiry}; an end never becomes earlier; expiry -1: never.
--                                        again 1: if leases may have been lost, it is held again, as long as no other
--                                        start is admitted for that reason
-- evict number                        -> {0, now, units}: ends all leases of an owner; units: those that are free at once
-- leave number priority asked         -> {0, now}; a waiter stops waiting
-- pause delay -> {0, now, gate}; clear -> {0, now}

CREATE TABLE IF NOT EXISTS workglow_limit.holders (
    limit_id bigint NOT NULL,
    hash uuid NOT NULL,
    -- The number by which `leases` refers to it.
    id bigint NOT NULL DEFAULT nextval('workglow_limit.ids'),
    -- See `limits`.
    birth bigint NOT NULL,
    -- The units of all existing leases, including those that have expired since.
    live bigint NOT NULL DEFAULT 0,
    -- No start happens before this.
    gate bigint NOT NULL DEFAULT 0,
    -- Until when the row lives; null: for ever, as by a test's clock, or while a lease has no end.
    expires bigint,
    PRIMARY KEY (limit_id, hash)
) WITH (fillfactor = 50);

DO $$ BEGIN
    IF to_regclass('workglow_limit.holders_expires') IS NULL THEN
        CREATE INDEX holders_expires ON workglow_limit.holders (expires) WHERE expires IS NOT NULL;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS workglow_limit.leases (
    id bigint NOT NULL,
    fence bigint NOT NULL,
    weight bigint NOT NULL,
    owner bigint NOT NULL,
    site bigint NOT NULL,
    process bigint NOT NULL,
    began bigint NOT NULL,
    -- The tick at which its units are free: when it ends (9007199254740991: never), and the cooldown is over. Once its start
    -- has ended, `owner`, `site`, `process` and `began` are 0.
    ends bigint NOT NULL,
    PRIMARY KEY (id, fence)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

DO $$ BEGIN
    IF to_regclass('workglow_limit.leases_ends') IS NULL THEN
        CREATE INDEX leases_ends ON workglow_limit.leases (id, ends);
    END IF;
END $$;

CREATE UNLOGGED TABLE IF NOT EXISTS workglow_limit.waiters (
    limit_id bigint NOT NULL,
    hash uuid NOT NULL,
    owner bigint NOT NULL,
    priority bigint NOT NULL,
    asked bigint NOT NULL,
    since bigint NOT NULL,
    till bigint NOT NULL,
    PRIMARY KEY (limit_id, hash, owner, priority, asked)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

DO $$ BEGIN
    IF to_regclass('workglow_limit.waiters_till') IS NULL THEN
        CREATE INDEX waiters_till ON workglow_limit.waiters (till);
    END IF;
END $$;

-- How many waiters of a key come before a caller, whether it is known for long enough, and whether some are written.
CREATE OR REPLACE FUNCTION workglow_limit.leases_line(
    of_limit bigint, k uuid, now bigint, mine bigint, arguments bigint[],
    OUT ahead bigint, OUT is_known boolean, OUT is_written boolean
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    own record;
BEGIN
    SELECT since, till INTO own FROM workglow_limit.waiters w
    WHERE arguments[1] = 2 AND w.limit_id = of_limit AND w.hash = k
        AND w.owner = mine AND w.priority = arguments[2] AND w.asked = arguments[3];
    SELECT
        -- (The clock may have been set back.)
        count(*) FILTER (WHERE w.till > now AND w.till <= now + 2000000
            AND (w.owner, w.asked, w.priority) <> (mine, arguments[3], arguments[2])
            AND (w.priority, w.since) < (arguments[2], coalesce(own.since, now - arguments[4]))),
        count(*) > 0
    INTO ahead, is_written FROM workglow_limit.waiters w WHERE w.limit_id = of_limit AND w.hash = k;
    is_known := coalesce(own.till - now BETWEEN arguments[5] / 2 AND 2000000, false);
END $$;

-- The known facts about a key. Without an answer: `c` is its row, whose `live` excludes expired leases; `is_stale` says that
-- its leases no longer count; `over` is the number of expired units; `is_awaited` says that somebody may wait.
CREATE OR REPLACE FUNCTION workglow_limit.leases_seen(
    lim text, k uuid, v bigint, known bigint[], at bigint,
    OUT answer bigint[], OUT limit_id bigint, OUT birth bigint, OUT born bigint, OUT is_due boolean, OUT now bigint, OUT floor bigint,
    OUT gate bigint, OUT hold bigint, OUT c workglow_limit.holders, OUT is_stale boolean, OUT over bigint, OUT soonest bigint,
    OUT is_awaited boolean
) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    r record;
    first record;
BEGIN
    SELECT l.id, coalesce(o.version, l.version) AS holds, l.gate, l.floor, l.birth, l.born, l.made, l.booted, l.clock, s AS c,
        EXISTS (SELECT FROM workglow_limit.waiters w WHERE w.limit_id = l.id AND w.hash = k) AS is_awaited INTO r
    FROM workglow_limit.limits l
    LEFT JOIN workglow_limit.own o ON o.limit_id = l.id AND o.hash = k
    LEFT JOIN workglow_limit.holders s ON s.limit_id = l.id AND s.hash = k
    WHERE l.name = lim;
    -- The caller knows a policy that does not apply. It must read the present one first.
    IF r.holds IS DISTINCT FROM v THEN
        answer := '{-1}';
        RETURN;
    END IF;
    c := r.c;
    is_awaited := r.is_awaited;
    limit_id := r.id;
    birth := r.birth;
    born := r.born;
    floor := r.floor;
    now := coalesce(at, workglow_limit.clock());
    is_due := at IS NULL AND workglow_limit.is_due(r.booted, r.made, r.born, r.floor, r.clock, known, now);
    now := greatest(now, r.floor);
    hold := coalesce(r.clock[2], 0);
    is_stale := c.id IS NOT NULL AND (c.birth <> r.birth OR at IS NULL AND coalesce(c.expires <= now, false));
    over := 0;
    soonest := 0;
    IF c.id IS NULL OR is_stale THEN
        c.live := 0; c.gate := 0;
    ELSIF c.live > 0 THEN
        -- Leases without an end are last.
        SELECT min(s.ends) AS ends INTO first FROM workglow_limit.leases s WHERE s.id = c.id;
        IF first.ends <= now THEN
            over := (SELECT coalesce(sum(s.weight), 0) FROM workglow_limit.leases s WHERE s.id = c.id AND s.ends <= now);
            c.live := c.live - over;
            SELECT min(s.ends) AS ends INTO first FROM workglow_limit.leases s WHERE s.id = c.id AND s.ends > now;
        END IF;
        IF first.ends < 9007199254740991 THEN
            soonest := first.ends;
        END IF;
    END IF;
    gate := greatest(r.gate, c.gate);
END $$;

-- Removes some unneeded rows, whenever a key is new. It never waits for locks.
CREATE OR REPLACE FUNCTION workglow_limit.leases_sweep(now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    o record;
    dropped bigint;
BEGIN
    FOR o IN SELECT limit_id, hash, id FROM workglow_limit.holders WHERE expires <= now ORDER BY expires LIMIT 4 FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM workglow_limit.leases WHERE ctid = ANY (ARRAY(SELECT ctid FROM workglow_limit.leases WHERE id = o.id LIMIT 250));
        GET DIAGNOSTICS dropped = ROW_COUNT;
        IF dropped < 250 THEN
            DELETE FROM workglow_limit.holders WHERE limit_id = o.limit_id AND hash = o.hash;
        END IF;
    END LOOP;
    DELETE FROM workglow_limit.waiters WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM workglow_limit.waiters WHERE till <= now ORDER BY till LIMIT 4 FOR UPDATE SKIP LOCKED));
END $$;

-- Locks a key's row, and creates it if there is none.
CREATE OR REPLACE FUNCTION workglow_limit.leases_lock(of_limit bigint, k uuid, of_birth bigint, at bigint, now bigint, patience bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM workglow_limit.begin_writing(patience);
    LOOP
        PERFORM 1 FROM workglow_limit.holders WHERE limit_id = of_limit AND hash = k FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO workglow_limit.holders (limit_id, hash, birth, expires)
        VALUES (of_limit, k, of_birth, CASE WHEN at IS NULL THEN now + 1000000 END) ON CONFLICT DO NOTHING;
        IF FOUND AND at IS NULL THEN
            PERFORM workglow_limit.leases_sweep(now);
        END IF;
    END LOOP;
END $$;

-- Some other owners of a site that hold leases of a key: at most eight owners, out of 32 leases.
CREATE OR REPLACE FUNCTION workglow_limit.leases_others(of_key bigint, now bigint, mine bigint, of_site bigint, turn bigint)
RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    looks bigint := 32;
    count bigint;
BEGIN
    IF of_site = 0 THEN
        RETURN '{}';
    END IF;
    count := (SELECT count(*) FROM workglow_limit.leases WHERE id = of_key AND ends > now);
    RETURN coalesce((
        SELECT array_agg(n ORDER BY owner, i)
        FROM (
            SELECT DISTINCT owner, process, began
            FROM (
                SELECT * FROM workglow_limit.leases WHERE id = of_key AND ends > now
                ORDER BY ends LIMIT looks OFFSET CASE WHEN count > looks THEN turn % count ELSE 0 END
            ) looked
            WHERE site = of_site AND owner <> mine LIMIT 8
        ) others, unnest(ARRAY[owner, process, began]) WITH ORDINALITY AS numbers (n, i)
    ), '{}');
END $$;

-- When so many units are free; 0: that is not known. Without a cooldown, when the first lease ends.
CREATE OR REPLACE FUNCTION workglow_limit.leases_free(soonest bigint, of_key bigint, now bigint, units bigint, cooldown bigint)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF cooldown = 0 OR units <= 1 THEN
        RETURN soonest;
    END IF;
    RETURN coalesce((
        SELECT min(ends)
        FROM (SELECT ends, sum(weight) OVER (ORDER BY ends, fence) AS free FROM workglow_limit.leases WHERE id = of_key AND ends > now) s
        WHERE free >= units AND ends < 9007199254740991
    ), 0);
END $$;

CREATE OR REPLACE FUNCTION workglow_limit.decide_concurrency(
    op text, lim text, k uuid, v bigint, known bigint[], at bigint, patience bigint, p bigint[], a bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    never bigint := 9007199254740991;
    cooldown bigint := coalesce(p[2], 0);
    l record;
    c workglow_limit.holders;
    now bigint;
    gate bigint;
    is_locked boolean := false;
    is_taking boolean := op = 'acquire' OR op = 'start';
    weight bigint := CASE op WHEN 'start' THEN 1 ELSE a[1] END;
    lease bigint := CASE op WHEN 'acquire' THEN a[2] WHEN 'start' THEN a[1] WHEN 'renew' THEN a[7] ELSE 0 END;
    -- The position of the owner's four numbers.
    o integer := CASE WHEN op = 'start' OR op = 'view' THEN 2 ELSE 3 END;
    fence bigint := a[2];
    is_held boolean;
    ahead bigint;
    is_known boolean;
    is_written boolean;
    is_own bigint;
    holds_again boolean := false;
    cools boolean;
    expiry bigint;
    back bigint := 0;
    answer bigint[];
BEGIN
    LOOP
        l := workglow_limit.leases_seen(lim, k, v, known, at);
        IF l.answer IS NOT NULL THEN
            RETURN l.answer;
        END IF;
        now := l.now;
        IF l.is_due THEN
            PERFORM workglow_limit.leases_lock(l.limit_id, k, l.birth, at, now, patience);
            PERFORM workglow_limit.attend(l.limit_id, known);
            known := known[1:1];
            is_locked := true;
            CONTINUE;
        END IF;
        c := l.c;
        gate := l.gate;
        IF l.is_awaited AND (CASE op WHEN 'acquire' THEN a[8] WHEN 'view' THEN a[7] END) > 0 THEN
            SELECT * INTO ahead, is_known, is_written FROM workglow_limit.leases_line(l.limit_id, k, now, a[o], a[o + 5:o + 9]);
        ELSE
            ahead := 0; is_known := false; is_written := false;
        END IF;
        IF op = 'view' THEN
            answer := ARRAY[0, now, c.live, gate, workglow_limit.leases_free(l.soonest, c.id, now, c.live + weight - p[1], cooldown),
                ahead];
            IF c.live > 0 AND c.live + weight > p[1] THEN
                answer := answer || workglow_limit.leases_others(c.id, now, a[o], a[o + 1], a[o + 4]);
            END IF;
            RETURN answer;
        ELSIF is_taking THEN
            -- Leases that may have been lost have expired by then.
            IF l.born > 0 THEN
                gate := greatest(gate, l.born + greatest(lease, 0) + cooldown);
            END IF;
            gate := greatest(gate, l.hold);
            IF op = 'acquire' AND (gate > now OR c.live + weight > p[1] OR ahead > 0) THEN
                -- (Only such rows are written here, so nothing waits for the disk.)
                IF a[8] = 2 AND NOT is_known THEN
                    PERFORM workglow_limit.begin_writing(patience);
                    INSERT INTO workglow_limit.waiters (limit_id, hash, owner, priority, asked, since, till)
                    VALUES (l.limit_id, k, a[o], a[9], a[10], now - a[11], now + least(a[12], 2000000))
                    ON CONFLICT (limit_id, hash, owner, priority, asked) DO UPDATE SET till = EXCLUDED.till;
                END IF;
                -- (Of many leases nobody looks.)
                -- (A lease may have ended since the row was read.)
                SELECT CASE WHEN sum(s.weight) = c.live AND bool_and(s.owner = a[o]) THEN 1 ELSE 0 END INTO is_own
                FROM workglow_limit.leases s WHERE a[8] = 2 AND c.live BETWEEN 1 AND 32 AND s.id = c.id AND s.ends > now;
                answer := ARRAY[0, now, 0, ahead, CASE WHEN c.live + weight > p[1] THEN 0 ELSE 1 END, is_own, c.live, gate,
                    workglow_limit.leases_free(l.soonest, c.id, now, c.live + weight - p[1], cooldown)];
                IF c.live > 0 AND c.live + weight > p[1] THEN
                    answer := answer || workglow_limit.leases_others(c.id, now, a[o], a[o + 1], a[o + 4]);
                END IF;
                RETURN answer;
            END IF;
        ELSIF op = 'complete' OR op = 'settle' OR op = 'renew' THEN
            is_held := EXISTS (
                SELECT FROM workglow_limit.leases s
                WHERE s.id = c.id AND s.fence = a[2] AND s.weight = a[1] AND s.owner = a[3]
                    -- (An automatic renewal may be of a time when there was another cooldown. Its units are still taken.)
                    AND (op <> 'renew' OR s.ends > now + CASE WHEN s.ends < never AND a[8] = 0 THEN cooldown ELSE 0 END));
            IF op <> 'renew' AND NOT is_held THEN
                RETURN ARRAY[0, now, 0];
            ELSIF NOT is_held OR l.is_stale THEN
                holds_again := op = 'renew' AND a[8] = 1 AND l.born > 0 AND now < l.born + lease AND coalesce(c.birth = l.birth, true);
                IF op = 'renew' AND NOT holds_again THEN
                    RETURN ARRAY[0, now, 0, 0];
                END IF;
                -- Its start may have ended meanwhile.
                IF NOT l.is_stale AND EXISTS (SELECT FROM workglow_limit.leases s WHERE s.id = c.id AND s.fence = a[2] AND s.owner = 0)
                THEN
                    RETURN ARRAY[0, now, 0, 0];
                END IF;
            END IF;
        ELSIF op = 'leave' THEN
            PERFORM workglow_limit.begin_writing(patience);
            DELETE FROM workglow_limit.waiters w
            WHERE w.limit_id = l.limit_id AND w.hash = k AND w.owner = a[1] AND w.priority = a[2] AND w.asked = a[3];
            RETURN ARRAY[0, now];
        ELSIF c.id IS NULL AND op <> 'pause' THEN
            RETURN CASE op WHEN 'clear' THEN ARRAY[0, now] ELSE ARRAY[0, now, 0] END;
        END IF;
        EXIT WHEN is_locked;
        PERFORM workglow_limit.leases_lock(l.limit_id, k, l.birth, at, now, patience);
        is_locked := true;
    END LOOP;
    expiry := CASE WHEN lease < 0 THEN never ELSE now + lease + cooldown END;
    cools := cooldown > 0 AND NOT l.is_stale AND (op = 'evict' OR (op = 'complete' OR op = 'settle') AND a[7] > 0);

    -- An expired lease is still held until another caller needs its units.
    IF cools THEN
        UPDATE workglow_limit.leases s
        SET owner = 0, site = 0, process = 0, began = 0, ends = now + cooldown, weight = CASE op WHEN 'settle' THEN a[7] ELSE s.weight END
        WHERE s.id = c.id AND CASE op WHEN 'evict' THEN s.owner = a[1] AND s.ends > now ELSE s.fence = a[2] END;
        c.live := c.live + l.over + CASE op WHEN 'settle' THEN a[7] - a[1] ELSE 0 END;
        answer := ARRAY[0, now, CASE op WHEN 'evict' THEN 0 ELSE 1 END];
    ELSIF op = 'complete' OR op = 'settle' THEN
        DELETE FROM workglow_limit.leases s WHERE s.id = c.id AND s.fence = a[2];
        back := CASE WHEN l.is_stale THEN 0 ELSE a[1] END;
        -- The row's `live` includes expired leases.
        c.live := c.live + l.over - back;
        answer := ARRAY[0, now, 1];
    ELSIF op = 'evict' THEN
        WITH gone AS (DELETE FROM workglow_limit.leases s WHERE s.id = c.id AND s.owner = a[1] RETURNING s.weight AS units)
        SELECT coalesce(sum(units), 0) INTO back FROM gone;
        IF l.is_stale THEN
            c.live := 0;
        ELSE
            c.live := c.live + l.over - back;
        END IF;
        answer := ARRAY[0, now, back];
    ELSE
        IF l.is_stale OR op = 'clear' THEN
            DELETE FROM workglow_limit.leases s WHERE s.id = c.id;
            c.expires := CASE WHEN at IS NULL THEN 0 END;
        ELSIF l.over > 0 THEN
            DELETE FROM workglow_limit.leases s WHERE s.id = c.id AND s.ends <= now;
        END IF;
        IF is_taking OR holds_again THEN
            IF is_taking THEN
                fence := nextval('workglow_limit.ids');
                IF is_written THEN
                    -- (Others may be renewing theirs.)
                    DELETE FROM workglow_limit.waiters WHERE ctid = ANY (ARRAY(
                        SELECT ctid FROM workglow_limit.waiters w
                        WHERE w.limit_id = l.limit_id AND w.hash = k
                            AND (w.till <= now OR a[8] = 2 AND w.owner = a[o] AND w.priority = a[9] AND w.asked = a[10])
                        FOR UPDATE SKIP LOCKED));
                END IF;
            END IF;
            c.live := c.live + weight;
            INSERT INTO workglow_limit.leases (id, fence, weight, owner, site, process, began, ends)
            VALUES (c.id, fence, weight, a[o], a[o + 1], a[o + 2], a[o + 3], expiry);
            answer := CASE
                WHEN is_taking
                THEN ARRAY[0, now, 1, weight, fence, CASE WHEN expiry = never THEN -1 ELSE expiry - cooldown END, c.live, gate, 0]
                ELSE ARRAY[0, now, 1, CASE WHEN expiry = never THEN -1 ELSE expiry - cooldown END]
            END;
        ELSIF op = 'renew' THEN
            UPDATE workglow_limit.leases s SET ends = greatest(ends, expiry) WHERE s.id = c.id AND s.fence = a[2]
            RETURNING ends INTO STRICT expiry;
            answer := ARRAY[0, now, 1, CASE WHEN expiry = never THEN -1 ELSE expiry - cooldown END];
        ELSIF op = 'pause' THEN
            expiry := greatest(c.gate, now + a[1]);
            c.gate := expiry;
            answer := ARRAY[0, now, expiry];
        ELSIF op = 'clear' THEN
            c.live := 0;
            c.gate := 0;
            answer := ARRAY[0, now];
        ELSE
            RAISE invalid_parameter_value USING MESSAGE = 'leases know no ' || op;
        END IF;
        c.birth := l.birth;
    END IF;

    IF at IS NULL THEN
        c.expires := CASE
            WHEN c.live > 0 AND (expiry = never OR c.expires IS NULL) THEN NULL
            WHEN is_taking OR op = 'renew' OR op = 'pause' OR cools THEN workglow_limit.lives_until(coalesce(c.expires, 0), greatest(expiry, c.gate), now)
            -- An empty row need not live, except for its gate; but it may be needed again soon.
            ELSE coalesce(c.expires, greatest(c.gate, now) + 60000000)
        END;
    END IF;
    UPDATE workglow_limit.holders s SET birth = c.birth, live = c.live, gate = c.gate, expires = c.expires
    WHERE s.limit_id = c.limit_id AND s.hash = k;
    IF now - l.floor > 1000000 THEN
        PERFORM workglow_limit.note_time(c.limit_id, now);
    END IF;
    RETURN answer;
END $$;

INSERT INTO workglow_limit.version SELECT 1 WHERE NOT EXISTS (SELECT FROM workglow_limit.version);
