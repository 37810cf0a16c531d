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

-- enter_pending --
-- Acknowledged deltas; answers the place of each. The locks of their branches are held until this commits, so the order of a branch's places is
-- that of its commits; everyone takes them in the order of the branches' keys.
(tenant bigint,
 entries[] (key.owner text, key.workflow text, key.branch text, secret bytea, created_at_us bigint, idempotency_key text, fingerprint bytea,
            delta.codec bigint, delta.size bigint, delta.digest bytea, delta.length bigint, delta.body bytea))

[postgres] each entries:
[postgres] SELECT pg_advisory_xact_lock(
[postgres]     hashtextextended(:entries.key.owner || '/' || :entries.key.workflow || '/' || :entries.key.branch, :tenant::integer + {number})
[postgres] );

each entries:
INSERT INTO ledger
    (tenant, owner, workflow, branch, secret, created_at, idempotency_key, fingerprint, codec, size, digest, stored, body)
VALUES (:tenant, :entries.key.owner, :entries.key.workflow, :entries.key.branch, :entries.secret, :entries.created_at_us, :entries.idempotency_key,
        :entries.fingerprint, :entries.delta.codec, :entries.delta.size, :entries.delta.digest, :entries.delta.length, :entries.delta.body)
=> number seq;

-- settle_pending --
-- Versions of entries, perhaps of many branches, and what became of each entry, which leaves the ledger with it. The locks of a commit in their order,
-- those of the entries behind the heads. A branch that no entry moves has its head moved to where it is.
(tenant bigint, absent[] (owner text, workflow text, branch text), entries[] (seq bigint, receipt bytea, failure text))

include find_keys;
include hold_beginnings;
include move_heads;

each absent:
SELECT 1 FROM head WHERE tenant = :tenant AND owner = :absent.owner AND workflow = :absent.workflow AND branch = :absent.branch
=> 0 or head_exists;

include begin_heads;

passes commit.after_head: the head has moved inside the transaction;

-- The delta of one that failed is kept with it.
each entries:
INSERT INTO ticket (seq, tenant, owner, workflow, branch, secret, settled_at, receipt, failure, codec, size, digest, body)
SELECT seq, tenant, owner, workflow, branch, secret, :now, :entries.receipt, :entries.failure,
       CASE WHEN :entries.failure IS NOT NULL THEN codec END, CASE WHEN :entries.failure IS NOT NULL THEN size END,
       CASE WHEN :entries.failure IS NOT NULL THEN digest END, CASE WHEN :entries.failure IS NOT NULL THEN body END
FROM ledger WHERE tenant = :tenant AND seq = :entries.seq
ON CONFLICT DO NOTHING
=> 1 or entry_gone;

each entries:
DELETE FROM ledger WHERE tenant = :tenant AND seq = :entries.seq;

include add_events;
include add_versions;
include remember_keys;
include begin_branches;

passes commit.before_commit: everything is written, nothing is committed;
