-- commit_versions --
-- Everything that a commit makes visible. The order of the steps is the order of the locks: the set of branches (if one begins), heads, lanes,
-- bases, blocks, uploads, keys.
()

often one heads, blocks, one versions, one records;
often one heads, blocks, one versions, one records, lanes, events, bases, uploads, keys;

include hold_heads;
include make_versions;

-- hold_heads [part] --
-- Heads are where the new versions put them.
(tenant bigint, keep bigint,
 keys[] (manifest.key.owner text, manifest.key.workflow text, manifest.id bytea, idempotency.key text, idempotency.fingerprint bytea,
         idempotency.receipt bytea),
 begun[] (manifest.key.owner text, manifest.key.workflow text, manifest.key.branch text, manifest.id bytea, manifest.version bigint,
          record.seq bigint, record.hash bytea, first.id bytea, first.parent bytea, first.created_at_us bigint),
 heads[] (manifest.key.owner text, manifest.key.workflow text, manifest.key.branch text, manifest.id bytea, manifest.version bigint,
          record.seq bigint, record.hash bytea, expected.manifest bytea, expected.version bigint, expected.journal_seq bigint,
          expected.journal_tip bytea, unless_pending integer))

-- A request that was made before is not made again. Its key counts for as long as keys are kept, and for as long as its version is there.
each keys:
SELECT 1 FROM idempotency
WHERE tenant = :tenant AND owner = :keys.manifest.key.owner AND workflow = :keys.manifest.key.workflow AND key = :keys.idempotency.key
  AND (created_at > analemma_now() - :keep
       OR EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest))
=> 0 or key_known;

-- Whoever removes a workflow's last branch, and the workflow with it, waits for those that begin, and sees them.
[postgres] each begun:
[postgres] SELECT pg_advisory_xact_lock_shared(
[postgres]     hashtextextended(:begun.manifest.key.owner || '/' || :begun.manifest.key.workflow || '/branches', :tenant::integer + {number})
[postgres] );

-- Compare-and-set of heads; with `unless_pending` also of whether deltas wait to move them.
each heads:
UPDATE head
SET manifest = :heads.manifest.id, version = :heads.manifest.version, journal_seq = :heads.record.seq, journal_tip = :heads.record.hash
WHERE tenant = :tenant AND owner = :heads.manifest.key.owner AND workflow = :heads.manifest.key.workflow AND branch = :heads.manifest.key.branch
  -- guard: head
  AND manifest = :heads.expected.manifest AND version = :heads.expected.version
  AND journal_seq = :heads.expected.journal_seq AND journal_tip = :heads.expected.journal_tip  -- guard: head.journal
  AND NOT (:heads.unless_pending <> 0 AND EXISTS (  -- guard: pending
      SELECT 1 FROM pending
      WHERE pending.tenant = :tenant AND pending.owner = :heads.manifest.key.owner AND pending.workflow = :heads.manifest.key.workflow
        AND pending.branch = :heads.manifest.key.branch AND pending.settled_at IS NULL
  ))
=> 1 or head_moved;

-- The heads of branches that must not exist yet. One whose name was used before goes on behind the tombstone that ends the journal.
each begun:
INSERT INTO head (tenant, owner, workflow, branch, manifest, version, journal_seq, journal_tip)
SELECT :tenant, :begun.manifest.key.owner, :begun.manifest.key.workflow, :begun.manifest.key.branch, :begun.manifest.id, :begun.manifest.version,
       :begun.record.seq, :begun.record.hash
WHERE NOT EXISTS (  -- guard: branch.name_used
    SELECT 1 FROM journal
    WHERE tenant = :tenant AND owner = :begun.manifest.key.owner AND workflow = :begun.manifest.key.workflow AND branch = :begun.manifest.key.branch
      AND seq >= :begun.record.seq
)
ON CONFLICT DO NOTHING
=> 1 or branch_exists;

passes commit.after_head: the head has moved inside the transaction;

-- make_versions [part] --
-- The rows of versions whose heads have moved to them: what they are made of, the new links of their branches' hash chains, and what is told of them.
(tenant bigint, bases[] bytea,
 versions[] (id bytea, key.owner text, key.workflow text, key.branch text, version bigint, parent bytea, root bytea, created_at_us bigint,
             execution text, segment bigint, message text))

include add_events;

-- A manifest whose blocks are linked without being emitted must still be there, and stay until the end.
each bases:
SELECT 1 FROM manifest
WHERE tenant = :tenant AND id = :bases
FOR KEY SHARE  -- guard: base.held.postgres
=> 1 or base_gone;  -- guard: base

include add_bodies;

passes commit.after_blocks: the blocks are written inside the transaction;

each versions:
INSERT INTO manifest (tenant, id, owner, workflow, branch, version, parent, root, created_at, execution, segment, message)
VALUES (:tenant, :versions.id, :versions.key.owner, :versions.key.workflow, :versions.key.branch, :versions.version, :versions.parent,
        :versions.root, :versions.created_at_us, :versions.execution, :versions.segment, :versions.message);

include add_records;

-- The receipts of requests, under their keys. One that counts no more makes room for itself. Of two who come at once, on different branches, the
-- second finds the row of the first.
each keys:
DELETE FROM idempotency
WHERE tenant = :tenant AND owner = :keys.manifest.key.owner AND workflow = :keys.manifest.key.workflow AND key = :keys.idempotency.key
  AND created_at <= analemma_now() - :keep
  AND NOT EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest);

