-- head_and_pending --
-- Where one branch stands, and whether acknowledged deltas wait to be applied to it: one look for both, since every save looks.
SELECT head.manifest, head.version, head.journal_seq, head.journal_tip, EXISTS (
    SELECT 1 FROM ledger
    WHERE ledger.tenant = :tenant AND ledger.owner = :owner AND ledger.workflow = :workflow AND ledger.branch = :branch
)
FROM (SELECT 1 AS one) AS always LEFT JOIN head
    ON head.tenant = :tenant AND head.owner = :owner AND head.workflow = :workflow AND head.branch = :branch

-- newest_pending --
-- The last entry that waits for a branch at this moment.
SELECT max(seq) FROM ledger WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch

-- newest_pending_of_all --
-- The last entry that waits for any branch.
SELECT max(seq) FROM ledger WHERE tenant = :tenant

-- pending_count --
-- How many entries wait.
SELECT count(*) FROM ledger WHERE tenant = :tenant

-- pending_branches --
-- Branches for which entries wait that were made before a time and have a place up to one.
SELECT DISTINCT owner, workflow, branch FROM ledger
WHERE tenant = :tenant AND created_at < :before AND seq <= :through LIMIT :limit

-- pending_request --
-- What was asked under a caller's key and is not applied yet.
SELECT fingerprint FROM ledger
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND idempotency_key = :key
ORDER BY seq LIMIT 1

-- ticket_state --
-- An entry is in one of the two tables: it changes from one to the other in one transaction.
SELECT owner, workflow, branch, created_at, NULL AS receipt, NULL AS failure
FROM ledger WHERE seq = :seq AND tenant = :tenant AND secret = :secret
UNION ALL
SELECT owner, workflow, branch, settled_at, receipt, failure
FROM ticket WHERE seq = :seq AND tenant = :tenant AND secret = :secret

-- kept_delta --
-- The delta of an entry that waits, or that failed.
SELECT codec, size, digest, body FROM ledger WHERE seq = :seq AND tenant = :tenant AND secret = :secret
UNION ALL
SELECT codec, size, digest, body FROM ticket
WHERE seq = :seq AND tenant = :tenant AND secret = :secret AND failure IS NOT NULL

-- forget_tickets --
-- What became of entries long ago, with the deltas of those that failed.
DELETE FROM ticket WHERE tenant = :tenant AND settled_at < :before

-- enter [sqlite] --
-- Acknowledged deltas. As in every statement here for many rows: one JSON array for each, and what is binary in one piece, of which a row
-- names the place and length of its parts.
INSERT INTO ledger
    (tenant, owner, workflow, branch, created_at, idempotency_key, codec, size, stored, secret, digest, fingerprint, body)
SELECT :tenant, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'),
       json_extract(value, '$[7]'), substr(:data, json_extract(value, '$[8]'), json_extract(value, '$[9]')),
       substr(:data, json_extract(value, '$[10]'), json_extract(value, '$[11]')),
       substr(:data, json_extract(value, '$[12]'), json_extract(value, '$[13]')),
       substr(:data, json_extract(value, '$[14]'), json_extract(value, '$[15]'))
FROM json_each(:rows)

-- enter [postgres] --
-- Acknowledged deltas, and the places they got. The locks of their branches are held until this commits, so the order of a branch's places is
-- that of its commits; everyone takes them in the same order.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        :owners::text[], :workflows::text[], :branches::text[], :secrets::bytea[], :times::bigint[], :keys::text[],
        :fingerprints::bytea[], :codecs::bigint[], :sizes::bigint[], :digests::bytea[], :stored::bigint[], :bodies::bytea[]
    ) WITH ORDINALITY AS entry (
        owner, workflow, branch, secret, created_at, idempotency_key, fingerprint, codec, size, digest, stored, body, place
    )
), turn AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(branch.number) FROM (
        SELECT DISTINCT hashtextextended(owner || '/' || workflow || '/' || branch, :tenant::integer) AS number
        FROM given ORDER BY number
    ) AS branch
)
INSERT INTO ledger
    (tenant, owner, workflow, branch, secret, created_at, idempotency_key, fingerprint, codec, size, digest, stored, body)
