-- object_claim --
-- What this catalog knows of its objects' marker.
SELECT id, object_generation, object_token, object_intent, object_claimed FROM store

-- intend_generation --
-- Compare-and-set. An intent that is there stays: whoever recorded it may be about to write it to the marker.
UPDATE store SET object_intent = coalesce(object_intent, :intent)
WHERE object_generation = :generation AND coalesce(object_token, '') = :token  -- guard: owner.intended

-- confirm_generation --
-- The marker says what was intended; no row touched means that somebody else has confirmed it.
UPDATE store
SET object_generation = object_generation + 1, object_token = object_intent, object_intent = NULL, object_claimed = :place
WHERE object_generation = :generation AND object_intent = :intent  -- guard: owner.confirmed

-- adopt_generation --
-- Compare-and-set: go on from the generation of another catalog's marker.
UPDATE store SET object_generation = :generation, object_token = :token, object_intent = :intent
WHERE object_generation = :was AND coalesce(object_token, '') = :was_token  -- guard: owner.adopted

-- object_folders --
-- Every folder in which this catalog may have objects, and for which catalog it was made.
SELECT name, catalog FROM object_folder ORDER BY name

-- add_object_folder --
-- Two programs may begin at once; each may write to its own.
INSERT INTO object_folder (name, catalog) VALUES (:name, :catalog)

-- needed_uploads --
-- The uploads in which blocks of a tenant lie, whatever the rows of uploads say.
SELECT DISTINCT upload FROM block
WHERE tenant = :tenant AND upload IS NOT NULL AND upload > :after
ORDER BY upload LIMIT :limit

-- needed_archives --
-- Every archive that is or may become a workspace's.
SELECT tenant.name, archive_unit.workspace, archive_unit.op_id
FROM archive_unit JOIN tenant ON tenant.id = archive_unit.tenant
WHERE archive_unit.state <> 'claimed'
ORDER BY archive_unit.number

-- forget_uploads --
-- No block lies in them. A writer that has not committed yet hears of it when it does.
DELETE FROM upload
WHERE NOT EXISTS (SELECT 1 FROM tenant JOIN block ON block.tenant = tenant.id AND block.upload = upload.id)

-- detach_objects --
-- Compare-and-set: from now on the objects are elsewhere, or there are none, and no marker was seen there.
UPDATE store
SET objects = :place, object_generation = 0, object_token = NULL, object_intent = NULL, object_claimed = NULL
WHERE coalesce(objects, '') = :before

-- forget_object_folders --
-- What lay below them was copied with the rest.
DELETE FROM object_folder

-- database_oid [postgres] --
-- What tells this store from its copies on the same server, and whether this role may ask for the server's identifier. The first schema goes
-- without saying.
SELECT oid::text || CASE '{schema}' WHEN '"public"' THEN '' ELSE '.' || to_regnamespace('{schema}')::oid::text END,
       has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')
FROM pg_database WHERE datname = current_database()

-- system_identifier [postgres] --
-- What tells this server, with its replicas, from every other.
SELECT system_identifier FROM pg_catalog.pg_control_system()
