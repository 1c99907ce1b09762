-- The writing part of the log. For its structure and proof, see log.sql.

-- Drops starts that are in no window any more, and starts for which there is no space.
CREATE OR REPLACE FUNCTION workglow_limit.log_trim(h workglow_limit.logs, now bigint, slice bigint, largest bigint, longest bigint, capacity bigint)
RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    holds bigint := workglow_limit.log_holds(slice, largest, capacity);
    since bigint := greatest(now - longest, 0);
    -- The unit from which on starts stay.
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
        -- Without the lower end, the search would visit everything that was ever dropped and not vacuumed yet.
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

-- Adds the newest start, to the newest row if that is a slice in progress. Returns its ticket in `ticket`.
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

-- The newest stamp, after rows have been removed.
CREATE OR REPLACE FUNCTION workglow_limit.log_end(h workglow_limit.logs) RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    h.stamp := CASE WHEN h.count > 0 THEN (workglow_limit.log_at(h.id, h.total - 1)).stamp ELSE 0 END;
    RETURN h;
END $$;

-- Leaves this many units in a row, or removes the row if there are none; and sets its stamp and its ended takings to
-- the given ones.
CREATE OR REPLACE FUNCTION workglow_limit.log_shrink(h workglow_limit.logs, s workglow_limit.starts, left_over bigint, of_state "char")
RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    back bigint := s.units - left_over;
BEGIN
    IF left_over > 0 THEN
        UPDATE workglow_limit.starts SET units = left_over, state = of_state, stamp = s.stamp, ended = s.ended
        WHERE id = h.id AND before = s.before;
    ELSE
        DELETE FROM workglow_limit.starts WHERE id = h.id AND before = s.before;
        h.count := h.count - 1;
    END IF;
    IF back > 0 THEN
        UPDATE workglow_limit.starts SET before = before - back WHERE id = h.id AND before > s.before;
    END IF;
    h.total := h.total - back;
    h.units := h.units - back;
    RETURN workglow_limit.log_end(h);
END $$;

-- Adds units that are owed from now on.
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
    -- No later start has its number. An earlier one with that number is found before it.
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

-- Makes dropped starts count that the windows of this policy may contain, as late as the policy of the state, which has
-- admitted them, allows. (See `History::remember` in history.rs, which does the same.)
CREATE OR REPLACE FUNCTION workglow_limit.log_remember(h workglow_limit.logs, now bigint, p bigint[]) RETURNS workglow_limit.logs
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    forever bigint := 4503599627370496;
    largest bigint := p[3];
    longest bigint := p[4];
    lost bigint := h.total - h.units;
    since bigint;
    -- The windows that have admitted the starts, and of each: how many units more it allows at any time; the unit that is as
    -- many units later as it allows, as its run and the units of that run before it.
    limits bigint[] := '{}';
    lengths bigint[] := '{}';
    free bigint[];
    run integer[];
    at bigint[];
    -- From the newest unit back.
    stamps bigint[] := '{}';
    units bigint[] := '{}';
    -- The starts that count again.
    pad_stamps bigint[] := '{}';
    pad_units bigint[] := '{}';
    pads integer := 0;
    s record;
    numbers bigint[];
    is_within boolean := true;
    wanted bigint;
    remaining bigint;
    stamp bigint := h.gone;
    latest bigint;
    most bigint;
    used bigint;
    newest integer;
    oldest bigint;
