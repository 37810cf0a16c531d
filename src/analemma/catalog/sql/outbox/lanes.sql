-- add_events --
-- Rows for delivery behind what their lanes hold, which become due. Lanes are locked in the order given, which is the same for everyone; one
-- without rows is only locked. Each takes `count` places at its end, and events are counted from behind them. Due by the database's clock where the
-- producer's is ahead of it: workers know no other.
(tenant bigint, now bigint,
 lanes[] (aggregate_type text, aggregate_id text, count bigint, priority bigint, channel text),
 events[] (event.id text, event.aggregate_type text, event.aggregate_id text, from_end bigint, event.type text, event.payload bytea,
           event.idempotency_key text, event.priority bigint, event.trace text))

each lanes:
INSERT INTO lane (tenant, aggregatetype, aggregateid, next_seq, due_at, priority, channel)
[sqlite] VALUES (:tenant, :lanes.aggregate_type, :lanes.aggregate_id, :lanes.count + 1, min(:now, analemma_now()), :lanes.priority, :lanes.channel)
[postgres] VALUES (:tenant, :lanes.aggregate_type, :lanes.aggregate_id, :lanes.count + 1, least(:now, analemma_now()), :lanes.priority, :lanes.channel)
ON CONFLICT (tenant, aggregatetype, aggregateid) DO UPDATE
SET next_seq = lane.next_seq + excluded.next_seq - 1,
[sqlite]     due_at = max(min(coalesce(lane.due_at, excluded.due_at), excluded.due_at), coalesce(lane.retry_at, 0)),
[postgres]     due_at = greatest(least(lane.due_at, excluded.due_at), lane.retry_at),
    -- What a channel delivers, and a compile or a fanout makes, is the newest state: a new one is worth another try.
    parked = lane.parked AND lane.channel = '' AND lane.aggregatetype NOT IN ('RAW_DATA', 'CHANGESET'),
[sqlite]     priority = CASE WHEN lane.due_at IS NULL THEN excluded.priority ELSE min(lane.priority, excluded.priority) END
[postgres]     priority = CASE WHEN lane.due_at IS NULL THEN excluded.priority ELSE least(lane.priority, excluded.priority) END
WHERE excluded.next_seq > 1;

each events:
INSERT INTO outbox (id, tenant, aggregatetype, aggregateid, seq, type, payload, idempotency_key, priority, created_at, trace)
VALUES (:events.event.id, :tenant, :events.event.aggregate_type, :events.event.aggregate_id, (
            SELECT next_seq - :events.from_end FROM lane
            WHERE lane.tenant = :tenant AND lane.aggregatetype = :events.event.aggregate_type AND lane.aggregateid = :events.event.aggregate_id
        ), :events.event.type, :events.event.payload, :events.event.idempotency_key, :events.event.priority, :now, :events.event.trace);

-- lane_events --
-- The first rows of a lane that are not settled.
SELECT id, seq, type, payload, idempotency_key, priority, status, attempts, created_at, trace
FROM outbox
WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id AND seq > :after
ORDER BY seq
LIMIT :limit

-- lane_position --
-- Who holds a lane, and how far it is settled.
SELECT fence, done_seq FROM lane WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id

-- begin_event --
-- Says that this very row is being tried: if the worker dies now, it is to blame.
UPDATE outbox SET status = 'PROCESSING'
WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id AND seq = :seq
  AND processed_at IS NULL AND EXISTS (
      SELECT 1 FROM lane
      WHERE lane.tenant = :tenant AND lane.aggregatetype = :aggregate_type AND lane.aggregateid = :aggregate_id
        AND lane.fence = :fence  -- guard: lane.begun
  )

-- blame_lanes --
-- Counts attempts that ended with their workers, each against the next row of a lane; from now on the lanes are suspect. Lanes that are somebody
-- else's by now are left alone.
(reason text, lanes[] (key.tenant bigint, key.aggregate_type text, key.aggregate_id text, fence bigint, attempts bigint))

each lanes:
UPDATE lane SET suspect = true
WHERE tenant = :lanes.key.tenant AND aggregatetype = :lanes.key.aggregate_type AND aggregateid = :lanes.key.aggregate_id
  AND fence = :lanes.fence;

each lanes:
UPDATE outbox SET status = 'PENDING', attempts = :lanes.attempts, failure_reason = :reason
WHERE tenant = :lanes.key.tenant AND aggregatetype = :lanes.key.aggregate_type AND aggregateid = :lanes.key.aggregate_id AND seq = (
    SELECT done_seq + 1 FROM lane
    WHERE lane.tenant = :lanes.key.tenant AND lane.aggregatetype = :lanes.key.aggregate_type
      AND lane.aggregateid = :lanes.key.aggregate_id AND lane.fence = :lanes.fence
);

-- tenant_names --
-- Every tenant's number and name, oldest first.
SELECT id, name FROM tenant ORDER BY id

-- claim_lanes [postgres] --
-- Leases lanes that are due and free, and answers the first rows of each: the function is in the schema's baseline.
SELECT * FROM analemma_claim_lanes(  -- guard: lane.leased.postgres
    NULL, :tenant::bigint, :lanes::bigint, :rows::bigint, :lease::bigint, :calm::boolean, :channel
)

