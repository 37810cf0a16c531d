-- The schema as a new database gets it. Older ones came here step by step; `tests/formats` holds both ways against each other.
-- Rowid tables in SQLite, where rows are wide: blobs in the leaves of a WITHOUT ROWID tree make it 1.5 to 2.5 times slower.

-- The ground: tenants, blocks, manifests, heads, journal, uploads, idempotency, outbox.

-- One row: what tells this store from every other, wherever it is moved or copied to.
CREATE TABLE store (
    id                text NOT NULL PRIMARY KEY,
    -- Where the objects of this store are: NULL until it is first opened with an object store.
    objects           text,
    -- Which generation of its objects' marker this catalog has seen, and which it means to write next; 0: none so far.
    object_generation bigint NOT NULL DEFAULT 0,
    object_token      text,
    object_intent     text,
    -- Where that marker was.
    object_claimed    text
);
[postgres] INSERT INTO store (id) VALUES (replace(gen_random_uuid()::text, '-', ''));
[sqlite] INSERT INTO store (id) VALUES (lower(hex(randomblob(16))));

-- Below which folders a catalog that does not own its objects has put objects of its own, and which catalog that was.
CREATE TABLE object_folder (
    name    text NOT NULL PRIMARY KEY,
    catalog text NOT NULL
) WITHOUT ROWID;

CREATE TABLE tenant (
[postgres]     id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
[sqlite]     id   integer PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE upload (
    tenant       integer NOT NULL REFERENCES tenant,
    id           bytea NOT NULL,
    state        text NOT NULL CHECK (state IN ('temp', 'ready', 'deleting')),
    object_key   text NOT NULL,
    size         bigint NOT NULL,
    created_at   bigint NOT NULL,
    owner        text,
    workflow     text,
    execution    text,
    -- A claim says when and from which state; deleted_at is set once the object is gone.
    claimed_at   bigint,
    claimed_from text CHECK (claimed_from IN ('temp', 'ready')),
    deleted_at   bigint,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX upload_unfinished ON upload (state, created_at) WHERE state <> 'ready';

CREATE TABLE block (
    tenant        integer NOT NULL,
    id            bytea NOT NULL,
    size          integer NOT NULL,
    codec         integer NOT NULL,
    body          bytea,
    upload        bytea,
    object_offset bigint,
    object_length integer,
    links         bytea,
    -- In SQLite, dooms have a table of their own. Here they stay: whoever waits for a row tests that row's own columns again when it is
    -- free, but what it sees of another table is from before it waited.
[postgres]     doomed        bigint,
[sqlite]     was_doomed    bigint,
    PRIMARY KEY (tenant, id),
    CHECK ((body IS NULL) <> (upload IS NULL))
);
-- Bodies are compressed already, here and in every other table.
[postgres] ALTER TABLE block ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX block_upload ON block (tenant, upload) WHERE upload IS NOT NULL;
-- In the order in which blocks are scanned, and with all that the scan asks.
[postgres] CREATE INDEX block_doomed ON block (tenant, id, doomed) WHERE doomed IS NOT NULL;

-- To doom a block by a column of its row wrote all of its bytes again, and to delete it once more. There is one writer in SQLite, so a row
-- beside the block's does as well. Every doom is of a block that is there: what deletes one deletes both.
[sqlite] CREATE TABLE doom (
[sqlite]     tenant integer NOT NULL,
[sqlite]     id     bytea NOT NULL,
[sqlite]     pass   bigint NOT NULL,
[sqlite]     PRIMARY KEY (tenant, id)
[sqlite] ) WITHOUT ROWID;

CREATE TABLE manifest (
    tenant     integer NOT NULL,
    id         bytea NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    version    bigint NOT NULL,
    parent     bytea,
    root       bytea NOT NULL,
    created_at bigint NOT NULL,
    execution  text,
    segment    bigint,
    message    text,
    PRIMARY KEY (tenant, id),
    -- Not tenant first: a plan made while the table is empty would as soon look up (tenant, id) here, reading every row.
    UNIQUE (owner, workflow, branch, tenant, version)
);
-- The versions of one execution, without reading those of all others.
CREATE INDEX manifest_execution ON manifest (owner, workflow, branch, tenant, execution, version)
    WHERE execution IS NOT NULL;

-- The head's key goes by version. Whenever a manifest is deleted, and in SQLite whenever one is added too, the database looks for heads that
-- name it: by branch and version it finds the only one there could be; by manifest it read every head of the tenant. The key is deferred: a
-- head may name a manifest that the same transaction adds behind it, since the head is the first row that a commit locks.
CREATE TABLE head (
    tenant      integer NOT NULL,
    owner       text NOT NULL,
    workflow    text NOT NULL,
    branch      text NOT NULL,
    manifest    bytea NOT NULL,
    version     bigint NOT NULL,
    journal_seq bigint NOT NULL,
    journal_tip bytea NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch),
    FOREIGN KEY (owner, workflow, branch, tenant, version) REFERENCES manifest (owner, workflow, branch, tenant, version)
        DEFERRABLE INITIALLY DEFERRED
);

CREATE TABLE journal (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    seq        bigint NOT NULL,
    kind       text NOT NULL,
    manifest   bytea,
    body       bytea NOT NULL,
    hash       bytea NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch, seq)
);
-- The decisions on one version, without reading the rest of the journal.
CREATE INDEX journal_decided ON journal (tenant, manifest, seq) WHERE kind = 'decided';

CREATE TABLE idempotency (
    tenant      integer NOT NULL,
    owner       text NOT NULL,
    workflow    text NOT NULL,
    key         text NOT NULL,
    fingerprint bytea NOT NULL,
    manifest    bytea NOT NULL,
    receipt     bytea NOT NULL,
    -- How long idempotency keys are kept: by when the database remembered them.
[postgres]     created_at  bigint NOT NULL,
[sqlite]     created_at  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, owner, workflow, key)
);
CREATE INDEX idempotency_age ON idempotency (tenant, created_at, owner, workflow, key);

