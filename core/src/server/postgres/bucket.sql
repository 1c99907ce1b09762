-- Token buckets and leaky buckets. (counted.sql, then this.)
--
-- Policy: parts, ticks, rest, size, is_leaky. A unit costs `ticks` and `rest`/`parts` of one: p ticks for n units, in lowest terms.
-- Cost of all units: at most 366 days.
--
-- State of a row of `counted`, family b:
--
--   1, 2  when the bucket has recovered from all that was started (T): a tick, and parts of one
--   3     the latest stamp of any place, or end of any start (0: none)
--   4     the total ever returned, in ticks
--   5, 6  until when it recovers from the amount taken over from a bucket of another policy, in the form of 1 and 2 (0: none)
--
-- A *token bucket* may be behind by its size: a start of weight w is ready at `T + cost(w) - cost(size)`. A *leaky
-- bucket* is never behind: a start is ready at `T`, and a waiter takes a turn while at most `size` units wait, its own
-- included. Then T becomes `max(T, stamp) + cost(w)`, where the stamp is the last moment at which the start may happen:
-- now, or the end of a place's grace.
--
-- Why it is right. Take any starts of a token bucket, of which the first was admitted with stamp s, and the last was
-- ready at r. When the last one was decided, T was at least s plus the cost of the others, and with its own cost at
-- most r + cost(size). So together they cost at most cost(size) + r - s: the size, and what drips in the meantime. In a
-- leaky bucket a start is ready only when all before it have been paid for. T is exact. It never decreases except where
-- a start is taken back (`give_back`), so setting a clock back lets no start happen early.
--
-- Moments and costs are in parts of a tick, as `numeric`: there are up to 2^83.

