-- The parts shared by bucket.sql and window.sql: a row for each key with the usage of the key, and its open places.
--
-- A place is one start. The caller that starts with it or gives it back removes its row first, so it counts once.
-- Tickets of places and all eras come from one sequence (`ids`), which only grows, so an old ticket never means
-- anything new. A start made with a place is identified by the era from then on (`present` returns it). A new life of
-- the key begins without places, so none outlives a clear or another policy. Starts outlive one change of policy.
--
-- A writer locks the key's row, and decides by what it reads after that.

CREATE TABLE IF NOT EXISTS workglow_limit.counted (
    limit_id bigint NOT NULL,
    hash uuid NOT NULL,
    -- The number by which `places` refers to it.
    id bigint NOT NULL DEFAULT nextval('workglow_limit.ids'),
    -- b: a bucket. w: windows of the clock.
    family "char" NOT NULL,
    -- See `limits`.
    birth bigint NOT NULL,
    -- The ticket of earlier starts. A key that is forgotten, cleared or put under another policy gets a new era. 0: it
    -- has none.
    era bigint NOT NULL DEFAULT 0,
    -- The policy under which the state was written, and its numbers.
    mark bigint NOT NULL DEFAULT 0,
    policy bigint[],
    -- The era under the policy before, when it ended, and its numbers. 0: there was none.
    former_era bigint NOT NULL DEFAULT 0,
    former_end bigint,
    former bigint[],
    -- No start happens before this.
    gate bigint NOT NULL DEFAULT 0,
    -- See bucket.sql and window.sql.
    state bigint[],
    -- An upper bound of the number of places, and the number at which expired ones are next removed.
    opened bigint NOT NULL DEFAULT 0,
    due bigint NOT NULL DEFAULT 64,
    -- When the state was last written (0: by a test's clock), and the sum of the corrections by which it has been moved:
    -- see `moves_of`.
    seen bigint NOT NULL DEFAULT 0,
    ahead bigint NOT NULL DEFAULT 0,
    -- Until when the row lives; null: for ever, as by a test's clock.
    expires bigint,
    PRIMARY KEY (limit_id, hash)
) WITH (fillfactor = 50);

DO $$ BEGIN
    IF to_regclass('workglow_limit.counted_expires') IS NULL THEN
        CREATE INDEX counted_expires ON workglow_limit.counted (expires) WHERE expires IS NOT NULL;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS workglow_limit.places (
    id bigint NOT NULL,
    ticket bigint NOT NULL,
    -- Until when the place is valid.
    stamp bigint NOT NULL,
    PRIMARY KEY (id, ticket)
);

-- The known facts about a key. Without an answer: `c` is its row; `gate` the later of both gates; `is_stale` says that the
-- row's contents no longer count and go with the next write; `old` the numbers of the policy under which it was
-- written, and `changed` when that policy ended (null: it still applies); `is_due`: see `attend`; nothing starts before
-- `hold`; `moves`: how the state has to be moved first.
CREATE OR REPLACE FUNCTION workglow_limit.counted_look(
    lim text, k uuid, of_family "char", v bigint, known bigint[], at bigint,
    OUT answer bigint[], OUT limit_id bigint, OUT birth bigint, OUT born bigint, OUT is_due boolean, OUT now bigint, OUT floor bigint,
    OUT gate bigint, OUT hold bigint, OUT moves bigint[], OUT c workglow_limit.counted, OUT is_stale boolean, OUT old bigint[], OUT changed bigint
) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    r record;
    of_limit bigint;
BEGIN
    SELECT l.id, coalesce(o.version, l.version) AS holds, l.since, l.gate, l.floor, l.birth, l.born, l.made, l.booted, l.clock,
        o.version AS own_version, o.since AS own_since, s AS c INTO r
    FROM workglow_limit.limits l
    LEFT JOIN workglow_limit.own o ON o.limit_id = l.id AND o.hash = k
    LEFT JOIN workglow_limit.counted s ON s.limit_id = l.id AND s.hash = k
    WHERE l.name = lim;
    -- The caller knows a policy that does not apply. It must read the present one first.
    IF r.holds IS DISTINCT FROM v THEN
        answer := '{-1}';
        RETURN;
    END IF;
    c := r.c;
    limit_id := r.id;
    birth := r.birth;
    born := r.born;
    floor := r.floor;
    now := coalesce(at, workglow_limit.clock());
    is_due := at IS NULL AND workglow_limit.is_due(r.booted, r.made, r.born, r.floor, r.clock, known, now);
    now := greatest(now, r.floor);
    hold := coalesce(r.clock[2], 0);
    is_stale := false;
    IF c.id IS NULL OR c.birth <> r.birth OR c.family <> of_family
        OR at IS NULL AND c.expires <= now AND (c.era = 0 OR c.mark = v)
    THEN
        is_stale := c.id IS NOT NULL;
        c.era := 0; c.mark := 0; c.gate := 0; c.state := NULL; c.policy := NULL; c.former_era := 0;
    END IF;
    moves := CASE WHEN at IS NULL AND c.state IS NOT NULL THEN workglow_limit.moves_of(c.seen, c.ahead, r.clock, now) END;
    c.ahead := coalesce(r.clock[1], 0);
    gate := greatest(r.gate, c.gate);
    IF c.era > 0 AND c.mark <> v THEN
        old := c.policy;
        of_limit := coalesce(r.since, now);
        changed := least(now, CASE
            WHEN r.own_version IS NOT NULL THEN coalesce(r.own_since, now)
            ELSE greatest(of_limit, coalesce(r.own_since, 0))
        END);
        c.former_era := c.era;
        c.former_end := changed;
        c.former := old;
        c.era := 0;
        is_stale := true;
    END IF;
END $$;

-- Removes some unneeded rows, whenever a key is new. It never waits for locks.
CREATE OR REPLACE FUNCTION workglow_limit.counted_sweep(now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    o record;
    dropped bigint;
BEGIN
    FOR o IN SELECT limit_id, hash, id FROM workglow_limit.counted WHERE expires <= now ORDER BY expires LIMIT 4 FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE workglow_limit.counted SET expires = workglow_limit.kept_until(limit_id, hash, mark)
        WHERE limit_id = o.limit_id AND hash = o.hash AND era > 0 AND workglow_limit.kept_until(limit_id, hash, mark) > now;
        CONTINUE WHEN FOUND;
        DELETE FROM workglow_limit.places WHERE ctid = ANY (ARRAY(SELECT ctid FROM workglow_limit.places WHERE id = o.id LIMIT 250));
        GET DIAGNOSTICS dropped = ROW_COUNT;
        IF dropped < 250 THEN
            DELETE FROM workglow_limit.counted WHERE limit_id = o.limit_id AND hash = o.hash;
        END IF;
    END LOOP;
END $$;

-- Locks a key's row, and creates it if there is none.
CREATE OR REPLACE FUNCTION workglow_limit.counted_lock(
    of_limit bigint, k uuid, of_family "char", of_birth bigint, at bigint, now bigint, patience bigint
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM workglow_limit.begin_writing(patience);
    -- A caller that changes the policy waits for those that write under the present one, and so finds all that they
    -- wrote.
    PERFORM workglow_limit.hold(of_limit, false);
    LOOP
        PERFORM 1 FROM workglow_limit.counted WHERE limit_id = of_limit AND hash = k FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO workglow_limit.counted (limit_id, hash, family, birth, expires)
        VALUES (of_limit, k, of_family, of_birth, CASE WHEN at IS NULL THEN now + 1000000 END) ON CONFLICT DO NOTHING;
        IF FOUND AND at IS NULL THEN
            PERFORM workglow_limit.counted_sweep(now);
        END IF;
    END LOOP;
END $$;

-- Begins a life, if there is none, without anything of the previous one.
CREATE OR REPLACE FUNCTION workglow_limit.counted_live(
    c workglow_limit.counted, is_stale boolean, of_family "char", of_birth bigint, v bigint, p bigint[]
) RETURNS workglow_limit.counted LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF is_stale THEN
        DELETE FROM workglow_limit.places WHERE id = c.id;
        c.opened := 0; c.due := 64;
        c.expires := CASE WHEN c.expires IS NULL THEN NULL ELSE 0 END;
    END IF;
    c.family := of_family;
    c.birth := of_birth;
    IF c.era = 0 AND v IS NOT NULL THEN
        c.era := nextval('workglow_limit.ids');
        c.mark := v;
        c.policy := p;
    END IF;
    RETURN c;
END $$;

-- Adds a place before the row is saved. Places that ended `memory` ago have no meaning any more.
CREATE OR REPLACE FUNCTION workglow_limit.counted_open(INOUT c workglow_limit.counted, memory bigint, stamp bigint, now bigint, OUT ticket bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    IF c.opened >= c.due THEN
        DELETE FROM workglow_limit.places s WHERE s.id = c.id AND s.stamp + memory <= now;
        c.opened := (SELECT count(*) FROM workglow_limit.places s WHERE s.id = c.id);
        c.due := 2 * c.opened + 64;
    END IF;
    ticket := nextval('workglow_limit.ids');
    INSERT INTO workglow_limit.places VALUES (c.id, ticket, counted_open.stamp);
    c.opened := c.opened + 1;
END $$;

-- Removes a place. Returns whether it was open.
CREATE OR REPLACE FUNCTION workglow_limit.counted_close(c workglow_limit.counted, of_ticket bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM workglow_limit.places WHERE id = c.id AND ticket = of_ticket;
    RETURN FOUND;
END $$;

-- Returns whether this is the ticket of a start, or of an unused place, which is used by this call.
CREATE OR REPLACE FUNCTION workglow_limit.counted_knows(c workglow_limit.counted, of_ticket bigint, only_place boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF c.era = 0 OR of_ticket = c.era THEN
        RETURN c.era > 0 AND NOT only_place;
    END IF;
    RETURN workglow_limit.counted_close(c, of_ticket);
END $$;

-- Returns whether this is the ticket of a start that the policy before admitted.
CREATE OR REPLACE FUNCTION workglow_limit.counted_knew(c workglow_limit.counted, of_ticket bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT c.former_era > 0 AND c.former_era = of_ticket
$$;

-- Writes a key's row, which is needed until the tick `needed`.
CREATE OR REPLACE FUNCTION workglow_limit.counted_save(c workglow_limit.counted, at bigint, now bigint, needed bigint, floor bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE workglow_limit.counted SET
        family = c.family, birth = c.birth, era = c.era, mark = c.mark, policy = c.policy, gate = c.gate, state = c.state,
        former_era = c.former_era, former_end = c.former_end, former = c.former,
        opened = c.opened, due = c.due, seen = CASE WHEN at IS NULL THEN now ELSE 0 END, ahead = c.ahead,
        expires = CASE WHEN at IS NULL THEN workglow_limit.lives_until(coalesce(c.expires, 0), needed, now) END
    WHERE limit_id = c.limit_id AND hash = c.hash;
    IF now - floor > 1000000 THEN
        PERFORM workglow_limit.note_time(c.limit_id, now);
    END IF;
END $$;

-- Writes a state that was moved.
CREATE OR REPLACE FUNCTION workglow_limit.counted_move(c workglow_limit.counted, moved bigint[], moves bigint[], now bigint) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE workglow_limit.counted SET
        state = moved, gate = CASE WHEN gate > seen THEN workglow_limit.moved(gate, moves, now) ELSE gate END, seen = now, ahead = (c).ahead,
        expires = greatest(expires + moves[1] + moves[2], now + 1000000)
    WHERE limit_id = (c).limit_id AND hash = (c).hash
$$;

-- Forgets everything except the key's gate. (The row may have had to live longer than that.)
CREATE OR REPLACE FUNCTION workglow_limit.counted_forget(c workglow_limit.counted, at bigint, now bigint, floor bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM workglow_limit.places WHERE id = c.id;
    c.opened := 0; c.due := 64; c.era := 0; c.mark := 0; c.policy := NULL; c.state := NULL; c.former_era := 0; c.expires := 0;
    IF c.gate <= now THEN
        c.gate := 0;
    END IF;
    PERFORM workglow_limit.counted_save(c, at, now, c.gate, floor);
END $$;

-- The operations of both families, except decisions, on a locked key. A place starts once: from `ready` on, if it is
-- not late, not behind a gate, and belongs to this life.
--
-- present ticket stamp weight grace ready -> {0, now, started, stamp, ticket}: started 1, and it is identified by `ticket` from now
--     on; 0: it is late, used, or overtaken by a gate or another policy
-- pause delay -> {0, now, gate}; clear -> {0, now}
CREATE OR REPLACE FUNCTION workglow_limit.counted_op(
    op text, c workglow_limit.counted, is_stale boolean, of_family "char", of_birth bigint, at bigint, now bigint, floor bigint, a bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF op = 'present' THEN
        IF is_stale OR c.era = 0 OR NOT workglow_limit.counted_close(c, a[1]) THEN
            RETURN ARRAY[0, now, 0, a[2], a[1]];
        END IF;
        RETURN ARRAY[0, now, 1, a[2], c.era];
    ELSIF op = 'pause' THEN
        IF now + a[1] > c.gate THEN
            -- The state of an earlier policy stays. The next decision carries it over.
            IF is_stale AND c.state IS NULL THEN
                c := workglow_limit.counted_live(c, is_stale, of_family, of_birth, NULL, NULL);
            END IF;
            UPDATE workglow_limit.counted s SET
                gate = now + a[1], family = of_family, birth = of_birth,
                era = CASE WHEN c.state IS NULL THEN 0 ELSE s.era END, state = c.state,
                expires = CASE WHEN at IS NULL THEN workglow_limit.lives_until(coalesce(c.expires, 0), now + a[1], now) END
            WHERE limit_id = c.limit_id AND hash = c.hash;
        END IF;
        RETURN ARRAY[0, now, greatest(c.gate, now + a[1])];
    ELSIF op = 'clear' THEN
        c.gate := 0;
        c.family := of_family;
        c.birth := of_birth;
        PERFORM workglow_limit.counted_forget(c, at, now, floor);
        RETURN ARRAY[0, now];
    END IF;
    RAISE invalid_parameter_value USING MESSAGE = 'it knows no ' || op;
END $$;