-- What is to be delivered to one aggregate, in order; what delivery needs to know of it: how far it came, when the next try is due, and whether
-- a worker died in it. Room for the second version of a row on its own page: then an update touches no index.
CREATE TABLE lane (
    tenant        integer NOT NULL,
    aggregatetype text NOT NULL,
    aggregateid   text NOT NULL,
    next_seq      bigint NOT NULL,
    due_at        bigint,
    fence         bigint NOT NULL DEFAULT 0,
    lease_until   bigint,
    parked        boolean NOT NULL DEFAULT false,
    priority      integer NOT NULL DEFAULT 0,
    -- Everything up to here is settled: delivered, or given up by a person. So the next rows of a lane are found without passing those that
    -- were processed, and whether anything remains is known from the lane's own row.
    done_seq      bigint NOT NULL DEFAULT 0,
    -- Not before this time, whatever else arrives: the first row that is left failed.
    retry_at      bigint,
    -- A worker died while it held the lane: its rows are tried one at a time, and whoever tries one says so first.
    suspect       boolean NOT NULL DEFAULT false,
    -- Lanes of a channel are claimed by that channel's batches alone: one that is slow, or rests, holds up nobody else. The channel of
    -- shipping is the id of the sink rule; '' is what every worker takes event by event. A lane never changes its channel.
    channel       text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (tenant, aggregatetype, aggregateid)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX lane_due ON lane (channel, priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;
-- What is due of one tenant, so that a worker of its own does not pass what is due of all others.
CREATE INDEX lane_due_of ON lane (tenant, channel, priority, due_at) WHERE due_at IS NOT NULL AND NOT parked;
CREATE INDEX lane_parked ON lane (tenant, aggregatetype, aggregateid) WHERE parked;
CREATE INDEX lane_retrying ON lane (tenant, aggregatetype, aggregateid) WHERE retry_at IS NOT NULL;

CREATE TABLE outbox (
    id              text NOT NULL,
    tenant          integer NOT NULL,
    aggregatetype   text NOT NULL,
    aggregateid     text NOT NULL,
    seq             bigint NOT NULL,
    type            text NOT NULL,
    payload         bytea NOT NULL,
    idempotency_key text,
    status          text NOT NULL DEFAULT 'PENDING'
                    CHECK (status IN ('PENDING', 'PROCESSING', 'PROCESSED', 'FAILED', 'DEAD')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at bigint,
    failure_reason  text,
    priority        integer NOT NULL DEFAULT 0,
    created_at      bigint NOT NULL,
    processed_at    bigint,
    trace           text,
    PRIMARY KEY (tenant, id),
    UNIQUE (tenant, aggregatetype, aggregateid, seq)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- By age, for housekeeping; a column that never changes, so that settling a row touches no index.
CREATE INDEX outbox_created ON outbox (created_at);

-- Workflows, branches, tags, pins, retention, and what has expired.
CREATE TABLE workflow (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    name       text NOT NULL,
    status     text NOT NULL CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'IDLE')),
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow)
);
-- Lists are in the order of the bytes, as in every other catalog, whatever the database's collation.
[postgres] CREATE INDEX workflow_listing ON workflow (tenant, owner, workflow COLLATE "C");

-- How a branch began. Kept apart from its head, which every commit rewrites: an index on where branches come from costs commits nothing.
-- Within a branch a version's child is the next version, so this is also all that listing children needs.
CREATE TABLE branch (
    tenant         integer NOT NULL,
    owner          text NOT NULL,
    workflow       text NOT NULL,
    branch         text NOT NULL,
    first_manifest bytea NOT NULL,
    parent         bytea,
    created_at     bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch)
);
CREATE INDEX branch_parent ON branch (tenant, parent) WHERE parent IS NOT NULL;

CREATE TABLE tag (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    name       text NOT NULL,
    branch     text NOT NULL,
    manifest   bytea NOT NULL,
    message    text,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, name),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id)
);
CREATE INDEX tag_manifest ON tag (tenant, manifest);

CREATE TABLE pin (
    tenant     integer NOT NULL,
    manifest   bytea NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    reason     text,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, manifest),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id)
);
CREATE INDEX pin_branch ON pin (tenant, owner, workflow, branch);

-- The journal names what expired, many versions to a record; this finds one of them without reading the journal.
CREATE TABLE expired (
    tenant     integer NOT NULL,
    manifest   bytea NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    version    bigint NOT NULL,
    expired_at bigint NOT NULL,
    PRIMARY KEY (tenant, manifest)
);
CREATE INDEX expired_version ON expired (owner, workflow, branch, tenant, version);

-- An empty workflow stands for all of the owner's that have no row of their own.
CREATE TABLE retention (
    tenant            integer NOT NULL,
    owner             text NOT NULL,
    workflow          text NOT NULL,
    keep_last         bigint,
    keep_newer_than_s bigint,
    keep_hourly       bigint,
    keep_daily        bigint,
    keep_weekly       bigint,
    PRIMARY KEY (tenant, owner, workflow)
);

-- What was last decided on each version, so that versions can be found by it. The journal holds the decisions themselves; a row here repeats the
-- newest one and goes with its version.
CREATE TABLE decision (
    tenant   integer NOT NULL,
    manifest bytea NOT NULL,
    owner    text NOT NULL,
    workflow text NOT NULL,
    branch   text NOT NULL,
    version  bigint NOT NULL,
    decision text NOT NULL CHECK (decision IN ('approved', 'rejected', 'escalated', 'pending')),
    PRIMARY KEY (tenant, manifest),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id) ON DELETE CASCADE
);
CREATE INDEX decision_version ON decision (owner, workflow, branch, tenant, decision, version);

