-- object_claim --
-- What this catalog knows of its objects' marker.
SELECT id, object_generation, object_token, object_intent, object_claimed FROM store

-- intend_generation --
-- Compare-and-set. An intent that is there stays: whoever recorded it may be about to write it to the marker.
UPDATE store SET object_intent = coalesce(object_intent, :intent)
WHERE object_generation = :generation AND coalesce(object_token, '') = :token

-- confirm_generation --
-- The marker says what was intended; no row touched means that somebody else has confirmed it.
UPDATE store
SET object_generation = object_generation + 1, object_token = object_intent, object_intent = NULL, object_claimed = :place
WHERE object_generation = :generation AND object_intent = :intent

-- adopt_generation --
-- Compare-and-set: go on from the generation of another catalog's marker.
UPDATE store SET object_generation = :generation, object_token = :token, object_intent = :intent
WHERE object_generation = :was AND coalesce(object_token, '') = :was_token

-- object_folders --
-- Every folder in which this catalog may have objects, and for which catalog it was made.
SELECT name, catalog FROM object_folder ORDER BY name

-- add_object_folder --
-- Two programs may begin at once; each may write to its own.
INSERT INTO object_folder (name, catalog) VALUES (:name, :catalog)
