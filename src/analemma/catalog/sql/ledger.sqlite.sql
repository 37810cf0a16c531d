-- enter --
-- One acknowledged delta; the place it got.
INSERT INTO ledger
    (tenant, owner, workflow, branch, secret, created_at, idempotency_key, fingerprint, codec, size, digest, stored, body)
VALUES
    (:tenant, :owner, :workflow, :branch, :secret, :created_at, :idempotency_key, :fingerprint, :codec, :size, :digest,
     :stored, :body)
RETURNING seq

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

-- add_ticket --
-- What became of an entry. The delta of one that failed is kept with it.
INSERT INTO ticket (seq, tenant, owner, workflow, branch, secret, settled_at, receipt, failure, codec, size, digest, body)
SELECT seq, tenant, owner, workflow, branch, secret, :settled_at, :receipt, :failure,
       CASE WHEN :failure IS NOT NULL THEN codec END, CASE WHEN :failure IS NOT NULL THEN size END,
       CASE WHEN :failure IS NOT NULL THEN digest END, CASE WHEN :failure IS NOT NULL THEN body END
FROM ledger WHERE seq = :seq AND tenant = :tenant

-- drop_entry --
-- It is applied, or it failed.
DELETE FROM ledger WHERE seq = :seq AND tenant = :tenant