-- Leases of payloads: what pointers name, and what keeps the trees below them until their execution ends.
CREATE TABLE payload (
    tenant      integer NOT NULL,
    id          bytea NOT NULL,
    owner       text NOT NULL,
    workflow    text NOT NULL,
    execution   text NOT NULL,
    root        bytea NOT NULL,
    size        bigint NOT NULL,
    -- NULL: the tree holds several fields.
    field       text,
    created_at  bigint NOT NULL,
    released_at bigint,
    -- When a lease was made or last used, by the database's clock: an execution that nobody released ends by it.
[postgres]     renewed_at  bigint NOT NULL,
[sqlite]     renewed_at  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX payload_execution ON payload (tenant, owner, workflow, execution) WHERE released_at IS NULL;
CREATE INDEX payload_live ON payload (tenant, id) WHERE released_at IS NULL;

-- The ledger: deltas that were acknowledged and are yet to become versions, and what became of those that were.

-- The order of a branch's entries is that of their commits: a number is taken under the branch's advisory lock. Numbers are never given twice: a
-- ticket names one.
CREATE TABLE ledger (
    seq             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          integer NOT NULL,
    owner           text NOT NULL,
    workflow        text NOT NULL,
    branch          text NOT NULL,
    secret          bytea NOT NULL,
    created_at      bigint NOT NULL,
    idempotency_key text,
    fingerprint     bytea,
    codec           integer NOT NULL,
    size            bigint NOT NULL,
    digest          bytea NOT NULL,
    stored          bigint NOT NULL,
    body            bytea NOT NULL
);
[postgres] ALTER TABLE ledger ALTER COLUMN body SET STORAGE EXTERNAL;
-- Not tenant first: a plan made while the table is empty would as soon look up a place here, reading every entry of the tenant.
CREATE INDEX ledger_branch ON ledger (owner, workflow, branch, tenant, seq);
CREATE INDEX ledger_key ON ledger (owner, workflow, idempotency_key, tenant) WHERE idempotency_key IS NOT NULL;

-- Apart from the ledger, so that a save that looks for pending entries looks into a table that is nearly always empty.
-- Committed: has a receipt. Failed: has a failure, and still the delta.
CREATE TABLE ticket (
    seq        bigint PRIMARY KEY,
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    branch     text NOT NULL,
    secret     bytea NOT NULL,
    settled_at bigint NOT NULL,
    receipt    bytea,
    failure    text,
    codec      integer,
    size       bigint,
    digest     bytea,
    body       bytea,
    CHECK ((receipt IS NULL) <> (failure IS NULL))
);
[postgres] ALTER TABLE ticket ALTER COLUMN body SET STORAGE EXTERNAL;

-- Collection: who may collect, what past passes found, sessions, uploads on their way out, and what failed.

-- One row. The number of the newest pass is also the fence: whoever finds another number than his own has lost the lease.
-- A migration that adds a table of roots adds 1 to it, so that no collector goes on that does not know the table.
CREATE TABLE gc (
    one         integer PRIMARY KEY CHECK (one = 1),
    pass        bigint NOT NULL,
    holder      text,
    lease_until bigint NOT NULL
);
[postgres] INSERT INTO gc (one, pass, lease_until) VALUES (1, 0, 0);
[sqlite] INSERT INTO gc (one, pass, lease_until) VALUES (1, 2, 0);

-- What each pass did, over all tenants. Times are the database's.
CREATE TABLE gc_run (
    pass        bigint PRIMARY KEY,
    holder      text NOT NULL,
    started_at  bigint NOT NULL,
    finished_at bigint,
    state       text NOT NULL CHECK (state IN ('running', 'finished', 'aborted')),
    reason      text,
    expired     bigint NOT NULL DEFAULT 0,
    total       bigint NOT NULL DEFAULT 0,
    referenced  bigint NOT NULL DEFAULT 0,
    doomed      bigint NOT NULL DEFAULT 0,
    cleared     bigint NOT NULL DEFAULT 0,
    deleted     bigint NOT NULL DEFAULT 0,
    bytes       bigint NOT NULL DEFAULT 0,
    claimed     bigint NOT NULL DEFAULT 0,
    objects     bigint NOT NULL DEFAULT 0
);

-- What the newest pass that went through found in each tenant: the next one is compared with it.
CREATE TABLE gc_count (
    tenant     integer PRIMARY KEY,
    pass       bigint NOT NULL,
    total      bigint NOT NULL,
    referenced bigint NOT NULL
);

-- Writers that need several transactions: nothing that was doomed since the oldest of them began is deleted.
CREATE TABLE session (
    tenant      integer NOT NULL,
    id          bytea NOT NULL,
    opened_pass bigint NOT NULL,
    touched_at  bigint NOT NULL,
    PRIMARY KEY (tenant, id)
);

-- Requests to collect one upload: never a block. A waiting one is somebody's until visible_at has passed.
CREATE TABLE gc_failure (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     integer NOT NULL,
    upload     bytea NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('commit', 'delete')),
    state      text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'dead')),
    attempts   integer NOT NULL DEFAULT 0,
    visible_at bigint NOT NULL,
    created_at bigint NOT NULL,
    error      text,
    UNIQUE (tenant, upload)
);
CREATE INDEX gc_failure_waiting ON gc_failure (state, visible_at);

-- Every object that was deleted, and why. Pass 0: outside of a pass.
CREATE TABLE gc_audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pass       bigint NOT NULL,
    at         bigint NOT NULL,
    tenant     integer NOT NULL,
    upload     bytea NOT NULL,
    object_key text NOT NULL,
    size       bigint NOT NULL,
    reason     text NOT NULL
);

-- Threads of LangGraph: which version each checkpoint is, what tasks wrote since, and what is left of workflows that were removed.

-- Names and ids are ordered by their bytes, whatever the database's language is: the greatest id is the newest.
-- A checkpoint is a version of the branch that stands for its namespace; a copy's is a version of the thread it was copied from. Its row
-- is a root by itself, so that it outlives the version's own row. `metadata` repeats what the version says, so that history needs no blocks.
CREATE TABLE thread_checkpoint (
    tenant        integer NOT NULL,
    owner         text COLLATE "C" NOT NULL,
    thread        text COLLATE "C" NOT NULL,
    branch        text COLLATE "C" NOT NULL,
    checkpoint    text COLLATE "C" NOT NULL,
    namespace     text NOT NULL,
    parent        text,
    manifest      bytea NOT NULL,
    run           text,
    metadata_kind text NOT NULL,
    metadata      bytea NOT NULL,
    -- What a version that was gone back to calls itself, so that its tasks keep their ids: the id of the checkpoint that it repeats, with
    -- dashes behind it.
    alias         text COLLATE "C",
    -- Which run stored it, so that another one that read the same is told.
    writer        text,
    -- Which channels it does not hold whole, as a list in JSON, so that what they are made of is kept; NULL: that is not known.
    deltas        text,
    PRIMARY KEY (tenant, owner, thread, branch, checkpoint)
);
-- The newest of all threads first.
CREATE INDEX thread_checkpoint_newest ON thread_checkpoint (owner, tenant, checkpoint);
-- What the collector reads, and how one finds out whether a version is a checkpoint.
CREATE INDEX thread_checkpoint_manifest ON thread_checkpoint (manifest, tenant);
CREATE INDEX thread_checkpoint_run ON thread_checkpoint (run, owner, tenant) WHERE run IS NOT NULL;
CREATE INDEX thread_checkpoint_alias ON thread_checkpoint (alias, owner, tenant) WHERE alias IS NOT NULL;

-- What a task wrote on top of a checkpoint, which may be stored later than this.
CREATE TABLE thread_write (
    tenant     integer NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    thread     text COLLATE "C" NOT NULL,
    branch     text COLLATE "C" NOT NULL,
    checkpoint text COLLATE "C" NOT NULL,
    task       text COLLATE "C" NOT NULL,
    place      bigint NOT NULL,
    task_path  text COLLATE "C" NOT NULL,
    channel    text NOT NULL,
    kind       text NOT NULL,
    codec      integer NOT NULL,
    size       bigint NOT NULL,
    digest     bytea NOT NULL,
    body       bytea NOT NULL,
    writer     text,
    PRIMARY KEY (tenant, owner, thread, branch, checkpoint, task, place)
);
[postgres] ALTER TABLE thread_write ALTER COLUMN body SET STORAGE EXTERNAL;