each keys:
INSERT INTO idempotency (tenant, owner, workflow, key, fingerprint, manifest, receipt, created_at)
VALUES (:tenant, :keys.manifest.key.owner, :keys.manifest.key.workflow, :keys.idempotency.key, :keys.idempotency.fingerprint, :keys.manifest.id,
        :keys.idempotency.receipt, analemma_now())
ON CONFLICT DO NOTHING
=> 1 or key_known;

-- How branches began, and their workflows: one begins with its first branch; later branches find it there.
each begun:
INSERT INTO branch (tenant, owner, workflow, branch, first_manifest, parent, created_at)
VALUES (:tenant, :begun.manifest.key.owner, :begun.manifest.key.workflow, :begun.manifest.key.branch, :begun.first.id, :begun.first.parent,
        :begun.first.created_at_us);

each begun:
INSERT INTO workflow (tenant, owner, workflow, name, status, created_at, updated_at)
VALUES (:tenant, :begun.manifest.key.owner, :begun.manifest.key.workflow, :begun.manifest.key.workflow, 'IDLE', :begun.first.created_at_us,
        :begun.first.created_at_us)
ON CONFLICT DO NOTHING;

-- add_records [part] --
-- The next links of the hash chains of branches whose heads are held.
(tenant bigint,
 records[] (key.owner text, key.workflow text, key.branch text, record.seq bigint, record.kind text, record.manifest bytea,
            record.body bytea, record.hash bytea, record.created_at_us bigint))

each records:
INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, manifest, body, hash, created_at)
VALUES (:tenant, :records.key.owner, :records.key.workflow, :records.key.branch, :records.record.seq, :records.record.kind,
        :records.record.manifest, :records.record.body, :records.record.hash, :records.record.created_at_us);

-- add_bodies --
-- Blocks, whether or not they are believed to be stored, and the uploads in which some of them lie. Answers the ids of those that were not there.
(uploads[] bytea)

include add_blocks;

-- Compare-and-set; no row touched means that the collector was faster.
each uploads:
UPDATE upload SET state = 'ready' WHERE tenant = :tenant AND id = :uploads AND state = 'temp'  -- guard: upload.finished
=> 1 or upload_gone;

-- add_blocks [part] --
-- Blocks; one that is there already is no longer the collector's. Two who lock the same blocks lock them in the same order. On SQLite they come as
-- they were emitted, a manifest's last: packing takes its place for the end of its commit.
(tenant bigint,
 blocks[] by id (id bytea, size bigint, codec bigint, body bytea, upload bytea, offset bigint, length bigint, links bytea))

each blocks:
INSERT INTO block (tenant, id, size, codec, body, upload, object_offset, object_length, links)
VALUES (:tenant, :blocks.id, :blocks.size, :blocks.codec, :blocks.body, :blocks.upload, :blocks.offset, :blocks.length, :blocks.links)
[sqlite] ON CONFLICT (tenant, id) DO NOTHING
[postgres] ON CONFLICT (tenant, id) DO UPDATE SET doomed = NULL WHERE block.doomed IS NOT NULL  -- guard: gc.spared.postgres
=> new id;

[sqlite] each blocks left:
[sqlite] DELETE FROM doom WHERE tenant = :tenant AND id = :blocks.id;  -- guard: gc.spared.sqlite

-- replace_block --
-- The bytes of a block whose stored ones are damaged: an id stands for its bytes, so these are the same.
UPDATE block
SET size = :size, codec = :codec, body = :body, upload = NULL, object_offset = NULL, object_length = NULL, links = :links
WHERE tenant = :tenant AND id = :id

-- read_blocks --
-- Those of the ids that exist.
SELECT id, size, codec, body, upload, object_offset, object_length, links
FROM block WHERE tenant = :tenant AND id = ANY (:ids::bytea[])

-- open_upload --
-- The intent; it exists before the object's first byte does.
INSERT INTO upload (tenant, id, state, object_key, size, created_at, owner, workflow, execution)
VALUES (:tenant, :id, :state, :object_key, :size, :created_at_us, :owner, :workflow, :execution)

-- upload --
-- One intent.
SELECT state, object_key, size, created_at, owner, workflow, execution
FROM upload WHERE tenant = :tenant AND id = :id

-- forget_keys --
-- Keys that count no more. Looked at again: whoever used one meanwhile has it anew.
DELETE FROM idempotency
-- guard: key.forgotten
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :key AND created_at <= :before
  AND NOT EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest)

-- old_keys --
-- A page of the keys that were remembered up to a time, oldest first, and whether the version of each is gone.
SELECT created_at, owner, workflow, key,
       NOT EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest)
FROM idempotency
WHERE tenant = :tenant AND created_at <= :before AND (created_at, owner, workflow, key) > (:after_time, :after_owner, :after_workflow, :after_key)
ORDER BY created_at, owner, workflow, key LIMIT :limit

-- idempotency --
-- What was committed under a caller's key. A key counts for as long as keys are kept, and for as long as its version is there.
SELECT fingerprint, receipt
FROM idempotency
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND key = :key
  AND (created_at > analemma_now() - :keep  -- guard: key.counts
       OR EXISTS (SELECT 1 FROM manifest WHERE manifest.tenant = idempotency.tenant AND manifest.id = idempotency.manifest))
