-- As before, but a lane of compiles or of fanouts is not parked either if something was added to it since it was claimed.
CREATE OR REPLACE FUNCTION analemma_finish_lanes(
    given_now bigint, tenants bigint[], types text[], ids text[], fences bigint[], done_seqs bigint[], last_seqs bigint[],
    statuses text[], all_attempts bigint[], delays bigint[], reasons text[]
)
RETURNS TABLE (place bigint, due boolean, done_seq bigint, parked boolean)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment bigint := analemma_now(given_now);
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT given.tenant, given.aggregatetype, given.aggregateid, given.done_seq, given.attempts, given.delay, given.reason, given.place,
               lane.done_seq AS settled_seq, given.status IS NOT NULL AND lane.done_seq <= given.done_seq AS failing,
               -- What a channel delivers, and a compile or a fanout makes, is the newest state: one that came since the claim is worth
               -- another try.
               CASE WHEN given.status = 'DEAD' AND lane.next_seq - 1 > given.last_seq
                        AND (lane.channel > '' OR lane.aggregatetype IN ('RAW_DATA', 'CHANGESET')) THEN 'FAILED'
                    ELSE given.status END AS status
        FROM unnest(tenants, types, ids, fences, done_seqs, last_seqs, statuses, all_attempts, delays, reasons)
            WITH ORDINALITY AS given (
                tenant, aggregatetype, aggregateid, fence, done_seq, last_seq, status, attempts, delay, reason, place
            )
        JOIN lane ON lane.tenant = given.tenant AND lane.aggregatetype = given.aggregatetype
            AND lane.aggregateid = given.aggregateid AND lane.fence = given.fence
        FOR NO KEY UPDATE OF lane SKIP LOCKED
    ), moved AS (
        UPDATE lane
        SET done_seq = greatest(lane.done_seq, held.done_seq),
            lease_until = NULL,
            suspect = lane.suspect AND NOT held.failing AND held.done_seq <= lane.done_seq,
            parked = held.failing AND held.status = 'DEAD',
            retry_at = CASE WHEN held.failing THEN moment + held.delay
                            WHEN held.done_seq <= lane.done_seq THEN lane.retry_at END,
            due_at = CASE WHEN lane.next_seq - 1 <= greatest(lane.done_seq, held.done_seq) THEN NULL
                          WHEN held.failing THEN moment + coalesce(held.delay, 0)
                          ELSE moment END
        FROM held
        WHERE lane.tenant = held.tenant AND lane.aggregatetype = held.aggregatetype AND lane.aggregateid = held.aggregateid
        RETURNING held.place, lane.due_at <= moment AS due, lane.done_seq, lane.parked
    ), processed AS (
        UPDATE outbox SET status = 'PROCESSED', processed_at = moment, next_attempt_at = NULL
        FROM held
        WHERE outbox.tenant = held.tenant AND outbox.aggregatetype = held.aggregatetype
          AND outbox.aggregateid = held.aggregateid AND outbox.seq > held.settled_seq AND outbox.seq <= held.done_seq
          AND outbox.processed_at IS NULL
    ), failed AS (
        UPDATE outbox
        SET status = held.status, attempts = held.attempts, next_attempt_at = moment + held.delay, failure_reason = held.reason
        FROM held
        WHERE held.failing AND outbox.tenant = held.tenant AND outbox.aggregatetype = held.aggregatetype
          AND outbox.aggregateid = held.aggregateid AND outbox.seq = held.done_seq + 1
          AND outbox.processed_at IS NULL
    )
    SELECT moved.place, coalesce(moved.due, false), moved.done_seq, moved.parked FROM moved;
END
$$;