-- Branches that were removed with everything they held: where each stood, and the end of its journal.
CREATE TABLE removal (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    removed_at bigint NOT NULL,
    body       bytea NOT NULL,
    hash       bytea NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, hash)
);

-- Items: what graphs remember across threads, by namespace and key.

-- A namespace that has items. Its labels as UTF-8, one after the other with a zero byte between them: byte order is then
-- the order of the tuples, and everything below a namespace is one range. Whoever changes items of a namespace holds its row.
-- Numbers are in the order in which namespaces came to be, and never used again.
CREATE TABLE item_space (
    id        bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    tenant    integer NOT NULL REFERENCES tenant,
    namespace bytea NOT NULL,
    -- The place of the newest item; at least as many as there are items.
    newest    bigint NOT NULL,
    UNIQUE (tenant, namespace)
);

-- Times are the database's. Vectors are doubles, `dimensions` for each text that was indexed.
CREATE TABLE item (
    tenant     integer NOT NULL,
    space      bigint NOT NULL REFERENCES item_space,
    key        text NOT NULL,
    place      bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    ttl        bigint,
    expires_at bigint,
    dimensions integer,
    value      bytea NOT NULL,
    vectors    bytea,
    PRIMARY KEY (tenant, space, key),
    UNIQUE (tenant, space, place),
    CHECK ((ttl IS NULL) = (expires_at IS NULL)),
    CHECK ((dimensions IS NULL) = (vectors IS NULL))
);
CREATE INDEX item_expiry ON item (tenant, expires_at) WHERE expires_at IS NOT NULL;

-- Executions that are over: what was released stays released, and no payload of theirs can be made any more.
CREATE TABLE payload_end (
    tenant    integer NOT NULL,
    owner     text NOT NULL,
    workflow  text NOT NULL,
    execution text NOT NULL,
    ended_at  bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, execution)
);
CREATE INDEX payload_end_age ON payload_end (tenant, ended_at);

-- Entities: their raw versions, what these were compiled to, and how they are found; contracts; who makes versions.

-- Every version of every contract, as canonical JSON.
CREATE TABLE contract (
    id        text COLLATE "C" NOT NULL,
    version   text COLLATE "C" NOT NULL,
    kind      text NOT NULL,
    status    text NOT NULL,
    body      bytea NOT NULL,
    checksum  text NOT NULL,
    loaded_at bigint NOT NULL,
    PRIMARY KEY (id, version)
);

-- Who makes versions under which node number. Times are the database's.
CREATE TABLE node_lease (
    node        integer PRIMARY KEY CHECK (node BETWEEN 0 AND 1023),
    holder      text NOT NULL,
    lease_until bigint NOT NULL,
    -- The newest version that was made under this number, as far as is known.
    newest      bigint NOT NULL
);

-- An entity by a number that other tables use. One without newest_raw is a placeholder: something refers to it, and it does not exist.
-- Whoever writes a version, or compiles one, holds this row.
CREATE TABLE entity (
    id              bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    tenant          integer NOT NULL REFERENCES tenant,
    type            text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,
    newest_raw      bigint,
    -- Repeats the newest raw version's hash, so that ingest needs this row only.
    newest_hash     bytea,
    newest_compiled bigint,
    serving_version bigint,
    ship_seq        bigint NOT NULL DEFAULT 0,
    -- Counts compiles that wrote something: whoever read slices finds out by it whether they are still these.
    compile_seq     bigint NOT NULL DEFAULT 0,
    -- By which rules each entity was compiled as it is served: how many an index does not know yet is counted without looking at the others.
    served_rules    text COLLATE "C",
    UNIQUE (tenant, type, key)
);
-- What the collector reads, a page at a time.
CREATE INDEX entity_number ON entity (tenant, id);
CREATE INDEX entity_served_rules ON entity (tenant, type, served_rules) WHERE served_rules IS NOT NULL;

-- A version of an entity as it came. A deleted one has no root and no schema.
CREATE TABLE raw (
    entity         bigint NOT NULL,
    version        bigint NOT NULL,
    hash           bytea NOT NULL,
    schema_id      text,
    schema_version text,
    root           bytea,
    size           bigint NOT NULL,
    created_at     bigint NOT NULL,
    PRIMARY KEY (entity, version)
);

-- One compile of a version; the same version compiled again, to something else, is another revision.
CREATE TABLE compile (
    entity          bigint NOT NULL,
    version         bigint NOT NULL,
    revision        bigint NOT NULL,
    ruleset_id      text NOT NULL,
    ruleset_version text NOT NULL,
    fingerprint     text NOT NULL,
    mode            text NOT NULL,
    -- JSON: each slice type that the version has, with what the slice was made of: [entity type, id, slice type, hash] each.
    dependencies    text NOT NULL,
    created_at      bigint NOT NULL,
    PRIMARY KEY (entity, version, revision)
);

-- What a slice became. A row is valid from its own (version, revision) up to the next of the same type.
CREATE TABLE slice (
    entity    bigint NOT NULL,
    type      text COLLATE "C" NOT NULL,
    version   bigint NOT NULL,
    revision  bigint NOT NULL,
    hash      bytea,
    root      bytea,
    -- Why there is no slice, instead of hash and root.
    tombstone text,
    detail    text,
    PRIMARY KEY (entity, type, version, revision),
    CHECK ((root IS NULL) = (hash IS NULL) AND (root IS NULL) = (tombstone IS NOT NULL))
);

