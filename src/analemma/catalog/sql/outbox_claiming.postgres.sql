-- claim_lanes --
-- Leases lanes that are due and free, and answers the first rows of each: the function is in migration 0015.
SELECT * FROM analemma_claim_lanes(  -- guard: lane.leased.postgres
    :now::bigint, :tenant::bigint, :lanes::bigint, :rows::bigint, :lease::bigint, :calm::boolean, :channel
)

-- any_lane_due --
-- Whether there is anything to claim: the function is in migration 0015.
SELECT 1 WHERE analemma_is_due(:now::bigint, NULL, :channel)

-- any_lane_due_of --
-- Whether there is anything to claim of one tenant.
SELECT 1 WHERE analemma_is_due(:now::bigint, :tenant::bigint, :channel)

-- finish_lanes --
-- Settles what was handled of each lane, writes down what failed, and gives the lane back: the function is in migration 0023.
SELECT * FROM analemma_finish_lanes(  -- guard: lane.finished.postgres
    :now::bigint, :tenants::bigint[], :types::text[], :ids::text[], :fences::bigint[], :done_seqs::bigint[], :last_seqs::bigint[],
    :statuses::text[], :attempts::bigint[], :delays::bigint[], :reasons::text[]
)

-- settle_event --
-- In the transaction that has the event's effect: settles it, and what was handled before it. No row back
-- means that the lease is lost, or that it is settled already.
WITH moved AS (
    UPDATE lane
    SET done_seq = :seq, retry_at = NULL, suspect = false,
        due_at = CASE WHEN next_seq - 1 <= :seq THEN NULL ELSE due_at END
    WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid
      -- guard: lane.settled_once.postgres
      AND fence = :fence AND done_seq < :seq  -- guard: lane.settled.postgres
    RETURNING done_seq
), processed AS (
    UPDATE outbox
    SET status = 'PROCESSED', next_attempt_at = NULL,
        processed_at = coalesce(:now::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid
      AND seq > :after AND seq <= :seq AND processed_at IS NULL AND EXISTS (SELECT FROM moved)
)
SELECT done_seq FROM moved

-- renew_lanes --
-- Longer leases for a worker that is still at it; answers the places of those that it renewed. A lane that somebody is writing to is left
-- out, unless the caller has waited for it and holds its lock already.
WITH held AS MATERIALIZED (
    SELECT lane.tenant, lane.aggregatetype, lane.aggregateid, given.place
    FROM unnest(:tenants::bigint[], :types::text[], :ids::text[], :fences::bigint[])
        WITH ORDINALITY AS given (tenant, aggregatetype, aggregateid, fence, place)
    JOIN lane ON lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype
        AND lane.aggregateid = given.aggregateid AND lane.fence = given.fence AND lane.lease_until IS NOT NULL  -- guard: lane.renewed.postgres
    FOR NO KEY UPDATE OF lane SKIP LOCKED
)
UPDATE lane
SET lease_until = coalesce(:now::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) + :lease
FROM held
WHERE lane.tenant = held.tenant AND lane.aggregatetype = held.aggregatetype AND lane.aggregateid = held.aggregateid
RETURNING held.place

-- limit_lock_waits --
-- For the rest of the transaction: nobody's lock is waited for any longer than this.
SELECT set_config('lock_timeout', :limit, true)

-- lock_lane --
-- Waits for its turn among those who write to a lane, who all wait in one line; passing over what is locked would never get a turn at a lane
-- that is always being written to.
SELECT 1 FROM lane
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid
FOR NO KEY UPDATE

-- passed_over_lanes --
-- The most urgent lanes that are due and free; asked when a claim got none of them. Those whose worker was not heard of come a lease later:
-- it may be waiting in the same line, to renew it.
SELECT tenant, aggregatetype, aggregateid FROM lane
WHERE channel = :channel AND due_at IS NOT NULL AND NOT parked AND due_at <= :now::bigint
  AND (lease_until IS NULL OR lease_until <= :now::bigint - :lease::bigint)
  AND tenant = coalesce(:tenant::integer, tenant)
ORDER BY priority, due_at
LIMIT :limit

-- notify --
-- Tells the workers of all processes that something may be due. Not inside anybody's transaction: those would queue behind each other.
SELECT pg_notify('analemma_outbox', '')

-- listen --
-- From now on this connection hears of it.
LISTEN analemma_outbox
