-- By which rules each entity was compiled as it is served: how many an index does not know yet is counted without looking at the others.
ALTER TABLE entity ADD COLUMN served_rules text COLLATE "C";
UPDATE entity
SET served_rules = (
    SELECT compile.fingerprint FROM compile
        JOIN raw ON raw.entity = compile.entity AND raw.version = compile.version AND raw.root IS NOT NULL
    WHERE compile.entity = entity.id AND compile.version = entity.serving_version
    ORDER BY compile.revision DESC LIMIT 1
)
WHERE serving_version IS NOT NULL;
CREATE INDEX entity_served_rules ON entity (tenant, type, served_rules) WHERE served_rules IS NOT NULL;
