-- any_lane_due --
-- Whether there is anything to claim.
SELECT 1 FROM lane
WHERE channel = :channel AND due_at IS NOT NULL AND NOT parked AND due_at <= :now
  AND (lease_until IS NULL OR lease_until <= :now)
LIMIT 1

-- any_lane_due_of --
-- Whether there is anything to claim of one tenant.
SELECT 1 FROM lane
WHERE channel = :channel AND due_at IS NOT NULL AND NOT parked AND due_at <= :now
  AND (lease_until IS NULL OR lease_until <= :now)
  AND tenant = :tenant
LIMIT 1

-- claimable_lanes --
-- Lanes that are due and free, the most urgent first; with `calm`, nothing that a dead worker left.
SELECT rowid, tenant, aggregatetype, aggregateid, fence + 1, done_seq, next_seq - 1, suspect, lease_until IS NOT NULL
FROM lane
WHERE channel = :channel AND due_at IS NOT NULL AND NOT parked AND due_at <= :now
  AND (lease_until IS NULL OR lease_until <= :now)  -- guard: lane.leased.sqlite
  AND NOT (:calm AND (suspect OR lease_until IS NOT NULL))
ORDER BY priority, due_at
LIMIT :lanes

-- claimable_lanes_of --
-- The same for one tenant.
SELECT rowid, tenant, aggregatetype, aggregateid, fence + 1, done_seq, next_seq - 1, suspect, lease_until IS NOT NULL
FROM lane
WHERE channel = :channel AND due_at IS NOT NULL AND NOT parked AND due_at <= :now
  AND (lease_until IS NULL OR lease_until <= :now)
  AND NOT (:calm AND (suspect OR lease_until IS NOT NULL)) AND tenant = :tenant
ORDER BY priority, due_at
LIMIT :lanes

-- claim_lane --
-- Leases a lane that was found free in the same transaction.
UPDATE lane SET fence = fence + 1, lease_until = :lease_until WHERE rowid = :lane

-- events_of_lanes --
-- The first rows of lanes that are not settled. `lanes` is a JSON list of [tenant, type, id, settled up to, at most so many]; places in a
-- lane have no gaps.
SELECT given.key, outbox.id, seq, outbox.type, payload, idempotency_key, priority, status, attempts, created_at, trace
FROM json_each(:lanes) AS given CROSS JOIN outbox
WHERE outbox.tenant = json_extract(given.value, '$[0]') AND outbox.aggregatetype = json_extract(given.value, '$[1]')
  AND outbox.aggregateid = json_extract(given.value, '$[2]') AND seq > json_extract(given.value, '$[3]')
  AND seq <= json_extract(given.value, '$[3]') + json_extract(given.value, '$[4]')
ORDER BY given.key, seq  -- guard: lane.order.sqlite

-- finish_lanes_well --
-- Settles what was handled of lanes in which nothing failed, and gives them back, guarded by their fences; lanes that do not come back are lost.
-- What remains is read off each lane as it is now. `lanes` is a JSON list of [tenant, type, id, fence, done_seq].
UPDATE lane
SET done_seq = max(done_seq, json_extract(given.value, '$[4]')),
    lease_until = NULL,
    suspect = suspect AND json_extract(given.value, '$[4]') <= done_seq,
    parked = 0,
    retry_at = CASE WHEN json_extract(given.value, '$[4]') <= done_seq THEN retry_at END,
    due_at = CASE WHEN next_seq - 1 <= max(done_seq, json_extract(given.value, '$[4]')) THEN NULL ELSE :now END
FROM json_each(:lanes) AS given
WHERE lane.tenant = json_extract(given.value, '$[0]') AND lane.aggregatetype = json_extract(given.value, '$[1]')
  AND lane.aggregateid = json_extract(given.value, '$[2]') AND lane.fence = json_extract(given.value, '$[3]')  -- guard: lane.finished_well.sqlite
RETURNING tenant, aggregatetype, aggregateid, due_at, done_seq

-- process_events_of --
-- What was settled of lanes: a JSON list of [tenant, type, id, after, up to].
UPDATE outbox SET status = 'PROCESSED', processed_at = :now, next_attempt_at = NULL
FROM json_each(:lanes) AS given
WHERE outbox.tenant = json_extract(given.value, '$[0]') AND outbox.aggregatetype = json_extract(given.value, '$[1]')
  AND outbox.aggregateid = json_extract(given.value, '$[2]') AND seq > json_extract(given.value, '$[3]')
  AND seq <= json_extract(given.value, '$[4]') AND processed_at IS NULL

-- finish_lane --
-- Settles what was handled of a lane in which something failed, and gives it back, guarded by its fence; no row back means that the lease is lost. What remains is
-- read off the lane as it is now. `failing` is null where nothing failed, and does nothing if what failed was settled after all.
UPDATE lane
SET done_seq = max(done_seq, :done_seq),
    lease_until = NULL,
    suspect = suspect AND NOT (:failing IS NOT NULL AND done_seq <= :done_seq) AND :done_seq <= done_seq,
    -- What a channel delivers, and a compile or a fanout makes, is the newest state: one that came since the claim is worth another try.
    parked = :failing IS NOT NULL AND done_seq <= :done_seq AND :failing = 'DEAD'  -- guard: lane.parked.sqlite
        AND (next_seq - 1 <= :last_seq OR (channel = '' AND aggregatetype NOT IN ('RAW_DATA', 'CHANGESET'))),
    retry_at = CASE WHEN :failing IS NOT NULL AND done_seq <= :done_seq THEN :retry_at
                    WHEN :done_seq <= done_seq THEN retry_at END,
    due_at = CASE WHEN next_seq - 1 <= max(done_seq, :done_seq) THEN NULL
                  WHEN :failing IS NOT NULL AND done_seq <= :done_seq THEN coalesce(:retry_at, :now)
                  ELSE :now END
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid AND fence = :fence  -- guard: lane.finished.sqlite
RETURNING due_at, done_seq, parked

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
  -- guard: lane.settled_once.sqlite
  AND fence = :fence AND done_seq < :seq  -- guard: lane.settled.sqlite
RETURNING done_seq

-- renew_lane --
-- A longer lease for a worker that is still at it.
UPDATE lane SET lease_until = :lease_until
WHERE tenant = :tenant AND aggregatetype = :aggregatetype AND aggregateid = :aggregateid
  AND fence = :fence AND lease_until IS NOT NULL  -- guard: lane.renewed.sqlite