BEGIN
    FOR i IN 5 .. cardinality(p) BY 2 LOOP
        largest := greatest(largest, p[i]);
        longest := greatest(longest, p[i + 1]);
    END LOOP;
    since := greatest(now - longest, 0);
    IF h.gone <= since OR lost <= 0 OR largest <= h.units THEN
        RETURN h;
    END IF;
    IF NOT h.mixed THEN
        numbers := (SELECT o.numbers FROM workglow_limit.policies o WHERE o.version = h.mark);
        -- The length of an interval that adapts is not known.
        FOR i IN 3 .. coalesce(cardinality(numbers) - CASE WHEN numbers[2] > 0 THEN 2 ELSE 0 END, 0) BY 2 LOOP
            limits := limits || numbers[i];
            lengths := lengths || numbers[i + 1];
        END LOOP;
    END IF;
    free := limits;
    run := array_fill(1, ARRAY[cardinality(limits)]);
    at := array_fill(0::bigint, ARRAY[cardinality(limits)]);
    wanted := least(largest - h.units, lost);
    -- The known starts first, then the others.
    FOR s IN
        (SELECT e.stamp, e.units, false AS is_lost FROM workglow_limit.starts e WHERE e.id = h.id ORDER BY e.before DESC)
        UNION ALL
        SELECT 0, wanted, true
    LOOP
        remaining := s.units;
        IF s.is_lost AND NOT is_within THEN
            -- There are debts, or starts recorded beyond the limit.
            free := limits;
            run := array_fill(cardinality(stamps) + 1, ARRAY[cardinality(limits)]);
            at := array_fill(0::bigint, ARRAY[cardinality(limits)]);
        END IF;
        WHILE remaining > 0 LOOP
            latest := forever;
            most := remaining;
            FOR i IN 1 .. cardinality(limits) LOOP
                IF free[i] > 0 THEN
                    most := least(most, free[i]);
                ELSE
                    latest := least(latest, stamps[run[i]] - lengths[i]);
                    most := least(most, units[run[i]] - at[i]);
                END IF;
            END LOOP;
            IF s.is_lost THEN
                -- With that many rows, the others count as the last one.
                IF pads < 8192 THEN
                    stamp := greatest(least(stamp, latest), 0);
                ELSE
                    most := remaining;
                END IF;
                EXIT WHEN stamp <= since;
                IF pads > 0 AND pad_stamps[pads] - stamp < greatest(p[1], 1) THEN
                    pad_units[pads] := pad_units[pads] + most;
                ELSE
                    pads := pads + 1;
                    pad_stamps[pads] := stamp;
                    pad_units[pads] := most;
                END IF;
                lost := lost - most;
            ELSE
                is_within := is_within AND s.stamp <= latest;
                stamp := least(h.gone, s.stamp);
            END IF;
            newest := cardinality(stamps) + 1;
            stamps[newest] := CASE WHEN s.is_lost THEN stamp ELSE s.stamp END;
            units[newest] := most;
            FOR i IN 1 .. cardinality(limits) LOOP
                used := least(free[i], most);
                free[i] := free[i] - used;
                at[i] := at[i] + most - used;
                WHILE run[i] <= cardinality(stamps) AND at[i] >= units[run[i]] LOOP
                    at[i] := at[i] - units[run[i]];
                    run[i] := run[i] + 1;
                END LOOP;
            END LOOP;
            remaining := remaining - most;
        END LOOP;
    END LOOP;
    -- No later start has their number. An earlier one with that number is found before them.
    oldest := coalesce((SELECT e.number FROM workglow_limit.starts e WHERE e.id = h.id ORDER BY e.before LIMIT 1), h.number) - 1;
    INSERT INTO workglow_limit.starts (id, before, number, stamp, units, state)
    SELECT h.id, lost + sum(o.units) OVER (ORDER BY o.place DESC) - o.units, oldest, o.stamp, o.units, 'X'
    FROM unnest(pad_stamps, pad_units) WITH ORDINALITY AS o (stamp, units, place);
    h.gone := CASE WHEN lost > 0 THEN stamp ELSE 0 END;
    h.units := h.total - lost;
    h.count := h.count + pads;
    RETURN workglow_limit.log_end(h);
END $$;

-- Converts a state of another policy. Earlier starts still count. Places do not: they are exchanged when they are
-- presented.
CREATE OR REPLACE FUNCTION workglow_limit.log_change(h workglow_limit.logs, now bigint, holds bigint, p bigint[]) RETURNS workglow_limit.logs
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    dropped bigint;
    base bigint := h.total - h.units;
BEGIN
    h := workglow_limit.log_forget_jobs(h);
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
    h := workglow_limit.log_remember(h, now, p);
    h.mark := holds;
    h.mixed := h.count > 0 OR h.gone > 0;
    RETURN h;
