-- What workglow-limit keeps on a Postgres server (13 or newer): the schema `workglow_limit`, its tables and functions.
--
-- A program creates it at first use where its role may. Where it may not, run this as a role that may, and let the program use it:
--
--     GRANT USAGE ON SCHEMA workglow_limit TO app;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA workglow_limit TO app;
--     GRANT USAGE ON ALL SEQUENCES IN SCHEMA workglow_limit TO app;
--
-- It may be run again, by as many as like at the same time: the first gets the lock and creates, the others find it there. A later
-- version of the library adds to it, and raises `version`. A function that answers otherwise than before gets another name, so that
-- programs of before go on calling theirs.
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
            RAISE EXCEPTION 'the schema workglow_limit is of version %, and this is version 1', found;
        END IF;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS workglow_limit.version (version integer NOT NULL);

-- What is declared under a name, and what holds for all keys. Times are in ticks of 1 µs since 2024-01-01T00:00:00Z.
CREATE TABLE IF NOT EXISTS workglow_limit.limits (
    id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    name text COLLATE "C" PRIMARY KEY,
    is_declared boolean NOT NULL DEFAULT false,
    -- Texts: what programs declare, and what an operator put above it.
    policy text,
    composite text,
    overriding text,
    -- Checksums of both policies, the one that holds, and since when.
    declared_version bigint,
    overriding_version bigint,
    version bigint,
    since bigint,
    -- May a key have a policy of its own?
    has_own boolean NOT NULL DEFAULT false,
    -- When it was made. Which server that was, and which start of it (see `loss`); null: a test makes the time.
    made bigint NOT NULL DEFAULT 0,
    run text,
    booted timestamptz,
    -- Up to when starts may have been lost: a key counts as full of starts at that time. 0: none were.
    born bigint NOT NULL DEFAULT 0,
    -- Grows when the whole limit is cleared: a state that was written before it counts as absent.
    birth bigint NOT NULL DEFAULT 0,
    -- Nobody starts before this.
    gate bigint NOT NULL DEFAULT 0,
    -- The latest time that was noted.
    floor bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Keys that have, or had, a policy of their own: its checksum, its text, a line end and the key; since when.
CREATE TABLE IF NOT EXISTS workglow_limit.own (
    limit_id bigint NOT NULL,
    hash uuid NOT NULL,
    version bigint,
    policy text,
    since bigint NOT NULL,
    PRIMARY KEY (limit_id, hash)
);

-- Numbers that only grow: of rows, leases, places and lives of keys. They begin with the time, so that a schema that was made anew
-- gives none again.
CREATE SEQUENCE IF NOT EXISTS workglow_limit.ids;

-- The time.
CREATE OR REPLACE FUNCTION workglow_limit.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (date_part('epoch', clock_timestamp() - '2024-01-01T00:00:00Z'::timestamptz) * 1000000)::bigint
$$;

SELECT setval('workglow_limit.ids', workglow_limit.clock()) FROM workglow_limit.ids WHERE NOT is_called;

-- What every writer of a state begins with. Nobody waits for a lock after his caller has given up, and so takes no unit that nobody
-- uses. A start that was admitted is not forgotten if the server dies, whatever the database or the role says of
-- `synchronous_commit`: only `off` would, the others wait for this server's disk. (A standby that has not heard of it and takes
-- over is another timeline: see `loss`.)
CREATE OR REPLACE FUNCTION workglow_limit.begin_writing(patience bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('lock_timeout', greatest(patience, 1)::text, true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- What grants are given by, and states of buckets and windows are written by, does not change meanwhile: who grants or writes holds the
-- limit together with others, who changes it holds it alone, and before any row. (Not as a lock of the limit's row: those who come
-- together would keep others from it as long as they come.)
CREATE OR REPLACE FUNCTION workglow_limit.hold(of_limit bigint, alone boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- (Locks of this kind are the whole database's. Who meets another limit's, or a stranger's, only waits.)
    number integer := of_limit % 2147483647;
BEGIN
    IF alone THEN
        PERFORM pg_advisory_xact_lock(860521391, number);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(860521391, number);
        -- By an older snapshot it would not be seen what has changed since: then this fails, and is asked again.
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            PERFORM 1 FROM workglow_limit.limits WHERE id = of_limit FOR SHARE;
        END IF;
    END IF;
END $$;

-- Which server this is, as far as it matters to what it remembers. A standby that takes over, or a restore to a moment, begins another
-- timeline; a dump that is read elsewhere has another system identifier. A mere restart is the same, but where the server does not
-- wait for its disk, or does not say which it is.
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

-- This start of the server is not the one by which the limit was asked before, or the caller knew the limit before it was made anew.
-- Is this another server, or was the limit made anew, starts may have been lost.
CREATE OR REPLACE FUNCTION workglow_limit.loss(of_limit bigint, known bigint, now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    l workglow_limit.limits;
    this_run text := workglow_limit.run();
BEGIN
    SELECT * INTO l FROM workglow_limit.limits WHERE id = of_limit FOR NO KEY UPDATE;
    UPDATE workglow_limit.limits SET
        run = this_run, booted = pg_postmaster_start_time(),
        born = greatest(born, CASE WHEN l.run IS DISTINCT FROM this_run THEN now WHEN known > 0 AND known <> made THEN made ELSE 0 END)
    WHERE id = of_limit;
END $$;

-- Time never runs backwards by more than a second, whatever the server's clock does. Where even that would let a start be one too
-- many, a family notes the time in its state too. To be called by whoever writes anyway, if it has not been for a second. Nobody
-- waits for anybody here: who finds the row locked leaves it to the next.
CREATE OR REPLACE FUNCTION workglow_limit.note_time(of_limit bigint, now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM workglow_limit.limits WHERE id = of_limit FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        UPDATE workglow_limit.limits SET floor = now WHERE id = of_limit AND floor < now;
    END IF;
END $$;

-- Until when a state lives that is needed until `needed`, and lived until `till` so far (null: for ever). It is asked to live longer
-- only when that is too soon, and then for as long again and a second: it is in an index.
CREATE OR REPLACE FUNCTION workglow_limit.lives_until(till bigint, needed bigint, now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN needed <= till THEN till ELSE greatest(needed, now) + greatest(needed - now, 0) + 1000000 END
$$;

-- Until when a state stays that has expired by the policy that wrote it, though another holds by now, by which it may count for longer:
-- no window is longer than 400 days. 0: it goes.
CREATE OR REPLACE FUNCTION workglow_limit.kept_until(of_limit bigint, k uuid, of_mark bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(max(CASE WHEN coalesce(o.version, l.version) <> of_mark THEN greatest(l.since, o.since) + 34560000000000 END), 0)
    FROM workglow_limit.limits l
    LEFT JOIN workglow_limit.own o ON o.limit_id = l.id AND o.hash = k
    WHERE l.id = of_limit
$$;

-- A gate of the whole limit; or all of its keys are as new: what was written before this counts as absent.
CREATE OR REPLACE FUNCTION workglow_limit.of_all(
    op text, lim text, v bigint, known bigint, at bigint, patience bigint, a bigint[]
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
    now := greatest(coalesce(at, workglow_limit.clock()), l.floor);
    IF at IS NULL AND l.booted IS DISTINCT FROM pg_postmaster_start_time() THEN
        PERFORM workglow_limit.loss(l.id, known, now);
    END IF;
    IF op = 'pause' THEN
        UPDATE workglow_limit.limits SET gate = greatest(gate, now + a[1]), floor = now WHERE id = l.id;
        RETURN ARRAY[0, now, greatest(l.gate, now + a[1])];
    END IF;
    -- (But nobody starts while machines may start what they were granted. By an older snapshot it would not be known until when.)
    UPDATE workglow_limit.limits SET
        birth = birth + 1, born = 0, floor = 0,
        gate = CASE
            WHEN at IS NOT NULL THEN 0
            WHEN current_setting('transaction_isolation') <> 'read committed' THEN now + 2000000
            ELSE coalesce((SELECT max(least(g.out, g.said)) FROM workglow_limit.logs g WHERE g.limit_id = l.id AND g.said > now), 0)
        END
    WHERE id = l.id;
    RETURN ARRAY[0, now];
END $$;

-- Notes something under a name, and lets the rest be: of each note its kind (`p` what programs declare, `c` a composite's text,
-- `o` what an operator puts above it, `k` above that for a key), text, version and hash; without a text there is none any more.
-- Another policy does not hold before all states are written by the one that does (`behind`).
-- -> {made, behind}: when the limit was made, and whether states are behind now; {-1}: some are, and nothing was noted.
CREATE OR REPLACE FUNCTION workglow_limit.note(
    lim text, at bigint, kinds text[], texts text[], versions bigint[], hashes uuid[], patience bigint
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
    -- (Nothing was written by the policy of before that is later.)
    now := greatest(coalesce(at, workglow_limit.clock()), l.floor);
    FOR i IN 1 .. cardinality(kinds) LOOP
        CASE kinds[i]
        WHEN 'p' THEN
            l.policy := texts[i];
            l.declared_version := versions[i];
        WHEN 'o' THEN
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
    FOR i IN 1 .. cardinality(kinds) LOOP
        CONTINUE WHEN kinds[i] <> 'k';
        INSERT INTO workglow_limit.own (limit_id, hash, version, policy, since) VALUES (l.id, hashes[i], versions[i], texts[i], now)
        ON CONFLICT (limit_id, hash) DO UPDATE SET version = excluded.version, policy = excluded.policy, since = excluded.since;
    END LOOP;
    UPDATE workglow_limit.limits SET
        is_declared = true, policy = l.policy, composite = l.composite, overriding = l.overriding,
        declared_version = l.declared_version, overriding_version = l.overriding_version, version = holds,
        since = CASE WHEN holds IS DISTINCT FROM l.version THEN now ELSE l.since END, has_own = l.has_own
    WHERE id = l.id;
    RETURN ARRAY[l.made, EXISTS (SELECT FROM workglow_limit.behind(l.id))::integer];
END $$;

-- Nothing is declared under a name any more, nor for its keys. What was started still counts. -> 0; -1: states are behind (not where a
-- test makes the time, which nobody knows here).
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
        is_declared = false, policy = NULL, composite = NULL, overriding = NULL,
        declared_version = NULL, overriding_version = NULL, version = NULL
    WHERE name = lim RETURNING id INTO of_limit;
    DELETE FROM workglow_limit.own WHERE limit_id = of_limit;
    RETURN 0;
END $$;
