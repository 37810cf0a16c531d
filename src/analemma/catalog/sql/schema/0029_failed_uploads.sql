-- What failed of an upload stands in its own row: why it was claimed, what went wrong, how often deleting its object was tried, and when that may be
-- tried again. Requests that waited for this in a table of their own move here; an intent whose commit failed is claimed by that.

ALTER TABLE upload ADD COLUMN reason text;
ALTER TABLE upload ADD COLUMN error text;
ALTER TABLE upload ADD COLUMN attempts bigint NOT NULL DEFAULT 0;
ALTER TABLE upload ADD COLUMN due_at bigint;

UPDATE upload
SET state = 'deleting', claimed_at = failed.created_at, claimed_from = 'temp'
FROM gc_failure AS failed
WHERE failed.tenant = upload.tenant AND failed.upload = upload.id AND failed.kind = 'commit' AND upload.state = 'temp'
  AND NOT EXISTS (SELECT 1 FROM tenant AS any_tenant CROSS JOIN block WHERE block.tenant = any_tenant.id AND block.upload = upload.id);

UPDATE upload
SET reason = CASE WHEN failed.kind = 'commit' AND upload.claimed_from = 'temp' THEN 'commit_failed' END,
    error = coalesce(failed.error, 'unknown'),
    attempts = CASE WHEN failed.state = 'dead' THEN 3 WHEN failed.attempts > 2 THEN 2 ELSE failed.attempts END,
    due_at = failed.visible_at
FROM gc_failure AS failed
WHERE failed.tenant = upload.tenant AND failed.upload = upload.id AND upload.state = 'deleting';

CREATE INDEX upload_failed ON upload (due_at) WHERE error IS NOT NULL;

DROP TABLE gc_failure;
