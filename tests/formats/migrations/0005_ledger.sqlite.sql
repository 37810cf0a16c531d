-- The ledger: deltas that were acknowledged and are yet to become versions, and what became of those that were.

-- The order of entries is that of their commits, since SQLite has one writer. Numbers are never given twice: a ticket names one.
CREATE TABLE ledger (
    seq             integer PRIMARY KEY AUTOINCREMENT,
    tenant          integer NOT NULL,
    owner           text NOT NULL,
    workflow        text NOT NULL,
    branch          text NOT NULL,
    secret          blob NOT NULL,
    created_at      integer NOT NULL,
    idempotency_key text,
    fingerprint     blob,
    codec           integer NOT NULL,
    size            integer NOT NULL,
    digest          blob NOT NULL,
    stored          integer NOT NULL,
    body            blob NOT NULL
);
-- Not tenant first: a plan made while the table is empty would as soon look up a place here, reading every entry of the tenant.
CREATE INDEX ledger_branch ON ledger (owner, workflow, branch, tenant, seq);
CREATE INDEX ledger_key ON ledger (owner, workflow, idempotency_key, tenant) WHERE idempotency_key IS NOT NULL;

-- Apart from the ledger, so that a save that looks for pending entries looks into a table that is nearly always empty.
-- Committed: has a receipt. Failed: has a failure, and still the delta.
CREATE TABLE ticket (
    seq        integer PRIMARY KEY,
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    secret     blob NOT NULL,
    settled_at integer NOT NULL,
    receipt    blob,
    failure    text,
    codec      integer,
    size       integer,
    digest     blob,
    body       blob,
    CHECK ((receipt IS NULL) <> (failure IS NULL))
);