SELECT :tenant, owner, workflow, branch, secret, created_at, idempotency_key, fingerprint, codec, size, digest, stored, body
FROM given CROSS JOIN (SELECT count(*) FROM turn) AS held
ORDER BY place
RETURNING secret, seq

-- entered [sqlite] --
-- The places that the last entries got.
SELECT secret, seq FROM ledger WHERE seq <= last_insert_rowid() ORDER BY seq DESC LIMIT :count

-- pending_entries --
-- The first entries of each of these branches, by turns, until there are enough of them or of their bytes. Sizes first: a body that is not
-- wanted is not read.
WITH wanted AS MATERIALIZED (
    SELECT place, owner, workflow, branch
    FROM rows(:keys) WITH ORDINALITY AS given (owner text, workflow text, branch text, place)
), first AS MATERIALIZED (
    SELECT wanted.place, entry.seq, entry.stored, row_number() OVER (PARTITION BY wanted.place ORDER BY entry.seq) AS turn
[sqlite]     FROM wanted JOIN ledger AS entry ON entry.seq IN (
[sqlite]         SELECT seq FROM ledger
[postgres]     FROM wanted CROSS JOIN LATERAL (
[postgres]         SELECT seq, stored FROM ledger
        WHERE tenant = :tenant AND owner = wanted.owner AND workflow = wanted.workflow AND branch = wanted.branch
          AND seq <= :through
        ORDER BY seq LIMIT :most_entries
[sqlite]     )
[postgres]     ) AS entry
), chosen AS MATERIALIZED (
    SELECT seq, sum(stored) OVER (ORDER BY turn, place) - stored AS before FROM first
    ORDER BY turn, place LIMIT :most_entries
)
SELECT ledger.seq, owner, workflow, branch, secret, codec, size, body, digest, created_at, idempotency_key, fingerprint
FROM chosen JOIN ledger ON ledger.seq = chosen.seq
WHERE chosen.before < :most_bytes::bigint
ORDER BY ledger.seq

-- heads --
-- Where each of these branches stands.
SELECT head.owner, head.workflow, head.branch, head.manifest, head.version, head.journal_seq, head.journal_tip
FROM rows(:keys) AS wanted (owner text, workflow text, branch text)
[sqlite] CROSS JOIN head
[sqlite]     ON head.tenant = :tenant AND head.owner = wanted.owner AND head.workflow = wanted.workflow AND head.branch = wanted.branch
[postgres] CROSS JOIN LATERAL (
[postgres]     SELECT * FROM head AS found
[postgres]     WHERE found.tenant = :tenant AND found.owner = wanted.owner AND found.workflow = wanted.workflow AND found.branch = wanted.branch
[postgres]     -- With a limit it is looked up once for each; without, all heads of the tenant might be read instead.
[postgres]     LIMIT 1
[postgres] ) AS head

-- hold_beginnings [lock] --
-- Branches of these workflows may begin: whoever removes one of the workflows waits, as for every commit that begins a branch.
SELECT pg_advisory_xact_lock_shared(workflow.number) FROM (
    SELECT DISTINCT hashtextextended(wanted.owner || '/' || wanted.workflow || '/branches', :tenant::integer) AS number
    FROM rows(:keys) AS wanted (owner text, workflow text, branch text) ORDER BY number
) AS workflow

