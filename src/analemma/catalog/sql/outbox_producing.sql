-- enqueue_events [postgres] --
-- Rows for delivery behind what their lanes hold, which become due. Lanes are locked in the order given, which is the same for everyone; one
-- without rows is only locked.
WITH lanes AS (
    INSERT INTO lane (tenant, aggregatetype, aggregateid, next_seq, due_at, priority, channel)
    -- Due by the database's clock where the producer's is ahead of it: workers know no other.
    SELECT :tenant, wanted.aggregatetype, wanted.aggregateid, wanted.count + 1,
           least(:now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), wanted.priority, wanted.channel
    FROM unnest(:lane_types::text[], :lane_ids::text[], :lane_counts::bigint[], :lane_priorities::bigint[], :lane_channels::text[])
        AS wanted (aggregatetype, aggregateid, count, priority, channel)
    ON CONFLICT (tenant, aggregatetype, aggregateid) DO UPDATE
    SET next_seq = lane.next_seq + excluded.next_seq - 1,
        due_at = greatest(least(lane.due_at, excluded.due_at), lane.retry_at),
        -- What a channel delivers, and a compile or a fanout makes, is the newest state: a new one is worth another try.
        parked = lane.parked AND lane.channel = '' AND lane.aggregatetype NOT IN ('RAW_DATA', 'CHANGESET'),
        priority = CASE WHEN lane.due_at IS NULL THEN excluded.priority ELSE least(lane.priority, excluded.priority) END
    WHERE excluded.next_seq > 1
    RETURNING aggregatetype, aggregateid, next_seq
)
INSERT INTO outbox
    (id, tenant, aggregatetype, aggregateid, seq, type, payload, idempotency_key, priority, created_at, trace)
SELECT event.id, :tenant, event.aggregatetype, event.aggregateid, lanes.next_seq - event.from_end, event.type,
       event.payload, event.idempotency_key, event.priority, :now, event.trace
FROM unnest(
    :event_ids::text[], :event_lane_types::text[], :event_lane_ids::text[], :event_places::bigint[],
    :event_types::text[], :event_payloads::bytea[], :event_keys::text[], :event_priorities::bigint[],
    :event_traces::text[]
) AS event (id, aggregatetype, aggregateid, from_end, type, payload, idempotency_key, priority, trace)
JOIN lanes USING (aggregatetype, aggregateid)

-- reserve_places [sqlite] --
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

-- add_events [sqlite] --
-- Rows for delivery, at the places reserved for them.
INSERT INTO outbox
    (id, tenant, aggregatetype, aggregateid, seq, type, payload, idempotency_key, priority, created_at, trace)
VALUES
    (:id, :tenant, :aggregatetype, :aggregateid, :seq, :type, :payload, :idempotency_key, :priority, :created_at, :trace)
