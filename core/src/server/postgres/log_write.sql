-- How a log is written. (What it is, and why it is right: log.sql.)

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
        IF h.count > 0 OR h.ended > 0 THEN
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