-- due_lane [text] --
-- A lane that is due and free.
SELECT 1 FROM lane
WHERE channel = :channel AND due_at IS NOT NULL AND NOT parked AND due_at <= (SELECT analemma_now())
  AND (lease_until IS NULL OR lease_until <= (SELECT analemma_now()))

-- any_lane_due [sqlite] --
-- Whether there is anything to claim.
include due_lane
LIMIT 1

-- any_lane_due [postgres] --
-- Whether there is anything to claim: the function is in the schema's baseline.
SELECT 1 WHERE analemma_is_due(analemma_now(), NULL, :channel)

-- any_lane_due_of [sqlite] --
-- Whether there is anything to claim of one tenant.
include due_lane
  AND tenant = :tenant LIMIT 1

-- any_lane_due_of [postgres] --
-- Whether there is anything to claim of one tenant.
SELECT 1 WHERE analemma_is_due(analemma_now(), :tenant::bigint, :channel)

-- claimable_lane [text] --
-- A lane that is due and free; with `calm`, not one that a dead worker left.
SELECT rowid, tenant, aggregatetype, aggregateid, fence + 1, done_seq, next_seq - 1, suspect, lease_until IS NOT NULL
FROM lane
WHERE channel = :channel AND due_at IS NOT NULL AND NOT parked AND due_at <= :now
  AND (lease_until IS NULL OR lease_until <= :now)  -- guard: lane.leased.sqlite
  AND NOT (:calm AND (suspect OR lease_until IS NOT NULL))

-- claimable_lanes [sqlite] --
-- Those that are due and free, the most urgent first.
include claimable_lane
ORDER BY priority, due_at LIMIT :lanes

-- claimable_lanes_of [sqlite] --
-- The same for one tenant.
include claimable_lane
  AND tenant = :tenant
ORDER BY priority, due_at LIMIT :lanes

-- claim_lane [sqlite] --
-- Leases a lane that was found free in the same transaction.
UPDATE lane SET fence = fence + 1, lease_until = :lease_until WHERE rowid = :lane

-- events_of_lanes [sqlite] --
-- The first rows of lanes that are not settled. Places in a lane have no gaps.
SELECT given.place - 1, outbox.id, seq, outbox.type, payload, idempotency_key, priority, status, attempts, created_at, trace
FROM rows(:lanes) WITH ORDINALITY AS given
    (tenant bigint, aggregatetype text, aggregateid text, after bigint, most bigint, place) CROSS JOIN outbox
WHERE outbox.tenant = given.tenant AND outbox.aggregatetype = given.aggregatetype
  AND outbox.aggregateid = given.aggregateid AND seq > given.after
  AND seq <= given.after + given.most
ORDER BY given.place, seq  -- guard: lane.order.sqlite

-- finish_lanes [sqlite] --
-- Settles what was handled of lanes, and gives them back, guarded by their fences; lanes that do not come back are lost. What remains is read off each
-- lane as it is now. `status` is null where nothing failed; what failed does nothing if it was settled after all.
UPDATE lane
SET done_seq = max(lane.done_seq, given.done_seq),
    lease_until = NULL,
    suspect = suspect AND (given.status IS NULL OR lane.done_seq > given.done_seq) AND given.done_seq <= lane.done_seq,
    -- What a channel delivers, and a compile or a fanout makes, is the newest state: one that came since the claim is worth another try.
    parked = given.status IS NOT NULL AND lane.done_seq <= given.done_seq AND given.status = 'DEAD'  -- guard: lane.parked.sqlite
        AND (next_seq - 1 <= given.last_seq OR (channel = '' AND lane.aggregatetype NOT IN ('RAW_DATA', 'CHANGESET'))),
    retry_at = CASE WHEN given.status IS NOT NULL AND lane.done_seq <= given.done_seq THEN :now + given.delay
                    WHEN given.done_seq <= lane.done_seq THEN retry_at END,
    due_at = CASE WHEN next_seq - 1 <= max(lane.done_seq, given.done_seq) THEN NULL
                  WHEN given.status IS NOT NULL AND lane.done_seq <= given.done_seq THEN :now + coalesce(given.delay, 0)
                  ELSE :now END
FROM rows(:lanes) AS given
    (tenant bigint, aggregatetype text, aggregateid text, fence bigint, done_seq bigint, last_seq bigint, status text, attempts bigint, delay bigint,
     reason text)
WHERE lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype
  AND lane.aggregateid = given.aggregateid AND lane.fence = given.fence  -- guard: lane.finished.sqlite
RETURNING tenant, aggregatetype, aggregateid, lane.fence, coalesce(due_at <= :now, 0), done_seq, parked

-- process_events [sqlite] --
-- What was settled of lanes.
UPDATE outbox SET status = 'PROCESSED', processed_at = analemma_now(), next_attempt_at = NULL
FROM rows(:lanes) AS given
    (tenant bigint, aggregatetype text, aggregateid text, after bigint, up_to bigint)
