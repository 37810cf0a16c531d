-- reserve_places --
-- Takes `count` places at the end of a lane and makes the lane due; answers the first place behind them. Due by the database's clock where
-- the producer's is ahead of it, if only because this one counts milliseconds: workers know no other.
INSERT INTO lane (tenant, aggregatetype, aggregateid, next_seq, due_at, priority, channel)
VALUES (:tenant, :aggregatetype, :aggregateid, :count + 1,
        min(:now, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000), :priority, :channel)
ON CONFLICT (tenant, aggregatetype, aggregateid) DO UPDATE
SET next_seq = lane.next_seq + excluded.next_seq - 1,
    due_at = max(min(coalesce(lane.due_at, excluded.due_at), excluded.due_at), coalesce(lane.retry_at, 0)),
    -- What a channel delivers, and a compile or a fanout makes, is the newest state: a new one is worth another try.
    parked = lane.parked AND lane.channel = '' AND lane.aggregatetype NOT IN ('RAW_DATA', 'CHANGESET'),
    priority = CASE WHEN lane.due_at IS NULL THEN excluded.priority ELSE min(lane.priority, excluded.priority) END
RETURNING next_seq

-- add_events --
-- Rows for delivery, at the places reserved for them.
INSERT INTO outbox
    (id, tenant, aggregatetype, aggregateid, seq, type, payload, idempotency_key, priority, created_at, trace)
VALUES
    (:id, :tenant, :aggregatetype, :aggregateid, :seq, :type, :payload, :idempotency_key, :priority, :created_at, :trace)
