-- enter --
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

-- entered --
-- The places that the last entries got.
SELECT secret, seq FROM ledger WHERE seq <= last_insert_rowid() ORDER BY seq DESC LIMIT :count

-- pending_entries --
-- The first entries of each of these branches, by turns, until there are enough of them or of their bytes. Sizes first: a body that is not
-- wanted is not read.
WITH wanted AS MATERIALIZED (
    SELECT key AS place, json_extract(value, '$[0]') AS owner, json_extract(value, '$[1]') AS workflow,
           json_extract(value, '$[2]') AS branch
    FROM json_each(:keys)
), first AS MATERIALIZED (
    SELECT wanted.place, entry.seq, entry.stored, row_number() OVER (PARTITION BY wanted.place ORDER BY entry.seq) AS turn
    FROM wanted JOIN ledger AS entry ON entry.seq IN (
        SELECT seq FROM ledger
        WHERE tenant = :tenant AND owner = wanted.owner AND workflow = wanted.workflow AND branch = wanted.branch
          AND seq <= :through
        ORDER BY seq LIMIT :most_entries
    )
), chosen AS MATERIALIZED (
    SELECT seq, sum(stored) OVER (ORDER BY turn, place) - stored AS before FROM first
    ORDER BY turn, place LIMIT :most_entries
)
SELECT ledger.seq, owner, workflow, branch, secret, codec, size, body, digest, created_at, idempotency_key, fingerprint
FROM chosen JOIN ledger ON ledger.seq = chosen.seq
WHERE chosen.before < :most_bytes
ORDER BY ledger.seq

-- heads --
-- Where each of these branches stands.
SELECT head.owner, head.workflow, head.branch, head.manifest, head.version, head.journal_seq, head.journal_tip
FROM json_each(:keys) AS wanted CROSS JOIN head
    ON head.tenant = :tenant AND head.owner = json_extract(wanted.value, '$[0]')
    AND head.workflow = json_extract(wanted.value, '$[1]') AND head.branch = json_extract(wanted.value, '$[2]')

-- hold_heads --
-- The same, inside a transaction: with one writer, what is read stays true.
SELECT head.owner, head.workflow, head.branch, head.manifest, head.version, head.journal_seq, head.journal_tip
FROM json_each(:keys) AS wanted CROSS JOIN head
    ON head.tenant = :tenant AND head.owner = json_extract(wanted.value, '$[0]')
    AND head.workflow = json_extract(wanted.value, '$[1]') AND head.branch = json_extract(wanted.value, '$[2]')

-- hold_entries --
-- Those of the entries that still wait.
SELECT ledger.seq FROM json_each(:seqs) AS wanted CROSS JOIN ledger ON ledger.seq = wanted.value AND ledger.tenant = :tenant

-- settle_blocks --
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

-- settle_manifests --
-- The rows of many versions.
INSERT INTO manifest (tenant, owner, workflow, branch, version, created_at, execution, segment, message, id, parent, root)
SELECT :tenant, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'),
       json_extract(value, '$[7]'), substr(:data, json_extract(value, '$[8]'), json_extract(value, '$[9]')),
       substr(:data, json_extract(value, '$[10]'), json_extract(value, '$[11]')),
       substr(:data, json_extract(value, '$[12]'), json_extract(value, '$[13]'))
FROM json_each(:rows)

-- settle_journal --
-- The new links of many branches' hash chains.
INSERT INTO journal (tenant, owner, workflow, branch, seq, kind, created_at, manifest, body, hash)
SELECT :tenant, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
       substr(:data, json_extract(value, '$[6]'), json_extract(value, '$[7]')),
       substr(:data, json_extract(value, '$[8]'), json_extract(value, '$[9]')),
       substr(:data, json_extract(value, '$[10]'), json_extract(value, '$[11]'))
FROM json_each(:rows)

-- add_tickets --
-- What became of entries. The delta of one that failed is kept with it.
INSERT INTO ticket (seq, tenant, owner, workflow, branch, secret, settled_at, receipt, failure, codec, size, digest, body)
SELECT entry.seq, entry.tenant, entry.owner, entry.workflow, entry.branch, entry.secret, :settled_at, receipt, failure,
       CASE WHEN failure IS NOT NULL THEN entry.codec END, CASE WHEN failure IS NOT NULL THEN entry.size END,
       CASE WHEN failure IS NOT NULL THEN entry.digest END, CASE WHEN failure IS NOT NULL THEN entry.body END
FROM (
    SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS failure, substr(:data, json_extract(value, '$[2]'), json_extract(value, '$[3]')) AS receipt
    FROM json_each(:rows)
) AS outcome CROSS JOIN ledger AS entry ON entry.seq = outcome.seq AND entry.tenant = :tenant

-- drop_entries --
-- They are applied, or they failed.
DELETE FROM ledger WHERE seq IN (SELECT value FROM json_each(:seqs)) AND tenant = :tenant
