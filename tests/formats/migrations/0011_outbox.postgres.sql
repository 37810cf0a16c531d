-- What delivery needs to know of a lane: how far it came, when the next try is due, and whether a worker died in it.

-- Everything up to here is settled: delivered, or given up by a person. So the next rows of a lane are found without passing those that
-- were processed, and whether anything remains is known from the lane's own row.
ALTER TABLE lane ADD COLUMN done_seq bigint NOT NULL DEFAULT 0;
-- Not before this time, whatever else arrives: the first row that is left failed.
ALTER TABLE lane ADD COLUMN retry_at bigint;
-- A worker died while it held the lane: its rows are tried one at a time, and whoever tries one says so first.
ALTER TABLE lane ADD COLUMN suspect boolean NOT NULL DEFAULT false;

CREATE INDEX lane_parked ON lane (tenant, aggregatetype, aggregateid) WHERE parked;
CREATE INDEX lane_retrying ON lane (tenant, aggregatetype, aggregateid) WHERE retry_at IS NOT NULL;

-- What is due of one tenant, so that a worker of its own does not pass what is due of all others.
CREATE INDEX lane_due_of ON lane (tenant, priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;

-- By age, for housekeeping; a column that never changes, so that settling a row touches no index.
CREATE INDEX outbox_created ON outbox (created_at);

-- Room for the second version of a row on its own page: then an update touches no index.
ALTER TABLE lane SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE outbox SET (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

-- The two statements of delivery are functions because of their settings. What a planner knows of a queue is what it was a while ago, and a
-- plan that sorts everything that is due, or reads every lane there is, makes a claim cost what the backlog is. With these settings a claim
-- walks down the index of what is due and stops, whatever the statistics say.

CREATE FUNCTION analemma_now(given bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(given, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

-- Leases lanes that are due and free, and answers the first rows of each. A lane that somebody is writing to is passed over, unless the
-- caller has waited for it and holds its lock already. Rows are read when the lanes are locked, and are always the first of their lane: what
-- is committed later comes with the next claim, because finishing looks at the lane as it is then. With `calm`, nothing is taken that a dead
-- worker left.
CREATE FUNCTION analemma_claim_lanes(
    given_now bigint, one_tenant bigint, most_lanes bigint, most_rows bigint, lease bigint, calm boolean
)
RETURNS TABLE (
    tenant integer, aggregatetype text, aggregateid text, fence bigint, done_seq bigint, last_seq bigint, suspect boolean,
    reclaimed boolean, id text, seq bigint, type text, payload bytea, idempotency_key text, priority integer, status text,
    attempts integer, created_at bigint, trace text
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment bigint := analemma_now(given_now);
    tenants integer[];
    types text[];
    ids text[];
    overdue boolean[];
BEGIN
    -- Twice, for the sake of an index each.
    IF one_tenant IS NULL THEN
        SELECT array_agg(free.tenant), array_agg(free.aggregatetype), array_agg(free.aggregateid), array_agg(free.reclaimed)
        INTO tenants, types, ids, overdue
        FROM (
            SELECT lane.tenant, lane.aggregatetype, lane.aggregateid, lane.lease_until IS NOT NULL AS reclaimed
            FROM lane
            WHERE due_at IS NOT NULL AND NOT parked AND due_at <= moment AND (lease_until IS NULL OR lease_until <= moment)
              AND NOT (calm AND (lane.suspect OR lease_until IS NOT NULL))
            ORDER BY lane.priority, lane.due_at
            LIMIT most_lanes
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS free;
    ELSE
        SELECT array_agg(free.tenant), array_agg(free.aggregatetype), array_agg(free.aggregateid), array_agg(free.reclaimed)
        INTO tenants, types, ids, overdue
        FROM (
            SELECT lane.tenant, lane.aggregatetype, lane.aggregateid, lane.lease_until IS NOT NULL AS reclaimed
            FROM lane
            WHERE due_at IS NOT NULL AND NOT parked AND due_at <= moment AND (lease_until IS NULL OR lease_until <= moment)
              AND NOT (calm AND (lane.suspect OR lease_until IS NOT NULL)) AND lane.tenant = one_tenant::integer
            ORDER BY lane.priority, lane.due_at
            LIMIT most_lanes
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS free;
    END IF;
    IF tenants IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH claimed AS (
        UPDATE lane SET fence = lane.fence + 1, lease_until = moment + lease
        FROM unnest(tenants, types, ids, overdue) AS picked (tenant, aggregatetype, aggregateid, reclaimed)
        WHERE lane.tenant = picked.tenant AND lane.aggregatetype = picked.aggregatetype AND lane.aggregateid = picked.aggregateid
        RETURNING lane.tenant, lane.aggregatetype, lane.aggregateid, lane.fence, lane.done_seq, lane.next_seq - 1 AS last_seq,
                  lane.suspect, picked.reclaimed
    ), share AS MATERIALIZED (
        SELECT greatest(1, most_rows / greatest(1, count(*))) AS rows FROM claimed
    )
    SELECT claimed.*, event.*
    FROM claimed LEFT JOIN LATERAL (
        SELECT outbox.id, outbox.seq, outbox.type, outbox.payload, outbox.idempotency_key, outbox.priority, outbox.status,
               outbox.attempts, outbox.created_at, outbox.trace
        FROM outbox
        WHERE outbox.tenant = claimed.tenant AND outbox.aggregatetype = claimed.aggregatetype
          AND outbox.aggregateid = claimed.aggregateid AND outbox.seq > claimed.done_seq
        ORDER BY outbox.seq
        LIMIT CASE WHEN claimed.suspect OR claimed.reclaimed THEN 1 ELSE (SELECT rows FROM share) END
    ) AS event ON true;
END
$$;

-- Settles what was handled of each lane, writes down what failed, and gives the lane back: one statement, guarded by each lane's fence. What
-- remains is read off the lane as it is now, so that no row that came meanwhile is forgotten. Answers the places of the lanes that it found,
-- whether they are due again, and how far they are settled now; one that somebody is writing to is left for later, unless the caller has
-- waited for it and holds its lock already. A failure is written only if its row was not settled after all.
CREATE FUNCTION analemma_finish_lanes(
    given_now bigint, tenants bigint[], types text[], ids text[], fences bigint[], done_seqs bigint[], statuses text[],
    all_attempts bigint[], delays bigint[], reasons text[]
)
RETURNS TABLE (place bigint, due boolean, done_seq bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment bigint := analemma_now(given_now);
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT given.*, lane.done_seq AS settled_seq,
               given.status IS NOT NULL AND lane.done_seq <= given.done_seq AS failing
        FROM unnest(tenants, types, ids, fences, done_seqs, statuses, all_attempts, delays, reasons)
            WITH ORDINALITY AS given (tenant, aggregatetype, aggregateid, fence, done_seq, status, attempts, delay, reason, place)
        JOIN lane ON lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype
            AND lane.aggregateid = given.aggregateid AND lane.fence = given.fence
        FOR NO KEY UPDATE OF lane SKIP LOCKED
    ), moved AS (
        UPDATE lane
        SET done_seq = greatest(lane.done_seq, held.done_seq),
            lease_until = NULL,
            suspect = lane.suspect AND NOT held.failing AND held.done_seq <= lane.done_seq,
            parked = held.failing AND held.status = 'DEAD',
            retry_at = CASE WHEN held.failing THEN moment + held.delay
                            WHEN held.done_seq <= lane.done_seq THEN lane.retry_at END,
            due_at = CASE WHEN lane.next_seq - 1 <= greatest(lane.done_seq, held.done_seq) THEN NULL
                          WHEN held.failing THEN moment + coalesce(held.delay, 0)
                          ELSE moment END
        FROM held
        WHERE lane.tenant = held.tenant AND lane.aggregatetype = held.aggregatetype AND lane.aggregateid = held.aggregateid
        RETURNING held.place, lane.due_at <= moment AS due, lane.done_seq
    ), processed AS (
        UPDATE outbox SET status = 'PROCESSED', processed_at = moment, next_attempt_at = NULL
        FROM held
        WHERE outbox.tenant = held.tenant AND outbox.aggregatetype = held.aggregatetype
          AND outbox.aggregateid = held.aggregateid AND outbox.seq > held.settled_seq AND outbox.seq <= held.done_seq
          AND outbox.processed_at IS NULL
    ), failed AS (
        UPDATE outbox
        SET status = held.status, attempts = held.attempts, next_attempt_at = moment + held.delay, failure_reason = held.reason
        FROM held
        WHERE held.failing AND outbox.tenant = held.tenant AND outbox.aggregatetype = held.aggregatetype
          AND outbox.aggregateid = held.aggregateid AND outbox.seq = held.done_seq + 1
          AND outbox.processed_at IS NULL
    )
    SELECT moved.place, coalesce(moved.due, false), moved.done_seq FROM moved;
END
$$;
