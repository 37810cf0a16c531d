-- Which generation of its objects' marker this catalog has seen, and which it means to write next; 0: none so far.
ALTER TABLE store ADD COLUMN object_generation bigint NOT NULL DEFAULT 0;
ALTER TABLE store ADD COLUMN object_token text;
ALTER TABLE store ADD COLUMN object_intent text;
-- Where that marker was.
ALTER TABLE store ADD COLUMN object_claimed text;

-- Below which folders a catalog that does not own its objects has put objects of its own, and which catalog that was.
CREATE TABLE object_folder (
    name    text NOT NULL PRIMARY KEY,
    catalog text NOT NULL
);