-- Converts a moment in parts to ticks, rounded up.
CREATE OR REPLACE FUNCTION workglow_limit.up(moment numeric, parts bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT div(moment + parts - 1, parts)::bigint
$$;

-- Converts a state to another policy. The bucket is behind by as many units, and as large a part of one, as at the time
-- of the change. Places further away, such as those behind a gate, are not carried over.
CREATE OR REPLACE FUNCTION workglow_limit.bucket_carry(state bigint[], old bigint[], changed bigint, p bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    unit numeric := old[2]::numeric * old[1] + old[3];
    behind numeric := greatest((state[1] - changed)::numeric * old[1] + state[2], 0);
    carried numeric := greatest((state[5] - changed)::numeric * old[1] + state[6], 0);
    cost numeric := p[2]::numeric * p[1] + p[3];
    held numeric := div(behind + unit - 1, unit);
    spare numeric;
    moment numeric;
BEGIN
    IF state[1] < changed OR held = 0 THEN
        RETURN ARRAY[0, 0, state[3], state[4], 0, 0];
    END IF;
    spare := div((held * unit - behind) * cost, unit);
    held := least(held, greatest(div(carried + unit - 1, unit), old[4]) + old[4], 4294967296);
    moment := changed::numeric * p[1] + least(held * cost, 4503599627370496::numeric * p[1]) - spare;
    RETURN ARRAY[div(moment, p[1])::bigint, mod(moment, p[1])::bigint, greatest(state[3], changed), state[4],
        div(moment, p[1])::bigint, mod(moment, p[1])::bigint];
END $$;

-- decide, record  -> {0, now, ready, taken, ticket, stamp, ahead, is_place, t, r, gate}
-- view            -> {0, now, ready, t, r, gate}
--     The returned state is the one after the decision: T, and the later of both gates. From them the caller computes what
--     remains and when the bucket is empty. decide weight delay patience grace reserves forced again; record (one unit,
--     forced); view weight (may be 0). The delay: no start before this much later; patience -1: unlimited.
-- cancel ticket stamp weight ahead only_place, settle ticket stamp weight ahead actual -> {0, now, was_there}
-- present, pause, clear: see counted.sql.
-- adopt           -> {0, now}: rewrites the state under the policy that applies, so that it lives as long as that policy needs.
CREATE OR REPLACE FUNCTION workglow_limit.decide_bucket(
    op text, lim text, k uuid, v bigint, known bigint[], at bigint, patience bigint, p bigint[], a bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
#variable_conflict use_variable
DECLARE
    parts numeric := p[1];
    unit numeric := p[2]::numeric * p[1] + p[3];
    size bigint := p[4];
    is_leaky boolean := p[5] = 1;
    -- The longest wait of any caller: 366 days. The next constant is later than any time.
    longest bigint := 31622400000000;
    far bigint := 4503599627370496;
    l record;
    pushed record;
    c workglow_limit.counted;
    is_locked boolean := false;
    i integer;
    now bigint;
    moment numeric;
    carried numeric;
    state bigint[];
    since bigint;
    weight bigint := 1;
    waits_for bigint := 0;
    grace bigint := 0;
    is_forced boolean := true;
    is_reserved boolean := false;
    is_again boolean := false;
    opens bigint;
    ready bigint;
    waits boolean := false;
    is_place boolean;
    stamp bigint;
    ahead bigint;
    ticket bigint;
    after numeric;
    most numeric;
    old_unit numeric;
    is_over boolean;
    is_former boolean;
    was boolean;
    debt bigint;
    -- `ahead` of a place that took a bucket which had recovered, and so much before its stamp (or before now).
    idle bigint := 140737488355328;
BEGIN
    LOOP
        l := workglow_limit.counted_look(lim, k, 'b', v, known, at);
        IF l.answer IS NOT NULL THEN
            RETURN l.answer;
        END IF;
        now := l.now;
        IF l.is_due THEN
            PERFORM workglow_limit.counted_lock(l.limit_id, k, 'b', l.birth, at, now, patience);
            PERFORM workglow_limit.attend(l.limit_id, known);
            known := known[1:1];
            is_locked := true;
            CONTINUE;
        END IF;
        IF l.moves IS NOT NULL AND NOT is_locked THEN
            PERFORM workglow_limit.counted_lock(l.limit_id, k, 'b', l.birth, at, now, patience);
            is_locked := true;
            CONTINUE;
        ELSIF l.moves IS NOT NULL THEN
            -- Unless the bucket is behind by more, it is behind by its size at most.
            state := (l.c).state;
            FOREACH i IN ARRAY '{1,3,5}'::integer[] LOOP
                state[i] := workglow_limit.moved(state[i], l.moves, now + CASE i WHEN 3 THEN 0 ELSE workglow_limit.up(size * unit, p[1]) + 1 END);
            END LOOP;
            PERFORM workglow_limit.counted_move(l.c, state, l.moves, now);
            CONTINUE;
        END IF;
        c := l.c;
        state := coalesce(c.state, '{0,0,0,0,0,0}');
        IF l.old IS NOT NULL THEN
            state := workglow_limit.bucket_carry(state, l.old, l.changed, p);
        END IF;
        moment := state[1] * parts + state[2];
        -- Where an earlier state may have been lost, the bucket counts as emptied at that time.
        IF l.born > 0 THEN
            moment := greatest(moment, l.born * parts + size * unit);
        END IF;

        IF op = 'decide' OR op = 'record' OR op = 'view' THEN
            opens := greatest(l.gate, l.hold);
            IF op <> 'record' THEN
                weight := a[1];
            END IF;
            IF op = 'decide' THEN
                IF a[2] > 0 THEN
                    opens := greatest(opens, now + a[2]);
                END IF;
                waits_for := CASE WHEN a[3] < 0 THEN longest ELSE least(a[3], longest) END;
                grace := a[4];
                is_reserved := a[5] = 1;
                is_forced := a[6] = 1;
                is_again := a[7] = 1;
            END IF;
            ready := opens;
            IF weight > 0 THEN
                ready := workglow_limit.up(CASE WHEN is_leaky THEN moment ELSE moment - greatest(size - weight, 0) * unit END, p[1]);
                ready := CASE WHEN ready <= now THEN opens ELSE greatest(ready, opens) END;
            END IF;
            IF op = 'view' THEN
                RETURN ARRAY[0, now, ready, div(moment, parts)::bigint, mod(moment, parts)::bigint, opens];
            END IF;
            waits := ready > now AND NOT is_forced;
            IF waits THEN
                -- Until when a leaky bucket's queue is too full for this start to wait in it. At most `size` units
                -- wait, including this one, behind one that has just started (at a gate, none has), each with the grace
                -- of this one.
                IF is_leaky AND waits_for > 0 AND NOT is_again AND (grace = 0 OR size - weight <= far / grace) THEN
                    after := moment - (size - weight + 1) * unit - (size - weight) * grace * parts;
                    IF greatest(opens * parts - unit, now * parts) < after THEN
                        ready := greatest(workglow_limit.up(after, p[1]), 0, ready - waits_for);
                        RETURN ARRAY[0, now, ready, 0, 0, 0, 0, 0, div(moment, parts)::bigint, mod(moment, parts)::bigint, opens];
                    END IF;
                END IF;
                IF ready - now > waits_for THEN
                    RETURN ARRAY[0, now, ready, 0, 0, 0, 0, 0, div(moment, parts)::bigint, mod(moment, parts)::bigint, opens];
                END IF;
            END IF;
            is_place := waits OR is_reserved;
            stamp := CASE WHEN is_place THEN greatest(ready, now) + grace ELSE now END;
            ahead := CASE
                WHEN is_place AND moment <= stamp * parts THEN idle + stamp - greatest(workglow_limit.up(moment, p[1]), now)
                ELSE greatest(div(moment, parts)::bigint - stamp, 0) + state[4]
            END;
            after := greatest(moment, stamp * parts) + weight * unit;
            IF div(after, parts) > far THEN
                RETURN ARRAY[0, now, ready, 0, 0, 0, 0, 0, div(moment, parts)::bigint, mod(moment, parts)::bigint, opens];
            END IF;
        ELSIF op = 'cancel' OR op = 'settle' THEN
            weight := a[3];
            is_over := a[2] + workglow_limit.up((size + 1) * unit, p[1]) <= now;
            IF is_over AND (op = 'cancel' OR a[5] <= weight) OR NOT is_over AND coalesce(c.era + c.former_era, 0) = 0 THEN
                RETURN ARRAY[0, now, 0];
            END IF;
        ELSIF op = 'present' THEN
            IF now < a[5] OR l.gate > now OR now > a[2] OR c.mark IS DISTINCT FROM v THEN
                RETURN ARRAY[0, now, CASE WHEN now < a[5] THEN 2 ELSE 0 END, a[5], a[1]];
            END IF;
        ELSIF (op = 'clear' OR op = 'adopt') AND c.id IS NULL OR op = 'adopt' AND NOT l.is_stale THEN
            RETURN ARRAY[0, now];
        END IF;
        EXIT WHEN is_locked;
        PERFORM workglow_limit.counted_lock(l.limit_id, k, 'b', l.birth, at, now, patience);
        is_locked := true;
    END LOOP;

    IF op = 'decide' OR op = 'record' THEN
        moment := after;
        c := workglow_limit.counted_live(c, l.is_stale, 'b', l.birth, v, p);
        ticket := c.era;
        IF is_place THEN
            state[3] := greatest(state[3], stamp);
            pushed := workglow_limit.counted_open(c, workglow_limit.up((size + 1) * unit, p[1]), stamp, now);
            c := pushed.c;
            ticket := pushed.ticket;
        END IF;
        state[1] := div(moment, parts);
        state[2] := mod(moment, parts);
        c.state := state;
        PERFORM workglow_limit.counted_save(c, at, now, greatest(workglow_limit.up(moment, p[1]), c.gate), l.floor);
        RETURN ARRAY[0, now, ready, 1, ticket, stamp, ahead, is_place::integer, state[1], state[2], opens];

    ELSIF op = 'adopt' THEN
        NULL;

    -- Ends a start: units are returned, or more are owed.
    ELSIF op = 'cancel' OR op = 'settle' THEN
        is_former := coalesce(workglow_limit.counted_knew(c, a[1]), false) AND NOT (op = 'cancel' AND a[5] = 1);
        was := (is_former OR NOT l.is_stale AND workglow_limit.counted_knows(c, a[1], op = 'cancel' AND a[5] = 1))
            AND workglow_limit.up(moment, p[1]) > now;
        debt := CASE WHEN op = 'settle' AND (was OR is_over) THEN least(greatest(a[5] - weight, 0), size) ELSE 0 END;
        IF NOT was AND debt = 0 THEN
            RETURN ARRAY[0, now, 0];
        END IF;
        moment := greatest(moment, now * parts);
        state[3] := greatest(state[3], now);
        -- Takes back units of a start, except those that have returned over time since then, since they may have been
        -- used. Say the start cost c, at s, and later starts were admitted until l. Take one of these, at a: from it
        -- on, all cost no more than has been counted since the start, less c. So without the start, the bucket has
        -- recovered from them c - (a - s) earlier than now, or sooner. If it was behind by b (`ahead`) at s, because of
        -- earlier starts, it has recovered another b earlier, less the part of that which was returned in between.
        -- Hence c - (l - s - b) is safe, and it is everything while the bucket is busy.
        --
        -- If nothing was admitted after a place, and nothing was ahead of it, the bucket is what it was before, also
        -- where the place had moved it on to its stamp (`idle`). All other places were before that.
        --
        -- Where another policy admitted the start, as many units as had come back by its rate until it ended are as many
        -- that have come back. If the present one gives them back faster, what was returned says less about `ahead`.
        IF was AND a[4] >= idle AND (op = 'cancel' OR a[5] = 0) AND moment = a[2] * parts + weight * unit THEN
            since := a[2] - (a[4] - idle);
            state[3] := greatest(least(state[3], since + 1), now);
            since := greatest(since, now);
            state[4] := state[4] + greatest(workglow_limit.up(moment, p[1]) - since, 0);
            moment := since * parts;
        ELSIF was THEN
            ahead := CASE WHEN a[4] >= idle THEN 0 ELSE greatest(a[4] - state[4], 0) END;
            IF is_former THEN
                old_unit := c.former[2]::numeric * c.former[1] + c.former[3];
                IF unit * c.former[1] < old_unit * parts THEN
                    ahead := 0;
                END IF;
                most := div(greatest(c.former_end - a[2] - ahead, 0)::numeric * c.former[1] + old_unit - 1, old_unit);
                since := least(workglow_limit.up(most * unit, p[1]), far) + greatest(state[3] - c.former_end, 0);
            ELSE
                since := greatest(state[3] - a[2] - ahead, 0);
            END IF;
            most := least(
                greatest(weight - CASE WHEN op = 'settle' THEN a[5] ELSE 0 END, 0) * unit, weight * unit - since * parts, moment - now * parts);
            IF most >= 0 THEN
                moment := moment - most;
                state[4] := state[4] + workglow_limit.up(most, p[1]);
            END IF;
        END IF;
        moment := moment + debt * unit;
        carried := least(state[5] * parts + state[6], moment);
        state[5] := div(carried, parts);
        state[6] := mod(carried, parts);
    ELSE
        RETURN workglow_limit.counted_op(op, c, l.is_stale, 'b', l.birth, at, now, l.floor, a);
    END IF;

    IF workglow_limit.up(moment, p[1]) > now THEN
        c := workglow_limit.counted_live(c, l.is_stale, 'b', l.birth, v, p);
        state[1] := div(moment, parts);
        state[2] := mod(moment, parts);
        c.state := state;
        PERFORM workglow_limit.counted_save(c, at, now, greatest(workglow_limit.up(moment, p[1]), c.gate), l.floor);
    ELSE
        c.birth := l.birth;
        c.family := 'b';
        PERFORM workglow_limit.counted_forget(c, at, now, l.floor);
    END IF;
    RETURN CASE WHEN op = 'adopt' THEN ARRAY[0, now] ELSE ARRAY[0, now, was::integer] END;
END $$;