-- hold_heads --
-- The same, each held until the end of the transaction: in the order in which they are given, which is that of their keys, since everyone
-- who holds several must keep to one order.
SELECT head.owner, head.workflow, head.branch, head.manifest, head.version, head.journal_seq, head.journal_tip
FROM rows(:keys) AS wanted (owner text, workflow text, branch text)
[sqlite] CROSS JOIN head
[sqlite]     ON head.tenant = :tenant AND head.owner = wanted.owner AND head.workflow = wanted.workflow AND head.branch = wanted.branch
[postgres] CROSS JOIN LATERAL (
[postgres]     SELECT * FROM head AS found
[postgres]     WHERE found.tenant = :tenant AND found.owner = wanted.owner AND found.workflow = wanted.workflow AND found.branch = wanted.branch
[postgres]     FOR UPDATE
[postgres] ) AS head

-- hold_entries --
-- Those of the entries that still wait, held until the end of the transaction, in the order of their places.
SELECT seq FROM ledger WHERE tenant = :tenant AND seq = ANY (:seqs::bigint[]) ORDER BY seq FOR UPDATE

-- settle_blocks [sqlite] --
-- The blocks of many versions, in the order in which they are given.
INSERT INTO block (tenant, size, codec, object_offset, object_length, id, body, upload, links)
SELECT :tenant, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), substr(:data, json_extract(value, '$[4]'), json_extract(value, '$[5]')),
       substr(:data, json_extract(value, '$[6]'), json_extract(value, '$[7]')),
       substr(:data, json_extract(value, '$[8]'), json_extract(value, '$[9]')),
       substr(:data, json_extract(value, '$[10]'), json_extract(value, '$[11]'))
FROM json_each(:rows)
WHERE true
ON CONFLICT (tenant, id) DO NOTHING

-- settle_manifests [sqlite] --
-- The rows of many versions.
INSERT INTO manifest (tenant, owner, workflow, branch, version, created_at, execution, segment, message, id, parent, root)
SELECT :tenant, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'),
       json_extract(value, '$[7]'), substr(:data, json_extract(value, '$[8]'), json_extract(value, '$[9]')),
       substr(:data, json_extract(value, '$[10]'), json_extract(value, '$[11]')),
       substr(:data, json_extract(value, '$[12]'), json_extract(value, '$[13]'))
FROM json_each(:rows)

-- settle_journal [sqlite] --
-- The new links of many branches' hash chains.
INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, created_at, manifest, body, hash)
SELECT :tenant, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
       substr(:data, json_extract(value, '$[6]'), json_extract(value, '$[7]')),
       substr(:data, json_extract(value, '$[8]'), json_extract(value, '$[9]')),
       substr(:data, json_extract(value, '$[10]'), json_extract(value, '$[11]'))
FROM json_each(:rows)

-- add_tickets [sqlite] --
-- What became of entries. The delta of one that failed is kept with it.
INSERT INTO ticket (seq, tenant, owner, workflow, branch, secret, settled_at, receipt, failure, codec, size, digest, body)
SELECT entry.seq, entry.tenant, entry.owner, entry.workflow, entry.branch, entry.secret, :settled_at, receipt, failure,
       CASE WHEN failure IS NOT NULL THEN entry.codec END, CASE WHEN failure IS NOT NULL THEN entry.size END,
       CASE WHEN failure IS NOT NULL THEN entry.digest END, CASE WHEN failure IS NOT NULL THEN entry.body END
FROM (
    SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS failure, substr(:data, json_extract(value, '$[2]'), json_extract(value, '$[3]')) AS receipt
    FROM json_each(:rows)
) AS outcome CROSS JOIN ledger AS entry ON entry.seq = outcome.seq AND entry.tenant = :tenant

-- drop_entries [sqlite] --
-- They are applied, or they failed.
DELETE FROM ledger WHERE tenant = :tenant AND seq = ANY (:seqs::bigint[])

