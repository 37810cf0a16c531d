-- Executions that are over: what was released stays released, and no payload of theirs can be made any more.

CREATE TABLE payload_end (
    tenant    integer NOT NULL,
    owner     text NOT NULL,
    workflow  text NOT NULL,
    execution text NOT NULL,
    ended_at  integer NOT NULL,
    PRIMARY KEY (tenant, owner, workflow, execution)
);
CREATE INDEX payload_end_age ON payload_end (tenant, ended_at);
