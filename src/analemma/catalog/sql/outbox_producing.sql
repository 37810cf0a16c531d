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
