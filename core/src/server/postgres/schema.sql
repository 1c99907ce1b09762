-- The schema `workglow_limit` of workglow-limit on a Postgres server (13 or newer), with its tables and functions.
--
-- A program creates it at first use if its role may. If not, run this SQL as a role that may, and grant the program its
-- use:
--
--     GRANT USAGE ON SCHEMA workglow_limit TO app;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA workglow_limit TO app;
--     GRANT USAGE ON ALL SEQUENCES IN SCHEMA workglow_limit TO app;
--
-- It may be run again, and by several programs at the same time: the first one gets the lock and creates, the others
-- find it there. A later version of the library adds to it, and raises `version`. A function whose result changes gets
-- another name, so that earlier programs keep calling theirs.
--
-- Running it again locks no table. (CREATE INDEX IF NOT EXISTS would wait for all writers of the table before it looks, and deadlock
-- with one that uses two tables.)
DO $$
DECLARE
    found integer;
BEGIN
    PERFORM pg_advisory_xact_lock(8605213917);
    IF to_regnamespace('workglow_limit') IS NULL THEN
        CREATE SCHEMA workglow_limit;
    ELSIF to_regclass('workglow_limit.version') IS NOT NULL THEN
        EXECUTE 'SELECT max(version) FROM workglow_limit.version' INTO found;
        IF found > 1 THEN
            RAISE EXCEPTION 'the schema workglow_limit has version %, but this program supports version 1', found;
        END IF;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS workglow_limit.version (version integer NOT NULL);

-- The declarations under a name, and what applies to all of its keys. Times are in ticks of 1 µs since
-- 2024-01-01T00:00:00Z.
CREATE TABLE IF NOT EXISTS workglow_limit.limits (
    id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    name text COLLATE "C" PRIMARY KEY,
    is_declared boolean NOT NULL DEFAULT false,
    -- Texts: the declared policy, and the operator's policy above it.
    policy text,
    composite text,
    overriding text,
    -- Checksums of both policies, the one that applies, and since when.
    declared_version bigint,
    overriding_version bigint,
    version bigint,
    since bigint,
    -- Whether a key may have its own policy.
    has_own boolean NOT NULL DEFAULT false,
    -- When the limit was created, on which server, and in which run of it (see `loss`); null: a test sets the time.
    made bigint NOT NULL DEFAULT 0,
    run text,
    booted timestamptz,
    -- Up to when starts may have been lost. A key counts as full of starts at that time. 0: none were lost.
    born bigint NOT NULL DEFAULT 0,
    -- When it or a key was last reset.
    cleared bigint NOT NULL DEFAULT 0,
    -- Grows when the whole limit is cleared. A state that was written before that counts as absent.
    birth bigint NOT NULL DEFAULT 0,
    -- No start happens before this.
    gate bigint NOT NULL DEFAULT 0,
    -- The latest time that was recorded.
    floor bigint NOT NULL DEFAULT 0,
    -- The steps of the server's clock (null: there was none): the sum of all corrections; until when nothing starts (0:
    -- there is no doubt); then of each doubt, and of the last corrections, in the order in which they were reported: from,
    -- to, amount, since when its caller vouches for the time before `from`, and until when nothing starts because of it (0:
    -- it is a correction). See `attend`.
    clock bigint[]
) WITH (fillfactor = 50);

-- Keys that have, or had, their own policy: its checksum; its text, a line feed and the key; since when.
CREATE TABLE IF NOT EXISTS workglow_limit.own (
    limit_id bigint NOT NULL,
    hash uuid NOT NULL,
    version bigint,
    policy text,
    since bigint NOT NULL,
    PRIMARY KEY (limit_id, hash)
);

-- Each policy that was ever stored, by its checksum: the numbers that log.sql, bucket.sql and window.sql explain.
CREATE TABLE IF NOT EXISTS workglow_limit.policies (
    version bigint PRIMARY KEY,
    numbers bigint[] NOT NULL
);

-- Numbers that only grow: of rows, leases, places and lives of keys. They begin with the time, so that a recreated
-- schema does not assign any of them again.
CREATE SEQUENCE IF NOT EXISTS workglow_limit.ids;

-- The time.
CREATE OR REPLACE FUNCTION workglow_limit.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (date_part('epoch', clock_timestamp() - '2024-01-01T00:00:00Z'::timestamptz) * 1000000)::bigint
$$;

SELECT setval('workglow_limit.ids', workglow_limit.clock()) FROM workglow_limit.ids WHERE NOT is_called;

