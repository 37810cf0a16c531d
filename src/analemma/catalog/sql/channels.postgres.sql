-- due_channels --
-- Channels that have something to deliver now and do not rest, and how often in a row each could not deliver: the function is in
-- migration 0015.
SELECT * FROM analemma_due_channels(:now::bigint, :tenant::bigint)

-- rest_channel --
-- Has all workers leave a channel alone: twice as long with each failure in a row, and no shorter than it asked for; answers for how long. What others
-- say of it while it rests is the same failure once more.
INSERT INTO channel AS held (name, rest_until, failures, since, reason)
VALUES (:name, :now::bigint + greatest(least(:longest::bigint, :base::bigint), :asked::bigint), 1, :now::bigint, :reason)
ON CONFLICT (name) DO UPDATE
SET rest_until = CASE
        WHEN held.rest_until > :now::bigint THEN greatest(held.rest_until, :now::bigint + :asked::bigint)
        ELSE :now::bigint
            + greatest(least(:longest::bigint, :base::bigint << least(held.failures, 30)::integer), :asked::bigint)
        END,
    failures = held.failures + CASE WHEN held.rest_until > :now::bigint THEN 0 ELSE 1 END,
    reason = excluded.reason, since = coalesce(held.since, excluded.since)
RETURNING rest_until - :now::bigint

-- hasten_channel --
-- Whatever of a channel waits for another try is due now, unless a worker has it.
WITH waiting AS MATERIALIZED (
    SELECT tenant, aggregatetype, aggregateid FROM lane
    WHERE channel = :name AND due_at IS NOT NULL AND NOT parked AND due_at > :now::bigint AND lease_until IS NULL
    ORDER BY tenant, aggregatetype, aggregateid
    FOR NO KEY UPDATE
)
UPDATE lane SET due_at = :now::bigint, retry_at = NULL
FROM waiting
WHERE lane.tenant = waiting.tenant AND lane.aggregatetype = waiting.aggregatetype AND lane.aggregateid = waiting.aggregateid

-- take_turn --
-- The next time at which a channel with a rate may deliver, having reserved `duration` from then on; answers how long to wait for it.
INSERT INTO channel AS held (name, next_at) VALUES (:name, :now::bigint + :duration::bigint)
ON CONFLICT (name) DO UPDATE SET next_at = greatest(held.next_at, :now::bigint) + :duration::bigint
RETURNING next_at - :duration::bigint - :now::bigint

-- held_lanes --
-- The places of those of these lanes that are held under these fences for at least `least` longer.
SELECT given.place - 1
FROM unnest(:tenants::bigint[], :types::text[], :ids::text[], :fences::bigint[])
    WITH ORDINALITY AS given (tenant, aggregatetype, aggregateid, fence, place)
JOIN lane ON lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype AND lane.aggregateid = given.aggregateid
    AND lane.fence = given.fence
WHERE lane.lease_until >= :until::bigint

-- blame_lanes --
-- Counts an attempt against the next row of each of these lanes, in which a worker died; from now on they are suspect.
WITH held AS MATERIALIZED (
    SELECT lane.tenant, lane.aggregatetype, lane.aggregateid, lane.done_seq + 1 AS seq
    FROM unnest(:tenants::bigint[], :types::text[], :ids::text[], :fences::bigint[]) AS given (tenant, aggregatetype, aggregateid, fence)
    JOIN lane ON lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype AND lane.aggregateid = given.aggregateid
        AND lane.fence = given.fence
    ORDER BY lane.tenant, lane.aggregatetype, lane.aggregateid
    FOR NO KEY UPDATE OF lane
), marked AS (
    UPDATE lane SET suspect = true FROM held
    WHERE lane.tenant = held.tenant AND lane.aggregatetype = held.aggregatetype AND lane.aggregateid = held.aggregateid
)
UPDATE outbox SET status = 'PENDING', attempts = outbox.attempts + 1, failure_reason = :reason
FROM held
WHERE outbox.tenant = held.tenant AND outbox.aggregatetype = held.aggregatetype AND outbox.aggregateid = held.aggregateid
  AND outbox.seq = held.seq
