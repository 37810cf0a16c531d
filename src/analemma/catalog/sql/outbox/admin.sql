-- outbox_lanes --
-- What is under way: undelivered rows, lanes that have any, lanes in a worker's hands, under a lease that has run out, waiting for another
-- try, and parked. Only lanes with something left are looked at.
SELECT CAST(coalesce(sum(left_over), 0) AS bigint), count(*),
       CAST(coalesce(sum(CASE WHEN lease_until > (SELECT analemma_now()) THEN 1 ELSE 0 END), 0) AS bigint),
       CAST(coalesce(sum(CASE WHEN lease_until <= (SELECT analemma_now()) THEN 1 ELSE 0 END), 0) AS bigint),
       CAST(coalesce(sum(CASE WHEN retry_at IS NOT NULL AND lease_until IS NULL THEN 1 ELSE 0 END), 0) AS bigint),
       CAST(coalesce(sum(dead), 0) AS bigint)
FROM (
    SELECT next_seq - 1 - done_seq AS left_over, lease_until, retry_at, 0 AS dead
    FROM lane WHERE due_at IS NOT NULL AND NOT parked AND tenant = coalesce(:tenant, tenant)
    UNION ALL
    SELECT next_seq - 1 - done_seq, NULL, NULL, 1
    FROM lane WHERE parked AND tenant = coalesce(:tenant, tenant)
) AS active

-- outbox_oldest --
-- When the oldest event was made that is still to be delivered; lanes that are parked wait for people, not for workers.
SELECT min(outbox.created_at)
FROM lane JOIN outbox ON outbox.tenant = lane.tenant AND outbox.aggregatetype = lane.aggregatetype
    AND outbox.aggregateid = lane.aggregateid AND outbox.seq = lane.done_seq + 1
WHERE lane.due_at IS NOT NULL AND NOT lane.parked AND lane.tenant = coalesce(:tenant, lane.tenant)

-- outbox_settled --
-- Rows that are settled and still kept: delivered, and given up by a person.
SELECT CAST(coalesce(sum(CASE WHEN status = 'PROCESSED' THEN 1 ELSE 0 END), 0) AS bigint),
       CAST(coalesce(sum(CASE WHEN status = 'DEAD' THEN 1 ELSE 0 END), 0) AS bigint)
FROM outbox WHERE processed_at IS NOT NULL AND tenant = coalesce(:tenant, tenant)

-- outbox_event --
-- The event of an id: one tenant's or, there being one of that id in each at most, those of all.
SELECT outbox.id, tenant.name, aggregatetype, aggregateid, seq, type, payload, idempotency_key, priority, status, attempts,
       next_attempt_at, failure_reason, created_at, processed_at, trace, outbox.tenant
FROM tenant JOIN outbox ON outbox.tenant = tenant.id AND outbox.id = :id
WHERE tenant.id = coalesce(:tenant, tenant.id)

-- next_events [text] --
-- The first undelivered event of each lane.
SELECT outbox.id, tenant.name, outbox.aggregatetype, outbox.aggregateid, seq, type, payload, idempotency_key,
       outbox.priority, status, attempts, next_attempt_at, failure_reason, created_at, processed_at, trace, outbox.tenant
FROM lane JOIN outbox ON outbox.tenant = lane.tenant AND outbox.aggregatetype = lane.aggregatetype
    AND outbox.aggregateid = lane.aggregateid AND outbox.seq = lane.done_seq + 1
JOIN tenant ON tenant.id = lane.tenant

-- of_lanes [text] --
-- A page of these lanes, by their keys.
  AND (lane.tenant, lane.aggregatetype, lane.aggregateid) > (:after_tenant, :after_type, :after_id)
  AND lane.tenant = coalesce(:tenant, lane.tenant) AND lane.aggregatetype = coalesce(:aggregate_type, lane.aggregatetype)
  AND lane.aggregateid = coalesce(:aggregate_id, lane.aggregateid) AND outbox.type = coalesce(:type, outbox.type)
ORDER BY lane.tenant, lane.aggregatetype, lane.aggregateid
LIMIT :limit

-- dead_letters --
-- The first undelivered events of parked lanes, by lane.
include next_events
WHERE lane.parked
include of_lanes

-- failed_events --
-- The first undelivered events of lanes that wait for another try, by lane.
include next_events
WHERE lane.retry_at IS NOT NULL
include of_lanes

-- revive_event --
-- As new: with all its attempts before it.
UPDATE outbox SET status = 'PENDING', attempts = 0, next_attempt_at = NULL, failure_reason = NULL
WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id AND seq = :seq

-- release_lane --
-- Lets a lane go on with the row that stopped it, or behind it if that is done, if it is still that row and nobody is at it.
UPDATE lane
SET parked = false, retry_at = NULL, suspect = false, fence = fence + 1, done_seq = :done,
    due_at = CASE WHEN next_seq - 1 <= :done THEN NULL ELSE CAST(:now AS bigint) END
WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id AND done_seq + 1 = :seq
  AND (parked OR retry_at IS NOT NULL) AND lease_until IS NULL

-- discard_event --
-- Stays dead, and is settled: the reason why it was given up joins the reason why it failed.
UPDATE outbox SET status = 'DEAD', next_attempt_at = NULL, processed_at = :now, failure_reason = :reason
WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id AND seq = :seq

-- overtake_event --
-- What was just settled was given up: something newer took its place. Why it failed, now or before, stays with it.
UPDATE outbox
SET status = 'DEAD', attempts = :attempts,
    failure_reason = coalesce(CAST(:failure AS text), failure_reason, 'failed') || '; ' || CAST(:reason AS text)
WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id AND seq = :seq

-- housekeep_outbox --
-- Deletes a batch of rows that were settled long enough ago, oldest first. What is not settled has no processed_at and stays.
-- A minute more, where the index is used: the producer's clock may be ahead.
DELETE FROM outbox
[sqlite] WHERE rowid IN (
[sqlite]     SELECT rowid FROM outbox
[sqlite]     WHERE created_at < max(:processed_before, :dead_before) + 60000000
[postgres] WHERE ctid = ANY (ARRAY (
[postgres]     SELECT ctid FROM outbox
[postgres]     WHERE created_at < greatest(:processed_before::bigint, :dead_before::bigint) + 60000000
      AND ((status = 'PROCESSED' AND processed_at <= :processed_before) OR (status = 'DEAD' AND processed_at <= :dead_before))
    ORDER BY created_at
    LIMIT :limit
[sqlite] )
    FOR UPDATE SKIP LOCKED
[postgres] ))
