-- Fixed windows and the sliding window counter, aligned to 1970. (counted.sql, then this.)
--
-- Policy: limit, length, is_smooth, phase. The phase is the Unix time of tick 0 in µs (0 with a test's clock).
--
-- State of a row of `counted`, family w:
--
--   1  the newest window in which anything is counted, a number since 1970
--   2  its units
--   3  the units of the window before it
--   4  the first window in which anything may have been counted
--   5  the units that were counted earlier, by another policy; or in that window or later, beyond the limit
--   6  until when
--
-- A start of weight w fits into its window if `units + w <= limit`; in the sliding window counter, if `before * (length
-- - elapsed) + (units + w) * length <= limit * length`, where `before` is the number of units of the window before. It
-- takes the first moment with capacity from the newest window on, which is solved for. A start in the future (a place)
-- is counted in the window in which it is ready, and is valid until that window ends.
--
-- Why it is right. No start is counted in a window older than the newest, so the count of the window before is final. A
-- start happens no earlier than `ready` and no later than `stamp`, the last tick of the window that counts it; later in
-- a window there is only more capacity. So a window never holds more than the limit. If a clock is set back, the newest
-- window is in the future, and starts are counted there. The counts of windows before the last two are no longer known.
-- Where that might matter, because a place in the newest window was given back, or the policy changes, such a window
-- counts as full (`window_set`, `window_carry`).
--
-- Units are below 2^30, and a length is below 2^45.

-- Sets the counts: `units[i]` in `windows[i]`. The unknown window `lost` counts as full.
CREATE OR REPLACE FUNCTION workglow_limit.window_set(windows bigint[], units bigint[], lost bigint, here bigint, capacity bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    newest bigint := greatest(here, lost);
    counted bigint[] := '{0,0}';
    missing bigint := capacity;
BEGIN
    FOR i IN 1 .. cardinality(windows) LOOP
        missing := missing - units[i];
        IF units[i] > 0 THEN
            newest := greatest(newest, windows[i]);
        END IF;
    END LOOP;
    IF lost IS NOT NULL AND missing > 0 THEN
        windows := windows || lost;
        units := units || missing;
    END IF;
    FOR i IN 1 .. cardinality(windows) LOOP
        IF windows[i] = newest THEN
            counted[1] := counted[1] + units[i];
        ELSIF windows[i] = newest - 1 THEN
            counted[2] := counted[2] + units[i];
        END IF;
    END LOOP;
    FOR i IN 0 .. 1 LOOP
        IF lost >= newest - i AND newest - i >= 0 THEN
            counted[i + 1] := greatest(counted[i + 1], capacity);
        END IF;
    END LOOP;
    RETURN ARRAY[newest, least(counted[1], 1073741823), least(counted[2], 1073741823)];
END $$;

-- Converts a state to another policy. Units of a window that had begun count at its end or, if that had not come, at
-- the time of the change. Places are not carried over.
CREATE OR REPLACE FUNCTION workglow_limit.window_carry(state bigint[], old bigint[], changed bigint, p bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    windows bigint[] := '{}';
    units bigint[] := '{}';
    phase bigint := p[4];
    here bigint := (changed + phase) / p[2];
    last bigint := least(state[1] - 2, (changed + phase) / old[2]);
    begins bigint;
    -- What is older than both windows stays known only as a number.
    lost bigint := 0;
BEGIN
    FOR i IN 0 .. 1 LOOP
        IF (state[1] - i) * old[2] - phase <= changed THEN
            windows := windows || (least((state[1] - i + 1) * old[2] - 1 - phase, changed) + phase) / p[2];
            units := units || state[2 + i];
        END IF;
    END LOOP;
    -- Any other one may have been full.
    FOR i IN 0 .. 1 LOOP
        begins := greatest((here - i) * p[2] / old[2], state[4]);
        IF last >= begins THEN
            windows := windows || here - i;
            units := units || least((last - begins + 1) * old[1], 1073741823);
            last := begins - 1;
        END IF;
    END LOOP;
    lost := greatest(last - state[4] + 1, 0) * old[1];
    IF state[5] > 0 THEN
        windows := windows || (least(state[6], changed) + phase) / p[2];
        units := units || state[5];
    END IF;
    FOR i IN 1 .. cardinality(windows) LOOP
        IF windows[i] < here - 1 THEN
            lost := lost + units[i];
        END IF;
    END LOOP;
    state := workglow_limit.window_set(windows, units, NULL, here, p[1]);
    lost := lost + greatest(state[2] - p[1], 0) + greatest(state[3] - p[1], 0);
    RETURN state || ARRAY[here - 1, least(lost, 1073741823), changed];
END $$;

-- The first moment from this tick on with capacity for this weight: the window, and the tick. The second window after
-- the newest has nothing in it and nothing before it. (2^52: never, since no window has that capacity.)
CREATE OR REPLACE FUNCTION workglow_limit.window_earliest(state bigint[], p bigint[], weight bigint, since bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    first bigint := greatest((since + p[4]) / p[2], state[1]);
    units bigint;
    before bigint;
    room bigint;
    begins bigint;
    elapsed bigint;
BEGIN
    FOR this IN first .. first + 2 LOOP
        units := CASE this WHEN state[1] THEN state[2] WHEN state[1] - 1 THEN state[3] ELSE 0 END;
        before := CASE WHEN p[3] = 0 THEN 0 WHEN this - 1 = state[1] THEN state[2] WHEN this = state[1] THEN state[3] ELSE 0 END;
        begins := this * p[2] - p[4];
        room := p[1] - units - weight;
        elapsed := greatest(since - begins, 0);
        IF room >= 0 THEN
            IF room < before THEN
                elapsed := greatest(elapsed, p[2] - div(room::numeric * p[2], before)::bigint);
            END IF;
            IF elapsed < p[2] THEN
                RETURN ARRAY[this, begins + elapsed];
            END IF;
        END IF;
    END LOOP;
    RETURN ARRAY[first, 4503599627370496];
END $$;

-- decide, record  -> {0, now, ready, taken, ticket, stamp, ahead, is_place, newest, units, before, gate}; ahead is 0
-- view            -> {0, now, ready, newest, units, before, gate}
--     The returned state is the one after the decision, with the later of both gates. From them the caller computes what remains and
--     when the key is empty. (The state of an unused key is 0.) decide weight delay patience (grace) reserves forced again; record (one
--     unit, forced); view weight (may be 0). The delay: no start before this much later; patience -1: unlimited.
-- cancel ticket stamp weight ahead only_place, settle ticket stamp weight ahead actual -> {0, now, was_there}
-- present, pause, clear: see counted.sql.
-- adopt           -> {0, now}: rewrites the state under the policy that applies, so that it lives as long as that policy needs.
CREATE OR REPLACE FUNCTION workglow_limit.decide_window(
    op text, lim text, k uuid, v bigint, known bigint[], at bigint, patience bigint, p bigint[], a bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    length bigint := p[2];
    lasts bigint := 1 + p[3];
    phase bigint := p[4];
    l record;
    pushed record;
    c workglow_limit.counted;
    is_locked boolean := false;
    now bigint;
    gate bigint;
    state bigint[];
    found bigint[];
    old bigint[];
    weight bigint := 1;
    is_forced boolean := true;
    is_reserved boolean := false;
    waits_for bigint := 0;
    opens bigint;
    ready bigint;
    this bigint;
    here bigint;
    waits boolean;
    is_place boolean;
    stamp bigint;
    ticket bigint;
    is_over boolean;
    was boolean;
    back bigint;
    debt bigint;
    lost bigint;
    windows bigint[] := '{}';
    units bigint[] := '{}';
BEGIN
    LOOP
        l := workglow_limit.counted_look(lim, k, 'w', v, known, at);
        IF l.answer IS NOT NULL THEN
            RETURN l.answer;
        END IF;
        now := l.now;
        IF l.is_due THEN
            PERFORM workglow_limit.counted_lock(l.limit_id, k, 'w', l.birth, at, now, patience);
            PERFORM workglow_limit.attend(l.limit_id, known);
            known := known[1:1];
            is_locked := true;
            CONTINUE;
        END IF;
        -- The clock was set back by more than the windows that count. How much was used in the one that it shows now is not
        -- known. (A clock that is set forward only begins the next window sooner.)
        old := coalesce(l.old, p);
        IF l.moves[1] < -(1 + old[3]) * old[2] AND NOT is_locked THEN
            PERFORM workglow_limit.counted_lock(l.limit_id, k, 'w', l.birth, at, now, patience);
            is_locked := true;
            CONTINUE;
        ELSIF l.moves[1] < -(1 + old[3]) * old[2] THEN
            here := (now + phase) / old[2];
            state := (l.c).state;
            PERFORM workglow_limit.counted_move(
                l.c, ARRAY[here, greatest(state[2], old[1]), old[1], here - 1, state[5], least(state[6], now)], l.moves, now);
            CONTINUE;
        END IF;
        c := l.c;
        gate := l.gate;
        here := (now + phase) / length;
        state := coalesce(c.state, ARRAY[0, 0, 0, here, 0, 0]);
        IF l.old IS NOT NULL THEN
            state := workglow_limit.window_carry(state, l.old, l.changed, p);
        END IF;
        -- Where an earlier state may have been lost, all windows in which it might count are full.
        IF l.born > 0 THEN
            gate := greatest(gate, l.born + lasts * length);
        END IF;

        IF op = 'decide' OR op = 'record' THEN
            opens := greatest(gate, l.hold);
            IF op = 'decide' THEN
                weight := a[1];
                IF a[2] > 0 THEN
                    opens := greatest(opens, now + a[2]);
                END IF;
                waits_for := a[3];
                is_reserved := a[5] = 1;
                is_forced := a[6] = 1;
            END IF;
            found := workglow_limit.window_earliest(state, p, weight, greatest(opens, now));
            this := found[1];
            ready := found[2];
            waits := ready > now AND NOT is_forced;
            IF waits AND (ready = 4503599627370496 OR waits_for >= 0 AND ready - now > waits_for) THEN
                RETURN ARRAY[0, now, ready, 0, 0, 0, 0, 0, state[1], state[2], state[3], opens];
            END IF;
        ELSIF op = 'view' THEN
            opens := greatest(gate, l.hold);
            ready := opens;
            IF a[1] > 0 THEN
                ready := (workglow_limit.window_earliest(state, p, least(a[1], p[1]), greatest(opens, now)))[2];
            END IF;
            RETURN ARRAY[0, now, ready, state[1], state[2], state[3], opens];
        ELSIF op = 'cancel' OR op = 'settle' THEN
            weight := a[3];
            is_over := a[2] + lasts * length <= now;
            IF is_over AND (op = 'cancel' OR a[5] <= weight) OR NOT is_over AND coalesce(c.era + c.former_era, 0) = 0 THEN
                RETURN ARRAY[0, now, 0];
            END IF;
        ELSIF op = 'present' THEN
            IF now < a[5] OR gate > now OR now > a[2] OR c.mark IS DISTINCT FROM v THEN
                RETURN ARRAY[0, now, CASE WHEN now < a[5] THEN 2 ELSE 0 END, a[5], a[1]];
            END IF;
        ELSIF (op = 'clear' OR op = 'adopt') AND c.id IS NULL OR op = 'adopt' AND NOT l.is_stale THEN
            RETURN ARRAY[0, now];
        END IF;
        EXIT WHEN is_locked;
        PERFORM workglow_limit.counted_lock(l.limit_id, k, 'w', l.birth, at, now, patience);
        is_locked := true;
    END LOOP;

    IF op = 'decide' OR op = 'record' THEN
        IF is_forced THEN
            this := greatest(here, state[1]);
        END IF;
        IF this <> state[1] THEN
            state := ARRAY[this, 0, CASE WHEN this - 1 = state[1] THEN state[2] ELSE 0 END] || state[4:6];
        END IF;
        state[2] := least(state[2] + weight, 1073741823);
        is_place := waits OR is_reserved;
        stamp := (this + 1) * length - phase - 1;
        c := workglow_limit.counted_live(c, l.is_stale, 'w', l.birth, v, p);
        ticket := c.era;
        IF is_place THEN
            pushed := workglow_limit.counted_open(c, lasts * length, stamp, now);
            c := pushed.c;
            ticket := pushed.ticket;
        END IF;
        c.state := state;
        PERFORM workglow_limit.counted_save(c, at, now, greatest((state[1] + lasts) * length - phase, c.gate), l.floor);
        RETURN ARRAY[0, now, ready, 1, ticket, stamp, 0, is_place::integer, state[1], state[2], state[3], opens];

    ELSIF op = 'adopt' THEN
        NULL;

    -- Ends a start: units are returned, or more are owed.
    ELSIF op = 'cancel' OR op = 'settle' THEN
        -- A start of the policy before counts at the end of its window or, if that had not come, at the time of the change.
        was := workglow_limit.counted_knew(c, a[1]) AND NOT (op = 'cancel' AND a[5] = 1);
        this := (CASE WHEN was THEN least(a[2], c.former_end) ELSE a[2] END + phase) / length;
        was := (was OR NOT l.is_stale AND workglow_limit.counted_knows(c, a[1], op = 'cancel' AND a[5] = 1))
            AND CASE this WHEN state[1] THEN state[2] WHEN state[1] - 1 THEN state[3] ELSE 0 END > 0;
        debt := CASE WHEN op = 'settle' AND (was OR is_over) THEN least(greatest(a[5] - weight, 0), p[1]) ELSE 0 END;
        IF NOT was AND debt = 0 THEN
            RETURN ARRAY[0, now, 0];
        END IF;
        back := CASE WHEN was THEN greatest(weight - CASE WHEN op = 'settle' THEN a[5] ELSE 0 END, 0) ELSE 0 END;
        FOR i IN 0 .. 1 LOOP
            windows := windows || state[1] - i;
            units := units || greatest(state[2 + i] - CASE WHEN state[1] - i = this THEN back ELSE 0 END, 0);
        END LOOP;
        -- The window before the last two, whose count is unknown and may still matter.
        lost := state[1] - 2;
        IF lost < 0 OR lost + lasts <= here THEN
            lost := NULL;
        END IF;
        state := workglow_limit.window_set(windows || here, units || debt, lost, here, p[1]) || state[4:6];
    ELSE
        RETURN workglow_limit.counted_op(op, c, l.is_stale, 'w', l.birth, at, now, l.floor, a);
    END IF;

    -- What was counted in earlier windows may be in a longer one.
    IF state[2] + state[3] > 0 OR state[5] > 0 OR state[4] < state[1] - 1 THEN
        c := workglow_limit.counted_live(c, l.is_stale, 'w', l.birth, v, p);
        c.state := state;
        PERFORM workglow_limit.counted_save(c, at, now, greatest((state[1] + lasts) * length - phase, c.gate), l.floor);
    ELSE
        c.birth := l.birth;
        c.family := 'w';
        PERFORM workglow_limit.counted_forget(c, at, now, l.floor);
    END IF;
    RETURN CASE WHEN op = 'adopt' THEN ARRAY[0, now] ELSE ARRAY[0, now, was::integer] END;
END $$;
