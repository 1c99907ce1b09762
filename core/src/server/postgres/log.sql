-- The log: rates over one or several windows, delays, even distances; and rates above 4,096 units, in slices.
--
-- Policy   slice, interval, then limit and length of each window: at most `limit` units in any `length` ticks.
--          slice: 0, or into pieces of how many ticks the window is cut (its only one).
--          interval: 0, or the distance between starts, which is shortened by what jobs take; then the last window is
--          (1, interval), and as many jobs are remembered as the first window has units.
--
-- State: a row of `logs` for each key, and a row of `starts` for each start, place for one, or slice with all of its starts.
--
-- Why a row for each: see `logs` below. Why it is right:
--
-- 1. Stamps never decrease along the log, by `before`: none is made smaller than the one before it. So what counts in a window is
--    the end of the log, and a start of k units has room in a window of n once the unit n - k + 1 back has left it.
-- 2. A start happens no earlier than `ready` and no later than its stamp, by a time that never runs backwards for a key:
--    `seen` is the time of the last write. So no window ever holds more than its limit.
-- 3. `before` grows from row to row, by the units of each. So one look into the index finds the row that holds a unit.
-- 4. What was dropped counts as started at `gone`, the latest stamp of it. That matters only where a policy changes to a
--    longer window, or where twice the limit was recorded or is owed.
-- 5. In slices a start counts from up to a slice later than it happened, and starts of the same slice share a row. A place
--    has a row of its own until it starts. So a window has at most 8,192 rows, and the places.
-- 6. Who writes has the key's row of `logs` locked, and decides by what he reads after that. Who does not write reads all by one
--    snapshot (`log_look` is STABLE, so its statements share that of who called it), in which rows and sums fit together.

-- fillfactor: an admission writes the row anew, and finds room for that in the same page; then no index has to change.
CREATE TABLE IF NOT EXISTS workglow_limit.logs (
    limit_id bigint NOT NULL,
    hash uuid NOT NULL,
    -- By which `starts` and `jobs` know it.
    id bigint NOT NULL DEFAULT nextval('workglow_limit.ids'),
    -- See `limits`, and by which policy it was written.
    birth bigint NOT NULL,
    mark bigint NOT NULL,
    -- Of the newest start; 0: there is none.
    stamp bigint NOT NULL DEFAULT 0,
    -- The units up to it, of all that there ever were but those given back.
    total bigint NOT NULL DEFAULT 0,
    -- The last number that was given. Numbers begin with the time, so that nobody's ticket of an earlier life stands for something
    -- in this.
    number bigint NOT NULL,
    -- Of all rows of `starts`, and how many there are.
    units bigint NOT NULL DEFAULT 0,
    count bigint NOT NULL DEFAULT 0,
    -- When this was written.
    seen bigint NOT NULL DEFAULT 0,
    -- With how many rows it is next time to drop some.
    due bigint NOT NULL DEFAULT 16,
    -- Nobody starts before this.
    gate bigint NOT NULL DEFAULT 0,
    -- The latest stamp of what was dropped; 0: nothing was.
    gone bigint NOT NULL DEFAULT 0,
    -- Where the interval adapts: one more than the distance to the next start (0: the interval); what the last jobs took on average,
    -- at most the interval; how many have ended, and the sum of what the last took.
    spacing bigint NOT NULL DEFAULT 0,
    average bigint NOT NULL DEFAULT 0,
    ended bigint NOT NULL DEFAULT 0,
    took numeric NOT NULL DEFAULT 0,
    -- Until when it lives; null: for ever, as by a clock that a test makes.
    expires bigint,
    PRIMARY KEY (limit_id, hash)
) WITH (fillfactor = 50);

CREATE INDEX IF NOT EXISTS logs_expires ON workglow_limit.logs (expires) WHERE expires IS NOT NULL;