END $$;

-- Removes some unneeded rows, whenever a key is new. It never waits for locks.
CREATE OR REPLACE FUNCTION workglow_limit.log_sweep(now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    o record;
    dropped bigint;
BEGIN
    FOR o IN
        SELECT limit_id, hash, id, mark FROM workglow_limit.logs WHERE expires <= now ORDER BY expires LIMIT 4 FOR UPDATE SKIP LOCKED
    LOOP
        UPDATE workglow_limit.logs SET expires = workglow_limit.kept_until(limit_id, hash, mark)
        WHERE limit_id = o.limit_id AND hash = o.hash AND workglow_limit.kept_until(limit_id, hash, mark) > now;
        CONTINUE WHEN FOUND;
        -- A log that has lost some of its starts is expired, too, so it counts as absent.
        DELETE FROM workglow_limit.starts WHERE ctid = ANY (ARRAY(SELECT ctid FROM workglow_limit.starts WHERE id = o.id LIMIT 250));
        GET DIAGNOSTICS dropped = ROW_COUNT;
        IF dropped < 250 THEN
            DELETE FROM workglow_limit.jobs WHERE id = o.id;
            DELETE FROM workglow_limit.sites WHERE id = o.id;
            DELETE FROM workglow_limit.logs WHERE limit_id = o.limit_id AND hash = o.hash;
        END IF;
    END LOOP;
END $$;

-- Returns whether this taking of a grant may be given back or settled. Each may once, while there is space to record
-- it.
CREATE OR REPLACE FUNCTION workglow_limit.log_can_end(ended bigint[], taking bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT ended IS NULL OR cardinality(ended) < 2000 AND taking <> ALL (ended)
$$;

-- Ends grants: nothing starts from them any more. The reported number of their units stays; those started before now.
CREATE OR REPLACE FUNCTION workglow_limit.log_finish(h workglow_limit.logs, now bigint, p bigint[], longest bigint, reports bigint[])
RETURNS workglow_limit.logs LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    s workglow_limit.starts;
    stay bigint;
    before_it bigint;
    is_newest boolean;
BEGIN
    FOR i IN 1 .. cardinality(reports) BY 5 LOOP
        -- It counts at least this long.
        CONTINUE WHEN reports[i + 1] + longest <= now OR h.count = 0 OR h.number < reports[i];
        s := workglow_limit.log_since(h, reports[i], true);
        CONTINUE WHEN s.number IS DISTINCT FROM reports[i] OR s.state <> 'G' OR s.stamp > reports[i + 1] AND NOT h.is_moved;
        stay := reports[i + 2];
        IF reports[i + 3] > 0 OR reports[i + 4] > 0 THEN
            FOR bit IN 0 .. 63 LOOP
                IF (CASE WHEN bit < 32 THEN reports[i + 3] ELSE reports[i + 4] END >> (bit % 32)) & 1 = 1
                    AND workglow_limit.log_can_end(s.ended, bit + 1)
                THEN
                    s.ended := s.ended || (bit + 1)::bigint;
                END IF;
            END LOOP;
        END IF;
        before_it := h.gone;
        IF s.before > h.total - h.units THEN
            before_it := (workglow_limit.log_at(h.id, s.before - 1)).stamp;
        END IF;
        s.stamp := least(s.stamp, greatest(before_it, now + 1 + greatest(p[1] - 1, 0)));
        IF stay < s.units THEN
            h := workglow_limit.log_shrink(h, s, stay, 'G');
        ELSE
            is_newest := s.before + s.units = h.total;
            UPDATE workglow_limit.starts SET stamp = s.stamp, ended = s.ended
            WHERE id = h.id AND before = s.before AND (stamp, ended) IS DISTINCT FROM (s.stamp, s.ended);
            IF is_newest THEN
                h.stamp := s.stamp;
            END IF;
        END IF;
    END LOOP;
    RETURN h;
END $$;

-- Grants a machine (a *site*) units that it may start without a request, and takes back unused units of earlier grants.
-- A grant of k units is a place for k: they start from `ready` on, before `ready + g`, and count from then on. So it is
-- a row of the log like any other. Its stamp is a tick later, because `now` was rounded down. Grants that are ready
-- later than now are promises.
--
-- The caller holds the limit (see `hold`). So a caller that has changed a policy or closed a gate finds all earlier
-- grants in `said` and `out`. `born`: of the limit, at the moment for which `gate` is known; nothing is granted before `hold`.
CREATE OR REPLACE FUNCTION workglow_limit.log_grant(
    INOUT h workglow_limit.logs, now bigint, gate bigint, hold bigint, born bigint, p bigint[], a bigint[], OUT answer bigint[]
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    -- A promise lies at most this many lengths of a grant ahead. Over that time, clocks drift apart by a fifth of one.
    far bigint := 100;
    of_site bigint := a[1];
    of_seq bigint := a[2];
    want bigint := a[3];
    least_units bigint := a[4];
    future bigint := a[5];
    most bigint := a[6];
    g bigint := a[7];
    trust bigint := workglow_limit.log_trust(p);
    opens bigint := greatest(gate, hold);
    capacity bigint := p[3];
    largest bigint := p[3];
    longest bigint := p[4];
    last_one workglow_limit.sites;
    s workglow_limit.starts;
    granted bigint[] := '{}';
    noted bigint[] := '{}';
    share bigint;
    free bigint;
    given bigint;
    rest bigint;
    units bigint;
    fails bigint;
    middle bigint;
    ready bigint;
    latest bigint;
    keeps bigint;
    dropped bigint;
    pushed record;
    room bigint[];
BEGIN
    FOR i IN 5 .. cardinality(p) BY 2 LOOP
        capacity := least(capacity, p[i]);
        largest := greatest(largest, p[i]);
        longest := greatest(longest, p[i + 1]);
    END LOOP;
    IF hold > now THEN
        most := 0;
    END IF;
    IF cardinality(a) > 7 THEN
        h := workglow_limit.log_finish(h, now, p, longest, a[8:]);
    END IF;

    SELECT * INTO last_one FROM workglow_limit.sites t WHERE t.id = h.id AND t.site = of_site;
    IF last_one.seq = of_seq THEN
        FOR i IN 1 .. cardinality(last_one.granted) BY 4 LOOP
            CONTINUE WHEN last_one.granted[i + 2] <= now OR h.count = 0 OR h.number < last_one.granted[i];
            s := workglow_limit.log_since(h, last_one.granted[i], true);
            IF s.number = last_one.granted[i] AND s.state = 'G' AND s.stamp <= last_one.granted[i + 3] AND NOT h.is_moved THEN
                granted := granted || last_one.granted[i : i + 3] || s.units;
            END IF;
        END LOOP;
    END IF;
    -- If nothing of it can start any more, it counts as reset.
    IF coalesce(last_one.seq, 0) <= of_seq AND granted = '{}' THEN
        share := greatest((capacity - 1) / (6 * greatest(8, h.sites)) + 1, least_units);
        room := workglow_limit.log_room(h, now, opens, p, largest);
        free := room[1];
        -- Whole starts: the rest of one would be of no use.
        given := least(want, free, greatest(share, free / 2));
        given := given - given % least_units;
        IF most <= 0 THEN
            given := 0;
        END IF;
        rest := least(future, share) - given;
        units := given;
        ready := now;
        LOOP
            IF units > 0 THEN
                pushed := workglow_limit.log_push(h, now, p, ready + g + 1 + greatest(p[1] - 1, 0), units, 'G');
                h := pushed.h;
                granted := granted || ARRAY[pushed.ticket, ready, ready + g, h.stamp, units];
                noted := noted || ARRAY[pushed.ticket, ready, ready + g, h.stamp];
                h.out := greatest(h.out, ready + g);
                most := most - 1;
            END IF;
            EXIT WHEN free - given >= least_units OR rest < least_units OR most <= 0 OR h.units >= workglow_limit.log_holds(p[1], largest, capacity);
            -- As many as are ready at about that time.
            ready := workglow_limit.log_ready(h, opens, least_units, p);
            EXIT WHEN ready - now > far * g;
            latest := ready + g / 8;
            units := least_units;
            fails := rest + 1;
            WHILE fails - units > 1 LOOP
                middle := (units + fails) / 2;
                IF workglow_limit.log_ready(h, opens, middle, p) <= latest THEN
                    units := middle;
                ELSE
                    fails := middle;
                END IF;
            END LOOP;
            units := units - units % least_units;
            ready := greatest(workglow_limit.log_ready(h, opens, units, p), now);
            rest := rest - units;
        END LOOP;
        -- Sites that have not asked for long are forgotten whenever their number has doubled. At least for this long it
        -- is known which sites have asked.
        IF h.sites >= h.sites_due THEN
            keeps := greatest(longest, 60000000);
            DELETE FROM workglow_limit.sites t WHERE t.id = h.id AND t.asked + keeps <= now;
            GET DIAGNOSTICS dropped = ROW_COUNT;
            h.sites := h.sites - dropped;
            h.sites_due := 2 * h.sites + 32;
        END IF;
        UPDATE workglow_limit.sites t SET asked = now, seq = of_seq, granted = noted WHERE t.id = h.id AND t.site = of_site;
        IF NOT FOUND THEN
            INSERT INTO workglow_limit.sites (id, site, asked, seq, granted) VALUES (h.id, of_site, now, of_seq, noted);
            h.sites := h.sites + 1;
        END IF;
    END IF;
    h.said := greatest(h.said, now + trust);
    room := workglow_limit.log_room(h, now, opens, p, largest);
    ready := greatest(workglow_limit.log_ready(h, opens, least_units, p), now + 1);
    answer := ARRAY[0, now, born, gate, ready, room[1], room[2]] || granted;
END $$;

-- Moves a log, because the server's clock was set.
CREATE OR REPLACE FUNCTION workglow_limit.log_move(h workglow_limit.logs, moves bigint[], now bigint) RETURNS workglow_limit.logs
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE workglow_limit.starts SET stamp = workglow_limit.moved(stamp, moves, now) WHERE id = h.id AND before >= h.total - h.units;
    h.stamp := workglow_limit.moved(h.stamp, moves, now);
    h.gone := workglow_limit.moved(h.gone, moves, now);
    IF h.gate > h.seen THEN
        h.gate := workglow_limit.moved(h.gate, moves, now);
    END IF;
    h.is_moved := true;
    RETURN h;
END $$;

-- Locks the key's row, looks again at what is there, and writes.
CREATE OR REPLACE FUNCTION workglow_limit.log_write(
    op text, lim text, k uuid, v bigint, known bigint[], at bigint, patience bigint, p bigint[], a bigint[], looked bigint[]
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
    granted record;
    answer bigint[];
BEGIN
    IF last > 4 THEN
        FOR i IN 5 .. last BY 2 LOOP
            largest := greatest(largest, p[i]);
            longest := greatest(longest, p[i + 1]);
        END LOOP;
    END IF;
    PERFORM workglow_limit.begin_writing(patience);
    IF op = 'grant' THEN
        PERFORM workglow_limit.hold(l[2], false);
    END IF;
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
            PERFORM workglow_limit.attend(l[2], known);
            known := known[1:1];
        ELSIF l[1] >= 3 THEN
            IF l[1] = 3 THEN
                h := workglow_limit.log_change(h, l[5], v, p);
            ELSE
                h := workglow_limit.log_move(h, l[6:7], l[5]);
                h.ahead := l[8];
            END IF;
            IF at IS NULL THEN
                h.expires := workglow_limit.lives_until(h.expires, greatest(greatest(h.stamp, h.gone) + longest, h.gate, h.said), l[5]);
            END IF;
            UPDATE workglow_limit.logs SET
                mark = h.mark, stamp = h.stamp, total = h.total, units = h.units, count = h.count, seen = l[5],
                gone = h.gone, mixed = h.mixed, spacing = h.spacing, average = h.average, ended = h.ended, took = h.took, gate = h.gate,
                ahead = h.ahead, is_moved = h.is_moved, expires = h.expires
            WHERE limit_id = h.limit_id AND hash = k;
        ELSE
            RETURN l;
        END IF;
    END LOOP;
    now := l[5];
    IF l[11] = 1 THEN
        -- A new life. (A row that was just created has nothing to forget.)
        IF h.count > 0 OR h.ended > 0 THEN
            DELETE FROM workglow_limit.starts WHERE id = h.id;
            h := workglow_limit.log_forget_jobs(h);
        END IF;
        h.birth := l[3]; h.mark := v; h.number := now; h.stamp := 0; h.total := 0; h.units := 0; h.count := 0; h.due := 16;
        h.gate := 0; h.gone := 0; h.mixed := false; h.spacing := 0; h.ahead := l[13]; h.is_moved := false;
        h.expires := CASE WHEN at IS NULL THEN 0 END;
    END IF;

    IF op = 'decide' OR op = 'record' THEN
        IF p[2] > 0 THEN
            IF h.count = 0 OR h.stamp + longest <= now THEN
                h := workglow_limit.log_forget_jobs(h);
            END IF;
            -- From the next start on. A reported time for it still applies.
            h.spacing := 1 + greatest(p[2] - h.average, 0);
        END IF;
        IF h.count >= h.due OR h.units > 2 * largest OR p[1] > 0 THEN
            pushed := workglow_limit.log_push(h, now, p, l[8], l[9], CASE WHEN l[10] = 1 THEN 'P' WHEN p[1] > 0 THEN 'M' ELSE 'S' END::"char");
            h := pushed.h;
            ticket := pushed.ticket;
        ELSE
            -- The same as `log_push` does in that case.
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

    ELSIF op = 'grant' THEN
        -- While the server's clock is behind a time that it has shown before, nothing is granted and nothing changes.
        -- The clock may be set right again, and starts that were granted or ended in between would count from too
        -- early.
        value := coalesce(at, workglow_limit.clock());
        IF value < now THEN
            RETURN ARRAY[0, now, l[7], l[6], 2 * now - value, 0, now];
        END IF;
        granted := workglow_limit.log_grant(h, now, l[6], l[12], l[7], p, a);
        h := granted.h;
        answer := granted.answer;

    ELSIF op = 'pause' THEN
        IF a[1] > 0 AND now + a[1] > h.gate THEN
            h.gate := now + a[1];
        END IF;
        answer := ARRAY[0, now, h.gate];

    ELSIF op = 'clear' THEN
        DELETE FROM workglow_limit.starts WHERE id = h.id;
        h := workglow_limit.log_forget_jobs(h);
        h.stamp := 0; h.total := 0; h.units := 0; h.count := 0; h.gone := 0; h.mixed := false; h.spacing := 0;
        -- Machines may still start what they were granted.
        h.gate := least(h.out, h.said);
        UPDATE workglow_limit.limits SET cleared = now WHERE id = l[2];
        IF h.gate <= now THEN
            -- As a row of an earlier birth it counts as absent.
            h.birth := -1;
        END IF;
        answer := ARRAY[0, now];

    -- A job has ended. (If no start is in a window, the next start forgets the durations of jobs.)
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
        -- The row of the ticket, while it exists.
        value := h.number - a[1];
        IF a[2] + longest > now AND h.count > 0 AND value >= 0 THEN
            s := workglow_limit.log_since(h, a[1], true);
            -- A grant may have ended sooner than the caller that started from it knows.
            IF s.number IS DISTINCT FROM a[1] OR s.state = 'X' OR s.state <> 'G' AND s.units <> a[3] AND s.state <> 'M'
                OR NOT h.is_moved AND (s.stamp > a[2] OR s.state <> 'G' AND s.stamp <> a[2])
            THEN
                s := NULL;
            END IF;
        END IF;
        was := s.id IS NOT NULL;

        -- The rest of its grace is returned, except for what the row before still needs, and at most a window.
        IF op = 'present' THEN
            -- It has been moved with the others.
            IF was THEN
                a[5] := a[5] + s.stamp - a[2];
                a[2] := s.stamp;
            END IF;
            IF now < a[5] THEN
                RETURN ARRAY[0, now, 2, a[5], 0];
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
            IF NOT was OR a[5] = 1 AND s.state <> 'P' OR s.state = 'G' AND NOT workglow_limit.log_can_end(s.ended, a[4]) THEN
                RETURN ARRAY[0, now, 0];
            END IF;
            IF s.state = 'G' THEN
                s.ended := s.ended || a[4];
            END IF;
            h := workglow_limit.log_shrink(h, s, greatest(s.units - a[3], 0), s.state);
            answer := ARRAY[0, now, 1];

        ELSIF op = 'settle' THEN
            IF NOT was AND (a[2] + longest > now OR a[5] <= a[3])
                OR s.state = 'G' AND NOT workglow_limit.log_can_end(s.ended, a[4])
            THEN
                RETURN ARRAY[0, now, 0];
            END IF;
            IF s.state = 'G' THEN
                s.ended := s.ended || a[4];
            END IF;
            IF was AND a[5] < a[3] THEN
                h := workglow_limit.log_shrink(
                    h, s, greatest(s.units - a[3] + a[5], 0), CASE WHEN s.state IN ('M', 'G') THEN s.state ELSE 'X' END::"char");
            ELSIF s.state = 'G' THEN
                UPDATE workglow_limit.starts SET ended = s.ended WHERE id = h.id AND before = s.before;
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
        seen = now, due = h.due, gate = h.gate, gone = h.gone, mixed = h.mixed, ahead = h.ahead, is_moved = h.is_moved, spacing = h.spacing, average = h.average, ended = h.ended,
        took = h.took, out = h.out, said = h.said, sites = h.sites, sites_due = h.sites_due,
        expires = CASE WHEN at IS NULL THEN workglow_limit.lives_until(h.expires, greatest(h.stamp + longest, h.gate, h.said), now) END
    WHERE limit_id = h.limit_id AND hash = k;
    IF now - l[4] > 1000000 THEN
        PERFORM workglow_limit.note_time(l[2], now);
    END IF;
    RETURN answer;
END $$;

-- decide weight delay patience grace reserves forced again looks  -> {0, now, ready, taken, ticket, stamp, ahead, is_place, remaining,
--     empty}
--     The delay: no start before this much later; patience -1: unlimited.
-- record  -> the same: one unit, whether there is capacity or not
-- view weight -> {0, now, ready, remaining, empty}
-- grant site seq want least future most g reports… -> {0, now, born, gate, next, remaining, empty, then of each grant: ticket,
--     ready, end, stamp, units}
--     want: how many now; least: the minimum of a grant; future: how many later, if there are none now; most: the maximum number of
--     grants; g: how long each lasts; reports: of earlier grants that have ended: ticket, stamp, how many units stay (the others
--     will never start), and which of the first 64 takings were given back, in two words. A report has the same effect however often
--     it comes. next: when `least` more become free; remaining, empty: as of `view`. The requests of a site are numbered, in growing
--     order. If its last request is repeated, the answer is the same grants.
-- present ticket stamp weight grace ready -> {0, now, started, stamp, ticket}: started 1, and it is identified by these from now on;
--     0: it is late, used, or overtaken by a gate or another policy; 2: too early, nothing has happened
-- cancel ticket stamp weight taking only_place, settle ticket stamp weight taking actual -> {0, now, was_there}; taking: of a grant
-- complete began -> {0, now}; pause delay -> {0, now, gate}; clear -> {0, now}
-- {-1}: another policy applies
CREATE OR REPLACE FUNCTION workglow_limit.decide_log(
    op text, lim text, k uuid, v bigint, known bigint[], at bigint, patience bigint, p bigint[], a bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    looked bigint[] := workglow_limit.log_look(op, lim, k, v, known, at, p, a);
BEGIN
    IF looked[1] <= 0 THEN
        RETURN looked;
    END IF;
    RETURN workglow_limit.log_write(op, lim, k, v, known, at, patience, p, a, looked);
END $$;
