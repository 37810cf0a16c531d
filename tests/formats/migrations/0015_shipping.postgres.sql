-- Shipping: what each sink was sent, and lanes that only their own channel's batches take.

-- Lanes of a channel are claimed by that channel's batches alone: one that is slow, or rests, holds up nobody else. The channel of
-- shipping is the id of the sink rule; '' is what every worker takes event by event. A lane never changes its channel.
ALTER TABLE lane ADD COLUMN channel text COLLATE "C" NOT NULL DEFAULT '';
DROP INDEX lane_due;
CREATE INDEX lane_due ON lane (channel, priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;
DROP INDEX lane_due_of;
CREATE INDEX lane_due_of ON lane (tenant, channel, priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;

-- How a channel is doing, for all workers. One that rests is left alone, whatever it has to deliver. Times are the database's.
CREATE TABLE channel (
    name       text COLLATE "C" PRIMARY KEY,
    rest_until bigint NOT NULL DEFAULT 0,
    -- How often in a row nothing could be delivered; 0: it is well.
    failures   bigint NOT NULL DEFAULT 0,
    -- Since when.
    since      bigint,
    reason     text,
    -- When the next delivery of a channel with a rate may begin.
    next_at    bigint NOT NULL DEFAULT 0
);

-- What a sink was sent: of each document the newest state that the sink is known to have, by the entity's ship_seq. `place` tells
-- documents of one id apart where the rule's target does, by tenant or entity type; otherwise it is ''. Whose document it is never
-- changes: another entity of the same document id is refused. It is written down before the first state is shipped, with the ship_seq -1.
CREATE TABLE sink_state (
    sink       text COLLATE "C" NOT NULL,
    place      text COLLATE "C" NOT NULL,
    doc_id     text COLLATE "C" NOT NULL,
    tenant     integer NOT NULL,
    entity     bigint NOT NULL,
    version    bigint NOT NULL,
    ship_seq   bigint NOT NULL,
    deleted    boolean NOT NULL,
    shipped_at bigint NOT NULL,
    PRIMARY KEY (sink, place, doc_id)
);
CREATE INDEX sink_state_of_entity ON sink_state (entity, sink);

-- Room for the second version of a row on its own page: then an update touches no index.
ALTER TABLE sink_state SET (fillfactor = 70);

-- As before, but for the lanes of one channel.
DROP FUNCTION analemma_claim_lanes (bigint, bigint, bigint, bigint, bigint, boolean);
CREATE FUNCTION analemma_claim_lanes(
    given_now bigint, one_tenant bigint, most_lanes bigint, most_rows bigint, lease bigint, calm boolean,
    one_channel text
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
            WHERE channel = one_channel AND due_at IS NOT NULL AND NOT parked AND due_at <= moment
              AND (lease_until IS NULL OR lease_until <= moment)
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
            WHERE channel = one_channel AND due_at IS NOT NULL AND NOT parked AND due_at <= moment
              AND (lease_until IS NULL OR lease_until <= moment)
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

-- As before, but a lane of a channel is not parked if something was added to it since it was claimed.
DROP FUNCTION analemma_finish_lanes (bigint, bigint[], text[], text[], bigint[], bigint[], text[], bigint[], bigint[], text[]);
CREATE FUNCTION analemma_finish_lanes(
    given_now bigint, tenants bigint[], types text[], ids text[], fences bigint[], done_seqs bigint[], last_seqs bigint[],
    statuses text[], all_attempts bigint[], delays bigint[], reasons text[]
)
RETURNS TABLE (place bigint, due boolean, done_seq bigint, parked boolean)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment bigint := analemma_now(given_now);
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT given.tenant, given.aggregatetype, given.aggregateid, given.done_seq, given.attempts, given.delay, given.reason, given.place,
               lane.done_seq AS settled_seq, given.status IS NOT NULL AND lane.done_seq <= given.done_seq AS failing,
               -- What a channel delivers is the newest state: one that came since the claim is worth another try.
               CASE WHEN given.status = 'DEAD' AND lane.channel > '' AND lane.next_seq - 1 > given.last_seq THEN 'FAILED'
                    ELSE given.status END AS status
        FROM unnest(tenants, types, ids, fences, done_seqs, last_seqs, statuses, all_attempts, delays, reasons)
            WITH ORDINALITY AS given (
                tenant, aggregatetype, aggregateid, fence, done_seq, last_seq, status, attempts, delay, reason, place
            )
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
        RETURNING held.place, lane.due_at <= moment AS due, lane.done_seq, lane.parked
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
    SELECT moved.place, coalesce(moved.due, false), moved.done_seq, moved.parked FROM moved;
END
$$;

-- Whether a channel, perhaps of one tenant only, has a lane that is due and free. A function because of its settings, like the claim itself:
-- however many lanes wait in other channels, and whatever is known of them, it looks into an index and no further than the first.
CREATE FUNCTION analemma_is_due(given_now bigint, one_tenant bigint, one_channel text) RETURNS boolean
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    IF one_tenant IS NULL THEN
        RETURN EXISTS (
            SELECT FROM lane
            WHERE channel = one_channel AND due_at IS NOT NULL AND NOT parked AND due_at <= given_now
              AND (lease_until IS NULL OR lease_until <= given_now)
        );
    END IF;
    RETURN EXISTS (
        SELECT FROM lane
        WHERE tenant = one_tenant::integer AND channel = one_channel AND due_at IS NOT NULL AND NOT parked AND due_at <= given_now
          AND (lease_until IS NULL OR lease_until <= given_now)
    );
END
$$;

-- Channels that have something to deliver now and do not rest, and how often in a row each could not deliver. Goes from one channel to the
-- next, whatever they hold.
CREATE FUNCTION analemma_due_channels(given_now bigint, one_tenant bigint) RETURNS TABLE (name text, failures bigint)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    found_name text := '';
    state record;
BEGIN
    LOOP
        SELECT lane.channel INTO found_name FROM lane
        WHERE due_at IS NOT NULL AND NOT parked AND lane.channel > found_name ORDER BY lane.channel LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT channel.failures, channel.rest_until INTO state FROM channel WHERE channel.name = found_name;
        IF coalesce(state.rest_until, 0) <= given_now AND analemma_is_due(given_now, one_tenant, found_name) THEN
            name := found_name;
            failures := coalesce(state.failures, 0);
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