-- What the newest compiled version of an entity can be found by, and which entity it names.
CREATE TABLE index_entry (
    tenant      integer NOT NULL,
    entity_type text COLLATE "C" NOT NULL,
    index_type  text COLLATE "C" NOT NULL,
    value       text COLLATE "C" NOT NULL,
    entity      bigint NOT NULL,
    target      bigint,
    -- While a version that is compiled waits to be served, an entity has the entries of both: 0 is of both, 1 of the newest compiled version only,
    -- 2 of the served one only. Readers are given 0 and 2; whoever looks for dependants takes all.
    waiting     smallint NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX index_entry_of_entity ON index_entry (entity, index_type, value, coalesce(target, 0));
CREATE INDEX index_entry_value ON index_entry (value, index_type, entity_type, tenant, entity);
CREATE INDEX index_entry_target ON index_entry (target, entity) WHERE target IS NOT NULL;

-- Workspaces, the operation that each is in the middle of, and the archives that were made of them.

-- operation is the lock: whoever moves it away from NONE adds 1 to the fence, and writes only for as long as that is his. What a
-- worker that died began is taken over, fence and all, after lease_until. Times are the database's.
CREATE TABLE workspace (
    tenant      integer NOT NULL,
    id          text COLLATE "C" NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    volume      text NOT NULL,
    status      text NOT NULL CHECK (status IN ('PENDING', 'COLD', 'WARM', 'RUNNING', 'ERROR', 'DELETED')),
    operation   text NOT NULL CHECK (operation IN (
        'NONE', 'INITIALIZING', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING', 'DELETING'
    )),
    -- How the operation is to end, where its name does not say.
    intent      text,
    -- Of the newest operation that archives.
    op_id       text COLLATE "C",
    -- The archive that the workspace has; the key is that of its commit marker.
    archive_op  text COLLATE "C",
    archive_key text,
    fence       bigint NOT NULL,
    holder      text,
    lease_until bigint NOT NULL,
    error       text,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    deleted_at  bigint,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX workspace_busy ON workspace (tenant, lease_until) WHERE operation <> 'NONE';
-- The order in which an object store lists the folders of workspaces: `a-b/` comes before `a/`.
CREATE INDEX workspace_folder ON workspace (tenant, (id || '/'));

-- One archive: everything below {workspace}/{op_id}. A claimed one belongs to the collector: nobody finishes it or goes back to it.
CREATE TABLE archive_unit (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     integer NOT NULL,
    workspace  text COLLATE "C" NOT NULL,
    op_id      text COLLATE "C" NOT NULL,
    state      text NOT NULL CHECK (state IN ('writing', 'kept', 'claimed')),
    format     integer,
    sha256     text,
    size       bigint,
    files      bigint,
    bytes      bigint,
    -- Of format 2: the block of its index, which leads to all others.
    root       bytea,
    created_at bigint NOT NULL,
    kept_at    bigint,
    claimed_at bigint,
    UNIQUE (tenant, workspace, op_id)
);
CREATE INDEX archive_unit_roots ON archive_unit (tenant, number) WHERE state = 'kept';

-- Collecting archives: who collects a tenant's, and since when which of them have been nobody's.

-- The lease of one tenant's collector, with its fence: whoever takes it adds 1 to pass. Times are the database's.
CREATE TABLE archive_gc (
    tenant      integer PRIMARY KEY,
    pass        bigint NOT NULL,
    holder      text,
    lease_until bigint NOT NULL,
    started_at  bigint NOT NULL,
    -- What the newest pass that went through found: the next one is compared with it.
    needed      bigint
);

-- A unit, as `workspace/op_id/`, that a pass found to be nobody's; gone when it is somebody's again, or deleted.
CREATE TABLE archive_mark (
    tenant                integer NOT NULL,
    unit                  text COLLATE "C" NOT NULL,
    first_orphan_detected bigint NOT NULL,
    pass                  bigint NOT NULL,
    PRIMARY KEY (tenant, unit)
) WITHOUT ROWID;

-- Shipping: how channels are, and what each sink was sent.

-- How a channel is doing, for all workers. One that rests is left alone, whatever it has to deliver. Times are the database's.
CREATE TABLE channel (
    name       text COLLATE "C" PRIMARY KEY,
    rest_until bigint NOT NULL DEFAULT 0,
    -- How often in a row nothing could be delivered; 0: it is well.
    failures   bigint NOT NULL DEFAULT 0,
    -- Since when.
    since      bigint,
    reason     text,
    -- When the next delivery of a channel with a rate may begin.
    next_at    bigint NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- What a sink was sent: of each document the newest state that the sink is known to have, by the entity's ship_seq. `place` tells
-- documents of one id apart where the rule's target does, by tenant or entity type; otherwise it is ''. Whose document it is never
-- changes: another entity of the same document id is refused. It is written down before the first state is shipped, with the ship_seq -1.
CREATE TABLE sink_state (
    sink       text COLLATE "C" NOT NULL,
    place      text COLLATE "C" NOT NULL,
    doc_id     text COLLATE "C" NOT NULL,
    tenant     integer NOT NULL,
    entity     bigint NOT NULL,
    version    bigint NOT NULL,
    ship_seq   bigint NOT NULL,
    deleted    boolean NOT NULL,
    shipped_at bigint NOT NULL,
    PRIMARY KEY (sink, place, doc_id)
) WITHOUT ROWID WITH (fillfactor = 70);
CREATE INDEX sink_state_of_entity ON sink_state (entity, sink);

-- Fanouts: for each entity whose slices others join, how far those others have followed its newest change.

-- The fanout under way, or the last one that there was. It is held by whoever goes on with it, before anything else is.
CREATE TABLE fanout (
    entity      bigint PRIMARY KEY,
    tenant      integer NOT NULL,
    status      text NOT NULL CHECK (status IN ('QUEUED', 'RUNNING', 'DEFERRED', 'DONE')),
    -- The newest version that was told of.
    version     bigint NOT NULL,
    -- How many changes were told, and how many of them the pass under way covers.
    asked       bigint NOT NULL,
    seen        bigint NOT NULL,
    -- Grows with every page, and never begins anew: an event that says to go on names the step that it is meant for.
    step        bigint NOT NULL,
    passes      bigint NOT NULL,
    -- JSON: how far each dependency is, and its counts.
    progress    text NOT NULL,
    affected    bigint NOT NULL,
    processed   bigint NOT NULL,
    skipped     bigint NOT NULL,
    failed      bigint NOT NULL,
    -- Why a part of it is left for later.
    alert       text,
    priority    integer NOT NULL,
    started_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    finished_at bigint
);
-- Those under way, and those with an alert, a page at a time.
CREATE INDEX fanout_under_way ON fanout (entity) WHERE finished_at IS NULL;
CREATE INDEX fanout_alerts ON fanout (entity) WHERE alert IS NOT NULL;
-- By age, for housekeeping.
CREATE INDEX fanout_finished ON fanout (finished_at) WHERE finished_at IS NOT NULL;

-- Deploys: documents on their way from the ingest to readers and sinks, each with the history of its states.

-- Which of the states may follow which is in catalog/deploy_states.py; every move compares the state that it leaves. Times are of whoever
-- writes. A deploy that is over has finished_at; a retry takes it away again.
CREATE TABLE deploy (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          integer NOT NULL REFERENCES tenant,
    id              text COLLATE "C" NOT NULL,
    entity          bigint NOT NULL,
    version         bigint NOT NULL,
    -- Whether the version was made for this deploy: if not, the newest one had the same content.
    created         boolean NOT NULL,
    state           text NOT NULL CHECK (state IN ('QUEUED', 'RUNNING', 'READY', 'SINKING', 'DONE', 'FAILED')),
    compiling       text NOT NULL CHECK (compiling IN ('sync', 'async')),
    -- JSON list of ids of sink rules; NULL: every one that matches.
    ship            text,
    cutover         text NOT NULL CHECK (cutover IN ('ready', 'done')),
    -- 1, and one more for every retry.
    attempt         integer NOT NULL DEFAULT 1,
    -- The event that has it compiled.
    event           text NOT NULL,
    -- The count of what the entity ships when it was compiled.
    ship_seq        bigint,
    -- Whether its version came to be served by it or before it; the newer version, where that was not to be.
    served          boolean NOT NULL DEFAULT false,
    superseded_by   bigint,
    -- JSON: why it failed; what the compile did and which sinks it asked.
    error           text,
    report          text,
    idempotency_key text COLLATE "C",
    fingerprint     bytea,
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL,
    finished_at     bigint,
    -- In this order: ids are also looked up without a tenant.
    UNIQUE (id, tenant)
);
CREATE UNIQUE INDEX deploy_idempotency ON deploy (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX deploy_listed ON deploy (tenant, number);
CREATE INDEX deploy_of_entity ON deploy (entity, number);
CREATE INDEX deploy_in_state ON deploy (tenant, state, number);
CREATE INDEX deploy_open ON deploy (entity, number) WHERE finished_at IS NULL;
CREATE INDEX deploy_finished ON deploy (finished_at) WHERE finished_at IS NOT NULL;

-- A sink that a deploy waits for, or waited for. `answered_seq` is what it had taken when it answered.
CREATE TABLE deploy_sink (
    deploy       bigint NOT NULL,
    rule         text COLLATE "C" NOT NULL,
    state        text NOT NULL CHECK (state IN ('WAITING', 'ANSWERED', 'FAILED')),
    ship_seq     bigint NOT NULL,
    answered_seq bigint,
    reason       text,
    asked_at     bigint NOT NULL,
    answered_at  bigint,
    PRIMARY KEY (deploy, rule)
) WITHOUT ROWID;

-- Every transition there was.
CREATE TABLE deploy_step (
    deploy  bigint NOT NULL,
    place   integer NOT NULL,
    before  text,
    state   text NOT NULL,
    attempt integer NOT NULL,
    reason  text,
    at      bigint NOT NULL,
    PRIMARY KEY (deploy, place)
) WITHOUT ROWID;

-- Backfills: work on a whole scope of entities that outlives whoever does it.

-- One that runs has a holder; whoever takes it over raises the fence, and what an earlier holder writes is refused. Times are the
-- database's.
CREATE TABLE backfill (
    number      bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    tenant      integer NOT NULL REFERENCES tenant,
    id          text COLLATE "C" NOT NULL UNIQUE,
    kind        text NOT NULL CHECK (kind IN ('raw_to_slice', 'slice_to_sink', 'full', 'dead_letters')),
    -- JSON: what it goes through, how, and what was known when it was planned.
    scope       text NOT NULL,
    options     text NOT NULL,
    plan        text NOT NULL,
    state       text NOT NULL CHECK (state IN ('PLANNED', 'RUNNING', 'PAUSED', 'CANCELLED', 'DONE', 'FAILED')),
    -- Why it failed, or who paused it.
    reason      text,
    fence       bigint NOT NULL DEFAULT 0,
    holder      text,
    lease_until bigint,
    created_at  bigint NOT NULL,
    started_at  bigint,
    finished_at bigint
);
CREATE INDEX backfill_listed ON backfill (tenant, number);

-- A range of entities, by their numbers, that one worker at a time goes through in order. Everything up to the cursor is done and counted;
-- it moves in the transaction that does it, and only from the step that the worker saw. Each entity moves its shard.
CREATE TABLE backfill_shard (
    backfill   bigint NOT NULL,
    shard      bigint NOT NULL,
    -- Those of a level begin when all below are finished: what is joined comes first.
    level      bigint NOT NULL,
    type       text COLLATE "C" NOT NULL,
    first      bigint NOT NULL,
    last       bigint NOT NULL,
    total      bigint NOT NULL,
    -- JSON: an entity's number and version, or a lane.
    cursor     text NOT NULL,
    step       bigint NOT NULL DEFAULT 0,
    finished   boolean NOT NULL DEFAULT false,
    done       bigint NOT NULL DEFAULT 0,
    changed    bigint NOT NULL DEFAULT 0,
    slices     bigint NOT NULL DEFAULT 0,
    tombstones bigint NOT NULL DEFAULT 0,
    requested  bigint NOT NULL DEFAULT 0,
    failed     bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (backfill, shard)
) WITHOUT ROWID WITH (fillfactor = 50);

-- The first few that failed in each shard.
CREATE TABLE backfill_error (
    backfill bigint NOT NULL,
    shard    bigint NOT NULL,
    step     bigint NOT NULL,
    place    bigint NOT NULL,
    entity   text NOT NULL,
    kind     text NOT NULL,
    reason   text NOT NULL,
    PRIMARY KEY (backfill, shard, step, place)
) WITHOUT ROWID;

-- State sources: how far each has followed each branch, and what became of its newest state.
CREATE TABLE state_source (
    tenant         integer NOT NULL REFERENCES tenant,
    owner          text COLLATE "C" NOT NULL,
    workflow       text COLLATE "C" NOT NULL,
    branch         text COLLATE "C" NOT NULL,
    -- The id of the contract.
    source         text COLLATE "C" NOT NULL,
    -- The branch's first version: a branch may be removed, and another of its name begun.
    first_manifest bytea NOT NULL,
    version        bigint NOT NULL,
    -- The entity that the branch became last, if it ever did.
    entity_type    text COLLATE "C",
    entity_id      text COLLATE "C",
    -- SHA-256 of what was taken of the state last.
    taken          bytea,
    -- Why the state at this version became no entity.
    problem        text,
    updated_at     bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, branch, source)
) WITHOUT ROWID;
CREATE INDEX state_source_problem ON state_source (tenant, source, owner, workflow, branch) WHERE problem IS NOT NULL;

-- Runs of workflows: where each stands, what its segments and tasks came to, and which effects were begun and done; queues with limits, and
-- schedules.

-- Whoever works on a run is its holder; whoever takes it over raises the fence, and what an earlier holder writes is refused. due_at is when
-- somebody has to look: for a run with a holder, when its lease is over. Times are the database's. Each segment moves its run.
CREATE TABLE run (
    number          bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    tenant          integer NOT NULL REFERENCES tenant,
    execution       text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    workflow        text COLLATE "C" NOT NULL,
    branch          text COLLATE "C" NOT NULL,
    -- What the document calls itself, and the hash of that.
    name            text NOT NULL,
    document        bytea NOT NULL,
    -- The version that it began with, and the one that it stands on.
    born            bytea NOT NULL,
    head            bytea NOT NULL,
    status          text NOT NULL CHECK (status IN ('PENDING', 'RUNNING', 'WAITING_HUMAN', 'COMPLETED', 'FAILED', 'CANCELLED')),
    -- JSON.
    position        text NOT NULL,
    waiting         text,
    error           text,
    options         text NOT NULL,
    incarnation     bigint NOT NULL,
    fence           bigint NOT NULL,
    holder          text,
    due_at          bigint,
    -- When the run as a whole has to be over.
    deadline        bigint,
    idempotency_key text COLLATE "C",
    fingerprint     bytea NOT NULL,
    queue           text COLLATE "C" NOT NULL,
    priority        bigint NOT NULL,
    created_at      bigint NOT NULL,
    updated_at      bigint NOT NULL,
    ended_at        bigint,
    -- The run that began this one and waits for it.
    parent          bigint,
    -- When somebody first took it, and how long it may take from then on: its deadline, once it has begun.
    begun_at        bigint,
    time_limit      bigint
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX run_execution ON run (tenant, execution);
CREATE UNIQUE INDEX run_key ON run (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX run_workflow ON run (tenant, workflow, number);
CREATE INDEX run_status ON run (tenant, status, number);
CREATE INDEX run_ended ON run (tenant, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX run_parent ON run (parent) WHERE parent IS NOT NULL;
-- Runs of no queue are looked for by when they are due; those of a queue, in the order of their lane, so that what waits costs nobody anything.
-- What a run that has begun waits for goes with those that have begun. Every run of a queue is in one of the two indexes, so that they also
-- say whether a lane is in use.
CREATE INDEX run_due ON run (due_at) WHERE due_at IS NOT NULL AND queue = '';
CREATE INDEX run_queued ON run (tenant, queue, priority, due_at, number)
    WHERE queue <> '' AND status = 'PENDING' AND parent IS NULL;
CREATE INDEX run_begun ON run (tenant, queue, priority, due_at, number)
    WHERE queue <> '' AND (status <> 'PENDING' OR parent IS NOT NULL);
-- Who has a place in a queue: whoever holds a run, until the lease is over.
CREATE INDEX run_held ON run (tenant, queue, due_at) WHERE holder IS NOT NULL AND queue <> '';

-- One segment that was executed, or is being waited for. The position is that before it ran.
CREATE TABLE run_segment (
    run         bigint NOT NULL,
    incarnation bigint NOT NULL,
    seq         bigint NOT NULL,
    segment     text COLLATE "C" NOT NULL,
    place       bigint NOT NULL,
    iteration   bigint NOT NULL,
    position    text NOT NULL,
    status      text NOT NULL CHECK (status IN ('CONTINUE', 'COMPLETE', 'PAUSED', 'FAILED')),
    input       bytea NOT NULL,
    output      bytea NOT NULL,
    attempts    bigint NOT NULL,
    error       text,
    started_at  bigint NOT NULL,
    ended_at    bigint NOT NULL,
    PRIMARY KEY (run, incarnation, seq)
) WITHOUT ROWID;

-- What a branch or an item of a segment came to.
CREATE TABLE run_task (
    run         bigint NOT NULL,
    incarnation bigint NOT NULL,
    seq         bigint NOT NULL,
    item        bigint NOT NULL,
    status      text NOT NULL CHECK (status IN ('DONE', 'FAILED')),
    -- The tree of its result.
    root        bytea,
    error       text,
    attempts    bigint NOT NULL,
    PRIMARY KEY (run, incarnation, seq, item)
) WITHOUT ROWID;

-- Something that a run does outside of its own commits: begun (intent), and done or failed. A small result stands here, a larger one is a tree.
CREATE TABLE effect (
    run         bigint NOT NULL,
    incarnation bigint NOT NULL,
    key         text COLLATE "C" NOT NULL,
    state       text NOT NULL CHECK (state IN ('intent', 'done', 'failed')),
    result      bytea,
    body        bytea,
    attempts    bigint NOT NULL,
    begun_at    bigint NOT NULL,
    ended_at    bigint,
    PRIMARY KEY (run, incarnation, key)
) WITHOUT ROWID;

-- The limits of a queue; one that has none has no row. `started` counts the runs that were begun under a rate.
CREATE TABLE run_queue (
    tenant      integer NOT NULL REFERENCES tenant,
    name        text COLLATE "C" NOT NULL,
    -- How many runs may be worked on at a time.
    concurrency bigint,
    -- How many may begin within a period, in microseconds.
    rate        bigint,
    period      bigint,
    started     bigint NOT NULL,
    updated_at  bigint NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- When the last runs of a queue with a rate began: no more of them than the rate counts.
CREATE TABLE run_start (
    tenant integer NOT NULL,
    queue  text COLLATE "C" NOT NULL,
    seq    bigint NOT NULL,
    at     bigint NOT NULL,
    PRIMARY KEY (tenant, queue, seq)
) WITHOUT ROWID;

-- The priorities that the runs of a queue have, or had.
CREATE TABLE run_lane (
    tenant   integer NOT NULL,
    queue    text COLLATE "C" NOT NULL,
    priority bigint NOT NULL,
    PRIMARY KEY (tenant, queue, priority)
) WITHOUT ROWID;

-- What is to be run when. next_at is the next tick, look_at when somebody has to look, which is later after something went wrong. A revision is
-- another definition.
CREATE TABLE schedule (
    tenant     integer NOT NULL REFERENCES tenant,
    name       text COLLATE "C" NOT NULL,
    -- JSON.
    document   text NOT NULL,
    definition text NOT NULL,
    revision   bigint NOT NULL,
    paused     bigint NOT NULL,
    next_at    bigint,
    look_at    bigint,
    last_at    bigint,
    error      text,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE INDEX schedule_look ON schedule (look_at) WHERE look_at IS NOT NULL;

-- The database's clock: microseconds since 1970-01-01Z; SQLite counts milliseconds.
[sqlite] CREATE VIEW moment AS SELECT CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer) * 1000 AS us;
CREATE FUNCTION analemma_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Functions, which only PostgreSQL has.

-- Called where a commit finds that it must not happen, inside its one statement: raising is what undoes the rest of it.
CREATE FUNCTION analemma_abort(code text, reason text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = reason;
END
$$;

-- The two statements of delivery are functions because of their settings. What a planner knows of a queue is what it was a while ago, and a
-- plan that sorts everything that is due, or reads every lane there is, makes a claim cost what the backlog is. With these settings a claim
-- walks down the index of what is due and stops, whatever the statistics say.
CREATE FUNCTION analemma_now(given bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(given, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

-- Leases lanes that are due and free, and answers the first rows of each. A lane that somebody is writing to is passed over, unless the
-- caller has waited for it and holds its lock already. Rows are read when the lanes are locked, and are always the first of their lane: what
-- is committed later comes with the next claim, because finishing looks at the lane as it is then. With `calm`, nothing is taken that a dead
-- worker left.
CREATE FUNCTION analemma_claim_lanes(
    given_now bigint, one_tenant bigint, most_lanes bigint, most_rows bigint, lease bigint, calm boolean,
    one_channel text
)
RETURNS TABLE (
    tenant integer, aggregatetype text, aggregateid text, fence bigint, done_seq bigint, last_seq bigint, suspect boolean,
    reclaimed boolean, id text, seq bigint, type text, payload bytea, idempotency_key text, priority integer, status text,
    attempts integer, created_at bigint, trace text
)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    moment bigint := analemma_now(given_now);
    tenants integer[];
    types text[];
    ids text[];
    overdue boolean[];
BEGIN
    -- Twice, for the sake of an index each.
    IF one_tenant IS NULL THEN
        SELECT array_agg(free.tenant), array_agg(free.aggregatetype), array_agg(free.aggregateid), array_agg(free.reclaimed)
        INTO tenants, types, ids, overdue
        FROM (
            SELECT lane.tenant, lane.aggregatetype, lane.aggregateid, lane.lease_until IS NOT NULL AS reclaimed
            FROM lane
            WHERE channel = one_channel AND due_at IS NOT NULL AND NOT parked AND due_at <= moment
              AND (lease_until IS NULL OR lease_until <= moment)
              AND NOT (calm AND (lane.suspect OR lease_until IS NOT NULL))
            ORDER BY lane.priority, lane.due_at
            LIMIT most_lanes
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS free;
    ELSE
        SELECT array_agg(free.tenant), array_agg(free.aggregatetype), array_agg(free.aggregateid), array_agg(free.reclaimed)
        INTO tenants, types, ids, overdue
        FROM (
            SELECT lane.tenant, lane.aggregatetype, lane.aggregateid, lane.lease_until IS NOT NULL AS reclaimed
            FROM lane
            WHERE channel = one_channel AND due_at IS NOT NULL AND NOT parked AND due_at <= moment
              AND (lease_until IS NULL OR lease_until <= moment)
              AND NOT (calm AND (lane.suspect OR lease_until IS NOT NULL)) AND lane.tenant = one_tenant::integer
            ORDER BY lane.priority, lane.due_at
            LIMIT most_lanes
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS free;
    END IF;
    IF tenants IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH claimed AS (
        UPDATE lane SET fence = lane.fence + 1, lease_until = moment + lease
        FROM unnest(tenants, types, ids, overdue) AS picked (tenant, aggregatetype, aggregateid, reclaimed)
        WHERE lane.tenant = picked.tenant AND lane.aggregatetype = picked.aggregatetype AND lane.aggregateid = picked.aggregateid
        RETURNING lane.tenant, lane.aggregatetype, lane.aggregateid, lane.fence, lane.done_seq, lane.next_seq - 1 AS last_seq,
                  lane.suspect, picked.reclaimed
    ), share AS MATERIALIZED (
        SELECT greatest(1, most_rows / greatest(1, count(*))) AS rows FROM claimed
    )
    SELECT claimed.*, event.*
    FROM claimed LEFT JOIN LATERAL (
        SELECT outbox.id, outbox.seq, outbox.type, outbox.payload, outbox.idempotency_key, outbox.priority, outbox.status,
               outbox.attempts, outbox.created_at, outbox.trace
        FROM outbox
        WHERE outbox.tenant = claimed.tenant AND outbox.aggregatetype = claimed.aggregatetype
          AND outbox.aggregateid = claimed.aggregateid AND outbox.seq > claimed.done_seq
        ORDER BY outbox.seq
        LIMIT CASE WHEN claimed.suspect OR claimed.reclaimed THEN 1 ELSE (SELECT rows FROM share) END
    ) AS event ON true;
END
$$;

-- Settles what was handled of each lane, writes down what failed, and gives the lane back: one statement, guarded by each lane's fence. What
-- remains is read off the lane as it is now, so that no row that came meanwhile is forgotten. Answers the places of the lanes that it found,
-- whether they are due again, and how far they are settled now; one that somebody is writing to is left for later, unless the caller has
-- waited for it and holds its lock already. A failure is written only if its row was not settled after all.
CREATE FUNCTION analemma_finish_lanes(
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

-- Whether a channel, perhaps of one tenant only, has a lane that is due and free. A function because of its settings, like the claim itself:
-- however many lanes wait in other channels, and whatever is known of them, it looks into an index and no further than the first.
CREATE FUNCTION analemma_is_due(given_now bigint, one_tenant bigint, one_channel text) RETURNS boolean
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    IF one_tenant IS NULL THEN
        RETURN EXISTS (
            SELECT FROM lane
            WHERE channel = one_channel AND due_at IS NOT NULL AND NOT parked AND due_at <= given_now
              AND (lease_until IS NULL OR lease_until <= given_now)
        );
    END IF;
    RETURN EXISTS (
        SELECT FROM lane
        WHERE tenant = one_tenant::integer AND channel = one_channel AND due_at IS NOT NULL AND NOT parked AND due_at <= given_now
          AND (lease_until IS NULL OR lease_until <= given_now)
    );
END
$$;

-- Channels that have something to deliver now and do not rest, and how often in a row each could not deliver. Goes from one channel to the
-- next, whatever they hold.
CREATE FUNCTION analemma_due_channels(given_now bigint, one_tenant bigint) RETURNS TABLE (name text, failures bigint)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    found_name text := '';
    state record;
BEGIN
    LOOP
        SELECT lane.channel INTO found_name FROM lane
        WHERE due_at IS NOT NULL AND NOT parked AND lane.channel > found_name ORDER BY lane.channel LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT channel.failures, channel.rest_until INTO state FROM channel WHERE channel.name = found_name;
        IF coalesce(state.rest_until, 0) <= given_now AND analemma_is_due(given_now, one_tenant, found_name) THEN
            name := found_name;
            failures := coalesce(state.failures, 0);
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