CREATE TABLE IF NOT EXISTS workglow_limit.starts (
    -- The log's.
    id bigint NOT NULL,
    -- The units of the log before this one's.
    before bigint NOT NULL,
    -- What it is known by.
    number bigint NOT NULL,
    -- From when on it counts: in a window until stamp + length. It starts no later than this.
    stamp bigint NOT NULL,
    units bigint NOT NULL,
    -- S: it has started. P: a place, it has not started yet. M: all starts of a slice. X: what it cost is settled.
    state "char" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX IF NOT EXISTS starts_of ON workglow_limit.starts (id, before);

-- What each of the last jobs took.
CREATE TABLE IF NOT EXISTS workglow_limit.jobs (
    id bigint NOT NULL,
    slot bigint NOT NULL,
    took bigint NOT NULL,
    PRIMARY KEY (id, slot)
) WITH (fillfactor = 70);

-- The row that holds the unit after the first `unit` of a log.
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

-- The oldest row with a larger stamp, or where `by_number` with as large a number. One has it. It guesses by the distance, and where
-- that does not help it halves.
CREATE OR REPLACE FUNCTION workglow_limit.log_since(h workglow_limit.logs, since bigint, by_number boolean) RETURNS workglow_limit.starts
LANGUAGE plpgsql STABLE AS $$
DECLARE
    -- It begins from `low` units on, but before the unit `high`.
    low bigint := h.total - h.units;
    high bigint := h.total;
    least bigint;
    most bigint := CASE WHEN by_number THEN h.number ELSE h.stamp END;
    value bigint;
    -- The oldest row often is it; of numbers, where all weigh the same, the one as far back as the number is.
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
            WHEN by_number AND value > since THEN high - 1
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
    -- (No tick is before 1.)
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
        -- (One look is enough where the limit is reached.)
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

-- As many units as a log remembers at least, and places as it can have.
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

-- Is there no room to remember another place? An eighth is for those that are exchanged.
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

-- What a call is answered that writes nothing. Where it writes: {1, limit, birth, floor, now, gate, ready, stamp, weight, is_place,
-- is_absent}; the same that begins with 2 where the server may have forgotten something (see `loss`), and with 3 where the state was
-- written by another policy.
--
-- An expression costs more in PL/pgSQL than in a statement, as each transaction prepares each anew. So the statement says all that
-- it can, also when the unit counts from that has to leave the first window.
CREATE OR REPLACE FUNCTION workglow_limit.log_look(
    op text, lim text, k uuid, v bigint, known bigint, at bigint, p bigint[], a bigint[]
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
    last integer := cardinality(p);
    is_absent boolean := false;
    weight bigint := 1;
    ready bigint;
    stamp bigint;
    is_place boolean := false;
    back bigint;
    since bigint;
    room bigint[] := '{0,0}';
BEGIN
    IF op = 'decide' OR op = 'view' THEN
        weight := a[1];
    END IF;
    SELECT l.id, l.birth, l.floor, l.gate, l.born, l.made, l.booted, l.version, l.has_own, s.id AS log, s.birth AS of_birth, s.mark, s.stamp,
        s.total, s.units, s.count, s.gone, s.spacing, s.expires, s.seen, s.gate AS key_gate,
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
    -- The caller goes by a policy that is not the one that holds: it has to read that first.
    IF r.version IS DISTINCT FROM v THEN
        RETURN '{-1}';
    END IF;
    since := r.since;
    now := at;
    IF at IS NULL THEN
        now := workglow_limit.clock();
        IF r.booted IS DISTINCT FROM pg_postmaster_start_time() OR known > 0 AND known <> r.made AND r.made > r.born THEN
            RETURN ARRAY[2, r.id, r.birth, r.floor, greatest(now, r.floor, r.seen)];
        END IF;
        is_absent := r.expires <= now;
    END IF;
    IF is_absent OR r.of_birth IS DISTINCT FROM r.birth THEN
        -- Its own time is forgotten with it: by then nothing counts by it any more.
        is_absent := true;
        r.seen := 0; r.key_gate := 0;
        r.stamp := 0; r.total := 0; r.units := 0; r.count := 0; r.gone := 0; r.spacing := 0;
        since := 0;
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
    -- What may have been lost counts as a whole limit.
    IF r.born > 0 THEN
        gate := greatest(gate, r.born + longest);
    END IF;

    IF op = 'decide' THEN
        IF weight < 1 OR weight > capacity THEN
            RAISE invalid_parameter_value USING MESSAGE = 'a weight has to be 1 to the capacity';
        END IF;
    ELSIF op <> 'view' AND op <> 'record' THEN
        -- What is not there is not ended.
        IF is_absent AND op <> 'pause' AND NOT (op = 'settle' AND a[5] > a[3] AND a[2] + longest <= now) THEN
            RETURN CASE op
                WHEN 'present' THEN ARRAY[0, now, CASE WHEN now < a[5] THEN 2 ELSE 0 END, 0, 0]
                WHEN 'cancel' THEN ARRAY[0, now, 0]
                WHEN 'settle' THEN ARRAY[0, now, 0]
                ELSE ARRAY[0, now]
            END;
        END IF;
        RETURN ARRAY[1, r.id, r.birth, r.floor, now, gate, 0, 0, 0, 0, is_absent::integer];
    END IF;

    -- The earliest moment for the start, unless nobody asks for one.
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
            RETURN ARRAY[1, r.id, r.birth, r.floor, now, gate, ready, stamp, weight, is_place::integer, is_absent::integer];
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

-- Drops what is in no window any more, and what there is no room for.
CREATE OR REPLACE FUNCTION workglow_limit.log_trim(h workglow_limit.logs, now bigint, slice bigint, largest bigint, longest bigint, capacity bigint)
RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    holds bigint := workglow_limit.log_holds(slice, largest, capacity);
    since bigint := greatest(now - longest, 0);
    -- From which unit on it stays.
    cut bigint := h.total;
    dropped bigint;
BEGIN
    IF h.count < h.due AND h.units <= holds + holds / 8 THEN
        RETURN h;
    END IF;
    IF h.stamp > since THEN
        cut := (workglow_limit.log_since(h, since, false)).before;
        IF h.units > holds THEN
            cut := greatest(cut, (workglow_limit.log_at(h.id, h.total - holds)).before);
        END IF;
    END IF;
    IF cut > h.total - h.units THEN
        h.gone := greatest(h.gone, (workglow_limit.log_at(h.id, cut - 1)).stamp);
        -- (Without its lower end the search would find all that was ever dropped and is not tidied up yet.)
        DELETE FROM workglow_limit.starts WHERE id = h.id AND before >= h.total - h.units AND before < cut;
        GET DIAGNOSTICS dropped = ROW_COUNT;
        h.units := h.total - cut;
        h.count := h.count - dropped;
        IF h.units = 0 THEN
            h.stamp := 0;
        END IF;
    END IF;
    h.due := h.count + greatest(16, h.count / 8);
    RETURN h;
END $$;

-- Adds the newest start, or to the newest if that is a slice that has not ended. Its ticket is told in `ticket`.
CREATE OR REPLACE FUNCTION workglow_limit.log_push(
    INOUT h workglow_limit.logs, now bigint, p bigint[], at_stamp bigint, weight bigint, of_state "char", OUT ticket bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    s workglow_limit.starts;
    capacity bigint := p[3];
    largest bigint := p[3];
    longest bigint := p[4];
BEGIN
    FOR i IN 5 .. cardinality(p) BY 2 LOOP
        capacity := least(capacity, p[i]);
        largest := greatest(largest, p[i]);
        longest := greatest(longest, p[i + 1]);
    END LOOP;
    IF h.count >= h.due OR h.units > 2 * largest THEN
        h := workglow_limit.log_trim(h, now, p[1], largest, longest, capacity);
    END IF;
    IF of_state = 'M' AND now <= h.stamp THEN
        s := workglow_limit.log_at(h.id, h.total - 1);
        IF s.state = 'M' THEN
            UPDATE workglow_limit.starts SET units = units + weight WHERE id = h.id AND before = s.before;
            ticket := s.number;
        END IF;
    END IF;
    IF ticket IS NULL THEN
        h.stamp := greatest(at_stamp, h.stamp);
        h.number := h.number + 1;
        h.count := h.count + 1;
        ticket := h.number;
        INSERT INTO workglow_limit.starts (id, before, number, stamp, units, state)
        VALUES (h.id, h.total, ticket, h.stamp, weight, of_state);
    END IF;
    h.total := h.total + weight;
    h.units := h.units + weight;
END $$;

-- The newest stamp, after rows have been taken away.
CREATE OR REPLACE FUNCTION workglow_limit.log_end(h workglow_limit.logs) RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    h.stamp := CASE WHEN h.count > 0 THEN (workglow_limit.log_at(h.id, h.total - 1)).stamp ELSE 0 END;
    RETURN h;
END $$;

-- Leaves so many units to a row, and none of it if these are none.
CREATE OR REPLACE FUNCTION workglow_limit.log_shrink(h workglow_limit.logs, s workglow_limit.starts, left_over bigint, of_state "char")
RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    back bigint := s.units - left_over;
BEGIN
    IF left_over > 0 THEN
        UPDATE workglow_limit.starts SET units = left_over, state = of_state WHERE id = h.id AND before = s.before;
    ELSE
        DELETE FROM workglow_limit.starts WHERE id = h.id AND before = s.before;
        h.count := h.count - 1;
    END IF;
    UPDATE workglow_limit.starts SET before = before - back WHERE id = h.id AND before > s.before;
    h.total := h.total - back;
    h.units := h.units - back;
    RETURN workglow_limit.log_end(h);
END $$;

-- Units that are owed from now on.
CREATE OR REPLACE FUNCTION workglow_limit.log_owe(h workglow_limit.logs, now bigint, p bigint[], owed bigint)
RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    s workglow_limit.starts;
BEGIN
    IF p[1] > 0 THEN
        RETURN (workglow_limit.log_push(h, now, p, now + p[1] - 1, owed, 'M')).h;
    ELSIF h.stamp <= now THEN
        RETURN (workglow_limit.log_push(h, now, p, now, owed, 'X')).h;
    END IF;
    -- Places lie ahead of it.
    s := workglow_limit.log_since(h, now, false);
    UPDATE workglow_limit.starts SET before = before + owed WHERE id = h.id AND before >= s.before;
    -- Its number is no later one's; an earlier one that has it is found before it.
    INSERT INTO workglow_limit.starts (id, before, number, stamp, units, state)
    VALUES (h.id, s.before, s.number - 1, now, owed, 'X');
    h.total := h.total + owed;
    h.units := h.units + owed;
    h.count := h.count + 1;
    RETURN h;
END $$;

CREATE OR REPLACE FUNCTION workglow_limit.log_forget_jobs(h workglow_limit.logs) RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF h.ended > 0 THEN
        DELETE FROM workglow_limit.jobs WHERE id = h.id;
    END IF;
    h.ended := 0;
    h.took := 0;
    h.average := 0;
    RETURN h;
END $$;

-- The state that was written by another policy. What was started still counts. Places do not: they are exchanged when they are
-- presented.
CREATE OR REPLACE FUNCTION workglow_limit.log_change(h workglow_limit.logs, holds bigint) RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    dropped bigint;
    base bigint := h.total - h.units;
BEGIN
    h := workglow_limit.log_forget_jobs(h);
    h.mark := holds;
    h.spacing := 0;
    DELETE FROM workglow_limit.starts WHERE id = h.id AND state = 'P';
    GET DIAGNOSTICS dropped = ROW_COUNT;
    IF dropped > 0 THEN
        UPDATE workglow_limit.starts s SET before = n.moved
        FROM (
            SELECT ctid AS at, base + sum(units) OVER (ORDER BY before) - units AS moved FROM workglow_limit.starts WHERE id = h.id
        ) n
        WHERE s.ctid = n.at AND s.before <> n.moved;
        h.count := h.count - dropped;
        h.units := (SELECT coalesce(sum(units), 0) FROM workglow_limit.starts WHERE id = h.id);
        h.total := base + h.units;
        h := workglow_limit.log_end(h);
    END IF;
    RETURN h;
END $$;

-- Takes away what nobody needs any more, a little of it, whenever a key is new. Nobody waits for anybody here.
CREATE OR REPLACE FUNCTION workglow_limit.log_sweep(now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    o record;
    dropped bigint;
BEGIN
    FOR o IN
        SELECT limit_id, hash, id, ended FROM workglow_limit.logs WHERE expires <= now ORDER BY expires LIMIT 4 FOR UPDATE SKIP LOCKED
    LOOP
        -- (Whoever has not all of his starts is over, too: so he counts as absent.)
        DELETE FROM workglow_limit.starts WHERE ctid = ANY (ARRAY(SELECT ctid FROM workglow_limit.starts WHERE id = o.id LIMIT 250));
        GET DIAGNOSTICS dropped = ROW_COUNT;
        IF dropped < 250 THEN
            DELETE FROM workglow_limit.jobs WHERE id = o.id;
            DELETE FROM workglow_limit.logs WHERE limit_id = o.limit_id AND hash = o.hash;
        END IF;
    END LOOP;
END $$;

-- What writes, locks the key's row, and looks again by what is there then.
CREATE OR REPLACE FUNCTION workglow_limit.log_write(
    op text, lim text, k uuid, v bigint, known bigint, at bigint, patience bigint, p bigint[], a bigint[], looked bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    l bigint[] := looked;
    h workglow_limit.logs;
    s workglow_limit.starts;
    b workglow_limit.starts;
    pushed record;
    last integer := cardinality(p);
    longest bigint := p[4];
    now bigint;
    ticket bigint;
    value bigint;
    room bigint[] := '{0,0}';
    largest bigint := p[3];
    was boolean;
    answer bigint[];
BEGIN
    PERFORM workglow_limit.begin_writing(patience);
    LOOP
        SELECT * INTO h FROM workglow_limit.logs WHERE limit_id = l[2] AND hash = k FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO workglow_limit.logs (limit_id, hash, birth, mark, number, expires)
        VALUES (l[2], k, l[3], v, l[5], CASE WHEN at IS NULL THEN l[5] + 1000000 END) ON CONFLICT DO NOTHING;
        IF FOUND AND at IS NULL THEN
            PERFORM workglow_limit.log_sweep(l[5]);
        END IF;
    END LOOP;
    LOOP
        l := workglow_limit.log_look(op, lim, k, v, known, at, p, a);
        EXIT WHEN l[1] = 1;
        IF l[1] = 2 THEN
            PERFORM workglow_limit.loss(l[2], known, l[5]);
        ELSIF l[1] = 3 THEN
            h := workglow_limit.log_change(h, v);
            UPDATE workglow_limit.logs SET
                mark = h.mark, stamp = h.stamp, total = h.total, units = h.units, count = h.count, seen = l[5],
                spacing = h.spacing, average = h.average, ended = h.ended, took = h.took
            WHERE limit_id = h.limit_id AND hash = k;
        ELSE
            RETURN l;
        END IF;
    END LOOP;
    now := l[5];
    IF last > 4 THEN
        FOR i IN 5 .. last BY 2 LOOP
            largest := greatest(largest, p[i]);
            longest := greatest(longest, p[i + 1]);
        END LOOP;
    END IF;
    IF l[11] = 1 THEN
        -- A new life. (A row that was made just now has nothing to forget.)
        IF h.seen > 0 THEN
            DELETE FROM workglow_limit.starts WHERE id = h.id;
            h := workglow_limit.log_forget_jobs(h);
        END IF;
        h.birth := l[3]; h.mark := v; h.number := now; h.stamp := 0; h.total := 0; h.units := 0; h.count := 0; h.due := 16;
        h.gate := 0; h.gone := 0; h.spacing := 0;
        h.expires := CASE WHEN at IS NULL THEN 0 END;
    END IF;

    IF op = 'decide' OR op = 'record' THEN
        IF p[2] > 0 THEN
            IF h.count = 0 OR h.stamp + longest <= now THEN
                h := workglow_limit.log_forget_jobs(h);
            END IF;
            -- From the next start on; what was said of it holds.
            h.spacing := 1 + greatest(p[2] - h.average, 0);
        END IF;
        IF h.count >= h.due OR h.units > 2 * largest OR p[1] > 0 THEN
            pushed := workglow_limit.log_push(h, now, p, l[8], l[9], CASE WHEN l[10] = 1 THEN 'P' WHEN p[1] > 0 THEN 'M' ELSE 'S' END::"char");
            h := pushed.h;
            ticket := pushed.ticket;
        ELSE
            -- (The same as `log_push` does then.)
            h.stamp := greatest(l[8], h.stamp);
            ticket := h.number + 1;
            INSERT INTO workglow_limit.starts (id, before, number, stamp, units, state)
            VALUES (h.id, h.total, ticket, h.stamp, l[9], CASE WHEN l[10] = 1 THEN 'P' ELSE 'S' END);
            h.number := ticket;
            h.count := h.count + 1;
            h.total := h.total + l[9];
            h.units := h.units + l[9];
        END IF;
        IF a[8] = 1 THEN
            IF p[2] > 0 THEN
                p[last] := h.spacing - 1;
            END IF;
            room := workglow_limit.log_room(h, now, l[6], p, largest);
        END IF;
        answer := ARRAY[0, now, l[7], 1, ticket, h.stamp, 0, l[10], room[1], room[2]];

    ELSIF op = 'pause' THEN
        IF a[1] > 0 AND now + a[1] > h.gate THEN
            h.gate := now + a[1];
        END IF;
        answer := ARRAY[0, now, h.gate];

    ELSIF op = 'clear' THEN
        DELETE FROM workglow_limit.starts WHERE id = h.id;
        h := workglow_limit.log_forget_jobs(h);
        -- As a row of an earlier birth it counts as absent.
        h.birth := -1;
        answer := ARRAY[0, now];

    -- A job has ended. (Where no start is in a window, the next one forgets what jobs took.)
    ELSIF op = 'complete' THEN
        answer := ARRAY[0, now];
        IF p[2] = 0 OR h.count = 0 OR h.stamp + longest <= now THEN
            RETURN answer;
        END IF;
        value := greatest(now - a[1], 0);
        h.took := h.took + value - coalesce((SELECT took FROM workglow_limit.jobs WHERE id = h.id AND slot = h.ended % p[3]), 0);
        INSERT INTO workglow_limit.jobs (id, slot, took) VALUES (h.id, h.ended % p[3], value)
        ON CONFLICT (id, slot) DO UPDATE SET took = excluded.took;
        h.ended := h.ended + 1;
        h.average := least(div(h.took, least(h.ended, p[3])), p[2]);

    ELSE
        -- What the ticket stands for, while it is there.
        value := h.number - a[1];
        IF a[2] + longest > now AND h.count > 0 AND value >= 0 THEN
            s := workglow_limit.log_since(h, a[1], true);
            IF s.number IS DISTINCT FROM a[1] OR s.stamp <> a[2] OR s.units <> a[3] AND s.state <> 'M' OR s.state = 'X' THEN
                s := NULL;
            END IF;
        END IF;
        was := s.id IS NOT NULL;

        -- The rest of its grace comes back, but for what the one before still needs, and no more than a window.
        IF op = 'present' THEN
            IF now < a[5] THEN
                RETURN ARRAY[0, now, 2, 0, 0];
            ELSIF NOT was OR s.state <> 'P' OR now > a[2] OR l[6] > now THEN
                RETURN ARRAY[0, now, 0, 0, 0];
            END IF;
            ticket := a[1];
            value := greatest(now + greatest(p[1] - 1, 0), a[2] + 1 - longest);
            IF s.before > h.total - h.units THEN
                b := workglow_limit.log_at(h.id, s.before - 1);
                value := greatest(value, b.stamp);
            END IF;
            value := least(value, a[2]);
            was := s.before + s.units = h.total;
            IF p[1] > 0 AND b.state = 'M' AND b.stamp >= now THEN
                -- It joins the slice before it.
                DELETE FROM workglow_limit.starts WHERE id = h.id AND before = s.before;
                UPDATE workglow_limit.starts SET units = units + s.units WHERE id = h.id AND before = b.before;
                value := b.stamp;
                ticket := b.number;
                h.count := h.count - 1;
            ELSE
                UPDATE workglow_limit.starts SET stamp = value, state = CASE WHEN p[1] > 0 THEN 'M' ELSE 'S' END::"char"
                WHERE id = h.id AND before = s.before;
            END IF;
            IF was THEN
                h.stamp := value;
            END IF;
            answer := ARRAY[0, now, 1, value, ticket];

        ELSIF op = 'cancel' THEN
            IF NOT was OR a[5] = 1 AND s.state <> 'P' THEN
                RETURN ARRAY[0, now, 0];
            END IF;
            h := workglow_limit.log_shrink(h, s, greatest(s.units - a[3], 0), s.state);
            answer := ARRAY[0, now, 1];

        ELSIF op = 'settle' THEN
            IF NOT was AND (a[2] + longest > now OR a[5] <= a[3]) THEN
                RETURN ARRAY[0, now, 0];
            END IF;
            IF was AND a[5] < a[3] THEN
                h := workglow_limit.log_shrink(
                    h, s, greatest(s.units - a[3] + a[5], 0), CASE WHEN s.state = 'M' THEN 'M' ELSE 'X' END::"char");
            ELSIF was AND s.state <> 'M' THEN
                UPDATE workglow_limit.starts SET state = 'X' WHERE id = h.id AND before = s.before;
            END IF;
            IF a[5] > a[3] THEN
                value := p[3];
                FOR i IN 5 .. last BY 2 LOOP
                    value := least(value, p[i]);
                END LOOP;
                h := workglow_limit.log_owe(h, now, p, least(a[5] - a[3], value));
            END IF;
            answer := ARRAY[0, now, was::integer];
        ELSE
            RAISE invalid_parameter_value USING MESSAGE = 'a log knows no ' || op;
        END IF;
    END IF;

    UPDATE workglow_limit.logs SET
        birth = h.birth, mark = h.mark, stamp = h.stamp, total = h.total, number = h.number, units = h.units, count = h.count,
        seen = now, due = h.due, gate = h.gate, gone = h.gone, spacing = h.spacing, average = h.average, ended = h.ended,
        took = h.took,
        expires = CASE WHEN at IS NULL THEN workglow_limit.lives_until(h.expires, greatest(h.stamp + longest, h.gate), now) END
    WHERE limit_id = h.limit_id AND hash = k;
    IF now - l[4] > 1000000 THEN
        PERFORM workglow_limit.note_time(l[2], now);
    END IF;
    RETURN answer;
END $$;

-- decide weight delay patience grace reserves forced again looks  -> {0, now, ready, taken, ticket, stamp, ahead, is_place, remaining, empty}
--     The delay is for how long it may not start from now on; patience -1: endless.
-- record  -> the same: one unit, whether there is room or not
-- view weight -> {0, now, ready, remaining, empty}
-- present ticket stamp weight grace ready -> {0, now, started, stamp, ticket}: started 1, and it is known by these from now on; 0: it
--     is late, used, or overtaken by a gate or another policy; 2: too early, nothing has happened
-- cancel ticket stamp weight grace only_place, settle ticket stamp weight grace actual -> {0, now, was_there}
-- complete began -> {0, now}; pause delay -> {0, now, gate}; clear -> {0, now}
-- {-1}: another policy holds
CREATE OR REPLACE FUNCTION workglow_limit.decide_log(
    op text, lim text, k uuid, v bigint, known bigint, at bigint, patience bigint, p bigint[], a bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    looked bigint[] := workglow_limit.log_look(op, lim, k, v, known, at, p, a);
BEGIN
    IF looked[1] <= 0 THEN
        RETURN looked;
    END IF;
    RETURN workglow_limit.log_write(op, lim, k, v, known, at, patience, p, a, looked);
END $$;