-- settle [postgres] --
-- Versions of many branches, whose heads and entries are held already. New heads first, then lanes, then blocks by id: the order of every
-- commit.
WITH created AS (
    INSERT INTO head (tenant, owner, workflow, branch, manifest, version, journal_seq, journal_tip)
    SELECT :tenant, fresh.*
    FROM unnest(
        :new_owners::text[], :new_workflows::text[], :new_branches::text[], :new_manifests::bytea[],
        :new_versions::bigint[], :new_journal_seqs::bigint[], :new_journal_tips::bytea[]
    ) AS fresh
    ON CONFLICT DO NOTHING
    RETURNING 1
), moved AS (
    UPDATE head
    SET manifest = next.manifest, version = next.version, journal_seq = next.journal_seq, journal_tip = next.journal_tip
    FROM unnest(
        :owners::text[], :workflows::text[], :branches::text[], :manifests::bytea[], :versions::bigint[],
        :journal_seqs::bigint[], :journal_tips::bytea[]
    ) AS next (owner, workflow, branch, manifest, version, journal_seq, journal_tip)
    WHERE head.tenant = :tenant AND head.owner = next.owner AND head.workflow = next.workflow AND head.branch = next.branch
    RETURNING 1
), lanes AS (
    INSERT INTO lane (tenant, aggregatetype, aggregateid, next_seq, due_at, priority)
    SELECT :tenant, wanted.aggregatetype, wanted.aggregateid, wanted.count + 1,
           least(:settled_at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), wanted.priority
    FROM (SELECT count(*) FROM created) AS heads CROSS JOIN unnest(
        :lane_types::text[], :lane_ids::text[], :lane_counts::bigint[], :lane_priorities::bigint[]
    ) AS wanted (aggregatetype, aggregateid, count, priority)
    ON CONFLICT (tenant, aggregatetype, aggregateid) DO UPDATE
    SET next_seq = lane.next_seq + excluded.next_seq - 1,
        due_at = greatest(least(lane.due_at, excluded.due_at), lane.retry_at),
        priority = CASE WHEN lane.due_at IS NULL THEN excluded.priority ELSE least(lane.priority, excluded.priority) END
    RETURNING aggregatetype, aggregateid, next_seq
), stored AS (
    INSERT INTO block (tenant, id, size, codec, body, upload, object_offset, object_length, links)
    SELECT :tenant, emitted.*
    FROM (SELECT count(*) FROM lanes) AS places CROSS JOIN unnest(
        :block_ids::bytea[], :block_sizes::bigint[], :block_codecs::bigint[], :block_bodies::bytea[],
        :block_uploads::bytea[], :block_offsets::bigint[], :block_lengths::bigint[], :block_links::bytea[]
    ) AS emitted
    ON CONFLICT (tenant, id) DO UPDATE SET doomed = NULL WHERE block.doomed IS NOT NULL
), added_manifests AS (
    INSERT INTO manifest
        (tenant, id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message)
    SELECT :tenant, added.*
    FROM unnest(
        :manifest_ids::bytea[], :manifest_owners::text[], :manifest_workflows::text[], :manifest_branches::text[],
        :manifest_versions::bigint[], :manifest_parents::bytea[], :manifest_roots::bytea[], :manifest_times::bigint[],
        :manifest_executions::text[], :manifest_segments::bigint[], :manifest_messages::text[]
    ) AS added
), begun_workflows AS (
    INSERT INTO workflow (tenant, owner, workflow, name, status, created_at, updated_at)
    SELECT :tenant, begun.owner, begun.workflow, begun.workflow, 'IDLE', begun.created_at, begun.created_at
    FROM unnest(:new_owners::text[], :new_workflows::text[], :new_times::bigint[]) AS begun (owner, workflow, created_at)
    ON CONFLICT DO NOTHING
), begun_branches AS (
    INSERT INTO branch (tenant, owner, workflow, branch, first_manifest, parent, created_at)
    SELECT :tenant, begun.owner, begun.workflow, begun.branch, begun.first_manifest, NULL, begun.created_at
    FROM unnest(
        :new_owners::text[], :new_workflows::text[], :new_branches::text[], :new_firsts::bytea[], :new_times::bigint[]
    ) AS begun (owner, workflow, branch, first_manifest, created_at)
), added_journal AS (
    INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
    SELECT :tenant, record.*
    FROM unnest(
        :record_owners::text[], :record_workflows::text[], :record_branches::text[], :record_seqs::bigint[],
        :record_kinds::text[], :record_manifests::bytea[], :record_bodies::bytea[], :record_hashes::bytea[],
        :record_times::bigint[]
    ) AS record
), added_events AS (
    INSERT INTO outbox
        (id, tenant, aggregatetype, aggregateid, seq, type, payload, idempotency_key, priority, created_at, trace)
    SELECT event.id, :tenant, event.aggregatetype, event.aggregateid, lanes.next_seq - event.from_end, event.type,
           event.payload, event.idempotency_key, event.priority, :settled_at, event.trace
    FROM unnest(
        :event_ids::text[], :event_lane_types::text[], :event_lane_ids::text[], :event_places::bigint[],
        :event_types::text[], :event_payloads::bytea[], :event_keys::text[], :event_priorities::bigint[],
        :event_traces::text[]
    ) AS event (id, aggregatetype, aggregateid, from_end, type, payload, idempotency_key, priority, trace)
    JOIN lanes USING (aggregatetype, aggregateid)
), finished AS (
    UPDATE upload SET state = 'ready' WHERE tenant = :tenant AND id = ANY (:uploads::bytea[]) AND state = 'temp'
    RETURNING 1
), old AS MATERIALIZED (
    -- Keys that count no more make room for themselves; held in one order, whoever else does that with some of the same.
    SELECT found.owner, found.workflow, found.key
    FROM (
        SELECT * FROM unnest(:known_owners::text[], :known_workflows::text[], :known_keys::text[]) AS known (owner, workflow, key)
        ORDER BY owner, workflow, key
    ) AS known CROSS JOIN LATERAL (
        SELECT owner, workflow, key FROM idempotency
        WHERE tenant = :tenant AND owner = known.owner AND workflow = known.workflow AND key = known.key
          AND created_at <= analemma_now() - :key_keep::bigint
          AND NOT EXISTS (SELECT FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest)
        FOR UPDATE
    ) AS found
), gone AS (
    DELETE FROM idempotency USING old
    WHERE idempotency.tenant = :tenant AND idempotency.owner = old.owner AND idempotency.workflow = old.workflow
      AND idempotency.key = old.key
    RETURNING 1
), remembered AS (
    INSERT INTO idempotency (tenant, owner, workflow, key, fingerprint, manifest, receipt, created_at)
    SELECT :tenant, known.*, analemma_now()
    FROM (SELECT count(*) FROM gone) AS room CROSS JOIN unnest(
        :known_owners::text[], :known_workflows::text[], :known_keys::text[], :known_fingerprints::bytea[],
        :known_manifests::bytea[], :known_receipts::bytea[]
    ) AS known
), dropped AS (
    DELETE FROM ledger WHERE tenant = :tenant AND seq = ANY (:seqs::bigint[])
    RETURNING *
), settled AS (
    INSERT INTO ticket
        (seq, tenant, owner, workflow, branch, secret, settled_at, receipt, failure, codec, size, digest, body)
    SELECT dropped.seq, :tenant, dropped.owner, dropped.workflow, dropped.branch, dropped.secret, :settled_at::bigint,
           outcome.receipt, outcome.failure,
           CASE WHEN outcome.failure IS NOT NULL THEN dropped.codec END,
           CASE WHEN outcome.failure IS NOT NULL THEN dropped.size END,
           CASE WHEN outcome.failure IS NOT NULL THEN dropped.digest END,
           CASE WHEN outcome.failure IS NOT NULL THEN dropped.body END
    FROM dropped JOIN unnest(:seqs::bigint[], :receipts::bytea[], :failures::text[]) AS outcome (seq, receipt, failure)
        ON outcome.seq = dropped.seq
    RETURNING 1
)
SELECT (SELECT count(*) FROM created), (SELECT count(*) FROM moved), (SELECT count(*) FROM finished),
       (SELECT count(*) FROM settled)
