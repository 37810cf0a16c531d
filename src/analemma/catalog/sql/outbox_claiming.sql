-- lane_events --
-- The first rows of a lane that are not settled.
SELECT id, seq, type, payload, idempotency_key, priority, status, attempts, created_at, trace
FROM outbox
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND seq > :after
ORDER BY seq
LIMIT :limit

-- lane_position --
-- Who holds a lane, and how far it is settled.
SELECT fence, done_seq FROM lane WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid

-- suspect_lane --
-- A worker died in this lane; guarded by the fence of whoever found that out.
UPDATE lane SET suspect = true
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND fence = :fence

-- begin_event --
-- Says that this very row is being tried: if the worker dies now, it is to blame.
UPDATE outbox SET status = 'PROCESSING'
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND seq = :seq
  AND processed_at IS NULL AND EXISTS (
      SELECT 1 FROM lane
      WHERE lane.tenant = :tenant AND lane.aggregatetype = :aggregatetype AND lane.aggregateid = :aggregateid
        AND lane.fence = :fence  -- guard: lane.begun
  )

-- blame_event --
-- Counts an attempt that ended with its worker.
UPDATE outbox SET status = 'PENDING', attempts = :attempts, failure_reason = :reason
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND seq = :seq

-- tenant_names --
-- Every tenant's number and name.
SELECT id, name FROM tenant
