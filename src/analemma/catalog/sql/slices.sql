-- next_compile --
-- The first compile of the version that follows, among those compiled.
SELECT version, revision, dependencies FROM compile
WHERE entity = :entity AND version > :version
ORDER BY version, revision LIMIT 1

-- own_slices --
-- Which slices were written by exactly this compile.
SELECT type FROM slice WHERE entity = :entity AND version = :version AND revision = :revision

-- newest_slice_revision --
-- The newest revision of a version of which there are slices, whatever compiles there are.
SELECT max(revision) FROM slice WHERE entity = :entity AND version = :version

-- index_entries_of --
-- Everything that an entity can be found by.
SELECT entry.index_type, entry.value, target.type, target.key
FROM index_entry AS entry LEFT JOIN entity AS target ON target.id = entry.target
WHERE entry.entity = :entity AND entry.waiting <> 1
ORDER BY entry.index_type, entry.value, target.type, target.key