WHERE outbox.tenant = given.tenant AND outbox.aggregatetype = given.aggregatetype
  AND outbox.aggregateid = given.aggregateid AND seq > given.after
  AND seq <= given.up_to AND processed_at IS NULL

-- fail_events [sqlite] --
-- What failed, unless it was settled after all.
UPDATE outbox
SET status = given.status, attempts = given.attempts, next_attempt_at = :now + given.delay, failure_reason = given.reason
FROM rows(:events) AS given
    (tenant bigint, aggregatetype text, aggregateid text, seq bigint, status text, attempts bigint, delay bigint, reason text)
WHERE outbox.tenant = given.tenant AND outbox.aggregatetype = given.aggregatetype
  AND outbox.aggregateid = given.aggregateid AND outbox.seq = given.seq AND processed_at IS NULL

-- settled_lane [text] --
-- In the transaction that has the event's effect; no row back means that the lease is lost, or that it is settled already.
UPDATE lane
SET done_seq = :seq, retry_at = NULL, suspect = false, due_at = CASE WHEN next_seq - 1 <= :seq THEN NULL ELSE due_at END
WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id
  -- guard: lane.settled_once
  AND fence = :fence AND done_seq < :seq  -- guard: lane.settled
RETURNING done_seq

-- settle_lane [sqlite] --
-- Settles a row of a lane, and those before it.
include settled_lane

-- renew_lanes [sqlite] --
-- Longer leases for a worker that is still at it.
UPDATE lane SET lease_until = analemma_now() + :lease
FROM rows(:lanes) AS given (tenant bigint, aggregatetype text, aggregateid text, fence bigint)
WHERE lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype
  AND lane.aggregateid = given.aggregateid AND lane.fence = given.fence AND lane.lease_until IS NOT NULL  -- guard: lane.renewed.sqlite
RETURNING lane.tenant, lane.aggregatetype, lane.aggregateid

-- finish_lanes [postgres] --
-- Settles what was handled of each lane, writes down what failed, and gives the lane back: the function is in the schema's baseline.
SELECT * FROM analemma_finish_lanes(  -- guard: lane.finished.postgres
    NULL, :tenants::bigint[], :types::text[], :ids::text[], :fences::bigint[], :done_seqs::bigint[], :last_seqs::bigint[],
    :statuses::text[], :attempts::bigint[], :delays::bigint[], :reasons::text[]
)

-- settle_event [postgres] --
-- Settles a row of a lane, and those before it, with their events.
WITH moved AS (
include settled_lane
), processed AS (
    UPDATE outbox
    SET status = 'PROCESSED', next_attempt_at = NULL,
        processed_at = analemma_now()
    WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id
      AND seq > :after AND seq <= :seq AND processed_at IS NULL AND EXISTS (SELECT FROM moved)
)
SELECT done_seq FROM moved

-- renew_lanes [postgres] --
-- Longer leases for a worker that is still at it; answers which lanes it renewed. A lane that somebody is writing to is left
-- out, unless the caller has waited for it and holds its lock already.
WITH held AS MATERIALIZED (
    SELECT lane.tenant, lane.aggregatetype, lane.aggregateid
    FROM rows(:lanes) AS given (tenant bigint, aggregatetype text, aggregateid text, fence bigint)
    JOIN lane ON lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype
        AND lane.aggregateid = given.aggregateid AND lane.fence = given.fence AND lane.lease_until IS NOT NULL  -- guard: lane.renewed.postgres
    FOR NO KEY UPDATE OF lane SKIP LOCKED
)
UPDATE lane
SET lease_until = analemma_now() + :lease
FROM held
WHERE lane.tenant = held.tenant AND lane.aggregatetype = held.aggregatetype AND lane.aggregateid = held.aggregateid
RETURNING lane.tenant, lane.aggregatetype, lane.aggregateid

-- limit_lock_waits [postgres] --
-- For the rest of the transaction: nobody's lock is waited for any longer than this.
SELECT set_config('lock_timeout', :limit, true)

-- lock_lane [postgres] --
-- Waits for its turn among those who write to a lane, who all wait in one line; passing over what is locked would never get a turn at a lane
-- that is always being written to.
SELECT 1 FROM lane
WHERE tenant = :tenant AND aggregatetype = :aggregate_type AND aggregateid = :aggregate_id
FOR NO KEY UPDATE

-- passed_over_lanes [postgres] --
-- The most urgent lanes that are due and free; asked when a claim got none of them. Those whose worker was not heard of come a lease later:
-- it may be waiting in the same line, to renew it.
SELECT tenant, aggregatetype, aggregateid FROM lane
WHERE channel = :channel AND due_at IS NOT NULL AND NOT parked AND due_at <= (SELECT analemma_now())
  AND (lease_until IS NULL OR lease_until <= (SELECT analemma_now()) - :lease::bigint)
  AND tenant = coalesce(:tenant::integer, tenant)
ORDER BY priority, due_at
LIMIT :limit

-- notify [postgres] --
-- Tells the workers of all processes that something may be due. Not inside anybody's transaction: those would queue behind each other.
SELECT pg_notify('{channel}', '')

-- listen [postgres] --
-- From now on this connection hears of it.
LISTEN "{channel}"
