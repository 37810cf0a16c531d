-- A head may name a manifest that the same transaction adds behind it: the head is the first row that a commit locks.
ALTER TABLE head ALTER CONSTRAINT head_owner_workflow_branch_tenant_version_fkey DEFERRABLE INITIALLY DEFERRED;
