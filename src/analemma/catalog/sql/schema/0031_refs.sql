-- What names a version, and so keeps it from expiring: a tag, by a name that is unique in its workflow, or a pin, by the version's own id.

CREATE TABLE ref (
    tenant     integer NOT NULL,
    owner      text NOT NULL,
    workflow   text NOT NULL,
    kind       text NOT NULL,
    name       text NOT NULL,
    branch     text NOT NULL,
    manifest   bytea NOT NULL,
    text       text,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, kind, name),
    FOREIGN KEY (tenant, manifest) REFERENCES manifest (tenant, id)
);
CREATE INDEX ref_manifest ON ref (tenant, manifest);

INSERT INTO ref (tenant, owner, workflow, kind, name, branch, manifest, text, created_at)
SELECT tenant, owner, workflow, 'tag', name, branch, manifest, message, created_at FROM tag;

INSERT INTO ref (tenant, owner, workflow, kind, name, branch, manifest, text, created_at)
[sqlite] SELECT tenant, owner, workflow, 'pin', lower(hex(manifest)), branch, manifest, reason, created_at FROM pin;
[postgres] SELECT tenant, owner, workflow, 'pin', encode(manifest, 'hex'), branch, manifest, reason, created_at FROM pin;

DROP TABLE tag;
DROP TABLE pin;