-- The first step of every writer of a state. No session waits for a lock after its caller has given up, so it takes no
-- unit that would remain unused. An admitted start is not forgotten if the server dies, whatever the database or the
-- role sets as `synchronous_commit`: only `off` would forget it, the other values wait for this server's disk. (A
-- standby that takes over without having received it is another timeline: see `loss`.)
CREATE OR REPLACE FUNCTION workglow_limit.begin_writing(patience bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('lock_timeout', greatest(patience, 1)::text, true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- The basis of grants, and of written states of buckets and windows, does not change during a write. A writer holds the
-- limit shared; a caller that changes it holds it exclusively, and before any row. (This is not a lock of the limit's
-- row: overlapping shared holders would block a change for as long as they keep coming.)
CREATE OR REPLACE FUNCTION workglow_limit.hold(of_limit bigint, alone boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- Locks of this kind are shared by the whole database. A collision with another limit's, or another application's,
    -- only causes a wait.
    number integer := of_limit % 2147483647;
BEGIN
    IF alone THEN
        PERFORM pg_advisory_xact_lock(860521391, number);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(860521391, number);
        -- An older snapshot would not show changes since then. In that case this fails, and the call is repeated.
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            PERFORM 1 FROM workglow_limit.limits WHERE id = of_limit FOR SHARE;
        END IF;
    END IF;
END $$;

-- The identity of this server, as far as its memory depends on it. A standby that takes over, or a restore to a point
-- in time, begins another timeline; a dump that is loaded elsewhere has another system identifier. A mere restart is
-- the same identity, unless the server does not wait for its disk, or does not report its identity.
CREATE OR REPLACE FUNCTION workglow_limit.run() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    run text;
BEGIN
    BEGIN
        run := (SELECT system_identifier FROM pg_control_system()) || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    IF run IS NULL OR current_setting('fsync') = 'off' THEN
        run := coalesce(run, '') || ' ' || pg_postmaster_start_time();
    END IF;
    RETURN run;
END $$;

-- Called before a decision (see `is_due`) when
--
-- * this run of the server is not the one by which the limit was used before, or the caller knew the limit before it was
--   recreated: if this is another server, or the limit was recreated, starts may have been lost.
-- * the server's clock was set. A state is then moved by the difference, when it is next used (see `moves_of`).
--
-- *Back.* Time never runs backwards by more than a second: until then, the latest recorded time applies. If the clock is
-- behind by more, that time is given up. The states that were written later than the clock shows go back with it, as if
-- no time had passed since.
--
-- *Forward.* Only a caller can tell, by its own clock: two readings of the server's clock lie further apart than the
-- time from before the first request to after the second answer. It *reports* both, and by how much. But it may be its own
-- clock that stood still, as when its machine was paused. Any other caller whose readings agree with its clock *vouches*
-- for the time between them. So a report begins a doubt. Nothing starts, and others cut off what they vouch for. What is
-- left after the amount itself, or two seconds, is a correction: all states that were written before it are moved on by
-- it, but what has started did so by now. Several callers may see the same step. So earlier
-- corrections are subtracted, but only if they and what their callers vouched for leave no time in which there may have
-- been another step. (See corrections.rs for a model.)
--
-- `known`: the limit's creation time as the caller knows it (0: it does not); and what its clock says: 1, from, to, amount
-- and since of a report; 2, from and to for which it vouches; or nothing.
--
-- What is left of a doubt, the step number `i`.
CREATE OR REPLACE FUNCTION workglow_limit.doubted(steps bigint[], i integer) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    amount bigint := least(steps[i + 2], steps[i + 1] - steps[i]);
    reached bigint := steps[i];
BEGIN
    FOR j IN 1 .. cardinality(steps) BY 5 LOOP
        IF steps[j + 4] = 0 AND steps[j + 1] > steps[i] AND steps[j + 3] <= reached THEN
            amount := amount - steps[j + 2];
            reached := greatest(reached, steps[j + 1]);
            IF reached >= steps[i + 1] THEN
                RETURN amount;
            END IF;
        END IF;
    END LOOP;
    RETURN least(steps[i + 2], steps[i + 1] - steps[i]);
END $$;

CREATE OR REPLACE FUNCTION workglow_limit.attend(of_limit bigint, known bigint[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    most_doubt bigint := 2000000;
    most_steps integer := 8;
    l workglow_limit.limits;
    this_run text;
    shown bigint;
    now bigint;
    was_set_back boolean;
    steps bigint[];
    kept bigint[] := '{}';
    amount bigint;
    moved bigint := 0;
    hold bigint := 0;
BEGIN
    SELECT * INTO l FROM workglow_limit.limits WHERE id = of_limit FOR NO KEY UPDATE;
    shown := workglow_limit.clock();
    was_set_back := l.floor - shown > 1000000;
    now := CASE WHEN was_set_back THEN shown ELSE greatest(shown, l.floor) END;
    IF l.booted IS DISTINCT FROM pg_postmaster_start_time() OR known[1] > 0 AND known[1] <> l.made THEN
        this_run := workglow_limit.run();
        l.born := greatest(l.born, CASE WHEN l.run IS DISTINCT FROM this_run THEN now WHEN known[1] > 0 AND known[1] <> l.made THEN l.made ELSE 0 END);
        l.run := this_run;
        l.booted := pg_postmaster_start_time();
    END IF;

    steps := coalesce(l.clock[3:], '{}');
    IF known[2] = 2 AND known[4] <= shown AND NOT was_set_back THEN
        FOR i IN 1 .. cardinality(steps) BY 5 LOOP
            CONTINUE WHEN steps[i + 4] = 0;
            amount := workglow_limit.doubted(steps, i);
            IF known[3] <= steps[i] THEN
                steps[i] := greatest(steps[i], least(known[4], steps[i + 1]));
            END IF;
            IF known[4] >= steps[i + 1] THEN
                steps[i + 1] := least(steps[i + 1], greatest(known[3], steps[i]));
            END IF;
            amount := least(amount, most_doubt) - least(workglow_limit.doubted(steps, i), most_doubt);
            steps[i + 4] := greatest(steps[i + 4] - amount, 1);
        END LOOP;
    ELSIF known[2] = 1 AND known[4] <= shown AND NOT was_set_back AND cardinality(steps) < 10 * most_steps THEN
        steps := steps || ARRAY[known[3], known[4], known[5], known[6], shown + least(known[5], most_doubt)];
    END IF;
    FOR i IN 1 .. cardinality(steps) BY 5 LOOP
        IF steps[i + 4] > 0 THEN
            amount := workglow_limit.doubted(steps, i);
            CONTINUE WHEN amount <= 0;
            IF was_set_back OR steps[i + 4] <= shown THEN
                steps[i + 2] := amount;
                steps[i + 4] := 0;
                moved := moved + amount;
            END IF;
        END IF;
        hold := greatest(hold, steps[i + 4]);
        kept := kept || steps[i : i + 4];
    END LOOP;
    -- Of the corrections, the last ones are enough.
    WHILE cardinality(kept) > 5 * most_steps AND kept[5] = 0 LOOP
        kept := kept[6:];
    END LOOP;
    IF moved > 0 THEN
        l.gate := l.gate + CASE WHEN l.gate > shown THEN moved ELSE 0 END;
        l.born := CASE WHEN l.born > 0 THEN least(l.born + moved, greatest(l.born, shown)) ELSE 0 END;
    END IF;
    IF was_set_back THEN
        l.gate := l.gate - CASE WHEN l.gate > l.floor THEN l.floor - shown ELSE 0 END;
        l.floor := shown;
        l.born := least(l.born, shown);
        -- Earlier readings say nothing about this time.
        kept := '{}';
        hold := 0;
    END IF;
    moved := moved + coalesce(l.clock[1], 0);
    UPDATE workglow_limit.limits SET
        run = l.run, booted = l.booted, born = l.born, gate = l.gate, floor = l.floor,
        clock = CASE WHEN moved > 0 OR kept <> '{}' THEN ARRAY[moved, hold] || kept END
    WHERE id = of_limit;
END $$;

-- Returns whether `attend` has something to do first, by a server's clock that shows this.
CREATE OR REPLACE FUNCTION workglow_limit.is_due(
    booted timestamptz, made bigint, born bigint, floor bigint, clock bigint[], known bigint[], shown bigint
) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT booted IS DISTINCT FROM pg_postmaster_start_time() OR known[1] > 0 AND known[1] <> made AND made > born
        OR known[2] = 1 OR floor - shown > 1000000
        OR clock[2] > 0 AND (known[2] = 2 OR shown >= clock[2])
$$;

-- By how much a state has to be moved that was last written at `seen` (0: never), with this sum of corrections: back, and
-- then on; null: it stays.
CREATE OR REPLACE FUNCTION workglow_limit.moves_of(seen bigint, ahead bigint, clock bigint[], now bigint) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT nullif(ARRAY[CASE WHEN seen > now + 1000000 THEN now - seen ELSE 0 END, greatest(coalesce(clock[1], 0) - ahead, 0)], '{0,0}')
    WHERE seen > 0
$$;

-- The moment after that, which is at most `latest` unless it is later anyway: what has started did so by now.
CREATE OR REPLACE FUNCTION workglow_limit.moved(moment bigint, moves bigint[], latest bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN moment = 0 THEN 0
        WHEN moment + moves[1] > latest THEN greatest(moment + moves[1], 1) + moves[2]
        ELSE least(greatest(moment + moves[1], 1) + moves[2], latest)
    END
$$;

-- Records the time, which never runs backwards by more than a second, whatever the server's clock does. Where even that
-- would admit one start too many, a family also records the time in its state. Writers call it if it has not been
-- called for a second. It never waits: if the row is locked, the next writer does it.
CREATE OR REPLACE FUNCTION workglow_limit.note_time(of_limit bigint, now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM workglow_limit.limits WHERE id = of_limit FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        UPDATE workglow_limit.limits SET floor = now WHERE id = of_limit AND floor < now;
    END IF;
END $$;

-- Until when a state lives that is needed until `needed`, and lived until `till` so far (null: for ever). It is
-- extended only when that is too soon, and then by the same time again and a second, because the column is indexed.
CREATE OR REPLACE FUNCTION workglow_limit.lives_until(till bigint, needed bigint, now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN needed <= till THEN till ELSE greatest(needed, now) + greatest(needed - now, 0) + 1000000 END
$$;

-- Until when a state stays that has expired under the policy that wrote it, although another applies by now, under
-- which it may count for longer: no window is longer than 400 days. 0: it is removed.
CREATE OR REPLACE FUNCTION workglow_limit.kept_until(of_limit bigint, k uuid, of_mark bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(max(CASE WHEN coalesce(o.version, l.version) <> of_mark THEN greatest(l.since, o.since) + 34560000000000 END), 0)
    FROM workglow_limit.limits l
    LEFT JOIN workglow_limit.own o ON o.limit_id = l.id AND o.hash = k
    WHERE l.id = of_limit
$$;

-- Closes a gate of the whole limit, or resets all of its keys: what was written before this counts as absent.
CREATE OR REPLACE FUNCTION workglow_limit.of_all(
    op text, lim text, v bigint, known bigint[], at bigint, patience bigint, a bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    l workglow_limit.limits;
    now bigint;
BEGIN
    PERFORM workglow_limit.begin_writing(patience);
    PERFORM workglow_limit.hold(id, true) FROM workglow_limit.limits WHERE name = lim;
    SELECT * INTO l FROM workglow_limit.limits WHERE name = lim FOR NO KEY UPDATE;
    IF l.version IS DISTINCT FROM v THEN
        RETURN '{-1}';
    END IF;
    IF at IS NULL AND workglow_limit.is_due(l.booted, l.made, l.born, l.floor, l.clock, known, workglow_limit.clock()) THEN
        PERFORM workglow_limit.attend(l.id, known);
        SELECT * INTO l FROM workglow_limit.limits WHERE id = l.id;
    END IF;
    now := greatest(coalesce(at, workglow_limit.clock()), l.floor);
    IF op = 'pause' THEN
        UPDATE workglow_limit.limits SET gate = greatest(gate, now + a[1]), floor = now WHERE id = l.id;
        RETURN ARRAY[0, now, greatest(l.gate, now + a[1])];
    END IF;
    -- No start happens while machines may start what they were granted. An older snapshot would not show until when.
    UPDATE workglow_limit.limits SET
        birth = birth + 1, born = 0, floor = 0, cleared = now,
        gate = CASE
            WHEN at IS NOT NULL THEN 0
            WHEN current_setting('transaction_isolation') <> 'read committed' THEN now + 2000000
            ELSE coalesce((SELECT max(least(g.out, g.said, now + 2000000)) FROM workglow_limit.logs g WHERE g.limit_id = l.id AND g.said > now), 0)
        END
    WHERE id = l.id;
    RETURN ARRAY[0, now];
END $$;

-- Stores changes under a name, and leaves the rest as it is: of each change its kind (`p` the declared policy, `c` a
-- composite's text, `o` the operator's policy above it, `l` a learned one, which neither replaces nor removes an
-- operator's, `k` the operator's policy for a key), text, version, numbers and hash; without a text, the stored one is
-- removed. Another policy does not apply before all states are written under the present one (`behind`).
-- -> {made, behind, earlier}: when the limit was created, whether states are behind now, and whether another policy has applied
-- before, under which machines may still start; {-1}: some states are behind, and nothing was stored.
CREATE OR REPLACE FUNCTION workglow_limit.note_changes(
    lim text, at bigint, kinds text[], texts text[], versions bigint[], numbers text[], hashes uuid[], patience bigint
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    l workglow_limit.limits;
    now bigint;
    holds bigint;
BEGIN
    PERFORM workglow_limit.begin_writing(patience);
    IF NOT EXISTS (SELECT FROM workglow_limit.limits WHERE name = lim) THEN
        INSERT INTO workglow_limit.limits (name) VALUES (lim) ON CONFLICT DO NOTHING;
        IF FOUND AND at IS NULL THEN
            UPDATE workglow_limit.limits SET made = workglow_limit.clock(), run = workglow_limit.run(), booted = pg_postmaster_start_time()
            WHERE name = lim;
        END IF;
    END IF;
    PERFORM workglow_limit.hold(id, true) FROM workglow_limit.limits WHERE name = lim;
    SELECT * INTO STRICT l FROM workglow_limit.limits WHERE name = lim FOR NO KEY UPDATE;
    -- The text of an operator's has one line. It may be there since the caller looked.
    IF 'l' = ANY (kinds) AND (l.policy IS NULL OR strpos(l.overriding, E'\n') = 0) THEN
        RETURN ARRAY[l.made, 0, 0];
    END IF;
    -- Nothing was written under the previous policy at a later time.
    now := greatest(coalesce(at, workglow_limit.clock()), l.floor);
    FOR i IN 1 .. cardinality(kinds) LOOP
        CASE kinds[i]
        WHEN 'p' THEN
            l.policy := texts[i];
            l.declared_version := versions[i];
        WHEN 'o', 'l' THEN
            l.overriding := texts[i];
            l.overriding_version := versions[i];
        WHEN 'c' THEN
            l.composite := texts[i];
        WHEN 'k' THEN
            l.has_own := true;
        END CASE;
    END LOOP;
    holds := coalesce(l.overriding_version, l.declared_version);
    IF (holds IS DISTINCT FROM l.version OR 'k' = ANY (kinds)) AND EXISTS (SELECT FROM workglow_limit.behind(l.id)) THEN
        RETURN '{-1}';
    END IF;
    INSERT INTO workglow_limit.policies (version, numbers)
    SELECT DISTINCT n.version, string_to_array(n.numbers, ' ')::bigint[] FROM unnest(versions, numbers) AS n (version, numbers)
    WHERE n.version IS NOT NULL ORDER BY 1 ON CONFLICT DO NOTHING;
    FOR i IN 1 .. cardinality(kinds) LOOP
        CONTINUE WHEN kinds[i] <> 'k';
        INSERT INTO workglow_limit.own (limit_id, hash, version, policy, since) VALUES (l.id, hashes[i], versions[i], texts[i], now)
        ON CONFLICT (limit_id, hash) DO UPDATE SET version = excluded.version, policy = excluded.policy, since = excluded.since;
    END LOOP;
    IF holds IS DISTINCT FROM l.version THEN
        -- The first policy of a limit applies since its creation.
        l.since := CASE WHEN l.since IS NULL AND l.made > 0 THEN l.made ELSE now END;
    END IF;
    UPDATE workglow_limit.limits SET
        is_declared = true, policy = l.policy, composite = l.composite, overriding = l.overriding,
        declared_version = l.declared_version, overriding_version = l.overriding_version, version = holds,
        since = l.since, has_own = l.has_own
    WHERE id = l.id;
    RETURN ARRAY[
        l.made, EXISTS (SELECT FROM workglow_limit.behind(l.id))::integer,
        ('k' = ANY (kinds) OR l.since IS DISTINCT FROM l.made)::integer
    ];
END $$;

-- Removes the declarations under a name, and of its keys. Earlier starts still count. -> 0; -1: states are behind (not
-- where a test sets the time, which is not known here).
CREATE OR REPLACE FUNCTION workglow_limit.forget(lim text, patience bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    of_limit bigint;
BEGIN
    PERFORM workglow_limit.begin_writing(patience);
    PERFORM workglow_limit.hold(id, true) FROM workglow_limit.limits WHERE name = lim;
    IF EXISTS (SELECT FROM workglow_limit.limits l, workglow_limit.behind(l.id) WHERE l.name = lim AND l.run IS NOT NULL) THEN
        RETURN -1;
    END IF;
    UPDATE workglow_limit.limits SET
        is_declared = false, policy = NULL, overriding = NULL,
        -- A name that leads to another place still does if it is declared again: see places.rs.
        composite = CASE WHEN composite LIKE E'\n%' THEN composite END,
        declared_version = NULL, overriding_version = NULL, version = NULL
    WHERE name = lim RETURNING id INTO of_limit;
    DELETE FROM workglow_limit.own WHERE limit_id = of_limit;
    RETURN 0;
END $$;
