-- housekeep_outbox --
-- Deletes a batch of rows that were settled long enough ago, oldest first. What is not settled has no processed_at and stays.
-- A minute more, where the index is used: the producer's clock may be ahead.
DELETE FROM outbox
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM outbox
    WHERE created_at < greatest(:processed_before::bigint, :dead_before::bigint) + 60000000
      AND ((status = 'PROCESSED' AND processed_at <= :processed_before) OR (status = 'DEAD' AND processed_at <= :dead_before))
    ORDER BY created_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
))
