-- The log: rates over one or several windows, delays, even spacing; and rates above 4,096 units, in slices.
--
-- Policy   slice, interval, then limit and length of each window: at most `limit` units in any `length` ticks.
--          slice: 0, or the length in ticks of the slices of the window (its only one).
--          interval: 0, or the spacing of starts, which job durations shorten; then the last window is (1, interval), and as
--          many jobs are remembered as the first window has units.
--
-- State: a row of `logs` for each key, and a row of `starts` for each start, each place, or each slice with all of its
-- starts.
--
-- Why a row for each start. An array in the key's row is as fast for small limits, but is rewritten with each start.
-- Measured on PostgreSQL 15, with data in memory, as a bare loop of read, lock, update and commit: 15 µs and 640 bytes
-- of WAL at 100 units, 1,050 µs and 18 KB at 4,096 (32 KB where it does not compress). With rows, an admission takes 80
-- to 95 µs in the server, nearly all of it PL/pgSQL, and 360 to 450 bytes of WAL, and a denial 28 µs, at 100 units and
-- at 4,096 alike. A start takes 96 bytes with its index entry, until it has been dropped and vacuumed.
--
-- Why it is right:
--
-- 1. Stamps never decrease along the log, by `before`: none is smaller than the one before it. So the units that count
--    in a window are the end of the log, and a start of k units fits into a window of n once the unit n - k + 1 back
--    has left it.
-- 2. A start happens no earlier than `ready` and no later than its stamp, by a time that never runs backwards for a
--    key: `seen` is the time of the last write. So no window ever holds more than its limit.
-- 3. `before` grows from row to row, by the units of each. So one index lookup finds the row that holds a unit.
-- 4. Dropped starts count as started at `gone`, their latest stamp. That matters only where twice the limit was recorded
--    or is owed, and where a policy changes to a longer window: then `log_remember` gives them the latest stamps that
--    their policy allows.
-- 5. In slices a start counts from up to a slice later than it happened, and starts of the same slice share a row. A
--    place has its own row until it starts. So a window has at most 8,192 rows, and the places.
-- 6. A writer locks the key's row of `logs`, and decides by what it reads after that. A reader reads everything from
--    one snapshot (`log_look` is STABLE, so its statements share the caller's), in which rows and sums are consistent.

-- fillfactor: an admission rewrites the row in the same page, so that no index has to change.
CREATE TABLE IF NOT EXISTS workglow_limit.logs (
    limit_id bigint NOT NULL,
    hash uuid NOT NULL,
    -- The number by which `starts` and `jobs` refer to it.
    id bigint NOT NULL DEFAULT nextval('workglow_limit.ids'),
    -- See `limits`; and the policy under which it was written.
    birth bigint NOT NULL,
    mark bigint NOT NULL,
    -- The stamp of the newest start; 0: there is none.
    stamp bigint NOT NULL DEFAULT 0,
    -- The units up to it: all that were ever added, less those given back.
    total bigint NOT NULL DEFAULT 0,
    -- The last number assigned. Numbers begin with the time, so that no ticket of an earlier life means anything in
    -- this one.
    number bigint NOT NULL,
    -- The units of all rows of `starts`, and the number of rows.
    units bigint NOT NULL DEFAULT 0,
    count bigint NOT NULL DEFAULT 0,
    -- When this was last written.
    seen bigint NOT NULL DEFAULT 0,
    -- The number of rows at which some are next dropped.
    due bigint NOT NULL DEFAULT 16,
    -- No start happens before this.
    gate bigint NOT NULL DEFAULT 0,
    -- The latest stamp of a dropped start; 0: none was dropped. (They had `total` - `units` units.)
    gone bigint NOT NULL DEFAULT 0,
    -- Whether an earlier policy has admitted some of them, or of the rows.
    mixed boolean NOT NULL DEFAULT false,
    -- The sum of the corrections by which it has been moved (see `moves_of`). And whether it ever was: then stamps that
    -- callers know may differ from those here.
    ahead bigint NOT NULL DEFAULT 0,
    is_moved boolean NOT NULL DEFAULT false,
    -- Where the interval adapts: one more than the distance to the next start (0: the interval); the average duration
    -- of the last jobs, at most the interval; the number of ended jobs, and the sum of the last durations.
    spacing bigint NOT NULL DEFAULT 0,
    average bigint NOT NULL DEFAULT 0,
    ended bigint NOT NULL DEFAULT 0,
    took numeric NOT NULL DEFAULT 0,
    -- Until when machines may start what they were granted, and may rely on earlier answers.
    out bigint NOT NULL DEFAULT 0,
    said bigint NOT NULL DEFAULT 0,
    -- An upper bound of the rows of `sites`, and the number at which some are next forgotten.
    sites bigint NOT NULL DEFAULT 0,
    sites_due bigint NOT NULL DEFAULT 32,
    -- Until when the row lives; null: for ever, as by a test's clock.
    expires bigint,
    PRIMARY KEY (limit_id, hash)
) WITH (fillfactor = 50);

DO $$ BEGIN
    IF to_regclass('workglow_limit.logs_expires') IS NULL THEN
        CREATE INDEX logs_expires ON workglow_limit.logs (expires) WHERE expires IS NOT NULL;
    END IF;
    IF to_regclass('workglow_limit.logs_said') IS NULL THEN
        CREATE INDEX logs_said ON workglow_limit.logs (limit_id, said) WHERE said > 0;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS workglow_limit.starts (
    -- The id of the log.
    id bigint NOT NULL,
    -- The units of the log before this row's.
    before bigint NOT NULL,
    -- The number that identifies it.
    number bigint NOT NULL,
    -- From when on it counts: in a window until stamp + length. It starts no later than this.
    stamp bigint NOT NULL,
    units bigint NOT NULL,
    -- S: it has started. P: a place, which has not started. M: all starts of a slice. X: its cost is settled. G: a
    -- grant.
    state "char" NOT NULL,
    -- Of a grant: the takings that were given back or settled.
    ended bigint[]
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

DO $$ BEGIN
    IF to_regclass('workglow_limit.starts_of') IS NULL THEN
        CREATE INDEX starts_of ON workglow_limit.starts (id, before);
    END IF;
END $$;

-- The durations of the last jobs.
CREATE TABLE IF NOT EXISTS workglow_limit.jobs (
    id bigint NOT NULL,
    slot bigint NOT NULL,
    took bigint NOT NULL,
    PRIMARY KEY (id, slot)
) WITH (fillfactor = 70);

-- The last request for grants of each machine, and when it came: its number, and of each grant the ticket, when it is
-- ready, its end and its stamp.
CREATE TABLE IF NOT EXISTS workglow_limit.sites (
    id bigint NOT NULL,
    site bigint NOT NULL,
    asked bigint NOT NULL,
    seq bigint NOT NULL,
    granted bigint[] NOT NULL,
    PRIMARY KEY (id, site)
) WITH (fillfactor = 50);

-- The row that holds the unit after the first `unit` units of a log.
CREATE OR REPLACE FUNCTION workglow_limit.log_at(log bigint, unit bigint) RETURNS workglow_limit.starts LANGUAGE plpgsql STABLE AS $$
DECLARE
    s workglow_limit.starts;
BEGIN
    SELECT * INTO s FROM workglow_limit.starts WHERE id = log AND before <= unit ORDER BY before DESC LIMIT 1;
    IF s.stamp IS NULL THEN
        RAISE data_corrupted USING MESSAGE = 'a log in workglow_limit.starts lacks a part';
    END IF;
    RETURN s;
END $$;

-- The oldest row with a larger stamp or, with `by_number`, a number at least as large. There is one. It guesses by the
-- distance; if that does not help, it halves the range.
CREATE OR REPLACE FUNCTION workglow_limit.log_since(h workglow_limit.logs, since bigint, by_number boolean) RETURNS workglow_limit.starts
LANGUAGE plpgsql STABLE AS $$
DECLARE
    -- The row begins at `low` units or later, and before the unit `high`.
    low bigint := h.total - h.units;
    high bigint := h.total;
    least bigint;
    most bigint := CASE WHEN by_number THEN h.number ELSE h.stamp END;
    value bigint;
    -- Often it is the oldest row; of numbers, if all starts have the same weight, the one as far back as the number is.
    guess bigint := CASE WHEN by_number THEN h.total - 1 - (h.number - since) ELSE h.total - h.units END;
    tries integer := 0;
    s workglow_limit.starts;
    found workglow_limit.starts;
BEGIN
    WHILE low < high LOOP
        s := workglow_limit.log_at(h.id, least(greatest(guess, low), high - 1));
        value := CASE WHEN by_number THEN s.number + 1 ELSE s.stamp END;
        IF value > since THEN
            found := s;
            high := s.before;
            most := value;
        ELSE
            low := s.before + s.units;
            least := value;
        END IF;
        tries := tries + 1;
        IF tries > 100 THEN
            RAISE data_corrupted USING MESSAGE = 'a log in workglow_limit.starts has no order';
        END IF;
        guess := CASE
            -- Usually it is found at this point, and no earlier row has its number.
            WHEN by_number AND value = since + 1 AND tries <= 6 THEN high - 1
            WHEN least IS NULL OR tries > 6 OR most <= least THEN (low + high) / 2
            ELSE low + div((high - low)::numeric * (since - least), most - least)::bigint
        END;
    END LOOP;
    RETURN found;
END $$;

-- The heaviest start that would be admitted now, and when nothing counts any more.
CREATE OR REPLACE FUNCTION workglow_limit.log_room(h workglow_limit.logs, now bigint, gate bigint, p bigint[], largest bigint) RETURNS bigint[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    remaining bigint := CASE WHEN gate <= now THEN largest ELSE 0 END;
    empty bigint := gate;
    -- No tick is before 1.
    since bigint;
    newest bigint := greatest(h.stamp, h.gone);
BEGIN
    FOR i IN 3 .. cardinality(p) BY 2 LOOP
        since := greatest(now - p[i + 1], 0);
        IF remaining = 0 THEN
            -- It cannot be less.
        ELSIF h.gone > since THEN
            remaining := 0;
        ELSIF h.stamp <= since THEN
            remaining := least(remaining, p[i]);
        -- One lookup is enough where the limit is reached.
        ELSIF h.units >= p[i] AND (workglow_limit.log_at(h.id, h.total - p[i])).stamp > since THEN
            remaining := 0;
        ELSE
            remaining := greatest(least(remaining, p[i] - (h.total - (workglow_limit.log_since(h, since, false)).before)), 0);
        END IF;
        IF newest > 0 THEN
            empty := greatest(empty, newest + p[i + 1]);
        END IF;
    END LOOP;
    RETURN ARRAY[remaining, empty];
END $$;

-- The earliest moment for a start, if its gate opens then.
CREATE OR REPLACE FUNCTION workglow_limit.log_ready(h workglow_limit.logs, gate bigint, weight bigint, p bigint[]) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    ready bigint := gate;
    back bigint;
    since bigint;
BEGIN
    FOR i IN 3 .. cardinality(p) BY 2 LOOP
        back := p[i] - weight + 1;
        since := CASE
            WHEN back > h.units THEN h.gone
            WHEN back > 1 THEN (workglow_limit.log_at(h.id, h.total - back)).stamp
            ELSE h.stamp
        END;
        IF since > 0 THEN
            ready := greatest(ready, since + p[i + 1]);
        END IF;
    END LOOP;
    RETURN ready;
END $$;

-- How long a machine trusts an answer: it starts nothing that it was granted unless it has asked since then.
CREATE OR REPLACE FUNCTION workglow_limit.log_trust(p bigint[]) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    shortest bigint := p[4];
BEGIN
    FOR i IN 6 .. cardinality(p) BY 2 LOOP
        shortest := least(shortest, p[i]);
    END LOOP;
    RETURN least(shortest / 2, 2000000);
END $$;

-- The number of units that a log remembers at least, and the number of places that it can have.
CREATE OR REPLACE FUNCTION workglow_limit.log_holds(slice bigint, largest bigint, capacity bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    room bigint := 16;
BEGIN
    IF slice > 0 THEN
        RETURN 2 * largest;
    END IF;
    WHILE room < 2 * greatest(largest, CASE WHEN capacity = 1 THEN 32 ELSE 8 END) LOOP
        room := 2 * room;
    END LOOP;
    RETURN room;
END $$;

-- Returns whether there is no space for another place. An eighth is reserved for exchanged places.
CREATE OR REPLACE FUNCTION workglow_limit.log_is_crowded(
    log bigint, total bigint, units bigint, count bigint, now bigint, slice bigint, holds bigint, stamp bigint, weight bigint, is_again boolean
) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    back bigint := greatest(holds - weight - CASE WHEN is_again THEN 0 ELSE holds / 8 END, 1);
    s workglow_limit.starts;
BEGIN
    IF slice > 0 THEN
        RETURN count >= 2 * 8192 OR stamp - now > 8192 * slice;
    END IF;
    IF back > units THEN
        RETURN false;
    END IF;
    s := workglow_limit.log_at(log, total - back);
    RETURN s.stamp >= now + CASE WHEN s.state = 'P' THEN 0 ELSE 1 END;
END $$;

-- The answer of a call that does not write. For a call that writes: {1, limit, birth, floor, now, gate, ready (`born` or
-- `cleared`, for operations other than starts), stamp, weight, is_place, is_absent, hold, ahead}; the same beginning with 2 if `attend`
-- has something to do, with 3 if the state was written under another policy, and with 4 if it has to be moved, by the next
-- two numbers, to the sum of corrections after them. `hold` and `ahead`: see `limits`.
--
-- In PL/pgSQL, an expression of its own costs more than one within a statement, since each transaction prepares each of
-- them again. So the statement computes as much as possible, including when the unit that has to leave the first window
-- counts from.
CREATE OR REPLACE FUNCTION workglow_limit.log_look(
    op text, lim text, k uuid, v bigint, known bigint[], at bigint, p bigint[], a bigint[]
) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    r record;
    h workglow_limit.logs;
    now bigint;
    gate bigint;
    capacity bigint := p[3];
    largest bigint := p[3];
    longest bigint := p[4];
    policy bigint[] := p;
    last integer := cardinality(p);
    is_absent boolean := false;
    weight bigint := 1;
    ready bigint;
    stamp bigint;
    is_place boolean := false;
    back bigint;
    since bigint;
    moves bigint[];
    hold bigint := 0;
    ahead bigint := 0;
    room bigint[] := '{0,0}';
BEGIN
    IF op = 'decide' OR op = 'view' THEN
        weight := a[1];
    END IF;
    SELECT l.id, l.birth, l.floor, l.gate, l.born, l.cleared, l.made, l.booted, l.clock, l.version, l.has_own, s.id AS log, s.birth AS of_birth, s.mark, s.stamp,
        s.total, s.units, s.count, s.gone, s.spacing, s.expires, s.seen, s.ahead, s.gate AS key_gate,
        CASE
            WHEN p[3] - weight >= s.units THEN s.gone
            WHEN p[3] > weight THEN (
                SELECT e.stamp FROM workglow_limit.starts e
                WHERE e.id = s.id AND e.before < s.total - p[3] + weight ORDER BY e.before DESC LIMIT 1
            )
            ELSE s.stamp
        END AS since
    INTO r
    FROM workglow_limit.limits l
    LEFT JOIN workglow_limit.logs s ON s.limit_id = l.id AND s.hash = k
    WHERE l.name = lim;
    IF r.has_own THEN
        r.version := coalesce((SELECT o.version FROM workglow_limit.own o WHERE o.limit_id = r.id AND o.hash = k), r.version);
    END IF;
    -- The caller knows a policy that does not apply. It must read the present one first.
    IF r.version IS DISTINCT FROM v THEN
        RETURN '{-1}';
    END IF;
    since := r.since;
    now := at;
    IF at IS NULL THEN
        now := workglow_limit.clock();
        IF workglow_limit.is_due(r.booted, r.made, r.born, r.floor, r.clock, known, now) THEN
            RETURN ARRAY[2, r.id, r.birth, r.floor, greatest(now, r.floor, r.seen)];
        END IF;
        IF r.clock IS NOT NULL OR r.seen - now > 1000000 THEN
            moves := workglow_limit.moves_of(r.seen, r.ahead, r.clock, greatest(now, r.floor));
            hold := coalesce(r.clock[2], 0);
            ahead := coalesce(r.clock[1], 0);
        END IF;
        -- A state of another policy may count for longer under this one.
        is_absent := r.expires + coalesce(moves[2], 0) <= now AND r.mark = v;
    END IF;
    IF is_absent OR r.of_birth IS DISTINCT FROM r.birth THEN
        -- Its own time is forgotten with it: by then nothing counts by it.
        is_absent := true;
        r.seen := 0; r.key_gate := 0;
        r.stamp := 0; r.total := 0; r.units := 0; r.count := 0; r.gone := 0; r.spacing := 0;
        since := 0;
    ELSIF moves IS NOT NULL THEN
        RETURN ARRAY[4, r.id, r.birth, r.floor, greatest(now, r.floor)] || moves || ahead;
    ELSIF r.mark <> v THEN
        RETURN ARRAY[3, r.id, r.birth, r.floor, greatest(now, r.floor, r.seen)];
    END IF;
    now := greatest(now, r.floor, r.seen);
    gate := greatest(r.gate, r.key_gate);

    IF last > 4 THEN
        FOR i IN 5 .. last BY 2 LOOP
            capacity := least(capacity, p[i]);
            largest := greatest(largest, p[i]);
            longest := greatest(longest, p[i + 1]);
        END LOOP;
        IF p[2] > 0 THEN
            p[last] := CASE WHEN r.spacing > 0 THEN r.spacing - 1 ELSE p[2] END;
        END IF;
    END IF;
    -- Possibly lost starts count as a full limit. Machines may start earlier grants for this long.
    IF r.born > 0 THEN
        gate := greatest(gate, r.born + longest + workglow_limit.log_trust(policy));
    END IF;

    IF op = 'decide' THEN
        IF weight < 1 OR weight > capacity THEN
            RAISE invalid_parameter_value USING MESSAGE = 'a weight has to be 1 to the capacity';
        END IF;
    ELSIF op <> 'view' AND op <> 'record' THEN
        -- A missing log has nothing to end.
        IF is_absent AND op <> 'pause' AND op <> 'grant' AND NOT (op = 'settle' AND a[5] > a[3] AND a[2] + longest <= now) THEN
            RETURN CASE op
                WHEN 'present' THEN ARRAY[0, now, CASE WHEN now < a[5] THEN 2 ELSE 0 END, CASE WHEN now < a[5] THEN a[5] ELSE 0 END, 0]
                WHEN 'cancel' THEN ARRAY[0, now, 0]
                WHEN 'settle' THEN ARRAY[0, now, 0]
                ELSE ARRAY[0, now]
            END;
        END IF;
        RETURN ARRAY[1, r.id, r.birth, r.floor, now, gate, greatest(r.born, r.cleared), 0, 0, 0, is_absent::integer, hold, ahead];
    END IF;
    gate := greatest(gate, hold);

    -- The earliest moment for the start, unless the caller does not want one.
    IF op = 'record' OR a[6] = 1 THEN
        ready := now;
    ELSE
        IF since IS NULL THEN
            RAISE data_corrupted USING MESSAGE = 'a log in workglow_limit.starts lacks a part';
        END IF;
        ready := gate;
        IF op = 'decide' AND a[2] > 0 THEN
            ready := greatest(ready, now + a[2]);
        END IF;
        IF since > 0 AND weight > 0 THEN
            ready := greatest(ready, since + p[4]);
        END IF;
        IF last > 4 AND weight > 0 THEN
            FOR i IN 5 .. last BY 2 LOOP
                back := p[i] - weight + 1;
                since := CASE
                    WHEN back > r.units THEN r.gone
                    WHEN back > 1 THEN (workglow_limit.log_at(r.log, r.total - back)).stamp
                    ELSE r.stamp
                END;
                IF since > 0 THEN
                    ready := greatest(ready, since + p[i + 1]);
                END IF;
            END LOOP;
        END IF;
    END IF;
    IF op = 'view' OR op = 'decide' AND a[3] >= 0 AND ready - now > a[3] THEN
        -- This is the end of it.
    ELSE
        is_place := op = 'decide' AND (ready > now OR a[5] = 1);
        IF is_place THEN
            ready := greatest(ready, now);
            stamp := ready + a[4] + greatest(p[1] - 1, 0);
        ELSE
            stamp := now + greatest(p[1] - 1, 0);
        END IF;
        IF NOT is_place OR NOT workglow_limit.log_is_crowded(
            r.log, r.total, r.units, r.count, now, p[1], workglow_limit.log_holds(p[1], largest, capacity), stamp, weight, a[7] = 1)
        THEN
            RETURN ARRAY[1, r.id, r.birth, r.floor, now, gate, ready, stamp, weight, is_place::integer, is_absent::integer, hold, ahead];
        END IF;
    END IF;
    IF op = 'view' OR a[8] = 1 THEN
        h.id := r.log; h.stamp := r.stamp; h.total := r.total; h.units := r.units; h.gone := r.gone;
        room := workglow_limit.log_room(h, now, gate, p, largest);
        IF op = 'view' THEN
            RETURN ARRAY[0, now, ready, room[1], room[2]];
        END IF;
    END IF;
    RETURN ARRAY[0, now, ready, 0, 0, 0, 0, 0, room[1], room[2]];
END $$;
