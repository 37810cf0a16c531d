-- commit [postgres] --
-- Everything a commit does, in one statement. Each step reads from the one before it, which fixes the order of the locks: the set of
-- branches (if one begins), head, lanes, bases, blocks, uploads. When the head had moved `won` is empty and nothing at all is written; when a base or an upload is gone,
-- analemma_abort undoes the rest.
WITH seen AS MATERIALIZED (
    SELECT fingerprint, manifest, receipt
    FROM idempotency
    WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :idempotency_key::text
      AND (created_at > analemma_now() - :key_keep::bigint
           OR EXISTS (SELECT FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest))
), moved AS (
    UPDATE head
    SET manifest = :manifest, version = :version, journal_seq = :journal_seq, journal_tip = :journal_tip
    WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
      -- guard: head.postgres
      AND manifest = :expected_manifest::bytea AND version = :expected_version::bigint
      AND journal_seq = :expected_journal_seq::bigint AND journal_tip = :expected_journal_tip::bytea
      AND NOT EXISTS (SELECT FROM seen)
      AND NOT (:unless_pending::boolean AND EXISTS (  -- guard: pending.postgres
          SELECT FROM ledger
          WHERE ledger.tenant = :tenant AND ledger.owner = :owner AND ledger.workflow = :workflow AND ledger.branch = :branch
      ))
    RETURNING 1
), beginning AS MATERIALIZED (
    -- Whoever removes the workflow's last branch, and the workflow with it, waits for this one, and sees it.
    SELECT pg_advisory_xact_lock_shared(hashtextextended(:owner::text || '/' || :workflow::text || '/branches', :tenant::integer))
    WHERE :expected_manifest::bytea IS NULL AND NOT EXISTS (SELECT FROM seen)
), created AS (
    INSERT INTO head (tenant, owner, workflow, branch, manifest, version, journal_seq, journal_tip)
    SELECT :tenant, :owner, :workflow, :branch, :manifest, :version, :journal_seq, :journal_tip
    FROM beginning
    ON CONFLICT DO NOTHING
    RETURNING 1
), won AS MATERIALIZED (
    SELECT FROM moved UNION ALL SELECT FROM created
), lanes AS (
    INSERT INTO lane (tenant, aggregatetype, aggregateid, next_seq, due_at, priority)
    SELECT :tenant, wanted.aggregatetype, wanted.aggregateid, wanted.count + 1,
           least(:now, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), wanted.priority
    FROM won CROSS JOIN unnest(
        :lane_types::text[], :lane_ids::text[], :lane_counts::bigint[], :lane_priorities::bigint[]
    ) AS wanted (aggregatetype, aggregateid, count, priority)
    ON CONFLICT (tenant, aggregatetype, aggregateid) DO UPDATE
    SET next_seq = lane.next_seq + excluded.next_seq - 1,
        due_at = greatest(least(lane.due_at, excluded.due_at), lane.retry_at),
        priority = CASE WHEN lane.due_at IS NULL THEN excluded.priority ELSE least(lane.priority, excluded.priority) END
    RETURNING aggregatetype, aggregateid, next_seq
), held AS MATERIALIZED (
    SELECT id FROM manifest
    WHERE tenant = :tenant AND id = ANY (:bases::bytea[])
      AND EXISTS (SELECT FROM won) AND (SELECT count(*) FROM lanes) >= 0
    ORDER BY id
    FOR KEY SHARE  -- guard: base.held.postgres
), based AS MATERIALIZED (
    SELECT FROM won
    WHERE CASE WHEN (SELECT count(*) FROM held) = :base_count THEN true  -- guard: base.postgres
               ELSE analemma_abort('AN001', (
                   SELECT min(encode(base, 'hex')) FROM unnest(:bases::bytea[]) AS base
                   WHERE NOT EXISTS (SELECT FROM held WHERE held.id = base)
               )) END
), stored AS (
    INSERT INTO block (tenant, id, size, codec, body, upload, object_offset, object_length, links)
    SELECT :tenant, emitted.*
    FROM based CROSS JOIN unnest(
        :block_ids::bytea[], :block_sizes::bigint[], :block_codecs::bigint[], :block_bodies::bytea[],
        :block_uploads::bytea[], :block_offsets::bigint[], :block_lengths::bigint[], :block_links::bytea[]
    ) AS emitted
    ON CONFLICT (tenant, id) DO UPDATE SET doomed = NULL WHERE block.doomed IS NOT NULL  -- guard: gc.spared.commit.postgres
    -- A row that was inserted rather than updated has no xmax.
    RETURNING id, xmax = 0 AS fresh
), placed AS MATERIALIZED (
    SELECT (SELECT count(*) FROM stored) AS touched FROM based
), added_manifest AS (
    INSERT INTO manifest
        (tenant, id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message)
    SELECT :tenant, :manifest, :owner, :workflow, :branch, :version, :parent::bytea, :root, :created_at,
           :execution::text, :segment::bigint, :message::text
    FROM placed
), begun_workflow AS (
    INSERT INTO workflow (tenant, owner, workflow, name, status, created_at, updated_at)
    SELECT :tenant, :owner, :workflow, :workflow, 'IDLE', :created_at, :created_at
    FROM placed WHERE :expected_manifest::bytea IS NULL
    ON CONFLICT DO NOTHING
), begun_branch AS (
    INSERT INTO branch (tenant, owner, workflow, branch, first_manifest, parent, created_at)
    SELECT :tenant, :owner, :workflow, :branch, :manifest, :parent::bytea, :created_at
    FROM placed WHERE :expected_manifest::bytea IS NULL
), added_journal AS (
    INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
    SELECT :tenant, :owner, :workflow, :branch, record.*
    FROM placed CROSS JOIN unnest(
        :journal_seqs::bigint[], :journal_kinds::text[], :journal_manifests::bytea[], :journal_bodies::bytea[],
        :journal_hashes::bytea[], :journal_times::bigint[]
    ) AS record
), added_events AS (
    INSERT INTO outbox
        (id, tenant, aggregatetype, aggregateid, seq, type, payload, idempotency_key, priority, created_at, trace)
    SELECT event.id, :tenant, event.aggregatetype, event.aggregateid, lanes.next_seq - event.from_end, event.type,
           event.payload, event.idempotency_key, event.priority, :now, event.trace
    FROM placed CROSS JOIN unnest(
        :event_ids::text[], :event_lane_types::text[], :event_lane_ids::text[], :event_places::bigint[],
        :event_types::text[], :event_payloads::bytea[], :event_keys::text[], :event_priorities::bigint[],
        :event_traces::text[]
    ) AS event (id, aggregatetype, aggregateid, from_end, type, payload, idempotency_key, priority, trace)
    JOIN lanes USING (aggregatetype, aggregateid)
), finished AS (
    UPDATE upload SET state = 'ready'
    WHERE tenant = :tenant AND id = ANY (:uploads::bytea[]) AND state = 'temp' AND EXISTS (SELECT FROM placed)  -- guard: upload.finished.postgres
    RETURNING 1
), dropped AS (
    -- A key that counts no more makes room for itself. Of two who come at once the second finds the row of the first.
    DELETE FROM idempotency
    WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :idempotency_key::text
      AND created_at <= analemma_now() - :key_keep::bigint AND EXISTS (SELECT FROM placed)
      AND NOT EXISTS (SELECT FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest)
    RETURNING 1
), remembered AS (
    INSERT INTO idempotency (tenant, owner, workflow, key, fingerprint, manifest, receipt, created_at)
    SELECT :tenant, :owner, :workflow, :idempotency_key::text, :fingerprint::bytea, :manifest, :receipt::bytea, analemma_now()
    FROM placed WHERE :idempotency_key::text IS NOT NULL AND (SELECT count(*) FROM dropped) >= 0
)
SELECT
    CASE WHEN NOT EXISTS (SELECT FROM won) THEN false
         WHEN (SELECT count(*) FROM finished) = :upload_count THEN true
         ELSE analemma_abort('AN002', 'an upload is gone') END,
    (SELECT array_agg(id) FROM stored WHERE fresh),
    seen.fingerprint, seen.manifest, seen.receipt
