-- claimable_lanes --
-- Lanes that are due and free, the most urgent first; with `calm`, nothing that a dead worker left.
SELECT rowid, tenant, aggregatetype, aggregateid, fence + 1, done_seq, next_seq - 1, suspect, lease_until IS NOT NULL
FROM lane
WHERE due_at IS NOT NULL AND NOT parked AND due_at <= :now AND (lease_until IS NULL OR lease_until <= :now)
  AND NOT (:calm AND (suspect OR lease_until IS NOT NULL))
ORDER BY priority, due_at
LIMIT :lanes

-- claimable_lanes_of --
-- The same for one tenant.
SELECT rowid, tenant, aggregatetype, aggregateid, fence + 1, done_seq, next_seq - 1, suspect, lease_until IS NOT NULL
FROM lane
WHERE due_at IS NOT NULL AND NOT parked AND due_at <= :now AND (lease_until IS NULL OR lease_until <= :now)
  AND NOT (:calm AND (suspect OR lease_until IS NOT NULL)) AND tenant = :tenant
ORDER BY priority, due_at
LIMIT :lanes

-- claim_lane --
-- Leases a lane that was found free in the same transaction.
UPDATE lane SET fence = fence + 1, lease_until = :lease_until WHERE rowid = :lane

-- finish_lane --
-- Settles what was handled of a lane, and gives it back, guarded by its fence; no row back means that the lease is lost. What remains is
-- read off the lane as it is now. `failing` is null where nothing failed, and does nothing if what failed was settled after all.
UPDATE lane
SET done_seq = max(done_seq, :done_seq),
    lease_until = NULL,
    suspect = suspect AND NOT (:failing IS NOT NULL AND done_seq <= :done_seq) AND :done_seq <= done_seq,
    parked = :failing IS NOT NULL AND done_seq <= :done_seq AND :failing = 'DEAD',
    retry_at = CASE WHEN :failing IS NOT NULL AND done_seq <= :done_seq THEN :retry_at
                    WHEN :done_seq <= done_seq THEN retry_at END,
    due_at = CASE WHEN next_seq - 1 <= max(done_seq, :done_seq) THEN NULL
                  WHEN :failing IS NOT NULL AND done_seq <= :done_seq THEN coalesce(:retry_at, :now)
                  ELSE :now END
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND fence = :fence
RETURNING due_at, done_seq

-- process_events --
-- What was settled of a lane.
UPDATE outbox SET status = 'PROCESSED', processed_at = :now, next_attempt_at = NULL
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid
  AND seq > :after AND seq <= :seq AND processed_at IS NULL

-- fail_event --
-- What failed, unless it was settled after all.
UPDATE outbox
SET status = :status, attempts = :attempts, next_attempt_at = :retry_at, failure_reason = :reason
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND seq = :seq
  AND processed_at IS NULL

-- settle_lane --
-- In the transaction that has the event's effect; no row back means that the lease is lost, or that it is
-- settled already.
UPDATE lane
SET done_seq = :seq, retry_at = NULL, suspect = 0,
    due_at = CASE WHEN next_seq - 1 <= :seq THEN NULL ELSE due_at END
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid
  AND fence = :fence AND done_seq < :seq
RETURNING done_seq

-- renew_lane --
-- A longer lease for a worker that is still at it.
UPDATE lane SET lease_until = :lease_until
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid
  AND fence = :fence AND lease_until IS NOT NULL
