-- head_and_pending --
-- Where one branch stands, and whether acknowledged deltas wait to be applied to it: one look for both, since every save looks.
SELECT head.manifest, head.version, head.journal_seq, head.journal_tip, EXISTS (
    SELECT 1 FROM pending
    WHERE pending.tenant = :tenant AND pending.owner = :owner AND pending.workflow = :workflow AND pending.branch = :branch
      AND pending.settled_at IS NULL
)
FROM (SELECT 1 AS one) AS always LEFT JOIN head
    ON head.tenant = :tenant AND head.owner = :owner AND head.workflow = :workflow AND head.branch = :branch

-- newest_pending --
-- The last delta that waits for a branch at this moment.
SELECT max(seq) FROM pending
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND branch = :branch AND settled_at IS NULL

-- newest_pending_of_all --
-- The last delta that waits for any branch.
[sqlite] SELECT max(seq) FROM pending INDEXED BY pending_branch
-- Not of the primary key, which would be read backwards past everything that is settled.
[postgres] SELECT max(seq + 0) FROM pending
WHERE tenant = :tenant AND settled_at IS NULL

-- pending_count --
-- How many deltas wait.
SELECT count(*) FROM pending
[sqlite]     INDEXED BY pending_branch
WHERE tenant = :tenant AND settled_at IS NULL

-- pending_branches --
-- Branches for which deltas wait that were made before a time and have a place up to one.
SELECT DISTINCT owner, workflow, branch FROM pending
[sqlite]     INDEXED BY pending_branch
WHERE tenant = :tenant AND settled_at IS NULL AND created_at < :before AND seq <= :through LIMIT :limit

-- pending_request --
-- What was asked under a caller's key and is not applied yet.
SELECT fingerprint FROM pending
WHERE tenant = :tenant AND owner = :owner AND workflow = :workflow AND idempotency_key = :key AND settled_at IS NULL
ORDER BY seq LIMIT 1

-- ticket --
-- Where one delta stands.
SELECT owner, workflow, branch, coalesce(settled_at, created_at), receipt, failure
FROM pending WHERE seq = :seq AND tenant = :tenant AND secret = :secret

-- forget_tickets --
-- What became of deltas long ago, with those that failed.
DELETE FROM pending WHERE tenant = :tenant AND settled_at < :before

-- pending_entries --
-- The first deltas of each of these branches, by turns, until there are enough of them or of their bytes. Sizes first: a body that is not
-- wanted is not read.
WITH wanted AS MATERIALIZED (
    SELECT place, owner, workflow, branch
    FROM rows(:keys) WITH ORDINALITY AS given (owner text, workflow text, branch text, place)
), first AS MATERIALIZED (
    SELECT wanted.place, entry.seq, entry.stored, row_number() OVER (PARTITION BY wanted.place ORDER BY entry.seq) AS turn
[sqlite]     FROM wanted JOIN pending AS entry ON entry.seq IN (
[sqlite]         SELECT seq FROM pending
[postgres]     FROM wanted CROSS JOIN LATERAL (
[postgres]         SELECT seq, stored FROM pending
        WHERE tenant = :tenant AND owner = wanted.owner AND workflow = wanted.workflow AND branch = wanted.branch AND settled_at IS NULL
        ORDER BY seq LIMIT :most_entries
[sqlite]     )
[postgres]     ) AS entry
), chosen AS MATERIALIZED (
    SELECT seq, sum(stored) OVER (ORDER BY turn, place) - stored AS before FROM first
    ORDER BY turn, place LIMIT :most_entries
)
SELECT pending.seq, owner, workflow, branch, secret, created_at, idempotency_key, fingerprint, codec, size, digest, body
FROM chosen
[sqlite] CROSS JOIN pending ON pending.seq = chosen.seq
-- With a limit each is looked up by its number; without, all that wait might be read instead.
[postgres] CROSS JOIN LATERAL (SELECT * FROM pending AS found WHERE found.seq = chosen.seq LIMIT 1) AS pending
WHERE chosen.before < :most_bytes::bigint
ORDER BY pending.seq

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

-- enter_pending --
-- An acknowledged delta; answers its place. The lock of its branch is held until this commits, so the order of a branch's places is that of its
-- commits.
(tenant bigint,
 entries[] (key.owner text, key.workflow text, key.branch text, secret bytea, created_at_us bigint, idempotency_key text, fingerprint bytea,
            codec bigint, size bigint, digest bytea, body bytea))

often one entries;

[postgres] each entries:
[postgres] SELECT pg_advisory_xact_lock(
[postgres]     hashtextextended(:entries.key.owner || '/' || :entries.key.workflow || '/' || :entries.key.branch, :tenant::integer + {number})
[postgres] );

each entries:
INSERT INTO pending
    (tenant, owner, workflow, branch, secret, created_at, idempotency_key, fingerprint, codec, size, digest, stored, body)
VALUES (:tenant, :entries.key.owner, :entries.key.workflow, :entries.key.branch, :entries.secret, :entries.created_at_us, :entries.idempotency_key,
        :entries.fingerprint, :entries.codec, :entries.size, :entries.digest, length(:entries.body), :entries.body)
=> number seq;

-- settle_pending --
-- Versions of deltas, perhaps of many branches, and what became of each delta. The locks of a commit in their order, those of the deltas behind the
-- heads. One that failed or was a version already moves no head.
(entries[] (seq bigint, receipt bytea, failure text))

include hold_heads;

-- What was made a version of goes; what failed is kept.
each entries:
UPDATE pending
SET settled_at = :now, receipt = :entries.receipt, failure = :entries.failure, body = CASE WHEN :entries.failure IS NOT NULL THEN body END
WHERE tenant = :tenant AND seq = :entries.seq AND settled_at IS NULL  -- guard: pending.once
=> 1 or entry_gone;

include make_versions;

passes commit.before_commit: everything is written, nothing is committed;