FROM (SELECT) AS answer LEFT JOIN seen ON true

-- commit_plain [postgres] --
-- `commit` for the everyday case, at half its cost: the branch exists, blocks are inline, one journal record, and no events, uploads
-- or idempotency key. The same locks in the same order.
WITH moved AS (
    UPDATE head
    SET manifest = :manifest, version = :version, journal_seq = :journal_seq, journal_tip = :journal_tip
    WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
      -- guard: head.plain.postgres
      AND manifest = :expected_manifest AND version = :expected_version
      AND journal_seq = :expected_journal_seq AND journal_tip = :expected_journal_tip
      AND NOT (:unless_pending::boolean AND EXISTS (  -- guard: pending.plain.postgres
          SELECT FROM ledger
          WHERE ledger.tenant = :tenant AND ledger.owner = :owner AND ledger.workflow = :workflow AND ledger.branch = :branch
      ))
    RETURNING 1
), held AS MATERIALIZED (
    SELECT id FROM manifest
    WHERE tenant = :tenant AND id = ANY (:bases::bytea[]) AND EXISTS (SELECT FROM moved)
    ORDER BY id
    FOR KEY SHARE  -- guard: base.held.plain.postgres
), based AS MATERIALIZED (
    SELECT FROM moved
    WHERE CASE WHEN (SELECT count(*) FROM held) = :base_count THEN true  -- guard: base.plain.postgres
               ELSE analemma_abort('AN001', (
                   SELECT min(encode(base, 'hex')) FROM unnest(:bases::bytea[]) AS base
                   WHERE NOT EXISTS (SELECT FROM held WHERE held.id = base)
               )) END
), stored AS (
    INSERT INTO block (tenant, id, size, codec, body, links)
    SELECT :tenant, emitted.*
    FROM based CROSS JOIN unnest(
        :block_ids::bytea[], :block_sizes::bigint[], :block_codecs::bigint[], :block_bodies::bytea[],
        :block_links::bytea[]
    ) AS emitted
    ON CONFLICT (tenant, id) DO UPDATE SET doomed = NULL WHERE block.doomed IS NOT NULL  -- guard: gc.spared.plain.postgres
    RETURNING id, xmax = 0 AS fresh
), added_manifest AS (
    INSERT INTO manifest
        (tenant, id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message)
    SELECT :tenant, :manifest, :owner, :workflow, :branch, :version, :parent::bytea, :root, :created_at,
           :execution::text, :segment::bigint, :message::text
    FROM based
), added_journal AS (
    INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
    SELECT :tenant, :owner, :workflow, :branch, :record_seq, :record_kind, :record_manifest::bytea, :record_body,
           :record_hash, :record_time
    FROM based
)
SELECT EXISTS (SELECT FROM moved), (SELECT array_agg(id) FROM stored WHERE fresh), NULL, NULL, NULL

