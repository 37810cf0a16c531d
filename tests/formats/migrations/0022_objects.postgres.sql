-- Where the objects of this store are: NULL until it is first opened with an object store.
ALTER TABLE store ADD COLUMN objects text;
