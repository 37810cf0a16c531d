-- schedule --
-- One by its name.
SELECT tenant, name, document, definition, revision, paused, next_at, look_at, last_at, error, created_at, updated_at FROM schedule
WHERE tenant = :tenant AND name = :name

-- schedules --
-- All of a tenant.
SELECT tenant, name, document, definition, revision, paused, next_at, look_at, last_at, error, created_at, updated_at FROM schedule
WHERE tenant = :tenant ORDER BY name

-- drop_schedule --
-- No more ticks; what was begun goes on.
DELETE FROM schedule WHERE tenant = :tenant AND name = :name