-- move_head [sqlite] --
-- Compare-and-set; no row touched means that someone else moved the head first, or (with unless_pending) that deltas wait to move it.
UPDATE head
SET manifest = :manifest, version = :version, journal_seq = :journal_seq, journal_tip = :journal_tip
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch
  -- guard: head.sqlite
  AND manifest = :expected_manifest AND version = :expected_version
  AND journal_seq = :expected_journal_seq AND journal_tip = :expected_journal_tip  -- guard: head.journal.sqlite
  AND NOT (:unless_pending AND EXISTS (  -- guard: pending.sqlite
      SELECT 1 FROM ledger
      WHERE ledger.tenant = :tenant AND ledger.owner = :owner AND ledger.workflow = :workflow AND ledger.branch = :branch
  ))

-- create_head [sqlite] --
-- No row touched means that the branch exists already.
INSERT INTO head (tenant, owner, workflow, branch, manifest, version, journal_seq, journal_tip)
VALUES (:tenant, :owner, :workflow, :branch, :manifest, :version, :journal_seq, :journal_tip)
ON CONFLICT DO NOTHING

-- base_exists [sqlite] --
-- A manifest whose blocks are linked without being emitted must still be there.
SELECT 1 FROM manifest WHERE tenant = :tenant AND id = :id

-- add_manifest [sqlite] --
-- The row of the new version.
INSERT INTO manifest (tenant, id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message)
VALUES (:tenant, :id, :owner, :workflow, :branch, :version, :parent, :root, :created_at, :execution, :segment, :message)

-- add_journal [sqlite] --
-- The new links of the branch's hash chain.
INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
VALUES (:tenant, :owner, :workflow, :branch, :seq, :kind, :manifest, :body, :hash, :created_at)
